"""Read what the engine did, step by step.

`workshop serve --trace` and `workshop simulate --steps` write such files.
Pure: the standard library only. A line holds what changed since the line before, so that a long
context costs no more than a short one; `replay` adds the changes up.

>>> from workshop.engine import trace
>>> [pool.owners for step, pool in trace.replay(trace.read("trace.jsonl"))]        # doctest: +SKIP
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workshop.errors import BadInput
from workshop.files import open_regular, reason

PART_BYTES = 64 << 20  # that are read at once; a step of a thousand requests has about 200 kB
MAKE_ONE = "`workshop serve --trace FILE` and `workshop simulate … --steps FILE` write one."


@dataclass(frozen=True, slots=True)
class RequestStep:
    """The part of one request in a step, in tokens, and the blocks that it gets."""

    id: str
    prefill_tokens: int  # of its prompt, or computed again after a preemption
    decode_tokens: int  # 1, and the draft tokens
    computed_tokens: int  # before this step, those that the prefix cache had included
    # found in the prefix cache; in its first step alone, or the first after a preemption
    prefix_hit_tokens: int
    drafted: int  # draft tokens
    accepted: int  # … that the model accepted
    # ids of those that it holds from this step on, found in the prefix cache or taken
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine. Steps are in the order in which they were scheduled.

    Events are those since the step before was scheduled.
    """

    step: int
    time_s: float  # when it ended, since the trace began
    budget: int  # max_num_batched_tokens
    kv_cache_usage: float  # share of the blocks that are held, 0 to 1, as this step was scheduled
    requests: tuple[RequestStep, ...]
    taken: tuple[int, ...]  # blocks that were free before, and are held now
    freed: tuple[int, ...]  # the other way round, first of the two
    preempted: tuple[str, ...]  # requests that lost their blocks, and wait again
    arrived: tuple[tuple[str, int], ...]  # (request, tokens of its prompt)
    finished: tuple[str, ...]  # requests that ended
    # (block, hash) that the prefix cache got, and lost: the last 64 bits in hexadecimal, as in
    # vLLM's own events
    stored: tuple[tuple[int, str], ...]
    removed: tuple[tuple[int, str], ...]
    num_blocks: int  # of the KV cache, without vLLM's null block
    block_size: int  # in tokens

    @property
    def prefill_tokens(self) -> int:
        return sum(request.prefill_tokens for request in self.requests)

    @property
    def decode_tokens(self) -> int:
        return sum(request.decode_tokens for request in self.requests)


@dataclass
class Pool:
    """The KV cache and the queue after a step."""

    # request → the blocks that it holds, in order
    tables: dict[str, list[int]] = field(default_factory=dict)
    # request → tokens of its prompt, preempted ones first
    waiting: dict[str, int] = field(default_factory=dict)
    prompts: dict[str, int] = field(default_factory=dict)  # the same, of all
    # of the blocks in the prefix cache, held or free
    hashes: dict[int, str] = field(default_factory=dict)
    used_blocks: set[int] = field(default_factory=set)  # blocks that some request holds

    @property
    def owners(self) -> dict[int, list[str]]:
        """Return block → the requests that hold it."""
        names_of_block: dict[int, list[str]] = {}
        for name, blocks in self.tables.items():
            for block in dict.fromkeys(blocks):
                names_of_block.setdefault(block, []).append(name)
        return names_of_block

    def add(self, step: Step) -> None:
        """Change the pool by what happened in a step."""
        for name, tokens in step.arrived:
            self.waiting[name] = tokens
            self.prompts[name] = tokens
        for name in (*step.finished, *step.preempted):
            self.tables.pop(name, None)
            self.waiting.pop(name, None)
        first_in_queue: dict[str, int] = {}
        for name in step.preempted:
            first_in_queue[name] = self.prompts.get(name, 0)
        self.waiting = first_in_queue | self.waiting
        self._free(set(step.freed))
        self.used_blocks.update(step.taken)
        for request in step.requests:
            self.waiting.pop(request.id, None)
            self.tables.setdefault(request.id, []).extend(request.blocks)
        for block, _ in step.removed:
            self.hashes.pop(block, None)
        self.hashes.update(step.stored)

    def _free(self, freed: set[int]) -> None:
        """Remove blocks from the tables, also of a sliding window, whose request continues."""
        if not freed:
            return
        self.used_blocks -= freed
        tables: dict[str, list[int]] = {}
        for name, blocks in self.tables.items():
            tables[name] = [block for block in blocks if block not in freed]
        self.tables = tables


def replay(steps: Iterable[Step]) -> Iterator[tuple[Step, Pool]]:
    """Yield each step with the pool after it.

    It is always the same Pool, which the next step changes: copy what you need later.
    """
    pool = Pool()
    for step in steps:
        pool.add(step)
        yield step, pool


def reasons(step: Step, before: Pool) -> list[str]:
    """Return why the step is as it is, by vLLM's rules, a sentence for each reason.

    Args:
        before: the pool as it was before the step.
    """
    prompts = before.prompts | dict(step.arrived)
    sentences: list[str] = []
    for name in step.finished:
        sentences.append(f"{name} ended, and gave its blocks back.")
    for name in step.preempted:
        sentences.append(
            f"{name} is preempted: a request that came earlier needs a block, and none is free."
        )
    for request in step.requests:
        if request.prefix_hit_tokens:
            sentences.append(
                f"{request.id} finds {request.prefix_hit_tokens} tokens in the prefix cache, "
                "in whole blocks."
            )
        remaining_tokens = (
            prompts.get(request.id, 0) - request.computed_tokens - request.prefill_tokens
        )
        if request.prefill_tokens and remaining_tokens > 0:
            sentences.append(
                f"{request.id} computes a part of its prompt: the step has room for no more. "
                f"{remaining_tokens} tokens are left."
            )
        if request.drafted:
            sentences.append(
                f"{request.id}: {request.accepted} of {request.drafted} draft tokens were "
                "accepted, and need no step of their own."
            )
    return sentences


class Trace:
    """A trace that may still grow."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._offset = 0
        self._line = 0

    def more(self) -> list[Step]:
        """Return the steps that came since the last call, or the next PART_BYTES of them.

        A line that is not whole yet waits. Raises BadInput: this is no trace, or it cannot be read.
        """
        with open_regular(self.path, MAKE_ONE) as file:
            try:
                file.seek(self._offset)
                data = file.read(PART_BYTES) or b""
            except OSError as error:
                raise BadInput(
                    f"The trace {self.path} cannot be read: {reason(error)}.", MAKE_ONE
                ) from None
        whole, end, _ = data.rpartition(b"\n")
        if not end and len(data) == PART_BYTES:
            problem = f"Line {self._line + 1} of {self.path} is longer than {PART_BYTES >> 20} MiB."
            raise BadInput(problem, MAKE_ONE)
        self._offset += len(whole) + len(end)
        steps = []
        for line in whole.splitlines():
            self._line += 1
            try:
                steps.append(_step(json.loads(line)))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                raise BadInput(
                    f"Line {self._line} of {self.path} is no step of a trace.", MAKE_ONE
                ) from None
        return steps


def _step(line: dict[str, Any]) -> Step:
    """Return the step of a line. Raises ValueError, KeyError, TypeError, OverflowError."""
    step = Step(
        step=int(line["step"]),
        time_s=float(line["time_s"]),
        budget=int(line["budget"]),
        kv_cache_usage=float(line["kv_cache_usage"]),
        requests=tuple(map(_request, line["requests"])),
        taken=tuple(map(int, line["taken"])),
        freed=tuple(map(int, line["freed"])),
        preempted=tuple(map(str, line["preempted"])),
        arrived=tuple((str(name), int(tokens)) for name, tokens in line["arrived"]),
        finished=tuple(map(str, line["finished"])),
        stored=_hashes(line["stored"]),
        removed=_hashes(line["removed"]),
        num_blocks=int(line["num_blocks"]),
        block_size=int(line["block_size"]),
    )
    if step.block_size < 1:  # the X-ray divides by it
        raise ValueError("a block has room for a token")
    return step


def _request(entry: dict[str, Any]) -> RequestStep:
    return RequestStep(
        id=str(entry["id"]),
        prefill_tokens=int(entry["prefill_tokens"]),
        decode_tokens=int(entry["decode_tokens"]),
        computed_tokens=int(entry["computed_tokens"]),
        prefix_hit_tokens=int(entry["prefix_hit_tokens"]),
        drafted=int(entry["drafted"]),
        accepted=int(entry["accepted"]),
        blocks=tuple(map(int, entry["blocks"])),
    )


def _hashes(entries: Any) -> tuple[tuple[int, str], ...]:
    return tuple((int(block), str(key)) for block, key in entries)


def read(path: str | Path) -> list[Step]:
    """Return a trace's steps, without a last line that was cut.

    Raises BadInput: it cannot be read, or is no trace.
    """
    trace = Trace(path)
    steps: list[Step] = []
    part = trace.more()
    while part:
        steps += part
        part = trace.more()
    if not steps:
        raise BadInput(f"{path} holds no step.", MAKE_ONE)
    return steps
