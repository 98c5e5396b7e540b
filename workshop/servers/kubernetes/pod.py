"""Run inside a pod beside vLLM: download weights, wait for them, probe the server and its workers.

    python3 -m workshop.servers.kubernetes.pod download HUB_ID FOLDER
    python3 -m workshop.servers.kubernetes.pod wait FOLDER
    python3 -m workshop.servers.kubernetes.pod workers COUNT
    python3 -m workshop.servers.kubernetes.pod works PORT

The image is vLLM's own. What this module imports of the workshop comes into the pod by a ConfigMap
(workshop/servers/kubernetes/code.py lists it); of other packages it needs httpx, psutil and
prometheus_client, which vLLM brings.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from workshop.errors import BadInput, WorkshopError
from workshop.home import CannotWrite, NoSpace, cannot_write
from workshop.servers.progress import Progress

WHOLE = ".workshop-whole"  # written when every file is there and was checked
ASK_EVERY_S = 5.0
SAY_EVERY_S = 60.0
LARGER = (
    "Ask for a larger volume (--pvc-size). A claim grows if its storage class allows that; "
    "otherwise delete the claim and apply it again."
)
OWNER = (
    "The driver of this volume ignores the pod's fsGroup. Add the component volume-owner, which "
    "gives the volume to the pod's user once, or let the storage class mount it for that user "
    "(mountOptions: uid=, gid=); kubernetes/README.md says how."
)
AGAIN = (
    "Remove that file from the volume, delete the Job and apply it again: "
    "it downloads what is missing."
)
TOKEN = (
    "put the token alone into the Secret hf-token (key: token), delete the Job and apply it again."
)
WAY_OUT = (
    "The Job tries again and goes on where it stopped. If it never gets through, this namespace "
    "has no way out: a NetworkPolicy or a firewall closes it, or it needs a proxy (HTTPS_PROXY), "
    "the site's certificates (SSL_CERT_FILE) or a mirror (--hf-endpoint); kubernetes/README.md has "
    "the patches."
)
# The name once a worker has joined its groups: v1/executor/multiproc_executor.py.
WORKER_TITLE = "VLLM::Worker_"


def download(hub: str, folder: Path, *, every_s: float = SAY_EVERY_S) -> None:
    """Download what is missing, check every file, and leave the mark that `wait` waits for.

    After a break, the next run resumes where this one stopped. A whole model is only
    checked.

    hub: the model's Hub id.
    every_s: seconds between two lines about the progress.
    """
    # Imported here: they load an HTTP client, and the probe runs every few seconds without it.
    from huggingface_hub import get_token

    from workshop.servers.weights import prefetch

    refuse_closed_volume(folder)
    token = get_token()
    remote = prefetch.look_up(hub, token)
    if (folder / WHOLE).is_file() and prefetch.verify(folder, remote).ok:
        say(f"{hub} is whole in {folder} already")
        return
    (folder / WHOLE).unlink(missing_ok=True)
    prefetch.refuse_small_disk(remote, folder)
    say(f"{hub}: {remote.bytes / 1e9:.1f} GB in {len(remote.files)} files to {folder}")
    say_sometimes = _say_once_in(every_s)

    def say_progress(progress: Progress) -> None:
        say_sometimes(f"{progress.fraction:4.0%} {progress.message}")

    prefetch.download(remote, folder, token, say_progress)
    report = prefetch.verify(folder, remote)
    if not report.ok:
        raise WorkshopError(
            report.problems[0], "Remove that file from the volume; the Job then downloads it anew."
        )
    mark = {
        "model": hub,
        "revision": remote.revision,
        "shards": report.shards,
        "bytes": report.bytes,
    }
    (folder / WHOLE).write_text(json.dumps(mark) + "\n", encoding="utf-8")
    say(f"whole and checked: {report.shards} shards, {report.bytes / 1e9:.1f} GB")


def wait(folder: Path, *, ask_every_s: float = ASK_EVERY_S, every_s: float = SAY_EVERY_S) -> None:
    """Return when the weights are whole.

    The container must not end before: its restart would restart its group.

    ask_every_s, every_s: seconds between two looks, and between two lines about it.

    Raises WorkshopError: the volume cannot be read, or shards are gone.
    """
    from workshop.servers.weights import check

    say_sometimes = _say_once_in(every_s)
    try:
        while not (folder / WHOLE).is_file():
            say_sometimes(
                f"waiting for the weights in {folder}: "
                "kubectl logs --follow job/… shows the download"
            )
            time.sleep(ask_every_s)
        missing = check.missing(folder)
    except PermissionError as error:
        raise closed_volume(folder, "read", error) from None
    if missing:
        remedy = "Delete the Job and apply it again: it downloads what is missing."
        raise WorkshopError(
            f"{len(missing)} shards are gone from {folder}, {missing[0]} first.", remedy
        )
    say(f"the weights in {folder} are whole")


def workers(count: int) -> None:
    """Return if `count` workers of vLLM live in this container and have joined their groups.

    A headless vLLM has no port to ask. Its workers change their title when they have met the
    others.

    Raises WorkshopError: there are fewer.
    """
    alive = 0
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.info["status"] in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            continue
        arguments = process.info["cmdline"] or [""]
        if arguments[0].startswith(WORKER_TITLE):
            alive += 1
    if alive < count:
        raise WorkshopError(f"{alive} of {count} workers are alive and have met the others.")


def works(port: int, within_s: float | None = None) -> None:
    """Return if the server in this container shows work; its key is that of the guard.

    within_s: by default `hang.LONGEST_STEP_S`, because a restart costs all requests.

    Raises WorkshopError: it hangs, or does not answer.
    """
    # Imported here: it loads httpx, and the probe of workers runs every few seconds without it.
    from workshop.guard import auth
    from workshop.servers import hang

    address = f"http://localhost:{port}/v1"  # 127.0.0.1 or ::1
    finding = hang.look(address, auth.read_key().decode(), within_s=within_s or hang.LONGEST_STEP_S)
    if finding.state in (hang.HANGS, hang.UNREACHABLE):
        raise WorkshopError(f"The server {finding.state}: {finding.reason}.")


def refuse_closed_volume(folder: Path) -> None:
    """Raise a WorkshopError if nothing can be written beside the model's folder.

    Then fsGroup did not open the volume. A file is written, because os.access() does not know what
    a file server allows.
    """
    place = folder
    if not folder.is_dir():
        place = folder.parent
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except PermissionError as error:
        raise closed_volume(place, "write to", error) from None


def closed_volume(folder: Path, action: str, error: OSError) -> WorkshopError:
    """Return the error that names the user who may not use the volume, its owner, and a remedy."""
    groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
    user = f"User {os.geteuid()} (groups {groups})"
    try:
        status = folder.stat()
        owner = (
            f": it belongs to user {status.st_uid} and group {status.st_gid}, "
            f"mode {status.st_mode & 0o7777:o}"
        )
    except OSError:
        owner = ""
    return WorkshopError(f"{user} may not {action} {folder} ({error.strerror}){owner}.", OWNER)


def pod_remedy(error: WorkshopError) -> str:
    """Return the remedy for an error in a pod.

    There is neither a login node nor the `workshop` command.
    """
    from workshop.servers.weights import check, prefetch
    from workshop.servers.weights import hub as prefetch_hub

    remedies = {
        prefetch.NoRoom: LARGER,
        NoSpace: LARGER,
        CannotWrite: OWNER,
        check.Damaged: AGAIN,
        prefetch_hub.Gated: f"Accept the licence on the model's page, {TOKEN}",
        prefetch_hub.UnknownModel: (
            f"Compare the spelling with the model's page; for a private or gated model {TOKEN}"
        ),
        prefetch_hub.NotReached: WAY_OUT,
        BadInput: f"For a gated model {TOKEN}",
    }
    for kind, remedy in remedies.items():
        if isinstance(error, kind):
            return remedy
    return error.remedy


def _say_once_in(seconds: float) -> Callable[[str], None]:
    """Return a `say` that drops what comes sooner than that after its last line."""
    last = -seconds

    def say_sometimes(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            say(text)

    return say_sometimes


def say(text: str) -> None:
    """Print a line for `kubectl logs`, at once."""
    print(f"[workshop] {text}", flush=True)


@contextlib.contextmanager
def _using(folder: Path) -> Iterator[None]:
    """Turn an OSError of the volume into one sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(Path(error.filename or folder), error) from None


def main(arguments: list[str] | None = None) -> int:
    """Run one of the commands; an error is one sentence and exit code 1."""
    try:
        match arguments or sys.argv[1:]:
            case ["download", hub, folder]:
                with _using(Path(folder)):
                    download(hub, Path(folder))
            case ["wait", folder]:
                with _using(Path(folder)):
                    wait(Path(folder))
            case ["workers", count]:
                workers(int(count))
            case ["works", port]:
                works(int(port))
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except WorkshopError as error:
        say(f"{error.message} {pod_remedy(error)}".strip())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
