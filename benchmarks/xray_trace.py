"""Record the trace that the X-ray shows by default: the teaching model with a small pool of KV blocks.

    workshop serve --name xray --background --trace trace.jsonl --block-size 32 --num-gpu-blocks-override 19 \\
        --max-model-len 512 --max-num-batched-tokens 128
    python benchmarks/xray_trace.py xray trace.jsonl workshop/data/traces/teaching_model.jsonl

Three requests begin with the same 64 tokens (prefix cache), one has a prompt of 300 (chunked prefill), and together
they need more than the pool has (preemption).
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from pathlib import Path

import openai

from workshop import connect
from workshop.engine import trace
from workshop.servers import records

# name, tokens of its own, whether it begins as the others do, tokens of the answer, when it is sent (s)
REQUESTS = (
    ("first", 26, True, 52, 0),
    ("same-beginning", 36, True, 44, 0.03),
    ("short", 20, False, 54, 0.03),
    ("long", 300, False, 16, 0.05),
    ("same-again", 56, True, 24, 0.08),
    ("late", 40, False, 16, 0.2),
)
TRIES = 8  # a busy machine may bring the requests one by one


async def send(llm: openai.AsyncOpenAI, model: str, request: tuple, turn: int) -> None:
    """Send one request when its time has come. Each turn has other tokens."""
    name, own, same, tokens, at_s = request
    await asyncio.sleep(at_s)
    start = 1000 * (1 + REQUESTS.index(request)) + 37 * turn
    prompt = [*(range(100 + turn, 164 + turn) if same else ()), *range(start, start + own)]
    settings = {"max_tokens": tokens, "temperature": 0, "extra_body": {"ignore_eos": True}}
    await llm.completions.create(
        model=model, prompt=prompt, extra_headers={"X-Request-Id": name}, **settings
    )


async def load(server: str, turn: int) -> None:
    """Send all requests, and wait for their answers."""
    record = records.read(server)
    llm = openai.AsyncOpenAI(base_url=record.url, api_key=record.api_key)
    await asyncio.gather(*(send(llm, record.model, request, turn) for request in REQUESTS))


def main(server: str, traced: str, to: str) -> None:
    """Send the load until its trace has all that is to be shown, and keep that."""
    count = sum(len(step.finished) for step in trace.Trace(traced).more()) + 1
    # what is made at the first request is made now
    connect(server).complete("A first answer", max_tokens=4)
    for turn in range(TRIES):
        before, count = len(ended(traced, count)), count + len(REQUESTS)
        asyncio.run(load(server, turn))
        ended(traced, count)
        lines = [json.loads(line) for line in Path(traced).read_text(encoding="utf-8").splitlines()]
        start_s = lines[before - 1]["time_s"]
        steps = [
            line | {"step": at, "time_s": round(line["time_s"] - start_s, 6)}
            for at, line in enumerate(lines[before:])
        ]
        shared = max(request["prefix_hit_tokens"] for line in steps for request in line["requests"])
        print(
            f"{len(steps)} steps, {shared} tokens found, preempted: {[line['preempted'] for line in steps if line['preempted']]}"
        )
        if shared and len(steps) < 100 and any(line["preempted"] for line in steps):
            break
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in steps)
    # vLLM adds a number that is drawn
    for long in {name for line in steps for name, _ in line["arrived"]}:
        text = text.replace(long, re.sub(r"^cmpl-|-0-\w+$", "", long))
    Path(to).write_text(text, encoding="utf-8")


def ended(traced: str, count: int) -> list[trace.Step]:
    """Return a trace's steps once it says that so many requests have ended; it is written within half a second."""
    while True:
        steps = trace.Trace(traced).more()
        if sum(len(step.finished) for step in steps) >= count:
            return steps
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
