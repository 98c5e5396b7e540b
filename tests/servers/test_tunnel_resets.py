"""A tunnel passes on how a connection ends: a reset is a reset, and the end of one direction leaves the other open."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from small_server import record

from workshop.servers import records, tunnel
from workshop.servers.machine import free_port

WAIT_S = 30
LARGE = b"x" * 4_000_000  # more than the buffers of two connections hold


@pytest.fixture
def listener(workshop_home) -> Iterator[socket.socket]:
    """The far side: a socket on which a server listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        records.write(record("a", url=f"http://127.0.0.1:{server.getsockname()[1]}/v1"))
        yield server


@pytest.fixture
def port(listener) -> int:
    """The tunnel's own port."""
    number, opened = free_port("127.0.0.1"), threading.Event()
    threading.Thread(target=tunnel.forward, args=("a", number, opened.set), daemon=True).start()
    assert opened.wait(WAIT_S)
    return number


@pytest.fixture
def ends(port, listener) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection through the tunnel: the client's and the server's."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        client.sendall(b"hello")
        server, _ = listener.accept()
        with server:
            server.settimeout(WAIT_S)
            assert server.recv(5) == b"hello"
            yield client, server


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_all(connection: socket.socket) -> int:
    """Return how many bytes come until the end."""
    count = 0
    while data := connection.recv(65536):
        count += len(data)
    return count


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_reset_is_passed_on(ends, side):
    client, server = ends
    breaks, other = (client, server) if side == "client" else (server, client)
    breaks.sendall(b"half of an answer")
    assert other.recv(100) == b"half of an answer"
    reset(breaks)
    with pytest.raises(ConnectionResetError):
        read_all(other)


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_reset_is_passed_on_while_the_other_side_is_still_sending(ends, side):
    client, server = ends
    breaks, other = (client, server) if side == "client" else (server, client)

    def send_until_broken() -> None:
        while True:
            other.sendall(LARGE)

    reset(breaks)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        send_until_broken()


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_reset_is_passed_on_while_nobody_reads(ends, side):
    """The tunnel's buffers are full, so it does not read; and after an end of one direction it reads no more."""
    client, server = ends
    breaks, other = (client, server) if side == "client" else (server, client)
    breaks.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while breaks.send(LARGE):
            time.sleep(0.05)
    reset(breaks)
    time.sleep(3 * tunnel.BROKEN_LOOK_S)
    with pytest.raises(ConnectionResetError):
        read_all(other)


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_reset_after_the_end_of_one_direction_is_passed_on(ends, side):
    client, server = ends
    breaks, other = (client, server) if side == "client" else (server, client)
    breaks.shutdown(socket.SHUT_WR)
    assert other.recv(100) == b""
    reset(breaks)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        for _ in range(20):
            time.sleep(0.3)
            if other.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise ConnectionResetError


def test_closing_with_unread_bytes_is_a_reset_here_too(ends):
    """The system resets a connection that is closed before everything was read."""
    client, server = ends
    client.sendall(b"not read")
    server.recv(1, socket.MSG_PEEK)
    server.close()
    with pytest.raises(ConnectionResetError):
        read_all(client)


@pytest.mark.parametrize("first", ["client", "server"])
def test_the_end_of_one_direction_leaves_the_other_open(ends, first):
    client, server = ends
    done, other = (client, server) if first == "client" else (server, client)
    done.sendall(b"last words")
    done.shutdown(socket.SHUT_WR)
    assert read_all(other) == len(b"last words")
    sender = threading.Thread(target=lambda: (other.sendall(LARGE), other.shutdown(socket.SHUT_WR)))
    sender.start()
    assert read_all(done) == len(LARGE)
    sender.join(WAIT_S)


def test_a_refusal_reaches_a_client_that_sends_a_large_body(port, listener):
    records.write(record("a", state="starting"))
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
        sender = threading.Thread(
            target=lambda: (client.sendall(LARGE), client.shutdown(socket.SHUT_WR))
        )
        sender.start()
        answer = b""
        while data := client.recv(65536):
            answer += data
        sender.join(WAIT_S)
    assert answer.startswith(b"HTTP/1.1 503 ") and b"is starting" in answer
