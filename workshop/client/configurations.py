"""Makes the text to write into other programs so that they use a server.

No configuration holds a key: each reads it from the environment variable WORKSHOP_API_KEY, and
"env" from the file of the server's record.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.servers.records import ServerRecord

KEY = "WORKSHOP_API_KEY"
READ_KEY = 'import json, sys; print(json.load(open(sys.argv[1]))["api_key"])'
# kind of client -> what it is ("about"), and what connects it ("text")
CLIENTS: dict[str, dict[str, str]] = tomllib.loads(
    files("workshop.client").joinpath("clients.toml").read_text(encoding="utf-8")
)
KINDS = {kind: client["about"] for kind, client in CLIENTS.items()}
PLACEHOLDER = re.compile("<(url|model|name|key|body)( in shell| in json text| in json|)>")


def access(record: ServerRecord) -> list[str]:
    """Return lines for copying: the address, the model, and the command that prints the key."""
    command = key_command(record) or f"whoever started it has it; set {KEY} to it"
    return [
        f"address  {record.url}",
        f"model    {record.model}",
        f"key      {command}",
        f'all three for other programs: eval "$(workshop servers {record.name} --client env)"',
    ]


def key_command(record: ServerRecord) -> str:
    """Return the shell command that prints a server's key from its record, own or shared, or ''."""
    path = _file_of(record)
    if path is None:
        return ""
    return f"python3 -c {shlex.quote(READ_KEY)} {shlex.quote(str(path))}"


def _file_of(record: ServerRecord) -> Path | None:
    """Return the file of the record with the server's key, or None."""
    from workshop.servers import records

    paths = [records.path_of(record.name)]
    if os.environ.get("WORKSHOP_SHARED"):
        shared = Path(os.environ["WORKSHOP_SHARED"]).expanduser()
        paths.append(shared / f"{record.name}.json")
    for path in paths:
        try:
            if records.load(path).api_key == record.api_key:
                return path
        except (FileNotFoundError, WorkshopError):
            continue
    return None


def of_record(kind: str, record: ServerRecord) -> str:
    """Return what connects one kind of client to the server of a record, as `configuration` does."""
    return configuration(kind, record.name, record.url, record.model, key_command(record))


def configuration(kind: str, name: str, url: str, model: str, key_command: str = "") -> str:
    """Return what connects one kind of client to a server, ready to copy.

    Args:
        kind: one of KINDS.
        name: of the server, which some programs show.
        url: of the server, ending in /v1.
        model: the name that requests give.
        key_command: the shell command that prints the key, which "env" runs; '': the key comes from
            WORKSHOP_API_KEY, as for the other kinds.

    Raises:
        BadInput: an unknown kind.
    """
    if kind not in KINDS:
        raise BadInput(
            f"{kind[:40]!r} is no client that is known here.",
            f"Choose one of {', '.join(KINDS)}.",
        )
    key = f'"${KEY}"'
    if key_command:
        key = f'"$({key_command})"'
    body = json.dumps({"model": model, "prompt": "Rome is", "max_tokens": 16})
    values = {"url": url, "model": model, "name": name, "key": key, "body": body}

    def filled(place: re.Match) -> str:
        return QUOTED[place[2]](values[place[1]])

    return PLACEHOLDER.sub(filled, CLIENTS[kind]["text"]).strip()


def _json_text(text: str) -> str:
    return json.dumps(text)[1:-1]


QUOTED: dict[str, Callable[[str], str]] = {
    "": str,
    " in shell": shlex.quote,
    " in json": json.dumps,
    " in json text": _json_text,
}
