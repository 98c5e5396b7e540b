"""A small server for tests: a record of it, and a start of an engine of a few lines in the place of vLLM."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

from workshop import timestamps
from workshop.servers import records
from workshop.servers.host import machine
from workshop.servers.local import Launch
from workshop.servers.records import ServerRecord

ENGINE = Path(__file__).parent / "servers/local/engine.py"


@contextmanager
def serving(handler: Callable) -> Iterator[str]:
    """Serve on a free port of this machine while the block runs; yields the address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
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
