"""Lists a model's files on the Hugging Face Hub, and downloads them, with huggingface_hub.

What is ours is the partial file. hf_hub_download writes each time to a file with a random name and
removes it when the call fails (2.4.0, file_download.py: _download_to_tmp_and_move), so a 5 GB shard
starts again from its first byte after each break. Here a partial file stays beside the target as
`NAME.DIGEST.part`, and the next run requests the rest: http_get writes in pieces of 10 MB, and a
break loses one. A file gets its name once its digest is right.
"""

import hashlib
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers, disable_progress_bars
from huggingface_hub.utils import logging as hub_logging

from workshop.errors import BadInput, WorkshopError
from workshop.home import cannot_write
from workshop.servers.weights import check

HUB = "https://huggingface.co"
WORKERS = 4
LIST_S = 60.0  # for each request about the files
ROOM = "Give a folder with room that you may write: --to, or WORKSHOP_MODELS in slurm/site.sh."
BETWEEN = "A login page or a proxy may stand in between: open that address in a browser here"
# HTTPError of httpx2, or of httpx in huggingface_hub 1: also where no server answers
HTTP_ERROR: type[Exception] = HfHubHTTPError.__mro__[1]


class Gated(WorkshopError):
    """The model's owner admits only accounts that have accepted its licence."""


class NotOnHub(WorkshopError):
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
        """Return the partial file's name, whose digest or commit keeps versions apart."""
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
        return hf_hub_url(self.hub_id, name, revision=self.revision, endpoint=endpoint())


def endpoint() -> str:
    """Return the address of the Hub, or of the mirror that HF_ENDPOINT names."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


def list_files(hub_id: str, token: str | None = None) -> Remote:
    """Return a model with all its files; `token`: by default the one that is saved here.

    Raises:
        NotReached: the Hub does not answer, or answers with something else.
        UnknownModel, Gated: the model does not exist, or this token may not see it.
        BadInput: the token cannot be one.
    """
    if token and not re.fullmatch("[!-~]+", token):
        raise BadInput(
            "The token holds a space, or a letter that no token has.",
            "Set HF_TOKEN to the token alone.",
        )
    try:
        info = HfApi(endpoint(), token=token).model_info(
            hub_id, files_metadata=True, timeout=LIST_S
        )
        remote = Remote(hub_id, str(info.sha), tuple(map(_file, info.siblings or ())))
        # The list of a gated model is public, its files are not: ask for the one that every model
        # has.
        if any(file.name == "config.json" for file in remote.files):
            get_hf_file_metadata(remote.address("config.json"), token=token, timeout=LIST_S)
    except (HTTP_ERROR, OSError, HFValidationError) as error:
        raise explain(hub_id, error) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotReached(
            f"{endpoint()} does not answer with a list of files, as the Hub does.",
            f"{BETWEEN}; HF_ENDPOINT names a mirror.",
        ) from None
    return remote


def _file(sibling: Any) -> File:
    """Return a file as the Hub describes it.

    Raises WorkshopError: its name leads out of the model's folder.
    """
    name = sibling.rfilename
    if not check.stays_inside(name):
        raise WorkshopError(
            f"{endpoint()} lists a file {str(name)[:80]!r}, which is no name inside a folder.",
            "Nothing was downloaded. Take the Hub itself, or another mirror (HF_ENDPOINT).",
        )
    sha256 = ""
    if sibling.lfs:
        sha256 = sibling.lfs.sha256
    return File(name, sibling.size or 0, sha256, sibling.blob_id or "")


def fetch(remote: Remote, folder: Path, token: str | None = None) -> None:
    """Download the missing files, several at a time; what arrived before an error is kept.

    Raises WorkshopError: a file cannot be downloaded.
    """
    disable_progress_bars("huggingface_hub.http_get")  # the caller has a bar of its own
    hub_logging.set_verbosity_error()  # it says each time that it resumes
    with ThreadPoolExecutor(WORKERS) as pool:
        downloads = [pool.submit(_fetch_file, remote, file, folder, token) for file in remote.files]
        try:
            for download in downloads:
                download.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if isinstance(error, (HTTP_ERROR, OSError)):
                raise explain(remote.hub_id, error) from None
            raise


def _fetch_file(remote: Remote, file: File, folder: Path, token: str | None) -> None:
    """Download what is missing of a file, and give it its name if it is what the Hub promised."""
    if file.is_present(folder):
        return
    part = folder / file.part_name(remote.revision)
    part.parent.mkdir(parents=True, exist_ok=True)
    # Others may be allowed to write into the folder: no link of theirs is written through.
    descriptor = os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with os.fdopen(descriptor, "ab") as stream:
        size = stream.tell()
        if size < file.size:
            headers = build_hf_headers(token=token) | {"Accept-Encoding": "identity"}
            http_get(remote.address(file.name), stream, resume_size=size, headers=headers)
    if not file.is_whole(part):
        size = part.stat().st_size
        part.unlink()
        raise NotReached(
            f"{file.name} came damaged ({size} of {file.size} bytes, or another checksum).",
            f"Run the same command again: it is downloaded anew. {BETWEEN}, if it repeats: "
            f"{remote.address(file.name)}",
        )
    os.replace(part, folder / file.name)


def digest(path: Path, kind: str = "sha256", before: bytes = b"") -> str:
    """Return the digest of a file with `before` in front of it; `kind`: an algorithm of hashlib."""

    def new_digest() -> Any:
        return hashlib.new(kind, before, usedforsecurity=False)

    with path.open("rb") as file:
        return hashlib.file_digest(file, new_digest).hexdigest()


def explain(hub_id: str, error: Exception) -> WorkshopError:
    """Turn an error of the network, the Hub or the disk into one sentence and a remedy."""
    status = 0
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
    if isinstance(error, GatedRepoError) or status == 403:
        remedy = (
            f"Accept it at {HUB}/{hub_id} (it may take a while), then give a token of that "
            "account: set HF_TOKEN, or answer the question of `workshop prefetch`. "
            "Without: an open model, or a copy that your site keeps already."
        )
        return Gated(f"{hub_id} is gated: its owner lets in who has accepted the licence.", remedy)
    if isinstance(error, RepositoryNotFoundError | HFValidationError) or status in (401, 404):
        remedy = "Compare the spelling with its page; for a private or gated one set HF_TOKEN."
        return NotOnHub(f"The Hub knows no model {hub_id}, or hides it from this token.", remedy)
    if isinstance(error, OfflineModeIsEnabled):
        return NotReached(
            "HF_HUB_OFFLINE (or TRANSFORMERS_OFFLINE) forbids to ask the Hub.", "Unset it here."
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
