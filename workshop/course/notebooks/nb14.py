"""For notebook 14: two small servers, benchmarks, and sessions of agents.

Without vLLM the same calls return recorded answers, and say so. The recordings are made by
benchmarks/notebook_records.py.

>>> from workshop.course.notebooks import nb14
>>> turns = nb14.session_load(sessions=1, turns=3)
>>> [turn.prompt_tokens for turn in turns]            # each has the whole conversation so far
[576, 688, 800]
"""

from __future__ import annotations

import atexit
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from workshop.client.client import Client, connect
from workshop.course.notebooks import extra_servers
from workshop.course.notebooks.nb13 import simulated
from workshop.course.topics import recorded_data
from workshop.course.widgets.load.view import LoadExplorer
from workshop.errors import BadInput
from workshop.measure import points, server_clock, timed
from workshop.servers import local
from workshop.servers.local import supervise
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival, Piece
from workshop.simulate.clock import Clock
from workshop.simulate.report import Outcome

__all__ = [
    "LoadExplorer",
    "Pair",
    "bench",
    "converse",
    "servers",
    "session_load",
    "simulated",
    "stop",
]

RECORDED = recorded_data.DATA / "agents.json"
TOKEN_BYTES = 1024  # of the teaching model's KV cache
# server → tokens of its KV cache
SERVERS = {"agents-large": 32_768, "agents-small": 4_096}
LARGE, SMALL = SERVERS
FLAGS = ("--block-size", "32", "--max-model-len", "2048", "--enable-prompt-tokens-details")
NEEDED_BYTES = len(SERVERS) * extra_servers.SERVER_BYTES
SYSTEM_TOKENS, TOOL_TOKENS, ANSWER_TOKENS, TIME_TOKENS = 480, 96, 16, 8
LONG_TOKENS = 1024  # of the prompts by which the clock is measured, as the sessions' are
APART_S = 60.0  # between simulated requests: the live ones are sent one after the other
ROUTES = ("large", "small", "sticky", "round-robin")
TIME_LINES = ("nowhere", "start", "end")
_shown: Counter[str] = Counter()  # recorded measurements, by their name
BENCH = points.Load(requests=100, prompt_tokens=256, output_tokens=8, concurrency=4)


@dataclass(frozen=True)
class Pair:
    """Two teaching servers that differ in the size of their KV cache alone.

    `clock` is the measured clock of the first.
    """

    large: Client
    small: Client
    clock: Clock


def servers() -> Pair | None:
    """Start both servers side by side.

    Without vLLM, or without memory for both, print why and return None.
    """
    why = extra_servers.why_recorded(len(SERVERS))
    if why:
        print(f"{why}. What follows is recorded: the same requests to the same servers.")
        return None
    began = time.monotonic()
    stop()
    atexit.register(stop)
    launches = []
    for name, kv_cache_tokens in SERVERS.items():
        size = str(kv_cache_tokens * TOKEN_BYTES)
        flags = (*FLAGS, "--kv-cache-memory-bytes", size)
        launches.append(local.prepare(name=name, vllm_args=flags))
    # One thread of Python waits while the other's server loads.
    with ThreadPoolExecutor(len(launches)) as pool:
        list(pool.map(supervise.start, launches))
    large, small = connect(LARGE), connect(SMALL)
    clock = timed.run(server_clock.measure(large, LONG_TOKENS))
    pair = Pair(large, small, clock)
    # The first requests of a server are slower.
    timed.run(_send(pair, session_load(sessions=2, turns=1), (LARGE, SMALL), caching=True))
    print(f"Both answer after {time.monotonic() - began:.0f} s.")
    return pair


def stop() -> None:
    """Stop both servers, where they run."""
    for name in SERVERS:
        extra_servers.stop(name)


def bench(pair: Pair | None, *, seed: int | None = None) -> dict[str, Any]:
    """Measure 100 random prompts of 256 tokens, four at once.

    Return the figures and the faults as one row.

    Args:
        seed: of the prompts; None draws a new one, as `workshop bench` does.
    """
    if pair is None:
        rows = recorded_data.recorded(RECORDED, "bench", _bench_key(seed))
        _shown[_bench_key(seed)] += 1
        return rows[(_shown[_bench_key(seed)] - 1) % len(rows)]
    point = points.measure(pair.large.record, pair.large.model, BENCH, seed=seed)
    rules = server_clock.rules(pair.large.record, 2048)
    arrivals = BENCH.simulated_arrivals(point.seed)
    simulated_requests = process.run(rules, pair.clock, arrivals)["requests"]
    predicted = points.figures_of(simulated_requests, {})
    prefix_hits_percent = None
    if point.prefix_hit_share is not None:
        prefix_hits_percent = round(100 * point.prefix_hit_share, 1)
    return {
        "seed": point.seed,
        "tokens_per_s": round(point.tokens_per_s, 1),
        "simulated_tokens_per_s": round(predicted["tokens_per_s"], 1),
        "ttft_p50_ms": round(point.figures["ttft"]["p50"] or 0.0, 1),
        "simulated_ttft_p50_ms": round(predicted["ttft_ms"]["p50"] or 0.0, 1),
        "prefix_hits_percent": prefix_hits_percent,
        "faults": [fault.sentence for fault in point.faults],
    }


def session_load(*, sessions: int, turns: int, time_line: str = "nowhere") -> list[Arrival]:
    """Return the requests of agents that take turns: every prompt is the whole conversation so far.

    Args:
        time_line: where each prompt has a line that is new in each request (the time of day):
            nowhere, start or end.

    Raises:
        BadInput: another place than these.
    """
    if time_line not in TIME_LINES:
        raise BadInput(
            f"There is no place {time_line!r}.", f"Choose one of {', '.join(TIME_LINES)}."
        )
    histories: list[list[Piece]] = []
    for _ in range(sessions):
        histories.append([("system", SYSTEM_TOKENS)])
    load: list[Arrival] = []
    for turn in range(turns):
        for session, history in enumerate(histories):
            history.append((f"agent {session}, turn {turn}", TOOL_TOKENS))
            now = (f"time {len(load)}", TIME_TOKENS)
            pieces = list(history)
            if time_line == "start":
                pieces = [now, *history]
            elif time_line == "end":
                pieces = [*history, now]
            prompt_tokens = 0
            for _, tokens in pieces:
                prompt_tokens += tokens
            answer = f"agent {session}, answer {turn}"
            load.append(
                Arrival(
                    arrival_s=len(load) * APART_S,
                    prompt_tokens=prompt_tokens,
                    output_tokens=ANSWER_TOKENS,
                    pieces=tuple(pieces),
                    answer=answer,
                )
            )
            history.append((answer, ANSWER_TOKENS))
    return load


def converse(
    pair: Pair | None,
    *,
    sessions: int = 1,
    turns: int = 6,
    time_line: str = "nowhere",
    caching: bool = True,
    route: str = "large",
) -> list[dict[str, Any]]:
    """Let agents hold their sessions, one request after the other.

    Return a row for each request, measured and simulated.

    Args:
        sessions, turns, time_line: see session_load.
        caching: False sends each request with a `cache_salt` of its own, so that the prefix cache
            has no match.
        route: "large" or "small" sends all requests to that server; "sticky" sends each session
            to its own; "round-robin" alternates.

    Raises:
        BadInput: another route or place than these; without vLLM, a run that was not recorded.
    """
    if route not in ROUTES:
        raise BadInput(f"There is no route {route!r}.", f"Choose one of {', '.join(ROUTES)}.")
    load = session_load(sessions=sessions, turns=turns, time_line=time_line)
    if pair is None:
        key = _key(sessions, turns, time_line, caching, route)
        return recorded_data.recorded(RECORDED, "sessions", key)
    targets = []
    for number in range(len(load)):
        targets.append(_target(route, number, sessions))
    live = timed.run(_send(pair, load, targets, caching))
    simulations = _simulate(pair, load, targets, caching)
    rows = []
    for number, (measured, outcome) in enumerate(zip(live, simulations, strict=True)):
        rows.append(
            {
                "session": number % sessions,
                "turn": number // sessions,
                "server": targets[number].removeprefix("agents-"),
                "prompt": load[number].prompt_tokens,
                "cached": measured.hit_tokens,
                "cached_simulated": outcome.hit_tokens,
                "ttft_ms": round(measured.ttft_ms, 1),
                "ttft_simulated_ms": round(outcome.ttft_ms, 1),
            }
        )
    return rows


def _target(route: str, number: int, sessions: int) -> str:
    """Return the server of a request."""
    if route in ("large", "small"):
        return f"agents-{route}"
    if route == "sticky":
        return (LARGE, SMALL)[number % sessions % 2]
    return (LARGE, SMALL)[number % 2]


async def _send(
    pair: Pair, load: Sequence[Arrival], targets: Sequence[str], caching: bool
) -> list[Outcome]:
    """Send the requests one after the other."""
    texts = timed.Texts()
    outcomes = []
    async with timed.TimedSender(pair.large) as large, timed.TimedSender(pair.small) as small:
        senders = {LARGE: large, SMALL: small}
        for arrival, target in zip(load, targets, strict=True):
            body = texts.body(arrival)
            if not caching:
                body["cache_salt"] = secrets.token_hex(8)
            answer = await senders[target].send(body)
            outcomes.append(answer.outcome())
            texts.add_answer(arrival, answer)
    return outcomes


def _simulate(
    pair: Pair, load: Sequence[Arrival], targets: Sequence[str], caching: bool
) -> list[Outcome]:
    """Return the simulated outcome of each request: each server with the requests that it gets."""
    outcomes: dict[int, Outcome] = {}
    for name, client in ((LARGE, pair.large), (SMALL, pair.small)):
        numbers = []
        arrivals = []
        for number, target in enumerate(targets):
            if target == name:
                numbers.append(number)
                arrivals.append(load[number])
        if not numbers:
            continue
        rules = server_clock.rules(client.record, 2048)
        rules = replace(rules, enable_prefix_caching=caching)
        answer = process.run(rules, pair.clock, arrivals)
        for number, outcome in zip(numbers, answer["requests"], strict=True):
            outcomes[number] = outcome
    return [outcomes[number] for number in range(len(load))]


def _bench_key(seed: int | None) -> str:
    """Return the name under which measurements are recorded, in their order."""
    if seed is None:
        return "a new seed"
    return f"seed {seed}"


def _key(sessions: int, turns: int, time_line: str, caching: bool, route: str) -> str:
    """Return the name under which a run of sessions is recorded."""
    cache = "without"
    if caching:
        cache = "with"
    return f"{sessions} sessions, {turns} turns, time line {time_line}, {cache} caching, {route}"
