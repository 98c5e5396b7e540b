"""A small server for tests: what answers, a record of it, and an engine of a few lines in the place of vLLM."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from workshop import timestamps
from workshop.servers import records
from workshop.servers.host import machine
from workshop.servers.local import Launch
from workshop.servers.records import ServerRecord

ENGINE = Path(__file__).parents[1] / "servers/local/engine.py"


class Handler(BaseHTTPRequestHandler):
    """Answers requests as a test's do_GET and do_POST say."""

    def body(self) -> Any:
        """Return the JSON of a request, or None if it has none."""
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(text) if text else None

    def reply(self, data: object, status: int = 200, kind: str = "application/json") -> None:
        """Send a text, bytes, or anything else as JSON."""
        if isinstance(data, str):
            data = data.encode()
        if not isinstance(data, bytes):
            data = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        """Send the head of an answer that comes in events."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()

    def event(self, data: dict) -> None:
        """Send one event of a stream."""
        self.wfile.write(b"data: " + json.dumps(data).encode() + b"\n\n")

    def log_message(self, *_: object) -> None:
        """Be quiet."""


class Server(ThreadingHTTPServer):
    """A server whose queue holds the connections that a batch opens at once: others would wait for minutes."""

    request_queue_size = 256


@contextmanager
def serving(handler: Callable) -> Iterator[str]:
    """Serve on a free port of this machine while the block runs; yields the address."""
    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def record(name: str = "a", **changes) -> ServerRecord:
    """A server of this machine, ready, at a port where nobody listens."""
    server_record = ServerRecord(
        name=name,
        url="http://127.0.0.1:1/v1",
        model="m",
        api_key="secret",
        state="ready",
        host=socket.gethostname(),
        boot_id=records.boot_id(),
        started=timestamps.now("milliseconds"),
    )
    return replace(server_record, **changes)


def launch(name: str = "a", **env: str) -> Launch:
    """A start of the engine of a few lines, on a port that is held for it."""
    port, port_claim = machine.take_port("127.0.0.1", 8900)
    return Launch(
        name=name,
        model="m",
        served="m",
        host="127.0.0.1",
        port=port,
        argv=[sys.executable, str(ENGINE), str(port), "m"],
        env={**os.environ, **env, "WORKSHOP_RECORD": str(records.path_of(name))},
        log=records.home() / "logs" / f"{name}.log",
        port_claim=port_claim,
    )
