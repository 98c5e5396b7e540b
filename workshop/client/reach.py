"""Chooses the server. How it is reached, so that its key goes to it alone, is for `transport`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from urllib.parse import urlsplit

from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord
from workshop.servers.records.record_file import SUSPENDED

CHECK_ADDRESS = "Check the address, and that the server runs there; it ends in /v1."
START = "Start one: `workshop serve --background`, or run the panel of notebook 00_start."


def find(name: str | None = None) -> ServerRecord:
    """Return the record that `connect` uses, without a request to the server.

    Raises as `connect` does.
    """
    url = os.environ.get("WORKSHOP_URL")
    if url and name is None:
        return record_of_address(url, "WORKSHOP_URL")
    return ready_server(name)


def record_at(name: str | None, url: str | None) -> ServerRecord:
    """Return the record of the server of this name, or at this address, or of the only one.

    Raises BadInput: both are given; else as `connect` does.
    """
    if name and url:
        raise BadInput("--name and --url are both given.", "Give one of the two.")
    if url is None:
        return find(name)
    return record_of_address(url, "--url")


def record_of_address(url: str, source: str) -> ServerRecord:
    """Return a record of an address that the user gives; the key is WORKSHOP_API_KEY.

    Raises BadInput: it is no address, or WORKSHOP_API_KEY holds no key.
    """
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        good = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and "@" not in parts.netloc
            and parts.port != 0
        )
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput(
            f"{source} is {url!r}, which is no address.",
            "Use http://HOST:PORT/v1; key: WORKSHOP_API_KEY.",
        )
    key = os.environ.get("WORKSHOP_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput(
            "WORKSHOP_API_KEY holds characters that no key has.",
            "Set it to the server's key alone.",
        )
    if not url.endswith("/v1"):
        url = f"{url}/v1"
    return ServerRecord(name=source, url=url, model="", api_key=key, where="given", state="ready")


class SeveralServers(WorkshopError):
    """Several servers are ready, and none was named; `command_remedy` is for a command line."""

    def __init__(self, names: list[str]):
        super().__init__(
            f"Several servers are running: {', '.join(names)}.",
            f"Choose one: connect({names[0]!r}).",
        )
        self.command_remedy = f"Choose one with --name, such as --name {names[0]}."


class StillStarting(WorkshopError):
    """The server is being started. `record` is its record, and `look(name)` reads it again."""

    def __init__(self, record: ServerRecord, look: Callable[[str], ServerRecord | None]):
        super().__init__(
            f"The server {record.name!r} is still starting.",
            "Wait until `workshop servers` says ready, then connect() again.",
        )
        self.record = record
        self.look = look


def ready_server(name: str | None = None) -> ServerRecord:
    """Return the record of the one server that is ready: the one called `name`, if that is given.

    Raises WorkshopError: there is none, there are several, or it is still starting or has failed.
    """
    failed = None
    doubtful = None
    for candidates, look in (
        (records.own(), records.read),
        (records.shared(), records.read_shared),
    ):
        named = [record for record in candidates if name in (None, record.name)]
        ready = records.ready_among(named)
        if ready and ready[0].in_doubt:  # as all of them are
            doubtful = doubtful or ready[0]
        elif len(ready) == 1:
            return ready[0]
        elif ready:
            raise SeveralServers([record.name for record in ready])
        last = named[-1] if named else None
        if last is not None and last.state == "starting":
            raise StillStarting(last, look)
        # a start of one's own that failed does not hide the server of the class
        failed = failed or last
    if doubtful:  # its own address tells
        return doubtful
    if failed:
        raise _ended(failed)
    if name:
        others = records.ready()
        raise records.unknown(name, others, "" if others else START)
    raise WorkshopError("No server is known here.", START)


choose = ready_server  # as cli/servers.py and cli/tunnel.py call it


def _ended(record: ServerRecord) -> WorkshopError:
    """Return the error for a server that has failed, or that SLURM has suspended."""
    if record.state == SUSPENDED:
        problem = f"The server {record.name!r} is {record.reason}"
        return WorkshopError(problem, "Wait, or use another: `workshop servers` lists them.")
    start = START
    if record.where == "slurm":
        start = "Submit it again: workshop slurm submit."
    problem = f"The server {record.name!r} has failed: {record.reason}."
    return WorkshopError(problem, f"{start} Its own words are in {record.log}.")


def silent(record: ServerRecord, cause: str, remedy: str = "") -> WorkshopError:
    """Return the error for a server that does not answer: what is known of it, and what to do.

    The record is read again, so that its own process, or SLURM's queue, has its say.

    Args:
        cause: '' or what the connection said.
        remedy: what is known to help; '' if nothing is.
    """
    now = None
    is_own = False
    if record.where != "given":
        with contextlib.suppress(WorkshopError):
            own = records.read(record.name)
            is_own = own is not None and own.api_key == record.api_key
            now = own if is_own else records.read_shared(record.name)
    if now is not None and now.state in (SUSPENDED, "failed"):
        return _ended(now)
    problem = f"The server at {record.url} does not answer"
    if cause:
        problem += f" ({cause})"
    if not remedy and record.where == "given":
        remedy = CHECK_ADDRESS
    if not remedy and is_own:
        remedy = (
            f"It was not stopped. See how it is: `workshop servers {record.name}`; what it says: "
            f"`workshop logs {record.name}`; end it: `workshop stop {record.name}`."
        )
    if not remedy and now is not None:
        remedy = (
            "It is shared with you: ask whoever shared it, or use another (`workshop servers`)."
        )
    return WorkshopError(f"{problem}.", remedy or START)
