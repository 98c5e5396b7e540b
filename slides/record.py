"""Record the answers that the slides show: `workshop serve --background && python slides/record.py`.

What is on a slide was said by this course's teaching model; nothing is made up. Needs the server's `--max-logprobs -1`.
"""

from __future__ import annotations

import datetime
import json
import sys
from dataclasses import asdict
from pathlib import Path

import httpx

from workshop import connect
from workshop.learn import timeline

FILE = Path(__file__).parent / "recorded" / "answers.json"
PROMPT = "San Francisco is a"
CITIES = (PROMPT, "Boston is a", "Chicago is a", "NYC is a")
LENGTHS = (120, 20, 40, 10, 90, 30, 10, 60, 20, 100, 40, 10)  # tokens, as in notebook 6


def ask(llm, prompt: str = PROMPT, **sampling) -> dict:
    """Return the server's JSON as it came, with the request beside it."""
    request = {"prompt": prompt, **sampling}
    answer = httpx.post(
        f"{llm.url}/completions", json={"model": llm.model, **request}, headers=llm.headers, timeout=120
    )
    answer.raise_for_status()
    return {"request": request, "answer": answer.json()}


def record(llm) -> dict:
    """Return everything that the slides show of this server."""
    return {
        "answer": ask(llm, max_tokens=16, temperature=0),
        "choices": ask(llm, max_tokens=8, temperature=1.0, n=2, seed=4),
        "limits": [
            ask(llm, "Question: What is Boston?\nAnswer:", temperature=0, **limits)
            for limits in ({"max_tokens": 5}, {"max_tokens": 200}, {"max_tokens": 40, "min_tokens": 40})
        ],
        "logprobs": {str(k): ask(llm, max_tokens=3, temperature=1.5, seed=10, logprobs=k) for k in (None, 0, 3)},
        "prompt_logprobs": ask(llm, max_tokens=1, temperature=0, prompt_logprobs=1),
        "next_token": ask(llm, max_tokens=1, temperature=0, logprobs=-1, return_tokens_as_token_ids=False),
        "penalties": [
            ask(llm, "To be, or not to", max_tokens=40, min_tokens=40, temperature=0, frequency_penalty=penalty)
            for penalty in (-2, 0, 2)
        ],
        "surprise": ask(
            llm,
            "San Francisco is a city in California. Boston is a city in the moon.",
            max_tokens=1,
            temperature=0,
            prompt_logprobs=1,
        ),
        "one_by_one": spans(llm, 1),
        "four_threads": spans(llm, 4),
    }


def spans(llm, at_once: int) -> list[dict]:
    """Return when each of twelve requests was sent, began to answer, and ended."""
    timeline.ask(llm, CITIES, at_once=4, max_tokens=[16] * 4, temperature=1.0)  # the first requests warm up
    return [asdict(span) for span in timeline.ask(llm, CITIES * 3, at_once, LENGTHS, temperature=1.0)]


def main() -> int:
    llm = connect()
    about = {
        "about": "What the teaching model's server said: the worked examples of the slides.",
        "command": "workshop serve --background && python slides/record.py",
        "model": llm.model,
        "vllm_version": llm.get("/version")["version"],
        "hardware": "2 CPU cores",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in {**about, **record(llm)}.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE.name}: {FILE.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
