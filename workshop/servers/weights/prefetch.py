"""`workshop prefetch`: put a model into a shared folder, complete and checked.

It is for jobs without internet. This module chooses the files that are needed, refuses a disk that
is too small before the first byte, checks every shard against the index, and says who can read the
result. The download itself is in hub.py.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path

from workshop.errors import BadInput, WorkshopError
from workshop.home import writing
from workshop.servers.host.disk import GIB, left_bytes, quotas, who_sees
from workshop.servers.progress import TaskProgress
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
# of a model with classes of its own: vLLM runs them with --trust-remote-code only
CODE = ("*.py",)
SPARE_BYTES = 1 * GIB  # to stay free on the disk
WATCH_S = 0.5


@dataclass
class Report:
    """The result of a check. shards, bytes: of the weight files that are there."""

    folder: Path
    shards: int
    bytes: int
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if every file is complete."""
        return not self.problems


def target_folder(hub: str, to: str | Path) -> Path:
    """Return the model's folder: TO/name, or TO itself if it has that name already.

    Raises BadInput: it cannot be the name of a folder.
    """
    try:
        place = Path(to).expanduser().resolve()
    except (OSError, RuntimeError, ValueError):
        raise BadInput(
            f"{str(to)[:80]!r} cannot be the name of a folder.", "Give another with --to."
        ) from None
    name = hub.split("/")[-1]
    if place.name == name:
        return place
    return place / name


def look_up(hub: str, token: str | None = None, *, trust_remote_code: bool = False) -> Remote:
    """Return the model on the Hub with the files that are needed.

    trust_remote_code: also its Python files; else only their names are returned, in `code`.

    Raises: as `hub.list_files` does.
    """
    remote = prefetch_hub.list_files(hub, token)
    patterns = NEEDED
    if trust_remote_code:
        patterns = NEEDED + CODE
    needed: list[File] = []
    for file in remote.files:
        if _matches(file, patterns) and not _matches(file, check.OTHER_FORMATS):
            needed.append(file)
    if not any(file.name.endswith(".safetensors") for file in needed):
        needed += (file for file in remote.files if _matches(file, ("pytorch_model*.bin",)))
    code: list[str] = []
    for file in remote.files:
        if _matches(file, CODE) and file not in needed:
            code.append(file.name)
    return replace(remote, files=tuple(needed), code=tuple(code))


def _matches(file: File, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(file.name, pattern) for pattern in patterns)


class NoRoom(WorkshopError):
    """The model does not fit on the disk."""


def refuse_small_disk(remote: Remote, folder: Path) -> None:
    """Raise NoRoom if the rest of the model does not fit on the disk or in the user's quota."""
    missing_bytes = sum(file.size for file in remote.files if not file.is_present(folder))
    free_bytes = left_bytes(folder)
    if missing_bytes + SPARE_BYTES <= free_bytes:
        return
    limits = "".join(f" ({quota})" for quota in quotas(folder))
    raise NoRoom(
        f"{remote.hub_id} needs {missing_bytes / 1e9:.0f} GB more, "
        f"and {folder} has {free_bytes / 1e9:.0f} GB free{limits}.",
        "Give a folder with more room (--to): a file system of the project, "
        "not the home folder or the system disk.",
    )


def download(
    remote: Remote,
    folder: Path,
    token: str | None = None,
    report: Callable[[TaskProgress], None] = lambda progress: None,
) -> None:
    """Download what is missing; after a break, the next call resumes where this one stopped."""
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(remote, folder, report, done), daemon=True)
    with writing(folder, prefetch_hub.ROOM):
        folder.mkdir(parents=True, exist_ok=True)
    watcher.start()
    # who may read the folder may read its files
    own_umask = os.umask(0o022 | ~folder.stat().st_mode & 0o777)
    try:
        prefetch_hub.fetch(remote, folder, token)
    finally:
        os.umask(own_umask)
        done.set()


def _watch(
    remote: Remote, folder: Path, report: Callable[[TaskProgress], None], done: threading.Event
) -> None:
    """Report how many bytes are there, partial files included, until `done` is set."""
    while not done.wait(WATCH_S):
        present_bytes = _present_bytes(remote, folder)
        message = (
            f"{present_bytes / 1e9:.1f} of {remote.bytes / 1e9:.1f} GB, {len(remote.files)} files"
        )
        report(TaskProgress(min(1.0, present_bytes / max(1, remote.bytes)), message))


def _present_bytes(remote: Remote, folder: Path) -> int:
    paths = [folder / file.name for file in remote.files]
    paths += folder.rglob("*.part")
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def verify(
    folder: Path,
    remote: Remote | None = None,
    *,
    checksums: bool = False,
    report: Callable[[TaskProgress], None] = lambda progress: None,
) -> Report:
    """Check that every shard of the index is there, of the promised length, with its tensors.

    remote: the model on the Hub, if it was asked: then every file's size is compared as well.
    checksums: also compare SHA-256 with the Hub's (reads everything: minutes for a large model).
    report: is called before each shard.
    """
    problems = list(_weight_problems(folder, report))
    if remote:
        for file in remote.files:
            problems += _file_problems(folder, file, checksums)
    notes = [who_sees(folder)]
    if remote and remote.code:
        notes.append(_code_note(remote.code))
    return Report(
        folder,
        shards=len(check.shards(folder)),
        bytes=check.weight_bytes(folder),
        problems=list(dict.fromkeys(problems)),
        notes=notes,
    )


def _weight_problems(folder: Path, report: Callable[[TaskProgress], None]) -> Iterator[str]:
    """Yield what is wrong with the configuration and the shards, without asking the Hub."""
    shards = check.shards(folder)
    if not (folder / "config.json").is_file():
        yield f"There is no config.json in {folder}."
    if not shards:
        yield f"There are no weights in {folder}."
    tensors = check.index(folder)
    for number, path in enumerate(shards):
        report(TaskProgress(number / len(shards), f"checking {path.name}"))
        yield from _shard_problems(path, tensors.get(path.name, set()))


def _file_problems(folder: Path, file: File, checksums: bool) -> list[str]:
    """Return what is wrong with a file, compared with what the Hub says of it."""
    path = folder / file.name
    if not path.is_file():
        return [f"{file.name} is missing."]
    size = path.stat().st_size
    if size != file.size:
        return [f"{file.name} has {size} bytes, and the Hub says {file.size}."]
    if checksums and not file.is_whole(path):
        return [f"{file.name} has another checksum than on the Hub."]
    return []


def _code_note(names: tuple[str, ...]) -> str:
    """Return the sentence that names the Python files that are left out, and how to get them."""
    shown = ", ".join(names[:4])
    if len(names) > 4:
        shown += ", …"
    count = "A Python file is"
    if len(names) > 1:
        count = f"{len(names)} Python files are"
    return (
        f"{count} left out: {shown}. vLLM runs them with --trust-remote-code only. "
        "If the model needs that: read them on its page, "
        "then `workshop prefetch` with --trust-remote-code."
    )


def _shard_problems(path: Path, expected: set[str]) -> list[str]:
    """Return what is wrong with a shard; expected: the tensors that the index puts there."""
    if not path.is_file():
        return [f"{path.name} is missing."]
    if path.suffix != ".safetensors":
        return []
    try:
        missing = sorted(expected - check.tensors(path))
    except WorkshopError as error:
        return [error.message]
    except OSError as error:
        return [f"{path.name} cannot be read ({error.strerror})."]
    if not missing:
        return []
    return [f"{path.name} lacks {len(missing)} tensors of the index, {missing[0]} first."]
