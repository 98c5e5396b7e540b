"""One real server, its trace beside what vLLM itself says of the same steps: its events, and its log."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from needs import lacking

from workshop.engine import trace
from workshop.servers import records
from workshop.vllm_package import installed

pytestmark = pytest.mark.starts
BUDGET, BLOCKS = 128, 40
SHARED = list(range(100, 200))
REQUESTS = 10  # of the load
FLAGS = {
    "--max-model-len": "1024",
    "--block-size": "32",
    "--max-num-batched-tokens": f"{BUDGET}",
    "--max-num-seqs": "6",
    "--num-gpu-blocks-override": f"{BLOCKS}",
    "--dtype": "float32",  # with bfloat16 a draw near a tie depends on what else is in the step
}
ITERATION = re.compile(
    r"Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, (\d+) generation tokens"
)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """(steps, batches of vLLM's events, its log, answers by name) of one load; the server is stopped again."""
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    import zmq

    folder = tmp_path_factory.mktemp("traced")
    endpoint, file = f"ipc://{folder}/events", folder / "trace.jsonl"
    events = zmq.Context.instance().socket(zmq.SUB)
    events.connect(endpoint)
    events.subscribe(b"")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("WORKSHOP_HOME", str(folder / "home"))
        cli = [sys.executable, "-m", "workshop"]
        flags = [part for pair in FLAGS.items() for part in pair] + [
            "--enable-logging-iteration-details"
        ]
        told = json.dumps(
            {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
        )
        serve = [
            *cli,
            "serve",
            "--background",
            "--name",
            "t",
            "--trace",
            str(file),
            "--kv-events-config",
            told,
            *flags,
        ]
        done = subprocess.run(serve, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        try:
            with ThreadPoolExecutor(1) as apart:  # Playwright's loop runs in the tests' own thread
                answers = apart.submit(asyncio.run, load(records.read("t"))).result()
            until = time.monotonic() + 30
            while not whole(file) and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            log = records.read("t").log
            subprocess.run([*cli, "stop", "t"], check=True, capture_output=True)
    batches = []
    while events.poll(0):
        _, number, body = events.recv_multipart()
        assert int.from_bytes(number, "big") == len(batches), "an event was lost"
        batches.append(body)
    events.close()
    return file, batches, open(log, encoding="utf-8").read(), answers


def whole(file) -> bool:
    """Whether every request of the load has ended in the trace."""
    return len({name for step in trace.read(file) for name in step.finished}) == REQUESTS


async def load(server) -> dict[str, list[int]]:
    """Send a load that shares, preempts, and computes prompts in pieces; return the tokens of the seeded answers."""
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=60, trust_env=False
    ) as client:

        async def ask(prompt: list[int], tokens: int, **sampling) -> list[int]:
            body = {
                "model": server.model,
                "prompt": prompt,
                "max_tokens": tokens,
                "ignore_eos": True,
                **sampling,
            }
            answer = (
                (await client.post("completions", json={**body, "return_token_ids": True}))
                .raise_for_status()
                .json()
            )
            return answer["choices"][0]["token_ids"]

        a, b = list(range(1000, 1300)), list(range(2000, 2300))
        # any four fill the blocks
        others = [ask([*SHARED, 300 + n], 300, temperature=0) for n in range(6)]
        beside, *_ = await asyncio.gather(ask(a, 40, seed=7), ask(b, 300, seed=8), *others)
        # its beginning is in the prefix cache, so the rest is one piece
        alone = await ask(a, 40, seed=7)
        other = await ask(a, 40, seed=9)
        return {"beside": beside, "alone": alone, "other": other}


def test_a_seeded_prompt_in_pieces_beside_others_gets_the_answer_that_it_gets_alone(traced):
    file, _, _, answers = traced
    assert answers["beside"] == answers["alone"] != answers["other"]
    pieces = [row for step in trace.read(file) for row in step.requests if row.prefill_tokens]
    assert {row.id for row in pieces if row.computed_tokens and not row.prefix_hit_tokens}


def test_its_blocks_are_those_of_vllms_events_step_by_step(traced):
    """vLLM tells a block again when it is found in the prefix cache; the rest of each batch is one line of the trace."""
    import msgspec.msgpack

    file, batches, _, _ = traced
    cached: Counter[str] = Counter()  # several blocks may hold the same
    changed = [step for step in trace.read(file) if step.stored or step.removed]
    lines = iter(changed)
    line = next(lines)
    for _, events, *_ in map(msgspec.msgpack.decode, batches):
        hashes = {"BlockStored": Counter(), "BlockRemoved": Counter()}
        for event in events:
            hashes[event["type"]].update(
                f"{block_hash:016x}" for block_hash in event["block_hashes"]
            )
        found_again = (
            all(cached[key] for key in hashes["BlockStored"]) and not hashes["BlockRemoved"]
        )
        stored, removed = (
            (Counter(key for _, key in pairs) for pairs in (line.stored, line.removed))
            if line
            else ({}, {})
        )
        if found_again and not (stored and stored <= hashes["BlockStored"]):
            continue
        assert hashes["BlockRemoved"] == removed and stored <= hashes["BlockStored"], line
        assert all(cached[key] for key in hashes["BlockStored"] - stored), line
        cached += stored
        cached -= removed
        line = next(lines, None)
    assert line is None and len(changed) > 20 and any(step.removed for step in changed)
    *_, (_, pool) = trace.replay(trace.read(file))
    assert Counter(pool.hashes.values()) == cached


def test_its_tokens_are_those_of_vllms_log_step_by_step(traced):
    file, _, log, _ = traced
    answered: set[str] = set()
    token_counts = []
    prompts = {name: tokens for step in trace.read(file) for name, tokens in step.arrived}
    for step in trace.read(file):
        context = [row.prefill_tokens for row in step.requests if row.id not in answered]
        generation = [
            row.prefill_tokens + row.decode_tokens for row in step.requests if row.id in answered
        ]
        if step.requests:
            token_counts.append((len(context), sum(context), len(generation), sum(generation)))
        answered |= {
            row.id
            for row in step.requests
            if row.computed_tokens + row.prefill_tokens >= prompts[row.id]
        }
    assert token_counts == [tuple(map(int, figures)) for figures in ITERATION.findall(log)]


def test_lines_add_up(traced):
    file, *_ = traced
    steps = trace.read(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    times = [step.time_s for step in steps]
    assert times == sorted(times) and [step.step for step in steps] == list(range(len(steps)))
    shared = preempted = 0
    for step, pool in trace.replay(steps):
        assert pool.used_blocks == set(pool.owners)
        assert step.kv_cache_usage == pytest.approx(
            len(pool.used_blocks) / step.num_blocks, abs=1e-5
        )
        assert step.prefill_tokens + step.decode_tokens <= step.budget == BUDGET
        for row in step.requests:
            assert (
                len(pool.tables[row.id]) * 32
                >= row.computed_tokens + row.prefill_tokens + row.decode_tokens
            )
        shared, preempted = (
            max(shared, sum(len(names) > 1 for names in pool.owners.values())),
            preempted + len(step.preempted),
        )
    assert (
        step.num_blocks == BLOCKS - 1
        and not pool.used_blocks
        and not pool.tables
        and not pool.waiting
    )
    assert (
        shared >= 3
        and preempted
        and any(row.prefix_hit_tokens for step in steps for row in step.requests)
    )
