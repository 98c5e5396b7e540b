"""The guard in front of vLLM: every path but /health needs the key.

vLLM's own `--api-key` guards only some paths (0.32.0 answers `POST /invocations`, `/tokenize` and
`/metrics` without it), so `workshop serve` puts this ASGI middleware in front of all of them. The
key comes from a file: the server's record, or, where there is none (a pod, a systemd unit), a file
that holds the key alone. A file that has changed is read again, so a key can be exchanged while the
server runs. It is in no argument, no environment and no log, and the headers
that bring it go no further than the guard. Besides `asgi.py` it needs the standard library only, so
that it works in a container that has little else of the workshop.

The guard sees a request once its head is read, so the head needs a limit as well: of uvicorn's two
HTTP parsers h11 has one, and httptools, which uvicorn prefers, keeps whatever comes. vLLM imports
this module before it chooses.
"""

import hmac
import json
import os
import sys
import time
from contextlib import suppress

from workshop.guard.asgi import cors_of, header_of, keys_of, path_of, refuse, without_keys

if "uvicorn.config" in sys.modules:
    PARSERS = sys.modules["uvicorn.config"].HTTP_PROTOCOLS
    PARSERS["auto"] = PARSERS["h11"]

GUARD = "workshop.guard.auth.RequireKey"  # what --middleware takes
# What load balancers and probes ask; the answer is "alive", and nothing else.
OPEN_PATHS = frozenset({"/health"})
RECORD_VARIABLE = "WORKSHOP_RECORD"  # JSON with "api_key"
# A file with the key and nothing else: a Secret that is mounted, for example.
KEY_FILE_VARIABLE = "WORKSHOP_API_KEY_FILE"
# A file with a key for /metrics alone; without the file there is none.
METRICS_KEY_FILE_VARIABLE = "WORKSHOP_METRICS_KEY_FILE"
METRICS_PATH = "/metrics"
REREAD_S = 0.5  # how old what the guard knows of the file may be
HOW = (
    "send it as 'Authorization: Bearer KEY', or as 'x-api-key: KEY'. "
    "workshop.connect() does so by itself."
)


def key_file() -> str:
    """Return the file that the environment names; "" for none."""
    return os.environ.get(RECORD_VARIABLE) or os.environ.get(KEY_FILE_VARIABLE) or ""


class Key:
    """The key of a file, which is read again when the file has changed.

    A file that is gone, or holds no key, changes nothing: the last key goes on.

    Raises ValueError, OSError: there is none at the start.
    """

    def __init__(self) -> None:
        self._path = key_file()
        self._key = read_key()
        self._state = self._now()
        self._looked_s = time.monotonic()

    def _now(self) -> tuple[int, int]:
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_ino

    def is_right(self, key: bytes) -> bool:
        """Return whether this is the key, in a time that tells nothing about it."""
        if time.monotonic() - self._looked_s > REREAD_S:
            self._looked_s = time.monotonic()
            with suppress(OSError, ValueError, KeyError):
                state = self._now()
                if state != self._state:
                    self._key = read_key()
                    self._state = state
        return hmac.compare_digest(key, self._key)


def read_key() -> bytes:
    """Return the key from the file that the environment names.

    Raises:
        ValueError: no file is named, or it holds no key. A server never starts without its guard.
    """
    record = os.environ.get(RECORD_VARIABLE)
    path = key_file()
    if not path:
        raise ValueError(
            f"neither {RECORD_VARIABLE} nor {KEY_FILE_VARIABLE} is set: refusing to serve unguarded"
        )
    with open(path, encoding="utf-8") as file:
        text = file.read()
    key = text.strip()
    if record:
        key = json.loads(text)["api_key"]
    if not key:
        raise ValueError(f"{path} holds no key: refusing to serve unguarded")
    return key.encode()


def read_metrics_key() -> bytes:
    """Return the key that opens /metrics alone, or b"" where there is none."""
    try:
        with open(os.environ.get(METRICS_KEY_FILE_VARIABLE, ""), encoding="utf-8") as file:
            return file.read().strip().encode()
    except FileNotFoundError:
        return b""


def learners_of_a_class():
    """Return the learners whose keys lie beside the server's record; None in a pod or a unit."""
    path = os.environ.get(RECORD_VARIABLE)
    if not path:
        return None
    # A container has this module, and not that one.
    from workshop.guard.keys import Learners

    return Learners(path)


class RequireKey:
    """ASGI middleware that answers 401 to a request without the key.

    `--middleware workshop.guard.auth.RequireKey`
    """

    def __init__(self, app):
        self.app = app
        self._key = Key()
        self._metrics_key = read_metrics_key()
        self._learners = learners_of_a_class()
        self._cors = None

    async def __call__(self, scope, receive, send):
        """Pass on what has the key, `/health`, and the server's lifespan messages; refuse the rest.

        A browser's question whether a page may ask (a CORS preflight) has no key. It is answered
        here, by the settings of vLLM's own CORSMiddleware, and goes no further.
        """
        if scope["type"] == "http" and header_of(scope.get("headers", ()), b"origin"):
            if self._cors is None:
                self._cors = cors_of(scope, self._guard) or self._guard
            await self._cors(scope, receive, send)
        else:
            await self._guard(scope, receive, send)

    async def _guard(self, scope, receive, send):
        if scope["type"] == "lifespan" or path_of(scope) in OPEN_PATHS:
            await self.app(scope, receive, send)
            return
        keys = keys_of(scope)
        key = b""
        if len(keys) == 1:
            key = next(iter(keys))
        if self._opens(key, path_of(scope)):
            await self.app(without_keys(scope), receive, send)
            return
        if self._learners:
            name = self._learners.who(key)
            if name:
                await self._learners.serve(name, key, self.app, without_keys(scope), receive, send)
                return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "key required"})
            return
        problem = "This server needs its key"
        if len(keys) > 1:
            problem = "This request has two different keys; bring one"
        bearer = (b"www-authenticate", b"Bearer")
        await refuse(send, 401, f"{problem}: {HOW}", "invalid_api_key", bearer)

    def _opens(self, key: bytes, path: str) -> bool:
        is_right = self._key.is_right(key)
        if self._metrics_key and path == METRICS_PATH:
            is_right |= hmac.compare_digest(key, self._metrics_key)
        return is_right
