"""The Hugging Face Hub over plain HTTP: what a model consists of, and its files, byte by byte resumable.

huggingface_hub 2.4 starts a broken file again from its first byte, which for a shard of 5 GB over a slow line never
ends; here a part stays as `NAME.part` and the next run asks for the rest. Needs httpx only,
so a login node needs no vLLM.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import httpx

from workshop.engine import http
from workshop.errors import BadInput, WorkshopError
from workshop.servers.home import cannot_write
from workshop.servers.weights import check

HUB = "https://huggingface.co"
WORKERS = 4
TRIES = 5  # of one file, as long as none of them brings anything
# also in the names of parts, so nothing else may stand there
DIGEST = re.compile("[0-9a-f]{0,128}")
TIMEOUT = httpx.Timeout(60.0, connect=15.0)
ROOM = "Give a folder with room that you may write: --to, or WORKSHOP_MODELS in slurm/site.sh."
BETWEEN = "A login page or a proxy may stand in between: open that address in a browser here"
LIST_S = 60.0  # for the whole list of a model's files


class Gated(WorkshopError):
    """The model's owner lets in who has accepted the licence."""


class UnknownModel(WorkshopError):
    """The Hub has no such model, or hides it from this token."""


class NotReached(WorkshopError):
    """The Hub does not answer, answers as no Hub does, or broke off."""


@dataclass(frozen=True)
class File:
    """One file of a model on the Hub; sha256 is known of the large ones, git's own digest of the others."""

    name: str
    size: int
    sha256: str = ""
    blob: str = ""

    def has_come(self, folder: Path) -> bool:
        """Return whether it lies in the model's folder, with the promised size."""
        return (folder / self.name).is_file() and (folder / self.name).stat().st_size == self.size

    def is_whole(self, path: Path) -> bool:
        """Return whether what lies there has the promised size and digest (reads all of it)."""
        if path.stat().st_size != self.size:
            return False
        if self.sha256:
            return digest(path) == self.sha256
        return not self.blob or digest(path, "sha1", f"blob {self.size}\0".encode()) == self.blob


@dataclass(frozen=True)
class Remote:
    """A model on the Hub, at one commit; of its files those that are needed. code: Python files that are left out."""

    hub_id: str
    revision: str
    files: tuple[File, ...]
    code: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    def address(self, name: str) -> str:
        return f"{endpoint()}/{self.hub_id}/resolve/{self.revision}/{quote(name)}"


def endpoint() -> str:
    """Return the Hub's address, or a site's mirror: HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def saved_token() -> str | None:
    """Return the token that is set (HF_TOKEN) or was saved by `hf auth login`, which has three variables for where."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        home = (
            os.environ.get("HF_HOME")
            or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
        )
        path = os.path.expandvars(os.environ.get("HF_TOKEN_PATH") or f"{home}/token")
        return Path(path).expanduser().read_text().strip() or None
    return None


def _client(token: str | None) -> httpx.Client:
    # the HTTP library would show it in its complaint
    if token and not re.fullmatch("[!-~]+", token):
        raise BadInput(
            "The token holds a space, or a letter that no token has.",
            "Set HF_TOKEN to the token alone.",
        )
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # The token is for no proxy that can read it; the environment's proxies for HTTPS see addresses alone.
    direct = {"http://": httpx.HTTPTransport(proxy=http.trusted_proxy())}
    return httpx.Client(headers=headers, timeout=TIMEOUT, follow_redirects=True, mounts=direct)


def list_files(hub_id: str, token: str | None = None) -> Remote:
    """Return a model with all its files; a WorkshopError where it is not reached, not there, or not for this token."""
    with _client(token) as client:
        try:
            address = f"{endpoint()}/api/models/{hub_id}?blobs=true"
            direct = {"http://": httpx.AsyncHTTPTransport(proxy=http.trusted_proxy())}
            options = {
                "headers": client.headers,
                "follow_redirects": True,
                "trust_env": True,
                "mounts": direct,
            }
            answer, said = http.get(address, LIST_S, **options)
            answer.raise_for_status()
            remote = Remote(hub_id, *_read_list(json.loads(said)))
            # The list of a gated model is public, its files are not: ask for the one that every model has.
            if any(file.name == "config.json" for file in remote.files):
                client.head(remote.address("config.json")).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise explain(hub_id, error) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            said = f"{endpoint()} does not answer with a list of files, as the Hub does."
            raise NotReached(said, f"{BETWEEN}; HF_ENDPOINT names a mirror.") from None
    return remote


def _read_list(info: dict) -> tuple[str, tuple[File, ...]]:
    """Return (commit, files) of the Hub's answer. Nothing in it is trusted: it may come from a mirror."""
    files = []
    for each in info["siblings"]:
        lfs = each.get("lfs") or {}
        file = File(
            each["rfilename"],
            each.get("size") or 0,
            lfs.get("sha256") or "",
            each.get("blobId") or "",
        )
        if not check.stays_inside(file.name):
            said = f"{endpoint()} lists a file {str(file.name)[:80]!r}, which is no name inside a folder."
            raise WorkshopError(
                said,
                "Nothing was downloaded. Take the Hub itself, or another mirror (HF_ENDPOINT).",
            )
        if (
            type(file.size) is not int
            or file.size < 0
            or not DIGEST.fullmatch(file.sha256 + file.blob)
        ):
            raise ValueError(file)
        files.append(file)
    if not DIGEST.fullmatch(info["sha"]) or not info["sha"]:
        raise ValueError(info["sha"])
    return info["sha"], tuple(files)


def fetch(remote: Remote, folder: Path, token: str | None = None) -> None:
    """Download the files that are not whole yet, several at a time; what came before an error is kept."""
    with _client(token) as client, ThreadPoolExecutor(WORKERS) as pool:
        parts = [pool.submit(_fetch_file, client, remote, file, folder) for file in remote.files]
        try:
            for part in parts:
                part.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, httpx.HTTPError | httpx.InvalidURL | OSError):
                raise explain(remote.hub_id, error) from None
            raise


def _fetch_file(client: httpx.Client, remote: Remote, file: File, folder: Path) -> None:
    target = folder / file.name
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise WorkshopError(
            f"{target.parent} is a link that leads out of {folder}.", "Remove that link."
        )
    if file.has_come(folder):
        return
    # The part carries the commit's mark: a part of an older version is no beginning of a newer one.
    part = target.with_name(
        f"{target.name}.{(file.sha256 or file.blob or remote.revision)[:12]}.part"
    )
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _open_part(part) as beginning:
            _fetch_rest(client, remote.address(file.name), beginning, file)
    except BaseException:
        _remove_if_empty(part)
        raise
    _finish(part, target, file)


def _remove_if_empty(part: Path) -> None:
    with contextlib.suppress(OSError):
        found = part.lstat()
        if _is_ours_alone(found) and not found.st_size:
            part.unlink()


def _open_part(part: Path) -> BinaryIO:
    """Open what an earlier run left of a file, or a new and empty file, to write behind its end.

    Others may be allowed to write into the folder. So no link is followed, and a file that has a second name (a hard
    link) or is no regular file loses this one: what lies there may be anybody's.
    """
    with contextlib.suppress(FileNotFoundError):
        there = part.lstat()
        if stat.S_ISLNK(there.st_mode):
            raise WorkshopError(
                f"{part} is a link, and is not written through.", "Remove that link."
            )
        if not _is_ours_alone(there):
            part.unlink()
    # O_NONBLOCK: a pipe that is put there meanwhile would wait for a reader.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(part, flags, 0o666)
    if not _is_ours_alone(os.fstat(descriptor)):
        os.close(descriptor)
        raise WorkshopError(
            f"Somebody else changes {part}.", "Give a folder that nobody else may write to: --to"
        )
    return os.fdopen(descriptor, "ab")


def _is_ours_alone(found: os.stat_result) -> bool:
    """Return True for a regular file with one name."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1


def _fetch_rest(client: httpx.Client, address: str, part: BinaryIO, file: File) -> None:
    """Ask for what a part lacks, again after a break, until it has the promised size."""
    left = TRIES
    have = _size(part)
    while have < file.size:
        try:
            _append(client, address, part, have, file.size)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            left -= 1
        except httpx.TransportError:
            left = TRIES if _size(part) > have else left - 1
            if not left:
                raise
        else:
            left -= _size(part) == have
        if not left:
            raise httpx.ReadError(f"{file.name} stops at {have} of {file.size} bytes")
        have = _size(part)


def _size(part: BinaryIO) -> int:
    part.flush()
    return os.fstat(part.fileno()).st_size


def _append(client: httpx.Client, address: str, part: BinaryIO, have: int, size: int) -> None:
    """Write what comes behind what is there; of more than was promised, one byte more is kept, as a proof."""
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream(
        "GET", address, headers={**headers, "Accept-Encoding": "identity"}
    ) as answer:
        answer.raise_for_status()
        if answer.headers.get("Content-Type", "").startswith("text/html"):
            said = f"{address.split('?')[0]} answers with a web page instead of the file."
            raise NotReached(said, f"{BETWEEN}.")
        # 200: the server does not know ranges, and begins again
        resumed = answer.status_code == 206
        left = size + 1 - (have if resumed else 0)
        if not resumed:
            part.truncate(0)
        for chunk in answer.iter_bytes():  # as they come: a break loses nothing that has arrived
            part.write(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                return


def _finish(part: Path, target: Path, file: File) -> None:
    """Give a whole part its name; one that is not what the Hub promised is thrown away."""
    if not file.is_whole(part):
        size = part.stat().st_size
        part.unlink()
        remedy = "Run the same command again: it is downloaded anew."
        raise WorkshopError(
            f"{file.name} came damaged ({size} of {file.size} bytes, or another checksum).", remedy
        )
    os.replace(part, target)


def digest(path: Path, kind: str = "sha256", before: bytes = b"") -> str:
    """Return the digest of a file with `before` in front of it."""
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(kind, before, usedforsecurity=False)
        ).hexdigest()


def explain(hub_id: str, error: Exception) -> WorkshopError:
    """Turn an error of the network, the Hub or the disk into one sentence and a remedy."""
    response = error.response if isinstance(error, httpx.HTTPStatusError) else httpx.Response(0)
    status = response.status_code
    if response.headers.get("X-Error-Code") == "GatedRepo" or status == 403:
        remedy = f"Accept it at {HUB}/{hub_id} (it may take a while), then give a token of that account: set HF_TOKEN, or answer the question of `workshop prefetch`. Without: an open model, or a copy that your site keeps already."
        return Gated(f"{hub_id} is gated: its owner lets in who has accepted the licence.", remedy)
    if status in (401, 404):
        remedy = "Compare the spelling with its page; for a private or gated one set HF_TOKEN."
        return UnknownModel(
            f"The Hub knows no model {hub_id}, or hides it from this token.", remedy
        )
    if isinstance(error, OSError) and error.errno:
        return cannot_write(Path(error.filename or "the folder"), error, ROOM)
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    # what follows ? in an address may be a signature
    said = re.sub(r"[?]\S*", "", said)[:200].rstrip(".")
    remedy = "Run it again: what has come is kept. Compute nodes rarely have internet: use a login or transfer node; behind a proxy set HTTPS_PROXY."
    return NotReached(f"The Hub is not reached, or broke off: {said}.", remedy)
