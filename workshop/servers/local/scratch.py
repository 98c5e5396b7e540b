"""Remove what a server leaves on its machine, but its record and its log.

vLLM's processes talk through sockets without a key, by default in /tmp, and leave them there. Each
server gets a folder of its own instead (mode 0700), which goes when the server goes. Shared memory
has no folder. What Python makes has the folder's tag in its name; other files are noted while the
server's processes have them mapped, as the kernel tells (/proc/PID/maps). Nothing else is removed.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import psutil

from workshop.errors import WorkshopError
from workshop.home import home, private_folder, write_private
from workshop.workarounds import shared_memory_names

VARIABLE = "WORKSHOP_SERVER_FOLDER"
PREFIX = "workshop-"
# bytes: a Unix socket's path (unix(7)), less its name
LONGEST = 107 - len("/01234567-89ab-cdef-0123-456789abcdef")
SHARED_MEMORY = Path("/dev/shm")
# a model that lies in /dev/shm is mapped as well
MADE_BY_ENGINES = "psm_", "sem.mp-", "vllm", "torch_", "nccl-"
NOTES = "shared-memory"
LOOKS = 3  # at a new file: it is mapped at once after it was made, or by others


def make(name: str) -> Path:
    """Return a new folder for the server `name`, and note it; remove what an earlier one left."""
    remove(name)
    folder = new_folder()
    write_private(private_folder("run") / name, str(folder))
    return folder


def new_folder() -> Path:
    """Return a new folder, closed to others, whose path leaves room for a socket's name.

    Raises WorkshopError: none can be made.
    """
    places = ["/tmp"]
    with contextlib.suppress(OSError):  # none can be written
        places.insert(0, tempfile.gettempdir())
    for parent in dict.fromkeys(places):
        if len(os.fsencode(parent)) + len(f"/{PREFIX}12345678") > LONGEST:
            continue
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))  # 0700
    remedy = (
        f"Set TMPDIR to a folder that you may write, with a path of at most {LONGEST - 20} bytes."
    )
    raise WorkshopError(
        f"No folder for the server's sockets can be made in {places[0]} or /tmp.", remedy
    )


def of(name: str) -> Path | None:
    """Return the folder of the server `name`, or None if there is none that is certainly ours."""
    try:
        folder = Path((home() / "run" / name).read_text(encoding="utf-8"))
        status = os.lstat(folder)
    except (OSError, ValueError):
        return None
    ours = (
        os.path.isabs(folder) and folder.name.startswith(PREFIX) and status.st_uid == os.geteuid()
    )
    if not ours or not folder.is_dir() or folder.is_symlink():
        return None
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the variables that put an engine's sockets and temporary files into the folder."""
    return dict.fromkeys((VARIABLE, "TMPDIR", "VLLM_RPC_BASE_PATH"), str(folder))


def remove(name: str) -> None:
    """Remove all that the server `name` left. Its processes have ended."""
    folder = of(name)
    if folder:
        clear(folder)
    with contextlib.suppress(OSError):
        (home() / "run" / name).unlink()


def clear(folder: Path) -> None:
    """Remove a server's folder, and shared memory that is surely its own and that nobody uses."""
    noted = _noted(folder)
    tag = _tag(folder)
    own_files: list[tuple[str, tuple[int, int]]] = []
    for file in _files().items():
        if tag in file[0] or file in noted:
            own_files.append(file)
    if own_files:
        mapped = _mapped_by(psutil.pids())
        for path, identity in own_files:
            if not mapped & {identity, path}:
                with contextlib.suppress(OSError):
                    os.unlink(path)
    shutil.rmtree(folder, ignore_errors=True)


def name_shared_memory() -> None:
    """Put the server's tag into the names of the shared memory that this process creates.

    So its owner is known however the process ends. Does nothing outside a server.
    """
    folder = os.environ.get(VARIABLE)
    if folder:
        shared_memory_names.apply(_tag(Path(folder)))


def _tag(folder: Path) -> str:
    return hashlib.sha256(bytes(folder)).hexdigest()[:12]


class Notes:
    """Notes the shared memory of a server's processes while they live."""

    def __init__(self, folder: Path):
        self._path = folder / NOTES
        # those are older than the server
        self._looked = Counter(dict.fromkeys(_files().values(), LOOKS))

    def take(self, pids: Iterable[int]) -> None:
        """Look at files that are new, and write down those that one of the processes has mapped."""
        new = [file for file in _files().items() if self._looked[file[1]] < LOOKS]
        if not new:
            return
        mapped = _mapped_by(pids)
        for path, identity in new:
            self._looked[identity] += 1
            if mapped & {identity, path}:
                self._looked[identity] = LOOKS
                with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                    file.write(f"{identity[0]} {identity[1]} {path}\n")


def _noted(folder: Path) -> set[tuple[str, tuple[int, int]]]:
    """Return the files that are noted, each with device and inode."""
    noted: set[tuple[str, tuple[int, int]]] = set()
    try:
        text = (folder / NOTES).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return noted
    for line in text.split("\n")[:-1]:  # the last may be cut
        with contextlib.suppress(ValueError):  # a line that is no note
            device, inode, path = line.split(maxsplit=2)
            noted.add((path, (int(device), int(inode))))
    return noted


def _files() -> dict[str, tuple[int, int]]:
    """Return this user's files of the kind that engines make: path to (device, inode)."""
    files = {}
    with contextlib.suppress(OSError), os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if not entry.name.startswith(MADE_BY_ENGINES):
                    continue
                stat = entry.stat(follow_symlinks=False)
                if stat.st_uid == os.geteuid():
                    files[entry.path] = stat.st_dev, stat.st_ino
    return files


def _mapped(pid: int) -> set[tuple[int, int] | str]:
    """Return the shared memory that a process has mapped, as (device, inode) and as path.

    The path alone is not enough: the kernel appends " (deleted)" to that of an unlinked file, as
    semaphores are.
    """
    mapped: set[tuple[int, int] | str] = set()
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                parts = line.rstrip("\n").split(maxsplit=5)
                if len(parts) == 6 and parts[5].startswith(f"{SHARED_MEMORY}/"):
                    major, minor = parts[3].split(":")
                    device = os.makedev(int(major, 16), int(minor, 16))
                    mapped.add((device, int(parts[4])))
                    mapped.add(parts[5])
    except (OSError, ValueError):  # it ended, or is another user's
        pass
    return mapped


def _mapped_by(pids: Iterable[int]) -> set[tuple[int, int] | str]:
    """Return the shared memory that any of the processes has mapped."""
    mapped: set[tuple[int, int] | str] = set()
    for pid in pids:
        mapped |= _mapped(pid)
    return mapped
