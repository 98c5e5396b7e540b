"""`workshop prefetch`: a model on a shared folder, whole and checked, before a job on nodes without internet needs it.

Decides what of a model is needed, refuses a disk that is too small before the first byte, checks every shard
against the index, and says who will see the result. The download itself is in hub.py.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from workshop.errors import BadInput, WorkshopError
from workshop.servers.disk import GIB, left_bytes, quotas, who_sees
from workshop.servers.home import writing
from workshop.servers.progress import Progress
from workshop.servers.weights import check
from workshop.servers.weights import hub as prefetch_hub
from workshop.servers.weights.hub import File, Remote

NEEDED = (
    "*.json",
    "*.safetensors",
    "*.txt",
    "*.model",
    "*.jinja",
    "*.tiktoken",
    "LICENSE*",
    "USE_POLICY*",
)
# of a model whose classes are its own: run by vLLM with --trust-remote-code, and by nobody else
CODE = ("*.py",)
# The same weights again, in other formats.
NEVER = ("original/*", "*.gguf", "*.onnx", "onnx/*", "*.pth", "*.msgpack", "*.h5", "consolidated*")
SPARE_BYTES = 1 * GIB
WATCH_S = 0.5


@dataclass
class Report:
    """What prefetch found: `ok` only if every file is whole."""

    folder: Path
    shards: int
    bytes: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def target_folder(hub: str, to: str | Path) -> Path:
    """Return where the model goes: TO/name, or TO itself if it is called so already."""
    try:
        place = Path(to).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        raise BadInput(
            f"{str(to)[:80]!r} cannot be the name of a folder.", "Give another with --to."
        ) from None
    name = hub.split("/")[-1]
    return place if place.name == name else place / name


def look_up(hub: str, token: str | None = None, *, trust_remote_code: bool = False) -> Remote:
    """Ask the Hub what the model consists of; a WorkshopError as `hub.list_files`.

    trust_remote_code: its Python files, too; else their names alone are kept, in `code`.
    """
    remote = prefetch_hub.list_files(hub, token)
    needed = NEEDED + CODE if trust_remote_code else NEEDED
    kept = [file for file in remote.files if _like(file, needed) and not _like(file, NEVER)]
    if not any(file.name.endswith(".safetensors") for file in kept):
        kept += [file for file in remote.files if fnmatch(file.name, "pytorch_model*.bin")]
    code = [file.name for file in remote.files if _like(file, CODE) and file not in kept]
    return replace(remote, files=tuple(kept), code=tuple(code))


def _like(file: File, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(file.name, pattern) for pattern in patterns)


class NoRoom(WorkshopError):
    """The model does not fit on the disk."""


def refuse_small_disk(remote: Remote, folder: Path) -> None:
    """Refuse before the first byte if the rest of the model does not fit: a system disk of 120 GB cannot hold 70B."""
    missing = sum(file.size for file in remote.files if not file.has_come(folder))
    left = left_bytes(folder)
    if missing + SPARE_BYTES > left:
        limits = "".join(f" ({quota})" for quota in quotas(folder))
        has = f"{folder} has {left / 1e9:.0f} GB free{limits}"
        remedy = "Give a folder with more room (--to): a file system of the project, not the home folder or the system disk."
        raise NoRoom(f"{remote.hub_id} needs {missing / 1e9:.0f} GB more, and {has}.", remedy)


def download(
    remote: Remote,
    folder: Path,
    token: str | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Download what is missing; run again after a break, it goes on where it stopped."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(remote, folder, report, done), daemon=True)
    with writing(folder, prefetch_hub.ROOM):
        folder.mkdir(parents=True, exist_ok=True)
    watcher.start()
    try:
        prefetch_hub.fetch(remote, folder, token)
    finally:
        done.set()
    _let_everybody_read(folder, remote.files)


def _watch(
    remote: Remote, folder: Path, report: Callable[[Progress], None], done: threading.Event
) -> None:
    """Report how many bytes are there, half-loaded files included, until it is done."""
    while not done.wait(WATCH_S):
        have = 0
        for path in (*(folder / file.name for file in remote.files), *folder.rglob("*.part")):
            with contextlib.suppress(OSError):
                have += path.stat().st_size
        said = f"{have / 1e9:.1f} of {remote.bytes / 1e9:.1f} GB, {len(remote.files)} files"
        report(Progress(min(1.0, have / max(1, remote.bytes)), said))


def _let_everybody_read(folder: Path, files: Iterable[File]) -> None:
    """Give others what the folder itself gives them: downloaded shards are often readable by their owner alone."""
    bits = folder.stat().st_mode & 0o055
    places = {
        place for file in files for place in (folder / file.name, *(folder / file.name).parents)
    }
    for path in (place for place in places if folder in place.parents):
        with contextlib.suppress(OSError):
            _open_to_others(path, bits)


def _open_to_others(path: Path, bits: int) -> None:
    """Add these bits to the mode of a folder, or of a file that has no other name.

    What a link leads to, or what has a second name (a hard link), may be somebody's private file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | bits)
        elif stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
            os.fchmod(descriptor, stat.S_IMODE(found.st_mode) | bits & 0o044)
    finally:
        os.close(descriptor)


def verify(
    folder: Path,
    remote: Remote | None = None,
    *,
    checksums: bool = False,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Check that the model is whole: every shard that the index names, of the promised length, with its tensors.

    remote: what the Hub says, if it was asked: then every file's size is compared as well.
    checksums: also compare SHA-256 with the Hub's (reads everything: minutes for a large model).
    """
    shards = check.shards(folder)
    found = Report(folder, len(shards), check.weight_bytes(folder))
    if not (folder / "config.json").is_file():
        found.problems.append(f"There is no config.json in {folder}.")
    if not shards:
        found.problems.append(f"There are no weights in {folder}.")
    expected = check.index(folder)
    for number, path in enumerate(shards):
        report(Progress(number / len(shards), f"checking {path.name}"))
        found.problems += _shard_problems(path, expected.get(path.name))
    for file in remote.files if remote else ():
        path = folder / file.name
        if not path.is_file():
            found.problems.append(f"{file.name} is missing.")
        elif not file.has_come(folder):
            found.problems.append(
                f"{file.name} has {path.stat().st_size} bytes, and the Hub says {file.size}."
            )
        elif checksums and not file.is_whole(path):
            found.problems.append(f"{file.name} has another checksum than on the Hub.")
    found.problems = list(dict.fromkeys(found.problems))
    found.notes.append(who_sees(folder))
    if remote and remote.code:
        found.notes.append(_code_words(remote.code))
    return found


def _code_words(names: tuple[str, ...]) -> str:
    """Say which Python files of a model are left out, and how to get them."""
    shown = ", ".join(names[:4])
    if len(names) > 4:
        shown += ", …"
    count = f"{len(names)} Python files are" if len(names) > 1 else "A Python file is"
    return (
        f"{count} left out: {shown}. vLLM runs them with --trust-remote-code only. "
        "If the model needs that: read them on its page, then `workshop prefetch` with --trust-remote-code."
    )


def _shard_problems(path: Path, expected: set[str] | None) -> list[str]:
    if not path.is_file():
        return [f"{path.name} is missing."]
    if path.suffix != ".safetensors":
        return []
    try:
        held = check.tensors(path)
    except WorkshopError as error:
        return [error.message]
    except OSError as error:
        return [f"{path.name} cannot be read ({error.strerror})."]
    absent = sorted((expected or set()) - held)
    return (
        [f"{path.name} lacks {len(absent)} tensors of the index, {absent[0]} first."]
        if absent
        else []
    )
