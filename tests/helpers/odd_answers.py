"""What servers answer that are broken, are no vLLM, or have something in between; and a server that answers so."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from http.server import ThreadingHTTPServer

from hypothesis import strategies as st
from small_server import Handler

LOGIN = b"<!DOCTYPE html><html><body><form>Please log in</form></body></html>"
CHOICE = {
    "index": 0,
    "text": " city",
    "finish_reason": "length",
    "stop_reason": None,
    "logprobs": None,
}
COMPLETION = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [CHOICE],
              "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}  # fmt: skip
MODELS = {
    "object": "list",
    "data": [{"id": "m", "object": "model", "root": "/m", "max_model_len": 64}],
}
ODD = [None, True, 1, -1, 0.5, "x", "", [], {}, [None], [[]], [{}], [1], {"a": 1}, 10**4200]


def encoded(data: object) -> bytes:
    """Return JSON."""
    return json.dumps(data).encode()


def with_field(data: object, path: tuple, value: object) -> object:
    """Return a copy with the value at a path of keys and indexes; "missing" takes it away."""
    copy = json.loads(json.dumps(data))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if value == "missing":
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


def paths(data: object, here: tuple = ()) -> list[tuple]:
    """Return every path into a nested value."""
    inner = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [path for key, value in inner for path in ((*here, key), *paths(value, (*here, key)))]


BROKEN_MODELS = [LOGIN, b"", b"null", b"[]", b'{"data": null}', b'{"data": [1]}', b'{"data": [{}]}', b'{"data": {}}',
                 b'{"data": [{"id": 3}]}', b'{"data": [{"id": null}]}', b'{"data": "m"}', b'{"error": "x"}',
                 b'{"data": [{"id": "m", "max_model_len": "64"}]}', b'{"data": []}', encoded(MODELS)[:-4],
                 encoded(MODELS).decode().encode("utf-16"), b'{"data": ' + b"[" * 100_000]  # fmt: skip
mutated = st.builds(with_field, st.just(COMPLETION), st.sampled_from(paths(COMPLETION)),
                    st.sampled_from([*ODD, "missing"]))  # fmt: skip


class Server:
    """Answers each path with what `answers` says: bytes, or (bytes, content type), or all that goes over the wire.

    That is text, or a function that gives its pieces.
    """

    def __init__(self):
        outer = self
        self.answers: dict[str, object] = {}
        self.seen: list[tuple[str, dict, bytes]] = []

        class Answers(Handler):
            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.seen.append((self.path, dict(self.headers), body))
                reply = outer.answers.get(self.path, b"{}")
                if isinstance(reply, str):  # a whole answer, as it stands on the wire
                    self.wfile.write(reply.encode())
                    self.close_connection = True
                    return
                if callable(reply):  # pieces of one, until the asker has gone
                    with contextlib.suppress(OSError):
                        for piece in reply():
                            self.wfile.write(piece)
                    self.close_connection = True
                    return
                data, kind = reply if isinstance(reply, tuple) else (reply, "application/json")
                self.reply(data, kind=kind)

            do_GET = do_POST = do_CONNECT = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.root = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.root}/v1"

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def sound():
    """Give a server that answers as it should."""
    server = Server()
    server.answers = {"/v1/models": encoded(MODELS), "/v1/completions": encoded(COMPLETION)}
    try:
        yield server
    finally:
        server.close()


def redirect(to: str) -> str:
    """Return an answer that sends the asker elsewhere."""
    return f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"


def endless(head: bytes, piece: bytes, pause_s: float = 0.0):
    """Return a function that gives an answer whose end nobody should wait for."""

    def pieces():
        yield head
        for _ in range(1500):
            yield piece
            time.sleep(pause_s)

    return pieces


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
ENDLESS = {"drips": endless(HEAD, b" ", 0.02), "floods": endless(HEAD, b" " * 65536),
           "headers": endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.02)}  # fmt: skip


def cut_in_chunks(data: bytes) -> str:
    """Return an answer whose chunked body ends in the middle."""
    return (
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        f"{len(data):x}\r\n{data.decode()[:-5]}"
    )
