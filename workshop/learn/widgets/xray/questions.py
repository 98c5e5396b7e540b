"""Questions about the next step, made from the step itself: real alternatives, and the rule of vLLM that decides. Pure.

Source of the rules: vLLM 0.32.0, v1/core/sched/scheduler.py (schedule) and v1/core/kv_cache_manager.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from workshop.engine.trace import Pool, RequestStep, Step

# kind → steps that pass before it is asked again: what always happens is soon known
MOST_NAMED = 8
GAPS = {"preempt": 0, "wait": 6, "join": 3, "chunk": 4, "end": 12, "draft": 10, "blocks": 8, "batch": 40}


def listed(names: Iterable[object]) -> str:
    """Return A, B and C; of many the first few, and how many more."""
    *most, last = map(str, names)
    if len(most) >= MOST_NAMED:
        most, last = most[: MOST_NAMED - 2], f"{len(most) - MOST_NAMED + 3} more"
    return f"{', '.join(most)} and {last}" if most else last


def counted(n: int, what: str) -> str:
    """Return 1 block, 2 blocks."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


@dataclass
class Asker:
    """What there is to ask about each step.

    Attributes:
        running: requests in the order in which they came to run. lost: those that were preempted once.
        last: kind → number of the step that it was asked about.
    """

    running: list[str] = field(default_factory=list)
    lost: set[str] = field(default_factory=set)
    last: dict[str, int] = field(default_factory=dict)

    def note(self, step: Step) -> None:
        """Go on by one step."""
        gone = {*step.finished, *step.preempted}
        self.lost.update(step.preempted)
        self.running = [name for name in self.running if name not in gone]
        self.running += [one.id for one in step.requests if one.id not in self.running]

    def question(self, step: Step, before: Pool) -> dict | None:
        """Return what to ask before a step is shown: ask, options, right (their number) and why; or None.

        before: the pool as it was. Where a rule that is known here does not explain the step, nothing is asked.
        """
        case = _Case(step, before, [name for name in self.running if name not in step.finished], self.lost)
        asked = ((kind, asked) for kind in GAPS for asked in getattr(case, kind)())
        for kind, (ask, right, others, why) in asked:
            options = sorted({right, *others}, key=lambda one: (isinstance(one, str), one))
            if len(options) > 1 and step.step - self.last.get(kind, -GAPS[kind]) >= GAPS[kind]:
                self.last[kind] = step.step
                said = [f"{one:,}" if isinstance(one, int) else one for one in options]
                return {"ask": f"{case.news()}{ask}", "options": said, "right": options.index(right), "why": why}
        return None


Question = tuple[str, object, Iterable[object], str]  # what is asked, the right answer, others, why


@dataclass(frozen=True)
class _Case:
    """One step that is not yet shown. Each kind of question yields itself, or nothing where it has no place."""

    step: Step
    before: Pool
    running: list[str]  # without those that ended
    lost: set[str]

    @property
    def rows(self) -> dict[str, RequestStep]:
        return {one.id: one for one in self.step.requests}

    @property
    def joining(self) -> list[RequestStep]:
        return [one for one in self.step.requests if one.id not in self.running]

    @property
    def free(self) -> int:
        """Blocks that are free once those that ended have given theirs back."""
        left = {
            block for name, blocks in self.before.tables.items() if name not in self.step.finished for block in blocks
        }
        return self.step.num_blocks - len(left)

    def news(self) -> str:
        """Return what comes from outside, and nobody could predict."""
        ended = f"{listed(self.step.finished)} got the last token. " if self.step.finished else ""
        came = [f"{name} arrives with a prompt of {tokens:,} tokens. " for name, tokens in self.step.arrived]
        return "".join([ended, *came])

    def full(self) -> list[str]:
        """Return who decodes and has no place for one more token."""
        size = self.step.block_size
        return [
            one.id
            for one in self.step.requests
            if one.decode_tokens == 1 and one.computed_tokens == size * len(self.before.tables.get(one.id, ()))
        ]

    def preempt(self) -> Iterator[Question]:
        """Who has to go when no block is free?"""
        if len(self.step.preempted) == 1 and len(self.running) > 1 and self.step.preempted[0] == self.running[-1]:
            victim, blocks = self.running[-1], len(self.before.tables.get(self.running[-1], ()))
            need = self.full()
            needing = f"{listed(need)} {'need' if len(need) > 1 else 'needs'} a new block. " if need else ""
            yield (
                f"{needing}{counted(self.free, 'block')} of {self.step.num_blocks} {'is' if self.free == 1 else 'are'} free, which is too few. They came in the order {listed(self.running)}. Who is preempted?",
                victim,
                (*self.running[:2], *self.running[-2:], "nobody: the oldest waits for a block"),
                f"When no block is free, the request that came last has to go: {victim}. Its {counted(blocks, 'block')} are given back, and it is the first in the queue.",
            )

    def wait(self) -> Iterator[Question]:
        """Does the first of the queue come in?"""
        queue = {name: self.before.prompts.get(name, 0) for name in self.before.waiting} | dict(self.step.arrived)
        if not queue or self.step.preempted:
            return
        name, tokens = next(iter(queue.items()))
        room = self.step.budget - sum(
            one.prefill_tokens + one.decode_tokens for one in self.step.requests if one.id in self.running
        )
        blocks, said = -(-min(tokens, room) // self.step.block_size), "It joins the step."
        small = "It waits: too few blocks are free."
        spent = "It waits: the budget is used up."
        prompt = "" if self.step.arrived else f", with a prompt of {counted(tokens, 'token')}"
        ask = f"{name} is first in the queue{prompt}. {counted(self.free, 'block')} of {self.step.block_size} tokens {'is' if self.free == 1 else 'are'} free, and {room:,} of {self.step.budget:,} tokens of the budget are left by those that run. What happens to {name}?"
        if name in self.lost:
            return
        near = 2 * blocks > self.free or room < tokens  # else nobody would doubt it
        if name in self.rows and blocks <= self.free and near:
            why = f"There is room in both: the budget has {counted(room, 'token')}, and {counted(blocks, 'block')} are enough for what is computed now."
            yield ask, said, (small, spent), why
        elif name not in self.rows and room <= 0:
            yield ask, spent, (said, small), "What runs goes first, and nothing of the budget is left for another."
        elif name not in self.rows and blocks > self.free:
            yield (
                ask,
                small,
                (said, spent),
                f"It would need {counted(blocks, 'block')} for what this step could compute of it (fewer where the prefix cache has its beginning), and a request joins only where its blocks are free.",
            )

    def join(self) -> Iterator[Question]:
        """How many tokens of who joins?"""
        others = sum(one.prefill_tokens + one.decode_tokens for one in self.step.requests if one.id in self.running)
        for one in self.joining:
            again, hit = one.id in self.lost, one.prefix_hit_tokens
            total = hit + one.prefill_tokens if again else self.prompt(one.id)
            room = self.step.budget - others
            others += one.prefill_tokens + one.decode_tokens
            if not one.prefill_tokens or one.prefill_tokens != min(total - hit, room):
                continue
            cached = f"The first {hit:,} are in the prefix cache. " if hit else ""
            why = f"What is cached is not computed again: {total:,} − {hit:,} = {total - hit:,}. " if hit else ""
            if total - hit > room:
                why += f"The budget of {self.step.budget:,} has {room:,} left, and the rest comes with the next steps."
            else:
                why += f"All of it fits into what the budget of {self.step.budget:,} has left."
            if again:
                why = f"A preempted request has lost its blocks and computes its prompt and its answer so far again. {why}"
            what = (
                f"{one.id} comes back: {total:,} tokens of it were known."
                if again
                else f"{one.id} joins with {total:,} tokens."
            )
            running = (
                f" {counted(self.step.budget - room, 'token')} of the budget of {self.step.budget:,} {'is' if self.step.budget - room == 1 else 'are'} taken."
                if room < self.step.budget
                else f" The budget is {self.step.budget:,} tokens."
            )
            others_said = (1, total, total - hit, *((room,) if room < total else ()), *((hit,) if hit else ()))
            yield (
                f"{what} {cached}{running.strip()} How many tokens of {one.id} are computed?",
                one.prefill_tokens,
                others_said,
                why,
            )

    def prompt(self, name: str) -> int:
        return self.before.prompts.get(name) or dict(self.step.arrived).get(name, 0)

    def chunk(self) -> Iterator[Question]:
        """How much of a prompt that is not yet whole?"""
        for one in self.step.requests:
            left = self.prompt(one.id) - one.computed_tokens
            if one.id not in self.running or one.id in self.lost or not one.prefill_tokens or left <= 0:
                continue
            first = [each for each in self.step.requests if each.id in self.running]
            taken = sum(each.prefill_tokens + each.decode_tokens for each in first[: first.index(one)])
            if one.prefill_tokens == min(left, room := self.step.budget - taken):
                limit = f"the budget of {self.step.budget:,} has {room:,} left" if left > room else "the rest fits"
                yield (
                    f"{left:,} tokens of {one.id}'s prompt are not yet computed; {counted(taken, 'token')} of the budget of {self.step.budget:,} {'goes' if taken == 1 else 'go'} to those that came before. How many of {one.id} are computed?",
                    one.prefill_tokens,
                    (1, left, min(left, self.step.budget), room),
                    f"Who runs goes on in the order of coming, each with as much as there is room for: {limit}.",
                )

    def end(self) -> Iterator[Question]:
        """How many blocks are free again?"""
        if len(self.step.finished) == 1 and not self.step.preempted:
            name = self.step.finished[0]
            mine = set(self.before.tables.get(name, ()))
            owners = self.before.owners
            shared = [block for block in mine if len(owners[block]) > 1]
            if mine and len(self.step.freed) == len(mine) - len(shared):
                too = f", {len(shared)} of which others hold too" if shared else ""
                why = "A block is free when nobody holds it any more. Its content stays, and the prefix cache finds it there until it is taken."
                yield (
                    f"It holds {counted(len(mine), 'block')}{too}. How many blocks become free?",
                    len(self.step.freed),
                    (0, len(mine), *((len(shared),) if shared else (1,))),
                    why,
                )

    def draft(self) -> Iterator[Question]:
        """How many tokens where a draft has guessed?"""
        for one in self.step.requests:
            if one.drafted and one.decode_tokens == one.drafted + 1:
                yield (
                    f"The draft has guessed {counted(one.drafted, 'token')} for {one.id}. How many tokens of {one.id} does the step compute?",
                    one.decode_tokens,
                    (1, one.drafted),
                    f"The model checks all {one.drafted} guesses in one pass, and computes one token that is its own.",
                )

    def blocks(self) -> Iterator[Question]:
        """How many new blocks for one token each?"""
        rows, full = self.step.requests, self.full()
        plain = all(one.decode_tokens == 1 and one.id in self.running for one in rows)
        if not plain or not full or not 1 < len(rows) <= 5 or len(self.step.taken) != len(full) or self.step.finished:
            return
        each = [f"{one.id} has {one.computed_tokens} in {len(self.before.tables.get(one.id, ()))}" for one in rows]
        yield (
            f"Everybody who runs gets one token. A block has room for {self.step.block_size}: {listed(each)}. How many blocks are taken?",
            len(full),
            (0, 1, 2, len(rows)),
            f"A block is taken when the last one is full: {listed(full)} {'have' if len(full) > 1 else 'has'} no place left.",
        )

    def batch(self) -> Iterator[Question]:
        """Who is computed when nothing happens?"""
        names = list(self.rows)
        if len(names) > 1 and names == self.running and all(one.decode_tokens == 1 for one in self.step.requests):
            yield (
                "Nobody joins, nobody is preempted. What does the step compute?",
                f"one token of each: {listed(names)}",
                (f"one token of {names[0]}, which came first", f"as many tokens of {names[0]} as the budget has"),
                "Continuous batching: each step computes the next token of every running request; the weights are read once for all.",
            )
