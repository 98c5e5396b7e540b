"""A stub server whose faults a test chooses, in a thread of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import wire_stub

from workshop import batch
from workshop.batch.send.attempts import Limits

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location(
    "batch_stub", ROOT / "benchmarks" / "batch" / "stub.py"
)
stub_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(stub_module)


class Faulty:
    """A server; `fault(prompt, times asked) -> None | (status, body) | "drop" | "cut"` decides what goes wrong."""

    def __init__(self, fault=None, delay_s=0.0, model="stub"):
        self.asked: list[str] = []
        self.most_at_once = 0
        outer = self

        class Protocol(stub_module.Stub):
            settings = SimpleNamespace(model=model, delay_s=delay_s, fail=0.0, own_ids=False)

            def request(self, path, body):
                if path.endswith(b"/completions"):
                    prompt = (
                        json.loads(body).get("prompt")
                        or json.loads(body)["messages"][-1]["content"]
                    )
                    outer.asked.append(prompt)
                    wrong = fault(prompt, outer.asked.count(prompt)) if fault else None
                    if wrong == "drop":
                        return self.transport.close()
                    if wrong == "cut":
                        self.transport.write(
                            b'HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{"choices": [{"te'
                        )
                        return self.transport.close()
                    if wrong:
                        return self.answer(*wrong)
                super().request(path, body)
                outer.most_at_once = max(outer.most_at_once, stub_module.Stub.running)

            def answer(self, status, body):
                stub_module.REASONS.setdefault(status, b"Said")
                super().answer(status, body)

        stub_module.Stub.running = 0
        self.loop, self._protocol, started = asyncio.new_event_loop(), Protocol, threading.Event()

        def serve():
            asyncio.set_event_loop(self.loop)
            self.server = self.loop.run_until_complete(
                self.loop.create_server(Protocol, "127.0.0.1", 0)
            )
            self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/v1"
            started.set()
            self.loop.run_forever()

        threading.Thread(target=serve, daemon=True).start()
        started.wait(10)

    def close(self):
        self.loop.call_soon_threadsafe(self.server.close)
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture
def faulty(workshop_home):
    """Return a function that starts such a server."""
    servers = []

    def start(*args, **kwargs):
        servers.append(Faulty(*args, **kwargs))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def quick():
    """Limits that do not make a test wait."""
    return Limits(backoff_s=0.01, longest_backoff_s=0.05, patience_s=6.0, grace_s=1.0)


@pytest.fixture
def put(tmp_path):
    """Return a function that writes an input: so many rows, texts, or objects."""

    def put(rows, name: str = "in.jsonl") -> Path:
        if isinstance(rows, int):
            rows = [f"row {number}" for number in range(rows)]
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return put


@pytest.fixture
def new_batch(tmp_path, quick, put):
    """Return a function that makes a batch of rows (see `put`) or of a file, to a server or several.

    Its options are those of `Batch`, and the fields of `Limits`.
    """

    def new(servers, rows, output="out.jsonl", **options) -> batch.Batch:
        path = rows if isinstance(rows, Path) else put(rows)
        names = {field.name for field in fields(Limits)} & set(options)
        limits = replace(quick, **{name: options.pop(name) for name in names})
        urls = servers
        if not isinstance(servers, str):
            urls = (
                tuple(server.url for server in servers)
                if isinstance(servers, tuple)
                else servers.url
            )
        return batch.Batch(path, tmp_path / output, url=urls, limits=limits, **options)

    return new


@pytest.fixture
def run(new_batch):
    """Return a function that runs such a batch, and returns its summary."""
    return lambda *arguments, **options: new_batch(*arguments, **options).run()


def answers(path) -> list[dict]:
    """Return the lines of an output."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture(name="answers")
def answers_fixture():
    return answers


@pytest.fixture
def wire(workshop_home):
    """Return a function that starts a server whose every byte the test decides."""
    with wire_stub.servers() as start:
        yield start
