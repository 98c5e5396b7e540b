"""The Hugging Face Hub over plain HTTP: what a model consists of, and its files, byte by byte resumable.

huggingface_hub 2.4 starts a broken file again from its first byte, which for a shard of 5 GB over a slow line never
ends; here a part stays as `NAME.part` and the next run asks for the rest. Needs httpx only,
so a login node needs no vLLM.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from workshop.errors import WorkshopError
from workshop.launch.home import cannot_write

HUB = "https://huggingface.co"
WORKERS = 4
CHUNK_BYTES = 1 << 20
TRIES = 5                 # of one file, as long as none of them brings anything
TIMEOUT = httpx.Timeout(60.0, connect=15.0)


@dataclass(frozen=True)
class File:
    """One file of a model on the Hub; sha256 is known of the large ones."""

    name: str
    size: int
    sha256: str = ""


def endpoint() -> str:
    """Return the Hub's address, or a site's mirror: HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def saved_token() -> str | None:
    """Return the token that is set (HF_TOKEN) or was saved by `hf auth login`, if any."""
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    with contextlib.suppress(OSError):
        return (home / "token").read_text().strip() or None
    return None


def _headers(token: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def list_files(hub_id: str, token: str | None = None) -> tuple[str, list[File]]:
    """Return (commit, files) of a model.

    Raises:
        WorkshopError: the Hub is not reached, there is no such model, or it is gated and this token may not have it.
    """
    try:
        answer = httpx.get(f"{endpoint()}/api/models/{hub_id}", params={"blobs": "true"}, headers=_headers(token),
                           timeout=TIMEOUT, follow_redirects=True)
        answer.raise_for_status()
        info = answer.json()
        files = [File(each["rfilename"], int(each.get("size") or 0), (each.get("lfs") or {}).get("sha256", ""))
                 for each in info["siblings"]]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise explain(hub_id, error) from None
    # The list of a gated model is public, its files are not: ask for the one that every model has.
    with contextlib.suppress(StopIteration):
        small = next(file for file in files if file.name == "config.json")
        _probe(hub_id, info["sha"], small.name, token)
    return info["sha"], files


def _probe(hub_id: str, commit: str, name: str, token: str | None) -> None:
    try:
        httpx.head(_address(hub_id, commit, name), headers=_headers(token), timeout=TIMEOUT,
                   follow_redirects=True).raise_for_status()
    except httpx.HTTPError as error:
        raise explain(hub_id, error) from None


def _address(hub_id: str, commit: str, name: str) -> str:
    return f"{endpoint()}/{hub_id}/resolve/{commit}/{name}"


def fetch(hub_id: str, commit: str, files: list[File], folder: Path, token: str | None = None) -> None:
    """Download the files that are not whole yet, several at a time.

    Raises:
        WorkshopError: the Hub, the network or the disk does not let us; what came is kept for the next run.
    """
    with httpx.Client(headers=_headers(token), timeout=TIMEOUT, follow_redirects=True) as client, \
            ThreadPoolExecutor(WORKERS) as pool:
        parts = [pool.submit(_fetch_file, client, hub_id, commit, file, folder) for file in files]
        try:
            for part in parts:
                part.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, httpx.HTTPError | OSError):
                raise explain(hub_id, error) from None
            raise


def _fetch_file(client: httpx.Client, hub_id: str, commit: str, file: File, folder: Path) -> None:
    target = folder / file.name
    if target.is_file() and target.stat().st_size == file.size:
        return
    # The part carries the commit's mark: a part of an older version is no beginning of a newer one.
    part = target.with_name(f"{target.name}.{(file.sha256 or commit)[:12]}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    left = TRIES
    while (have := part.stat().st_size if part.exists() else 0) < file.size or not part.exists():
        try:
            _append(client, _address(hub_id, commit, file.name), part, have)
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                raise
            left -= 1
        except httpx.TransportError:
            left = TRIES if part.exists() and part.stat().st_size > have else left - 1
            if not left:
                raise
        else:
            left -= part.stat().st_size == have
        if not left:
            raise httpx.ReadError(f"{file.name} stops at {have} of {file.size} bytes")
    _finish(part, target, file)


def _append(client: httpx.Client, address: str, part: Path, have: int) -> None:
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", address, headers={**headers, "Accept-Encoding": "identity"}) as answer:
        answer.raise_for_status()
        resumed = answer.status_code == 206      # 200: the server does not know ranges, and begins again
        with part.open("ab" if resumed else "wb") as file:
            for chunk in answer.iter_bytes():    # as they come: a break loses nothing that has arrived
                file.write(chunk)


def _finish(part: Path, target: Path, file: File) -> None:
    """Give a whole part its name; one that is not what the Hub promised is thrown away."""
    size = part.stat().st_size
    if size != file.size or (file.sha256 and digest(part) != file.sha256):
        part.unlink()
        raise WorkshopError(f"{file.name} came damaged ({size} of {file.size} bytes, or another checksum).",
                            "Run the same command again: it is downloaded anew.")
    os.replace(part, target)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def explain(hub_id: str, error: Exception) -> WorkshopError:
    """Turn an error of the network, the Hub or the disk into one sentence and a remedy."""
    response = getattr(error, "response", None)
    status = response.status_code if response is not None else None
    code = response.headers.get("X-Error-Code", "") if response is not None else ""
    if code == "GatedRepo" or status == 403:
        return WorkshopError(f"{hub_id} is gated: its owner lets in who has accepted the licence.",
                             f"Accept it at {HUB}/{hub_id} (it may take a while), then give a token of that account: "
                             "set HF_TOKEN, or answer the question of `workshop prefetch`. Without: an open model, or "
                             "a copy that your site keeps already.")
    if status in (401, 404):
        return WorkshopError(f"The Hub knows no model {hub_id}, or hides it from this token.",
                             "Compare the spelling with its page; for a private or gated one set HF_TOKEN.")
    if isinstance(error, OSError) and error.errno:
        return cannot_write(Path(error.filename or "the folder"), error)
    said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")
    return WorkshopError(f"The Hub is not reached, or broke off: {said}.",
                         "Run it again: what has come is kept. Compute nodes rarely have internet: use a login or "
                         "transfer node; behind a proxy set HTTPS_PROXY.")
