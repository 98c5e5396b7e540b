"""A stub HTTP server for benchmarks and kill tests of the batch client: it answers like vLLM, at once or after a delay.

    python benchmarks/batch/stub.py --port 8123 [--delay-s 0.01] [--fail 0.02] [--own-ids]

It generates nothing, so what is measured is the client. One process, one core. Every answer repeats the prompt's
first 40 characters, so that a test can tell whose answer it is. `--fail` is the share of requests that get a 500. An
answer's id has the X-Request-Id, as vLLM's has; with `--own-ids` it has not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator

METRICS = (
    'vllm:num_requests_running{{engine="0",model_name="{0}"}} {1}\n'
    'vllm:num_requests_waiting{{engine="0",model_name="{0}"}} 0\n'
    'vllm:kv_cache_usage_perc{{engine="0",model_name="{0}"}} 0.1\n'
)
REASONS = {200: b"OK", 404: b"Not Found", 500: b"Internal Server Error"}


class Stub(asyncio.Protocol):
    """One connection: HTTP/1.1 with keep-alive and Content-Length, which is all that the clients here send."""

    running, served = 0, itertools.count()
    settings = argparse.Namespace(model="stub", delay_s=0.0, fail=0.0, own_ids=False)

    def connection_made(self, transport) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end]
            at = head.lower().find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.buffer) < end + 4 + size:
                return
            self.request_id = str(next(self.served))
            at = head.lower().find(b"x-request-id:")
            if at >= 0 and not self.settings.own_ids:
                self.request_id = head[at + 13 :].split(b"\r\n", 1)[0].decode().strip()
            body, self.buffer = self.buffer[end + 4 : end + 4 + size], self.buffer[end + 4 + size :]
            self.request(head.split(b" ", 2)[1], body)

    def request(self, path: bytes, body: bytes) -> None:
        if not path.endswith(b"/completions"):
            return self.answer(*self.other(path))
        if self.settings.fail and random.random() < self.settings.fail:
            return self.answer(500, b'{"error":{"message":"the stub was told to fail"}}')
        Stub.running += 1
        if self.settings.delay_s:
            asyncio.get_running_loop().call_later(self.settings.delay_s, self.complete, body)
        else:
            self.complete(body)

    def complete(self, body: bytes) -> None:
        Stub.running -= 1
        fields = json.loads(body)
        text = str(fields.get("prompt") or fields["messages"][-1]["content"])[:40]
        choices = [
            {
                "index": number,
                "text": f" {text}",
                "message": {"role": "assistant", "content": text},
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
            for number in range(fields.get("n") or 1)
        ]
        self.answer(
            200,
            json.dumps(
                {
                    "id": f"cmpl-{self.request_id}",
                    "object": "text_completion",
                    "created": 0,
                    "model": fields["model"],
                    "choices": choices,
                    "usage": {"prompt_tokens": 8, "total_tokens": 24, "completion_tokens": 16},
                }
            ).encode(),
        )

    def other(self, path: bytes) -> tuple[int, bytes]:
        if path.endswith(b"/models"):
            return 200, json.dumps(
                {
                    "object": "list",
                    "data": [
                        {"id": self.settings.model, "object": "model", "root": self.settings.model}
                    ],
                }
            ).encode()
        if path.endswith(b"/metrics"):
            return 200, METRICS.format(self.settings.model, Stub.running).encode()
        if path.endswith(b"/version"):
            return 200, b'{"version":"stub"}'
        return (200, b"") if path.endswith(b"/health") else (404, b"{}")

    def answer(self, status: int, body: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(
                b"HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (status, REASONS[status], len(body), body)
            )


@contextlib.contextmanager
def running(*options: str) -> Iterator[str]:
    """Run a stub in a process of its own while the block runs; yields its address."""
    command = [sys.executable, __file__, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


async def serve(port: int) -> None:
    """Serve on 127.0.0.1 until killed."""
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="stub")
    parser.add_argument("--delay-s", type=float, default=0.0)
    parser.add_argument("--fail", type=float, default=0.0)
    parser.add_argument("--own-ids", action="store_true")
    Stub.settings = parser.parse_args()
    asyncio.run(serve(Stub.settings.port))
