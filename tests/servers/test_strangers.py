"""What somebody without the key can cost a server: uvicorn with our guard, as vLLM starts it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

import psutil
import pytest

from workshop.guard import auth
from workshop.servers.local import HEADERS_BYTES

MIB = 2**20
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
SERVER = f"""
import socket, sys
import uvicorn
from workshop.guard.auth import RequireKey
async def app(scope, receive, send):
    raise SystemExit("a request without the key passed the guard")
listener = socket.create_server(("127.0.0.1", 0))
config = uvicorn.Config(RequireKey(app), lifespan="off", log_level="error")
config.h11_max_incomplete_event_size = {HEADERS_BYTES}
print(listener.getsockname()[1], flush=True)
uvicorn.Server(config).run(sockets=[listener])
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """(port, psutil.Process) of a server that nobody has the key of."""
    key = tmp_path_factory.mktemp("key") / "key"
    key.write_text("right")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env={auth.KEY_FILE_VARIABLE: str(key)},
        stdout=subprocess.PIPE,
        text=True,
    )
    port = int(process.stdout.readline())
    assert refused(port), "it is up"
    yield port, psutil.Process(process.pid)
    assert process.poll() is None, "no request passed the guard, and none ended the server"
    process.terminate()
    process.communicate()


def refused(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall(HEAD + b"\r\n")
        return stranger.recv(100).startswith(b"HTTP/1.1 401")


def flood(port: int, head: bytes, piece: bytes, pieces: int = 100) -> int:
    """Send a head, and pieces for as long as the server takes them; return how many it took."""
    taken = 0
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as stranger,
        contextlib.suppress(ConnectionError),
    ):
        stranger.sendall(head)
        while taken < pieces:
            stranger.sendall(piece)
            taken += 1
    return taken


def test_an_endless_head_ends_the_connection_and_costs_no_memory(guarded, subtests):
    for head, piece in [
        (HEAD, b"X: " + b"a" * MIB + b"\r\n"),
        (HEAD + b"X: ", b"a" * MIB),
        (b"", b"G" * MIB),
        (HEAD, b"X: y\r\n" * 2**17),
        (HEAD + b"X: y\r\n", b" folded" * 2**17),
    ]:
        with subtests.test(f"{head} {piece}"):
            port, process = guarded
            before = process.memory_info().rss
            assert flood(port, head, piece) < 50, "the server closed it"
            assert process.memory_info().rss - before < 30 * MIB and refused(port)


def test_a_huge_body_is_refused_before_it_is_read_and_costs_no_memory(guarded, subtests):
    for head, piece in [
        (b"Content-Length: 1000000000\r\n\r\n", b"a" * MIB),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + b"a" * MIB + b"\r\n"),
        (b"Content-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n", b"a" * MIB),
    ]:
        with subtests.test(f"{head} {piece}"):
            port, process = guarded
            before = process.memory_info().rss
            with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
                stranger.sendall(HEAD + head)
                assert stranger.recv(100).startswith(b"HTTP/1.1 401"), (
                    "before any of the body was sent"
                )
            flood(port, HEAD + head, piece)
            assert process.memory_info().rss - before < 30 * MIB and refused(port)


def test_many_who_never_finish_their_head_do_not_keep_others_out(guarded):
    port, process = guarded
    before = process.memory_info().rss
    with contextlib.ExitStack() as connections:
        for _ in range(200):
            stranger = connections.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=30)
            )
            stranger.sendall(HEAD + b"X: " + b"a" * 1000)
        assert refused(port)
        assert process.memory_info().rss - before < 200 * (HEADERS_BYTES + 100_000)


def test_the_guard_takes_the_parser_that_has_a_limit():
    code = """
import uvicorn.config as config
config.HTTP_PROTOCOLS["auto"] = "nowhere:Fast"
import workshop.guard.auth
print(config.HTTP_PROTOCOLS["auto"])"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "uvicorn.protocols.http.h11_impl:H11Protocol", done.stderr
