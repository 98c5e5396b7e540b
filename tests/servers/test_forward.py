"""An address that stays: a server that starts again elsewhere is reached under it, and why it is away is said."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import httpx
import pytest
from small_server import record, serving

from workshop.errors import WorkshopError
from workshop.servers import records, tunnel
from workshop.servers.machine import free_port


@contextmanager
def engine(answer: str):
    """A server that answers each path with its own name; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            text = answer.encode() + self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    with serving(Handler) as address:
        yield f"{address}/v1"


@pytest.fixture
def address(workshop_home):
    """The address that stays, of the server `a`."""
    port, opened = free_port("127.0.0.1"), threading.Event()
    threading.Thread(target=tunnel.forward, args=("a", port, opened.set), daemon=True).start()
    assert opened.wait(10)
    return f"http://127.0.0.1:{port}/v1"


def ask(address: str) -> httpx.Response:
    return httpx.post(f"{address}/completions", content=b"x" * 100_000, trust_env=False, timeout=10)


def test_a_restarted_server_is_reached_under_the_same_address(address):
    with engine("first") as url:
        records.write(record("a", url=url))
        assert ask(address).text == "first" + "x" * 100_000
        records.write(
            record(
                "a", url=url, state="starting", reason="its SLURM job 7 waits in the queue again"
            )
        )
        away = ask(address)
        assert away.status_code == 503 and away.headers["Retry-After"] == "5"
        assert away.json()["error"]["message"] == (
            "The server a is starting: its SLURM job 7 waits in the queue again."
        )
    with engine("second") as url:
        records.write(record("a", url=url))
        assert ask(address).text.startswith("second")
    gone = ask(address)
    assert (
        gone.status_code == 503 and f"a does not answer at {url}" in gone.json()["error"]["message"]
    )
    records.remove("a")
    assert "is stopped" in ask(address).json()["error"]["message"]


def test_a_shared_server_has_one_too(address, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path))
    with engine("shared") as url:
        records.write(record("a", url=url))
        records.path_of("a").rename(tmp_path / "a.json")
        assert ask(address).text.startswith("shared")


def test_a_port_that_is_taken_is_refused():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(WorkshopError, match="is taken"),
    ):
        tunnel.forward("a", taken.getsockname()[1])
