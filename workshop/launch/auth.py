"""The guard in front of vLLM: every path but /health needs the key.

vLLM's own `--api-key` guards only some paths (0.32.0 answers `POST /invocations`, `/tokenize` and `/metrics`
without it), so `workshop serve` puts this ASGI middleware in front of all of them. The key is read once from a file:
the server's record, or, where there is none (a pod, a systemd unit), a file that holds the key alone. It is in no
argument, no environment and no log. Standard library only: this file also works by itself, in a container that has no
other part of the workshop.

The guard sees a request once its head is read, so the head needs a limit as well: of uvicorn's two HTTP parsers h11
has one, and httptools, which uvicorn prefers, keeps whatever comes. vLLM imports this module before it chooses.
"""

import hmac
import importlib
import json
import os
import sys

if "uvicorn.config" in sys.modules:
    PARSERS = sys.modules["uvicorn.config"].HTTP_PROTOCOLS
    PARSERS["auto"] = PARSERS["h11"]

GUARD = "workshop.launch.auth.RequireKey"  # what --middleware takes
OPEN_PATHS = frozenset({"/health"})  # what load balancers and probes ask, and tells nothing but "alive"
RECORD_VARIABLE = "WORKSHOP_RECORD"  # JSON with "api_key"
KEY_FILE_VARIABLE = "WORKSHOP_API_KEY_FILE"  # the key and nothing else; a Secret that is mounted, for example
METRICS_KEY_FILE_VARIABLE = "WORKSHOP_METRICS_KEY_FILE"  # a key for /metrics alone; without the file there is none
METRICS_PATH = "/metrics"


def read_key() -> bytes:
    """Return the key from the file that the environment names; a ValueError without one: never serve unguarded."""
    if path := os.environ.get(RECORD_VARIABLE):
        with open(path, encoding="utf-8") as file:
            key = json.load(file)["api_key"]
    elif path := os.environ.get(KEY_FILE_VARIABLE):
        with open(path, encoding="utf-8") as file:
            key = file.read().strip()
    else:
        raise ValueError(f"neither {RECORD_VARIABLE} nor {KEY_FILE_VARIABLE} is set: refusing to serve unguarded")
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


def path_of(scope) -> str:
    """Return the path that the application sees; '' for what is no HTTP request."""
    return scope.get("path", "").removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""


async def refuse(send, status: int, message: str, kind: str = "class_limit", *headers: tuple[bytes, bytes]) -> None:
    """Answer with an error in the API's form."""
    body = json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()
    headers += ((b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


def _token(scope) -> bytes:
    """Return what a request brings as its key; b"" for none, and for more than one."""
    given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
    scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""


class RequireKey:
    """ASGI middleware (`--middleware workshop.launch.auth.RequireKey`): 401 without `Authorization: Bearer KEY`."""

    def __init__(self, app):
        self.app = app
        self._key, self._metrics_key = read_key(), read_metrics_key()
        path = os.environ.get(RECORD_VARIABLE)  # the keys of a class lie beside it; a pod or a unit has none
        self._learners = importlib.import_module("workshop.launch.keys").Learners(path) if path else None

    async def __call__(self, scope, receive, send):
        """Pass on what has the key, `/health`, and the server's own lifespan messages; refuse the rest."""
        if scope["type"] == "lifespan" or path_of(scope) in OPEN_PATHS or self._authorised(scope):
            await self.app(scope, receive, send)
        elif self._learners and (name := self._learners.who(_token(scope))):
            await self._learners.serve(name, self.app, scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "key required"})
        else:
            how = "send it as 'Authorization: Bearer KEY'. workshop.connect() does so by itself."
            bearer = (b"www-authenticate", b"Bearer")
            await refuse(send, 401, f"This server needs its key: {how}", "invalid_api_key", bearer)

    def _authorised(self, scope) -> bool:
        token = _token(scope)
        right = hmac.compare_digest(token, self._key)
        if self._metrics_key and path_of(scope) == METRICS_PATH:
            right |= hmac.compare_digest(token, self._metrics_key)
        return right
