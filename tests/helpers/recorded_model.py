"""A server that gives SmolLM2's recorded answers, for tests without a model: tests/data/smollm2_answers.json.gz.

benchmarks/smollm2_answers.py records them. A request that was not recorded is refused with that name.
"""

from __future__ import annotations

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from small_server import Handler, serving

FILE = Path(__file__).parents[1] / "data" / "smollm2_answers.json.gz"
MODEL = "smollm2"
KEY = "key-of-a-test"
ANSWER_S = 0.05  # a batch has to be under way for a while before it can be killed


def key_of(body: dict) -> str:
    """Return a short name for a request."""
    content = json.dumps(body, sort_keys=True, ensure_ascii=False)
    return blake2b(content.encode(), digest_size=8).hexdigest()


def read() -> dict:
    """Return what was recorded: {"about", "parameters" of a completion, "answers" by key_of}."""
    return json.loads(gzip.decompress(FILE.read_bytes()))


@contextmanager
def recorded_server() -> Iterator[str]:
    """Serve the recorded answers while the block runs; yields the address, which ends in /v1."""
    recorded = read()
    properties = {name: {} for name in recorded["parameters"]}
    schemas = {"CompletionRequest": {"properties": properties}}
    pages = {
        "/v1/models": {"data": [{"id": MODEL, "root": MODEL, "max_model_len": 8192}]},
        "/openapi.json": {"components": {"schemas": schemas}},
        "/version": {"version": recorded["about"]["vllm"]},
    }
    times_given: Counter[str] = Counter()  # the same request may have other answers each time

    class Recorded(Handler):
        def do_GET(self):
            if self.path == "/health":
                self.reply("")
            elif self.is_refused():
                return
            elif self.path in pages:
                self.reply(pages[self.path])
            else:
                self.reply({"detail": "Not Found"}, 404)

        def do_POST(self):
            body = self.body()
            if self.is_refused():
                return
            key = key_of(body)
            answers = recorded["answers"].get(key)
            if answers is None:
                message = f"Not recorded, run benchmarks/smollm2_answers.py: {body}"
                self.reply({"error": {"message": message}}, 400)
                return
            time.sleep(ANSWER_S)
            status, answer = answers[times_given[key] % len(answers)]
            times_given[key] += 1
            named = {"id": f"cmpl-{self.headers['X-Request-Id']}-0"} if status == 200 else {}
            with suppress(ConnectionError):  # of a batch that was killed
                self.reply({**answer, **named}, status)

        def is_refused(self) -> bool:
            if self.headers["Authorization"] == f"Bearer {KEY}":
                return False
            self.reply({"error": "Unauthorized"}, 401)
            return True

    with serving(Recorded) as root:
        yield f"{root}/v1"
