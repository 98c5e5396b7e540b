"""How a paged KV cache fills: a small scheduler that keeps blocks as vLLM does, step by step; and the picture. No widgets.

A step gives every running request one token; a request takes a block of 16 when its last one is full. When no block
is free, the request that came last is preempted: its blocks go back, and it is computed again later.
Source: vLLM 0.32 v1/core/sched/scheduler.py (first come, first served) and v1/core/block_pool.py (a queue of free
blocks); prefix caching is left out.
"""

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import lru_cache

from inference_planner.attention import main_kind
from inference_planner.catalog.config import ModelConfig
from inference_planner.kv_cache import BLOCK_SIZE, kv_cache_bytes_per_token

from workshop.course.html import Html, bar, div, muted, panel, span, tag, tiles
from workshop.course.numbers import size
from workshop.errors import BadInput

SIGNS = {"coming": "not yet here", "waiting": "waits", "running": "runs", "preempted": "preempted, waits",
         "finished": "✓ finished"}  # fmt: skip
COLUMNS = (
    "",
    "request",
    "prompt and answer",
    "in the cache",
    "its block table: which blocks, in its order",
)
MOST_STEPS = 2000


@dataclass(frozen=True)
class Request:
    """One request: it arrives before `step`, brings `prompt` tokens and generates `output` more."""

    name: str
    step: int
    prompt: int
    output: int


# Lengths that differ, as those of real requests do; together more than the widget's pool holds at first.
REQUESTS = (Request("A", 0, 52, 90), Request("B", 0, 21, 130), Request("C", 6, 70, 60),
            Request("D", 14, 34, 120), Request("E", 30, 90, 40), Request("F", 44, 12, 100))  # fmt: skip


@dataclass
class Shown:
    """One request at one step. state: coming, waiting, running, preempted, finished; blocks: in their order."""

    request: Request
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
    """Requests, and the free blocks as a queue: taken from the front, given back to the end, a request's last first."""

    def __init__(self, blocks: int, requests: tuple[Request, ...]):
        self.blocks, self.free = blocks, deque(range(blocks))
        self.all, self.running, self.waiting = [Shown(request) for request in requests], [], deque()

    def grow(self, one: Shown, tokens: int) -> bool:
        """Give a request blocks for `tokens` in all; False, and nothing taken, if there are too few."""
        missing = -(-tokens // BLOCK_SIZE) - len(one.blocks)
        if missing > len(self.free):
            return False
        one.blocks += tuple(self.free.popleft() for _ in range(missing))
        one.tokens = tokens
        return True

    def release(self, one: Shown, state: str) -> None:
        self.free.extend(reversed(one.blocks))
        one.state, one.blocks, one.tokens = state, (), 0

    def step(self, now: int) -> Iterator[str]:
        """One step: who ended leaves, who runs gets a token, who waits comes in if there is room; yield what happens."""
        for one in [one for one in self.running if one.generated >= one.request.output]:
            yield f"{one.request.name} is finished and gives {len(one.blocks)} blocks back."
            self.release(one, "finished")
            self.running.remove(one)
        for one in self.all:
            if one.state == "coming" and one.request.step <= now:
                one.state = "waiting"
                self.waiting.append(one)
        preempted = yield from self._a_token_each()
        while self.waiting and not preempted:
            one = self.waiting[0]
            if not self.grow(one, one.request.prompt + one.generated):
                break
            starts = "starts again" if one.state == "preempted" else "starts"
            one.state = "running"
            self.running.append(self.waiting.popleft())
            yield f"{one.request.name} {starts}: {one.tokens} tokens are read at once, {len(one.blocks)} blocks."

    def _a_token_each(self) -> Iterator[str]:
        """Give every running request one token; where no block is free, who came last leaves. Returns whether so."""
        preempted, turn = False, 0
        while turn < len(self.running):
            if self.grow(one := self.running[turn], one.tokens + 1):
                one.generated += 1
                turn += 1
                continue
            victim = self.running.pop()
            self.release(victim, "preempted")
            victim.preemptions, preempted = victim.preemptions + 1, True
            self.waiting.appendleft(victim)
            name = f"Full: {victim.request.name}, which came last, is preempted"
            yield f"{name}. Its blocks are free again; it will be computed again when there is room."
        return preempted

    def state(self, step: int, event: str) -> State:
        pool: list[tuple[int, int] | None] = [None] * self.blocks
        for index, one in enumerate(self.all):
            for n, block in enumerate(one.blocks):
                pool[block] = (index, min(BLOCK_SIZE, one.tokens - n * BLOCK_SIZE))
        return State(step, tuple(map(copy, self.all)), tuple(pool), event)


@lru_cache(maxsize=64)
def simulate(blocks: int, requests: tuple[Request, ...] = REQUESTS) -> tuple[State, ...]:
    """Return the states from before the first step to the end of the last request; BadInput where one cannot fit."""
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise BadInput(
            f"blocks is {blocks!r}, and must be a whole number from 1.",
            "Give how many the pool has.",
        )
    longest = max(requests, key=lambda r: r.prompt + r.output)
    needed = -(-(longest.prompt + longest.output) // BLOCK_SIZE)
    if needed > blocks:
        what = f"Request {longest.name} grows to {needed} blocks, and the pool has {blocks}."
        raise BadInput(
            what,
            f"Give at least {needed} blocks: vLLM, too, refuses to start when one request cannot fit.",
        )
    engine = _Engine(blocks, requests)
    states = [engine.state(0, "Nothing has been asked yet.")]
    while any(one.state != "finished" for one in engine.all) and len(states) < MOST_STEPS:
        event = " ".join(engine.step(len(states) - 1))
        states.append(engine.state(len(states), event))
    return tuple(states)


def reserved_tokens(state: State) -> int:
    """Tokens that a cache without paging would hold back now: each running request's longest length, in one piece."""
    return sum(s.request.prompt + s.request.output for s in state.requests if s.state == "running")


# remembered, as every step asks for it
token_bytes = lru_cache(maxsize=64)(kv_cache_bytes_per_token)


def picture(state: State, model: ModelConfig, last_event: str = "") -> Html:
    """Return the whole picture; `last_event` is said while nothing new happens."""
    about = muted(f"The pool: one box is a block of {BLOCK_SIZE} tokens, in every layer")
    pool = div(*(_block(number, held) for number, held in enumerate(state.pool)), cls="pool")
    parts = (*_head(state, model, last_event), about, pool, _requests(state), _foot(state, model))
    return panel(*parts, label=spoken(state, model))


def spoken(state: State, model: ModelConfig) -> str:
    each = [
        f"{s.request.name} {SIGNS[s.state]}, {s.tokens} tokens in {len(s.blocks)} blocks"
        for s in state.requests
    ]
    held = f"{state.tokens} tokens, {size(state.tokens * token_bytes(model))}"
    return f"Step {state.step}. {state.used} of {len(state.pool)} blocks used, {held}. {'. '.join(each)}. {state.event}"


def _head(state: State, model: ModelConfig, last_event: str) -> tuple[Html, ...]:
    """The counters, a bar of the whole pool, and what happened."""
    each, full = token_bytes(model), state.used == len(state.pool)
    bytes_ = (size(state.tokens * each), f"× {each:,} bytes a token")
    taken = (f"{state.used} of {len(state.pool)}", "blocks taken")
    numbers = ((f"{state.tokens:,}", "tokens in the cache"), bytes_, taken)
    warn = tag("b", "FULL ", cls="ink-bad") if full else ""
    event = div(warn, state.event or last_event, cls="event" if state.event else "event ink-muted")
    filled = bar([("bad" if full else "kv", 100 * state.used / len(state.pool))], cls="thin")
    return tiles(numbers, columns=3), filled, event


def _block(number: int, held: tuple[int, int] | None) -> Html:
    if held is None:
        return Html(f'<span class="block"><i>{number}</i></span>')
    index, filled = held[0] % 6, held[1]
    # The name reads on the colour; where a block is hardly filled it stands on the free part, as its number often does.
    cls = f"block c{index}{' inked' if filled >= 5 else ''}{' full' if filled >= 14 else ''}"
    share = f"--f:{100 * filled / BLOCK_SIZE:.2f}%"
    return Html(f'<span class="{cls}" style="{share}">{"ABCDEF"[index]}<i>{number}</i></span>')


def _requests(state: State) -> Html:
    """A row a request: what it is doing, how far it is, and its blocks in its own order."""
    rows = [span(name, cls="note") for name in COLUMNS]
    for index, s in enumerate(state.requests):
        total = s.request.prompt + s.request.output
        done = (
            100 * (s.request.prompt + s.generated) / total
            if s.state not in ("coming", "waiting")
            else 0
        )
        quiet = " ink-muted" if s.state in ("coming", "finished") else ""
        again = f" ({s.preemptions}× preempted)" if s.preemptions else ""
        rows += [
            tag("b", s.request.name, cls=f"c{index % 6}"),
            span(SIGNS[s.state] + again, cls=f"whole{quiet}"),
            bar([("request", done)], cls=f"thin c{index % 6}"),
            span(f"{s.tokens} tokens", cls="number"),
            span(" ".join(map(str, s.blocks)) or "–", cls=f"mono{quiet}"),
        ]
    return div(*rows, cls="requests")


def _foot(state: State, model: ModelConfig) -> Html:
    pool_tokens, empty = len(state.pool) * BLOCK_SIZE, state.used * BLOCK_SIZE - state.tokens
    each, layers, reserved = token_bytes(model), len(model.attention_layers), reserved_tokens(state)
    heads = (
        "one latent" if model.mla else f"2 × {model.num_key_value_heads} heads × {model.head_dim}"
    )
    element = each // (layers * main_kind(model).token_elements(model))
    said = f"One token: {heads} × {layers} layers × {element} bytes = {size(each)}. "
    said += f"Taken but still empty: {empty} slots, less than one block a request. "
    if reserved:
        held = f"the running requests would hold {reserved:,} of {pool_tokens:,} slots from their start"
        said += f"Without paging, {held}{' — more than the whole pool' if reserved > pool_tokens else ''}."
    return muted(said, cls="gap")
