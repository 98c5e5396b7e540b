"""Fill a paged KV cache with a small scheduler that keeps blocks as vLLM does.

There are no widgets here, and nothing is drawn.

A step gives every running request one token; a request takes a block of 16 when its last one is
full. When no block is free, the request that came last is preempted: its blocks go back, and it is
computed again later. Source: vLLM 0.32 v1/core/sched/scheduler.py (first come, first served) and
v1/core/block_pool.py (a queue of free blocks); prefix caching is left out.
"""

from collections import deque
from collections.abc import Generator, Iterator
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

from inference_planner.model.kv_cache import BLOCK_SIZE, kv_cache_bytes_per_token

from workshop.errors import BadInput

MOST_STEPS = 2000


@dataclass(frozen=True)
class CachedRequest:
    """One request: it arrives before `step`, brings `prompt` tokens and generates `output` more."""

    name: str
    step: int
    prompt: int
    output: int


# Lengths that differ, as those of real requests do; together more than the widget's pool holds at
# first.
REQUESTS = (CachedRequest("A", 0, 52, 90), CachedRequest("B", 0, 21, 130), CachedRequest("C", 6, 70, 60),
            CachedRequest("D", 14, 34, 120), CachedRequest("E", 30, 90, 40), CachedRequest("F", 44, 12, 100))  # fmt: skip


@dataclass
class Shown:
    """One request at one step.

    `state` is coming, waiting, running, preempted or finished. `blocks` are in the request's order.
    """

    request: CachedRequest
    state: str = "coming"
    tokens: int = 0  # in the KV cache
    generated: int = 0
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


class _Engine:
    """Requests, and the free blocks as a queue.

    Blocks are taken from the front and returned to the end, a request's last block first.
    """

    def __init__(self, blocks: int, requests: tuple[CachedRequest, ...]):
        self.blocks = blocks
        self.free = deque(range(blocks))
        self.all = [Shown(request) for request in requests]
        self.running: list[Shown] = []
        self.waiting: deque[Shown] = deque()

    def grow(self, request: Shown, tokens: int) -> bool:
        """Give a request blocks for `tokens` in all.

        Return False, and give none, if too few are free.
        """
        missing = -(-tokens // BLOCK_SIZE) - len(request.blocks)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            request.blocks += (self.free.popleft(),)
        request.tokens = tokens
        return True

    def release(self, request: Shown, state: str) -> None:
        self.free.extend(reversed(request.blocks))
        request.state = state
        request.blocks = ()
        request.tokens = 0

    def step(self, now: int) -> Iterator[str]:
        """Compute a step, and yield what happens.

        Who has ended leaves, who runs gets a token, and who waits comes in if there is room.
        """
        for shown in list(self.running):
            if shown.generated >= shown.request.output:
                blocks = len(shown.blocks)
                yield f"{shown.request.name} is finished and gives {blocks} blocks back."
                self.release(shown, "finished")
                self.running.remove(shown)
        for shown in self.all:
            if shown.state == "coming" and shown.request.step <= now:
                shown.state = "waiting"
                self.waiting.append(shown)
        has_preempted = yield from self._a_token_each()
        if not has_preempted:
            yield from self._start_waiting()

    def _start_waiting(self) -> Iterator[str]:
        """Let those in who wait, as long as there are blocks for the next of them."""
        while self.waiting:
            first = self.waiting[0]
            if not self.grow(first, first.request.prompt + first.generated):
                return
            starts = "starts"
            if first.state == "preempted":
                starts = "starts again"
            first.state = "running"
            self.running.append(self.waiting.popleft())
            took = f"{first.tokens} tokens are read at once, {len(first.blocks)} blocks"
            yield f"{first.request.name} {starts}: {took}."

    def _a_token_each(self) -> Generator[str, None, bool]:
        """Give every running request one token; where no block is free, who came last leaves.

        Returns whether so.
        """
        has_preempted = False
        turn = 0
        while turn < len(self.running):
            running = self.running[turn]
            if self.grow(running, running.tokens + 1):
                running.generated += 1
                turn += 1
                continue
            victim = self.running.pop()
            self.release(victim, "preempted")
            victim.preemptions += 1
            has_preempted = True
            self.waiting.appendleft(victim)
            yield (
                f"Full: {victim.request.name}, which came last, is preempted. Its blocks are free "
                "again; it will be computed again when there is room."
            )
        return has_preempted

    def state(self, step: int, event: str) -> State:
        pool: list[tuple[int, int] | None] = [None] * self.blocks
        for index, shown in enumerate(self.all):
            for n, block in enumerate(shown.blocks):
                pool[block] = (index, min(BLOCK_SIZE, shown.tokens - n * BLOCK_SIZE))
        return State(step, tuple(map(copy, self.all)), tuple(pool), event)

    @property
    def is_done(self) -> bool:
        return all(shown.state == "finished" for shown in self.all)


@lru_cache(maxsize=64)
def simulate(blocks: int, requests: tuple[CachedRequest, ...] = REQUESTS) -> tuple[State, ...]:
    """Return the states from before the first step to the end of the last request.

    Raises:
        BadInput: `blocks` is no whole number from 1, or a request cannot fit.
    """
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        wrong = f"blocks is {blocks!r}, and must be a whole number from 1."
        raise BadInput(wrong, "Give how many the pool has.")
    longest = max(requests, key=lambda request: request.prompt + request.output)
    needed = -(-(longest.prompt + longest.output) // BLOCK_SIZE)
    if needed > blocks:
        wrong = f"Request {longest.name} grows to {needed} blocks, and the pool has {blocks}."
        rule = "vLLM, too, refuses to start when one request cannot fit."
        raise BadInput(wrong, f"Give at least {needed} blocks: {rule}")
    engine = _Engine(blocks, requests)
    states = [engine.state(0, "Nothing has been asked yet.")]
    while not engine.is_done and len(states) < MOST_STEPS:
        event = " ".join(engine.step(len(states) - 1))
        states.append(engine.state(len(states), event))
    return tuple(states)


def reserved_tokens(state: State) -> int:
    """Return the tokens that a cache without paging would reserve now.

    It reserves the greatest length of each running request, in one piece.
    """
    tokens = 0
    for shown in state.requests:
        if shown.state == "running":
            tokens += shown.request.prompt + shown.request.output
    return tokens


# remembered, as every step asks for it
token_bytes = lru_cache(maxsize=64)(kv_cache_bytes_per_token)


def percent_done(shown: Shown) -> float:
    """Return how much of a request's prompt and answer has been computed once, in percent."""
    if shown.state in ("coming", "waiting"):
        return 0
    request = shown.request
    return 100 * (request.prompt + shown.generated) / (request.prompt + request.output)
