"""A key for each learner of a class, and what each has used: `workshop keys add|list|revoke NAME`.

One file of this user's holds the names and the digests of their keys (never the keys); every server of this user's
reads it again while it runs, so that a key that is revoked is refused within REREAD_S, without a restart. The guard
counts what each name asks for, by the usage that vLLM itself reports, in a ledger of its own beside it.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import re
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from os import getpid
from pathlib import Path
from typing import Any

from workshop.errors import BadInput, WorkshopError
from workshop.launch.asgi import path_of, refuse
from workshop.launch.fairshare import LEARNER, MAX_BODY_BYTES, once_more, read_body
from workshop.launch.home import home, private_folder, write_private
from workshop.launch.lock import Lock

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
REREAD_S = 2.0  # how old what a server knows of the keys may be
WRITE_S = 2.0  # how old a ledger may be
COUNTS = ("requests", "prompt_tokens", "completion_tokens")
# In an answer or an event of a stream; inside a text the quotes would have backslashes before them.
USAGE = re.compile(rb'(?<!\\)"usage":\s*(\{[^{}]*)')
FIELDS = {
    "prompt_tokens": re.compile(rb'"(?:prompt|input)_tokens":\s*(\d+)'),
    "completion_tokens": re.compile(rb'"(?:completion|output)_tokens":\s*(\d+)'),
}


def _digest(key: str | bytes) -> str:
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).hexdigest()


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Return {name: entry}; nothing where there is no file, or it is being made anew."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values()) else {}


@contextmanager
def _changing() -> Iterator[dict[str, dict[str, Any]]]:
    folder = private_folder()
    with Lock(folder / "keys.lock").taken() as free:
        if not free:
            raise WorkshopError("Another command is changing the keys.", "Try again in a moment.")
        entries = _read(folder / "keys.json")
        yield entries
        write_private(folder / "keys.json", json.dumps(entries, indent=1) + "\n")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def add(name: str) -> str:
    """Return a new key for a name that has none; it is kept nowhere, only its digest is."""
    if not NAME.fullmatch(name):
        remedy = "Use up to 64 letters from a to z, digits, '.', '_', '-' and '@'."
        raise BadInput(f"{name!r} cannot be a learner's name.", remedy)
    key = secrets.token_urlsafe(24)
    with _changing() as entries:
        if name in entries and not entries[name].get("revoked"):
            raise BadInput(f"{name} has a key already.", f"Revoke it first: workshop keys revoke {name}")
        entries[name] = {"sha256": _digest(key), "created": _now(), "revoked": None}
    return key


def revoke(name: str) -> None:
    """Take a name's key back: every server of yours refuses it from then on, within REREAD_S."""
    with _changing() as entries:
        if name not in entries or entries[name].get("revoked"):
            valid = ", ".join(other for other, entry in entries.items() if not entry.get("revoked")) or "none"
            raise BadInput(f"Nobody called {name!r} has a key.", f"Those who have: {valid}.")
        entries[name]["revoked"] = _now()


def listed() -> list[dict[str, Any]]:
    """Return who has a key, since when, and what was used with it, over all servers; no keys."""
    used: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTS, 0))
    last: dict[str, str] = {}
    for path in sorted((home() / "ledger").glob("*.json")):
        for name, entry in _read(path).items():
            for count in COUNTS:
                used[name][count] += int(entry.get(count) or 0)
            last[name] = max(last.get(name, ""), str(entry.get("last_used") or ""))
    return [
        {
            "name": name,
            "created": entry.get("created"),
            "revoked": entry.get("revoked"),
            **used[name],
            "last_used": last.get(name) or None,
        }
        for name, entry in sorted(_read(home() / "keys.json").items())
    ]


class Learners:
    """Whose key a request has, and what it used. record: the server's record; keys and ledger are found from there."""

    def __init__(self, record: str | Path):
        record = Path(record)
        self._keys = record.parent.parent / "keys.json"
        self._ledger = record.parent.parent / "ledger" / f"{record.stem}.{getpid()}.json"
        self._names: dict[str, str] = {}
        self._read_at = -1e9
        self._used: dict[str, dict[str, Any]] = {}
        self._unwritten = False
        atexit.register(self._write)

    def who(self, key: bytes) -> str:
        """Return whose key this is, or ""."""
        if time.monotonic() - self._read_at >= REREAD_S:
            entries = _read(self._keys)  # opened anew: on a shared file system that asks for the newest
            self._names = {str(e.get("sha256")): name for name, e in entries.items() if not e.get("revoked")}
            self._read_at = time.monotonic()
        return self._names.get(_digest(key), "")

    async def serve(self, name: str, key: bytes, app, scope, receive, send) -> None:
        """Pass a learner's request on, under that name for the class's limits, and write down what it used."""
        headers = [(key, value) for key, value in scope.get("headers", ()) if key.lower() != LEARNER]
        scope = {**scope, "headers": [*headers, (LEARNER, name.encode())]}
        if scope["type"] != "http" or scope.get("method") != "POST":
            await app(scope, receive, send)
            return
        body = await read_body(receive)
        if body is None:
            await refuse(send, 413, f"The request is larger than {MAX_BODY_BYTES // 2**20} MiB.")
            return
        body, hidden = _with_usage(body) if path_of(scope).endswith("/completions") else (body, False)
        meter = _Meter(send, hidden)
        try:
            headers = [(key, value) for key, value in scope["headers"] if key.lower() != b"content-length"]
            headers.append((b"content-length", str(len(body)).encode()))
            await app({**scope, "headers": headers}, once_more(body, receive), meter)
        finally:
            self._count(name, meter)

    def _count(self, name: str, meter: _Meter) -> None:
        entry = self._used.setdefault(name, dict.fromkeys(COUNTS, 0))
        entry["requests"] += 1
        entry["prompt_tokens"] += meter.used["prompt_tokens"]
        entry["completion_tokens"] += meter.used["completion_tokens"] or meter.events
        entry["last_used"] = _now()
        if not self._unwritten:  # else a write is on its way
            self._unwritten = True
            asyncio.get_running_loop().call_later(WRITE_S, self._write)

    def _write(self) -> None:
        if not self._unwritten:
            return
        self._unwritten = False
        try:
            self._ledger.parent.mkdir(mode=0o700, exist_ok=True)
            write_private(self._ledger, json.dumps(self._used, indent=1) + "\n")
        except (OSError, WorkshopError) as error:  # serving goes on; the next request tries again
            print(f"The ledger of the keys cannot be written: {error}", file=sys.stderr)


class _Meter:
    """A `send` that reads the usage as it passes, and keeps back the event that the client did not ask for."""

    def __init__(self, send, hidden: bool):
        self._send, self._hidden = send, hidden
        self.used = dict.fromkeys(FIELDS, 0)
        self.events = 0  # of a stream: at least a token each, should it end before its usage

    async def __call__(self, message) -> None:
        body = message.get("body", b"")
        usage = USAGE.search(body)
        if usage:
            for name, field in FIELDS.items():
                found = field.search(usage[1])
                self.used[name] = max(self.used[name], int(found[1]) if found else 0)
        elif body.startswith(b'data: {"'):
            self.events += 1
        if self._hidden and usage and b'"choices":[]' in body:
            return
        await self._send(message)


def _with_usage(body: bytes) -> tuple[bytes, bool]:
    """Return the body of a request, a stream's with usage asked for, and whether that is ours to keep back."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body, False
    if not isinstance(request, dict) or request.get("stream") is not True:
        return body, False
    given = request.get("stream_options")
    if given is not None and (not isinstance(given, dict) or given.get("include_usage")):
        return body, False
    return json.dumps({**request, "stream_options": {**(given or {}), "include_usage": True}}).encode(), True
