"""Which server is meant: WORKSHOP_URL, this user's own, or one shared with the class. Nothing is asked here."""

import os
from urllib.parse import urlsplit

from workshop.errors import BadInput, WorkshopError
from workshop.launch import records
from workshop.launch.records import ServerRecord

START = "Start one: `workshop serve --background`, or run the panel of notebook 00_start."


def find(name: str | None = None) -> ServerRecord:
    """Return the record that `connect` uses, without asking the server; raises as `connect` does."""
    url = os.environ.get("WORKSHOP_URL")
    return given(url, "WORKSHOP_URL") if url and name is None else choose(name)


def given(url: str, said_by: str) -> ServerRecord:
    """Return a record of an address that the user gives; the key is WORKSHOP_API_KEY."""
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput(f"{said_by} is {url!r}, which is no address.", "Use http://HOST:PORT/v1.")
    key = os.environ.get("WORKSHOP_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        raise BadInput("WORKSHOP_API_KEY holds characters that no key has.", "Set it to the server's key alone.")
    url = url if url.endswith("/v1") else f"{url}/v1"
    return ServerRecord(name=said_by, url=url, model="", api_key=key, where="given", state="ready")


def choose(name: str | None = None) -> ServerRecord:
    """Return the record of the one server that is ready (the one called `name`, if given), or say why not."""
    for found in (records.own(), records.shared()):
        named = [record for record in found if name in (None, record.name)]
        ready = [record for record in named if record.state == "ready"]
        if len(ready) == 1:
            return ready[0]
        if ready:
            names = ", ".join(record.name for record in ready)
            raise WorkshopError(f"Several servers are running: {names}.", f"Choose one: connect({ready[0].name!r}).")
        if named and (record := named[-1]).state == "starting":
            said = f"The server {record.name!r} is still starting."
            raise WorkshopError(said, "Wait until `workshop servers` says ready, then connect() again.")
        if named:
            said = f"The server {record.name!r} has failed: {record.reason}."
            raise WorkshopError(said, f"{START} Its own words are in {record.log}.")
    which = f" called {name!r}" if name else ""
    raise WorkshopError(f"No server{which} is known here.", START)
