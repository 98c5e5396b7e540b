"""A client of the Hugging Face Hub: list a model's files, and download them.

A later run resumes a download that broke off.

Why not huggingface_hub: its downloads resume within one call only. Since its pull request 4228
every call writes to a file with a random name and removes it when the call fails (2.4.0,
file_download.py: _download_to_tmp_and_move), so a 5 GB shard starts again from its first byte after
each break. Here a partial file stays beside the target as `NAME.DIGEST.part`, and the next run
requests the rest. tests/servers/weights holds the other reasons: a file that is longer than
promised is cut off, a list that never ends is given up, and a link or pipe under a name of ours is
not written to.
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
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx

from workshop.engine import http
from workshop.errors import BadInput, WorkshopError
from workshop.servers.home import cannot_write
from workshop.servers.weights import check

HUB = "https://huggingface.co"
WORKERS = 4
TRIES = 5  # requests in a row for one file that bring no new bytes
# Digests and commits become parts of file names, so nothing else is allowed in them.
DIGEST = re.compile("[0-9a-f]{0,128}")
TIMEOUT = httpx.Timeout(60.0, connect=15.0)
ROOM = "Give a folder with room that you may write: --to, or WORKSHOP_MODELS in slurm/site.sh."
BETWEEN = "A login page or a proxy may stand in between: open that address in a browser here"
LIST_S = 60.0  # for the whole list of a model's files


class Gated(WorkshopError):
    """The model's owner admits only accounts that have accepted its licence."""


class UnknownModel(WorkshopError):
    """The Hub has no such model, or hides it from this token."""


class NotReached(WorkshopError):
    """The Hub does not answer, does not answer like a Hub, or broke off."""


@dataclass(frozen=True)
class File:
    """One file of a model on the Hub.

    size: in bytes.
    sha256: of a large file (LFS), else empty.
    blob: git's own SHA-1 of a small file.
    """

    name: str
    size: int
    sha256: str = ""
    blob: str = ""

    def is_present(self, folder: Path) -> bool:
        """Return True if the model's folder has this file with the promised size."""
        path = folder / self.name
        return path.is_file() and path.stat().st_size == self.size

    def is_whole(self, path: Path) -> bool:
        """Return True if the file at `path` has the promised size and digest. Reads all of it."""
        if path.stat().st_size != self.size:
            return False
        if self.sha256:
            return digest(path) == self.sha256
        if self.blob:
            return digest(path, "sha1", f"blob {self.size}\0".encode()) == self.blob
        return True

    def part_name(self, revision: str) -> str:
        """Return the name of the partial file.

        It contains the digest, or the commit: part of an older version must not become the start of
        a newer one.
        """
        mark = self.sha256 or self.blob or revision
        return f"{self.name}.{mark[:12]}.part"


@dataclass(frozen=True)
class Remote:
    """A model on the Hub at one commit.

    files: those that are needed.
    code: the names of Python files that are left out.
    """

    hub_id: str
    revision: str
    files: tuple[File, ...]
    code: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of all needed files."""
        return sum(file.size for file in self.files)

    def address(self, name: str) -> str:
        """Return the URL of one file."""
        return f"{endpoint()}/{self.hub_id}/resolve/{self.revision}/{quote(name)}"


def endpoint() -> str:
    """Return the address of the Hub, or of the mirror that HF_ENDPOINT names."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def saved_token() -> str | None:
    """Return the token of HF_TOKEN, or the one that `hf auth login` saved; None without either.

    The file's place is the one of huggingface_hub: HF_TOKEN_PATH, HF_HOME/token, or below
    XDG_CACHE_HOME.
    """
    token = os.environ.get("HF_TOKEN", "").strip()
    if token:
        return token
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    path = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    try:
        text = Path(os.path.expandvars(path)).expanduser().read_text()
    except (OSError, ValueError, RuntimeError):
        return None
    return text.strip() or None


def _authorization(token: str | None) -> dict[str, str]:
    """Return the header that carries the token.

    Raises BadInput: it cannot be one, and httpx would print it.
    """
    if not token:
        return {}
    if not re.fullmatch("[!-~]+", token):
        raise BadInput(
            "The token holds a space, or a letter that no token has.",
            "Set HF_TOKEN to the token alone.",
        )
    return {"Authorization": f"Bearer {token}"}


def _client(token: str | None) -> httpx.Client:
    """Return an HTTP client that sends the token.

    httpx drops it where a redirect leads to another host.
    """
    # A proxy for plain HTTP could read the token. Proxies for HTTPS, of the environment, see
    # addresses only.
    direct = httpx.HTTPTransport(proxy=http.trusted_proxy())
    return httpx.Client(
        headers=_authorization(token),
        timeout=TIMEOUT,
        follow_redirects=True,
        mounts={"http://": direct},
    )


def list_files(hub_id: str, token: str | None = None) -> Remote:
    """Return a model with all its files.

    Raises:
        NotReached: the Hub does not answer, or answers with something else.
        UnknownModel, Gated: the model does not exist, or this token may not see it.
        BadInput: the token cannot be one.
    """
    headers = _authorization(token)
    try:
        commit, files = _read_list(_model_info(hub_id, headers))
        remote = Remote(hub_id, commit, files)
        # The list of a gated model is public, its files are not: ask for the one that every model
        # has.
        if any(file.name == "config.json" for file in files):
            with _client(token) as client:
                client.head(remote.address("config.json")).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise explain(hub_id, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise NotReached(
            f"{endpoint()} does not answer with a list of files, as the Hub does.",
            f"{BETWEEN}; HF_ENDPOINT names a mirror.",
        ) from None
    return remote


def _model_info(hub_id: str, headers: dict[str, str]) -> Any:
    """Return the Hub's JSON about a model.

    An answer without an end is given up after LIST_S seconds.
    """
    address = f"{endpoint()}/api/models/{hub_id}?blobs=true"
    direct = httpx.AsyncHTTPTransport(proxy=http.trusted_proxy())
    response, body = http.get(
        address,
        LIST_S,
        headers=headers,
        follow_redirects=True,
        trust_env=True,
        mounts={"http://": direct},
    )
    response.raise_for_status()
    return json.loads(body)


def _read_list(info: Any) -> tuple[str, tuple[File, ...]]:
    """Return (commit, files) of the Hub's answer.

    Nothing in it is trusted: it may come from a mirror.
    """
    files = tuple(_read_file(entry) for entry in info["siblings"])
    commit = info["sha"]
    if not commit or not DIGEST.fullmatch(commit):
        raise ValueError(commit)
    return commit, files


def _read_file(entry: Any) -> File:
    name = entry["rfilename"]
    if not check.stays_inside(name):
        raise WorkshopError(
            f"{endpoint()} lists a file {str(name)[:80]!r}, which is no name inside a folder.",
            "Nothing was downloaded. Take the Hub itself, or another mirror (HF_ENDPOINT).",
        )
    size = entry.get("size") or 0
    sha256 = (entry.get("lfs") or {}).get("sha256") or ""
    blob = entry.get("blobId") or ""
    if type(size) is not int or size < 0 or not DIGEST.fullmatch(sha256 + blob):
        raise ValueError(entry)
    return File(name, size, sha256, blob)


def fetch(remote: Remote, folder: Path, token: str | None = None) -> None:
    """Download the files that are not present yet, several at a time.

    What arrived before an error is kept.
    """
    with _client(token) as client, ThreadPoolExecutor(WORKERS) as pool:
        downloads = [
            pool.submit(_fetch_file, client, remote, file, folder) for file in remote.files
        ]
        try:
            for download in downloads:
                download.result()
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
    if file.is_present(folder):
        return
    part = folder / file.part_name(remote.revision)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _open_part(part) as stream:
            _fetch_rest(client, remote.address(file.name), stream, file)
    except BaseException:
        _remove_if_empty(part)
        raise
    _finish(part, target, file)


def _remove_if_empty(part: Path) -> None:
    with contextlib.suppress(OSError):
        status = part.lstat()
        if _is_ours_alone(status) and not status.st_size:
            part.unlink()


def _open_part(part: Path) -> BinaryIO:
    """Open the partial file of an earlier run, or a new one, to append to it.

    Other users may be allowed to write into the folder. So no link is followed. A hard link (a file
    with a second name) or anything but a regular file is removed under this name, because its
    content may belong to somebody else.
    """
    with contextlib.suppress(FileNotFoundError):
        status = part.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise WorkshopError(
                f"{part} is a link, and is not written through.", "Remove that link."
            )
        if not _is_ours_alone(status):
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


def _is_ours_alone(status: os.stat_result) -> bool:
    """Return True for a regular file with one name."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1


def _fetch_rest(client: httpx.Client, address: str, part: BinaryIO, file: File) -> None:
    """Request the missing bytes, again after each break, until the part has the promised size."""
    tries_left = TRIES
    size = _size(part)
    while size < file.size:
        failure: httpx.TransportError | None = None
        try:
            _append(client, address, part, size, file.size)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
        except httpx.TransportError as error:
            failure = error
        if _size(part) > size:
            tries_left = TRIES
        else:
            tries_left -= 1
        if tries_left == 0:
            raise failure or httpx.ReadError(f"{file.name} stops at {size} of {file.size} bytes")
        size = _size(part)


def _size(part: BinaryIO) -> int:
    part.flush()
    return os.fstat(part.fileno()).st_size


def _append(client: httpx.Client, address: str, part: BinaryIO, start: int, size: int) -> None:
    """Request the file from byte `start`, and append what arrives.

    A server may send more than the `size` that it promised, without end. One byte more is kept, so
    that the check of the size fails.
    """
    headers = {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with client.stream("GET", address, headers=headers) as response:
        response.raise_for_status()
        if response.headers.get("Content-Type", "").startswith("text/html"):
            page = address.split("?")[0]
            raise NotReached(f"{page} answers with a web page instead of the file.", f"{BETWEEN}.")
        if response.status_code != 206:  # the server ignores ranges, and sends all of the file
            part.truncate(0)
            start = 0
        bytes_left = size + 1 - start
        for chunk in response.iter_bytes():  # as they arrive: a break loses none of them
            part.write(chunk[:bytes_left])
            bytes_left -= len(chunk)
            if bytes_left <= 0:
                return


def _finish(part: Path, target: Path, file: File) -> None:
    """Give a whole part the file's name; remove one that is not what the Hub promised."""
    if not file.is_whole(part):
        size = part.stat().st_size
        part.unlink()
        remedy = "Run the same command again: it is downloaded anew."
        raise WorkshopError(
            f"{file.name} came damaged ({size} of {file.size} bytes, or another checksum).", remedy
        )
    os.replace(part, target)


def digest(path: Path, kind: str = "sha256", before: bytes = b"") -> str:
    """Return the digest of a file with `before` in front of it.

    kind: an algorithm of hashlib.
    """

    def new_digest() -> Any:
        return hashlib.new(kind, before, usedforsecurity=False)

    with path.open("rb") as file:
        return hashlib.file_digest(file, new_digest).hexdigest()


def explain(hub_id: str, error: Exception) -> WorkshopError:
    """Turn an error of the network, the Hub or the disk into one sentence and a remedy."""
    status = 0
    code = ""
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        code = error.response.headers.get("X-Error-Code", "")
    if code == "GatedRepo" or status == 403:
        remedy = (
            f"Accept it at {HUB}/{hub_id} (it may take a while), then give a token of that "
            "account: set HF_TOKEN, or answer the question of `workshop prefetch`. "
            "Without: an open model, or a copy that your site keeps already."
        )
        return Gated(f"{hub_id} is gated: its owner lets in who has accepted the licence.", remedy)
    if status in (401, 404):
        remedy = "Compare the spelling with its page; for a private or gated one set HF_TOKEN."
        return UnknownModel(
            f"The Hub knows no model {hub_id}, or hides it from this token.", remedy
        )
    if isinstance(error, OSError) and error.errno:
        return cannot_write(Path(error.filename or "the folder"), error, ROOM)
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # what follows ? in an address may be a signature
    reason = re.sub(r"[?]\S*", "", lines[0])[:200].rstrip(".")
    remedy = (
        "Run it again: what has come is kept. Compute nodes rarely have internet: "
        "use a login or transfer node; behind a proxy set HTTPS_PROXY."
    )
    return NotReached(f"The Hub is not reached, or broke off: {reason}.", remedy)
