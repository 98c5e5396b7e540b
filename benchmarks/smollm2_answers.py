"""Record what SmolLM2 answers to the notebooks' requests, for tests/notebooks: they run without a model.

    workshop serve --background smollm2 --learners 30
    python benchmarks/smollm2_answers.py

It runs the learner's copies of the notebooks below, their cores, with a server between them and SmolLM2 that
writes down every request and its answer (ten minutes on two cores). `--learners` makes the server that of a
class: it lists 20 logprobs, not the whole vocabulary.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from contextlib import suppress
from datetime import date
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/helpers", "docs")]

from notebook_shell import run_core  # noqa: E402
from recorded_model import FILE, MODEL, key_of  # noqa: E402
from small_server import Handler, serving  # noqa: E402

from workshop import connect  # noqa: E402

NOTEBOOKS = ("00_start", "03_server", "04_sampling", "05_logprobs", "07_offline_batching")
ANSWERED_WITHIN_S = 600.0
TOO_MANY = 429


def without_empty_fields(answer: dict) -> dict:
    """Return an answer without the fields of its choices that are empty."""
    for choice in answer.get("choices", ()):
        for name in [name for name, value in choice.items() if value is None]:
            del choice[name]
    return answer


def main() -> None:
    llm = connect(MODEL)
    answers: dict[str, list] = {}

    class Between(Handler):
        def do_GET(self):
            self.reply_of(httpx.get(llm.root + self.path, headers=self.passed_on()))

        def do_POST(self):
            body = self.body()
            answer = httpx.post(
                llm.root + self.path,
                json=body,
                headers=self.passed_on(),
                timeout=ANSWERED_WITHIN_S,
            )
            is_of_the_moment = answer.status_code == TOO_MANY  # of its load, not of the request
            if "Authorization" in self.headers and not is_of_the_moment:
                answers.setdefault(key_of(body), []).append(
                    [answer.status_code, without_empty_fields(answer.json())]
                )
            self.reply_of(answer)

        def passed_on(self) -> dict[str, str]:
            names = ("Authorization", "X-Request-Id")
            return {name: self.headers[name] for name in names if name in self.headers}

        def reply_of(self, answer: httpx.Response) -> None:
            kind = answer.headers.get("Content-Type", "text/plain")
            with suppress(ConnectionError):  # of a batch that was killed
                self.reply(answer.content, answer.status_code, kind)

    with serving(Between) as root, tempfile.TemporaryDirectory() as home:
        os.environ |= {
            "WORKSHOP_URL": f"{root}/v1",
            "WORKSHOP_API_KEY": llm.record.api_key,
            "WORKSHOP_HOME": home,
        }
        for notebook in NOTEBOOKS:
            run(notebook)
    schema = llm.get("/openapi.json")["components"]["schemas"]["CompletionRequest"]
    about = {
        "what": "answers of SmolLM2-135M-Instruct to the requests of the notebooks' cores",
        "license": "Apache-2.0, HuggingFaceTB",
        "vllm": llm.get("/version")["version"],
        "recorded": date.today().isoformat(),
    }
    recorded = {"about": about, "parameters": list(schema["properties"]), "answers": answers}
    text = json.dumps(recorded, ensure_ascii=False, separators=(",", ":"))
    FILE.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(answers)} requests, {FILE.stat().st_size:,} bytes")


def run(notebook: str) -> None:
    """Run the core of a notebook, and print what each cell shows."""
    for done in run_core(notebook):
        print(f"--- {notebook} [{done.cell.number}]\n{done.ran.text}", flush=True)


if __name__ == "__main__":
    main()
