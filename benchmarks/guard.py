"""Measure what the guard costs: CPU microseconds a short completion and a streamed token.

    python benchmarks/guard.py [--rounds 7] [--old FOLDER]

There is no server and no engine: an ASGI application answers at once, alone and behind the guard,
asked with the server's key and with a learner's key. Rounds of all ways alternate, each in a process
of its own; the least of the rounds counts, for the machine may be busy. `--old` is a folder with
another version of the package `workshop`, which is measured in the same rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAYS = ("no guard", "the server's key", "a learner's key")
TOKENS = 1000
REQUESTS = {"completion": 300, "stream": 8}  # in a round
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1764200000,'
    b'"model":"teaching-model","choices":[{"index":0,"text":" token","logprobs":null,'
    b'"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)
ANSWER = json.dumps(
    {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1764200000,
        "model": "teaching-model",
        "choices": [{"index": 0, "text": " a" * 16, "logprobs": None, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21},
    }
).encode()


async def app(scope, receive, send) -> None:
    """Answer a completion at once, as a stream of events where it asks for one."""
    body = b""
    is_whole = False
    while not is_whole:
        message = await receive()
        body += message.get("body", b"")
        is_whole = not message.get("more_body")
    media, parts = b"application/json", [ANSWER]
    if b'"stream"' in body:
        media, parts = b"text/event-stream; charset=utf-8", [EVENT] * TOKENS
    headers = [(b"content-type", media)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def ask(asked_app, key: str, streams: bool) -> None:
    """Send one request to an application, and see that it is answered."""
    request = {"model": "teaching-model", "prompt": "San Francisco is a", "max_tokens": 16}
    if streams:
        request |= {"max_tokens": TOKENS, "stream": True}
    body = json.dumps(request).encode()
    headers = [
        (b"host", b"127.0.0.1:8000"),
        (b"content-type", b"application/json"),
        (b"authorization", b"Bearer " + key.encode()),
        (b"content-length", str(len(body)).encode()),
    ]
    path = "/v1/completions"
    scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": headers}
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    statuses: list[int] = []
    count = 0

    async def receive():
        if messages:
            return messages.pop()
        await asyncio.Event().wait()

    async def send(message):
        nonlocal count
        count += 1
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await asked_app(scope, receive, send)
    expected = 3
    if streams:
        expected = TOKENS + 2
    if statuses != [200] or count != expected:
        raise RuntimeError(f"answered {statuses} in {count} messages")


def measure() -> dict[str, dict[str, float]]:
    """Return {way: {kind: CPU microseconds a request}} of the package on the path."""
    folder = Path(os.environ["WORKSHOP_HOME"])
    record = folder / "servers" / "measured.json"
    record.parent.mkdir(mode=0o700)
    server_key = secrets.token_hex(16)
    record.write_text(json.dumps({"api_key": server_key, "name": "measured"}))
    record.chmod(0o600)
    os.environ["WORKSHOP_RECORD"] = str(record)

    from workshop.guard import auth, keys

    learner_key = keys.add("ada")
    guarded = auth.RequireKey(app)
    ways = zip(WAYS, (app, guarded, guarded), ("", server_key, learner_key), strict=True)

    async def all_ways():
        result: dict[str, dict[str, float]] = {}
        for way, asked_app, key in ways:
            result[way] = {}
            for kind, count in REQUESTS.items():
                await ask(asked_app, key, kind == "stream")
                began = time.process_time()
                for _ in range(count):
                    await ask(asked_app, key, kind == "stream")
                result[way][kind] = (time.process_time() - began) / count * 1e6
        return result

    return asyncio.run(all_ways())


def one_round(package: Path) -> dict[str, dict[str, float]]:
    """Return the result of `measure` in a process of its own."""
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"WORKSHOP_HOME": home, "PYTHONPATH": str(package)}
        command = [sys.executable, "-P", __file__, "--measure"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure in rounds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--old", type=Path, help="a folder with another version of `workshop`")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure()))
        return
    packages = {"this version": ROOT}
    if options.old:
        packages = {"old": options.old.resolve(), **packages}
    rounds: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in packages}
    for _ in range(options.rounds):
        for name, package in packages.items():
            rounds[name].append(one_round(package))
    for name, results in rounds.items():
        least = {
            (way, kind): min(result[way][kind] for result in results)
            for way in WAYS
            for kind in REQUESTS
        }
        print(f"{name}: CPU µs, the least of {options.rounds} rounds")
        for way in WAYS:
            completion, stream = least[way, "completion"], least[way, "stream"]
            added = stream - completion - least[WAYS[0], "stream"] + least[WAYS[0], "completion"]
            print(
                f"  {way:18} short completion {completion:8.1f}   stream of {TOKENS:,} events "
                f"{stream:9.1f}   added a token {added / TOKENS:6.2f}"
            )


if __name__ == "__main__":
    main()
