"""How a paged KV cache fills: a small scheduler that keeps blocks as vLLM does, step by step. No widgets.

A step gives every running request one token; a request takes a block of 16 when its last one is full. When no block
is free, the request that came last is preempted: its blocks go back, and it is computed again later.
Source: vLLM 0.32 v1/core/sched/scheduler.py (first come, first served) and v1/core/block_pool.py (a queue of free
blocks); prefix caching is left out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from workshop.errors import BadInput
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.kv_cache import BLOCK_SIZE, kv_cache_bytes_per_token

MOST_STEPS = 2000


@dataclass(frozen=True)
class Request:
    """One request: it arrives before `step`, brings `prompt` tokens and generates `output` more."""

    name: str
    step: int
    prompt: int
    output: int


# Lengths that differ, as those of real requests do; together more than the widget's pool holds at first.
REQUESTS = (
    Request("A", 0, 52, 90),
    Request("B", 0, 21, 130),
    Request("C", 6, 70, 60),
    Request("D", 14, 34, 120),
    Request("E", 30, 90, 40),
    Request("F", 44, 12, 100),
)


@dataclass(frozen=True)
class Shown:
    """One request at one step. state: coming, waiting, running, preempted, finished; blocks: in their order."""

    request: Request
    state: str
    tokens: int  # in the KV cache
    generated: int
    blocks: tuple[int, ...] = ()
    preemptions: int = 0


@dataclass(frozen=True)
class State:
    """The pool at one step: which request holds each block and how many of its slots are filled."""

    step: int
    requests: tuple[Shown, ...]
    pool: tuple[tuple[int, int] | None, ...]  # (index of the request, filled slots)
    event: str = ""

    @property
    def tokens(self) -> int:
        return sum(filled for _, filled in filter(None, self.pool))

    @property
    def used(self) -> int:
        return sum(block is not None for block in self.pool)


class _Live:
    """What changes of one request."""

    def __init__(self, index: int, request: Request):
        self.index, self.request = index, request
        self.state, self.tokens, self.generated, self.blocks, self.preemptions = "coming", 0, 0, [], 0


class _Pool:
    """Free blocks as a queue: taken from the front, given back to the end, the last block of a request first."""

    def __init__(self, blocks: int):
        self.free = deque(range(blocks))

    def grow(self, live: _Live, tokens: int) -> bool:
        """Give `live` blocks for `tokens` in all; False, and nothing taken, if there are too few."""
        missing = -(-tokens // BLOCK_SIZE) - len(live.blocks)
        if missing > len(self.free):
            return False
        live.blocks += [self.free.popleft() for _ in range(missing)]
        live.tokens = tokens
        return True

    def release(self, live: _Live) -> None:
        self.free.extend(reversed(live.blocks))
        live.blocks, live.tokens = [], 0


@lru_cache(maxsize=64)
def simulate(blocks: int, requests: tuple[Request, ...] = REQUESTS) -> tuple[State, ...]:
    """Return the states from before the first step to the end of the last request.

    Raises:
        BadInput: no blocks, or a request that is longer than the whole pool (vLLM refuses such a max_model_len).
    """
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise BadInput(f"blocks is {blocks!r}, and must be a whole number from 1.", "Give how many the pool has.")
    longest = max(requests, key=lambda r: r.prompt + r.output)
    needed = -(-(longest.prompt + longest.output) // BLOCK_SIZE)
    if needed > blocks:
        raise BadInput(
            f"Request {longest.name} grows to {needed} blocks, and the pool has {blocks}.",
            f"Give at least {needed} blocks: vLLM, too, refuses to start when one request cannot fit.",
        )
    lives = [_Live(i, r) for i, r in enumerate(requests)]
    pool, running, waiting = _Pool(blocks), [], deque()
    states = [_picture(0, lives, blocks, "Nothing has been asked yet.")]
    while any(live.state != "finished" for live in lives) and len(states) < MOST_STEPS:
        step = len(states)
        events = _step(step - 1, lives, pool, running, waiting)
        states.append(_picture(step, lives, blocks, " ".join(events)))
    return tuple(states)


def _step(now: int, lives: list[_Live], pool: _Pool, running: list[_Live], waiting: deque) -> list[str]:
    """One step of the engine: who ended leaves, who runs gets a token, who waits comes in if there is room."""
    events = _finish(pool, running)
    for live in lives:
        if live.state == "coming" and live.request.step <= now:
            live.state = "waiting"
            waiting.append(live)
    preempted, turn = False, 0
    while turn < len(running):
        live = running[turn]
        while not pool.grow(live, live.tokens + 1):
            victim = running.pop()
            pool.release(victim)
            victim.state, victim.preemptions, preempted = "preempted", victim.preemptions + 1, True
            waiting.appendleft(victim)
            events.append(
                f"Full: {victim.request.name}, which came last, is preempted. Its blocks are free again; it "
                "will be computed again when there is room."
            )
            if victim is live:
                break
        else:
            live.generated += 1
            turn += 1
    while waiting and not preempted and pool.grow(waiting[0], waiting[0].request.prompt + waiting[0].generated):
        live = waiting.popleft()
        again = " again" if live.state == "preempted" else ""
        live.state = "running"
        running.append(live)
        events.append(
            f"{live.request.name} starts{again}: {live.tokens} tokens are read at once, {len(live.blocks)} blocks."
        )
    return events


def _finish(pool: _Pool, running: list[_Live]) -> list[str]:
    events = []
    for live in [live for live in running if live.generated >= live.request.output]:
        events.append(f"{live.request.name} is finished and gives {len(live.blocks)} blocks back.")
        pool.release(live)
        live.state = "finished"
        running.remove(live)
    return events


def _picture(step: int, lives: list[_Live], blocks: int, event: str) -> State:
    pool: list[tuple[int, int] | None] = [None] * blocks
    for live in lives:
        for n, block in enumerate(live.blocks):
            pool[block] = (live.index, min(BLOCK_SIZE, live.tokens - n * BLOCK_SIZE))
    shown = tuple(
        Shown(live.request, live.state, live.tokens, live.generated, tuple(live.blocks), live.preemptions)
        for live in lives
    )
    return State(step, shown, tuple(pool), event)


def reserved_tokens(state: State) -> int:
    """Tokens that a cache without paging would hold back now: each running request's longest length, in one piece."""
    return sum(s.request.prompt + s.request.output for s in state.requests if s.state == "running")


@lru_cache(maxsize=64)
def token_bytes(model: ModelConfig) -> int:
    """Return the bytes of KV cache that one token needs, over all layers; remembered, as every step asks for it."""
    return kv_cache_bytes_per_token(model)
