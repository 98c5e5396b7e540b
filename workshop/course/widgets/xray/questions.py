"""Questions about the next step, made from the step itself: real alternatives, and the rule of vLLM that decides. Pure.

Source of the rules: vLLM 0.32.0, v1/core/sched/scheduler.py (schedule) and v1/core/kv_cache_manager.py.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from workshop.course.numbers import counted
from workshop.engine.trace import Pool, Step

Question = tuple[str, object, Iterable[object], str]  # what is asked, the right answer, others, why
MOST_NAMED = 8
# kind → steps that pass before it is asked again: what always happens is soon known
GAPS = {
    "preempt": 0,
    "wait": 6,
    "join": 3,
    "chunk": 4,
    "end": 12,
    "draft": 10,
    "blocks": 8,
    "batch": 40,
}


def listed(names: Iterable[object]) -> str:
    """Return A, B and C; of many the first few, and how many more."""
    *most, last = map(str, names)
    if len(most) >= MOST_NAMED:
        most, last = most[: MOST_NAMED - 2], f"{len(most) - MOST_NAMED + 3} more"
    return f"{', '.join(most)} and {last}" if most else last


def verb(names: Sequence[str], several: str, one: str = "") -> str:
    """Return the verb for one name or several."""
    return several if len(names) > 1 else one or f"{several}s"


class Asker:
    """What there is to ask about a step that is not yet shown; each kind yields questions, or none where it has no place."""

    def __init__(self):
        self.lost: set[str] = set()  # those that were preempted once
        self.last: dict[str, int] = {}  # kind → the step that it was asked about

    def question(self, step: Step, before: Pool) -> dict | None:
        """Return what to ask before a step is shown: ask, options, right (their number) and why; or None.

        before: the pool as it was. Where a rule that is known here does not explain the step, nothing is asked.
        """
        self.step, self.before = step, before
        ended = set(step.finished)
        # in the order of coming
        self.running = {name: None for name in before.tables if name not in ended}
        tokens = accumulate(
            (one.prefill_tokens + one.decode_tokens for one in step.requests), initial=0
        )
        self.left = {
            one.id: step.budget - spent for one, spent in zip(step.requests, tokens, strict=False)
        }
        due = (kind for kind, gap in GAPS.items() if step.step - self.last.get(kind, -gap) >= gap)
        asked = ((kind, asked) for kind in due for asked in getattr(self, kind)())
        for kind, (ask, right, others, why) in asked:
            options = sorted({right, *others}, key=lambda one: (isinstance(one, str), one))
            if len(options) > 1:
                self.last[kind] = step.step
                said = [f"{one:,}" if isinstance(one, int) else one for one in options]
                return {
                    "ask": f"{self.news()}{ask}",
                    "options": said,
                    "right": options.index(right),
                    "why": why,
                }
        return None

    def news(self) -> str:
        """Return what comes from outside, and nobody could predict."""
        ended = f"{listed(self.step.finished)} got the last token. " if self.step.finished else ""
        came = [
            f"{name} arrives with a prompt of {tokens:,} tokens. "
            for name, tokens in self.step.arrived
        ]
        return "".join([ended, *came])

    @property
    def free(self) -> int:
        """Blocks that are free once those that ended have given theirs back."""
        tables = self.before.tables.items()
        held = {
            block for name, blocks in tables if name not in self.step.finished for block in blocks
        }
        return self.step.num_blocks - len(held)

    def room(self) -> int:
        """Tokens of the budget that are left by all that ran before. What those before one request leave: `left`."""
        ran = (one for one in self.step.requests if one.id in self.running)
        return self.step.budget - sum(one.prefill_tokens + one.decode_tokens for one in ran)

    def prompt(self, name: str) -> int:
        return self.before.prompts.get(name) or dict(self.step.arrived).get(name, 0)

    def full(self) -> list[str]:
        """Return who decodes and has no place for one more token."""
        size, held = self.step.block_size, self.before.tables
        rows = [one for one in self.step.requests if one.decode_tokens == 1]
        return [one.id for one in rows if one.computed_tokens == size * len(held.get(one.id, ()))]

    def preempt(self) -> Iterator[Question]:
        """Who has to go when no block is free?"""
        running = list(self.running)
        if (
            len(self.step.preempted) != 1
            or len(running) < 2
            or self.step.preempted[0] != running[-1]
        ):
            return
        victim, need = running[-1], self.full()
        blocks = counted(len(self.before.tables.get(victim, ())), "block")
        needing = f"{listed(need)} {verb(need, 'need')} a new block. " if need else ""
        yield (
            f"{needing}{self.free} of {counted(self.step.num_blocks, 'block')} are free, which is too few. They came in the order {listed(running)}. Who is preempted?",
            victim,
            (*running[:2], *running[-2:], "nobody: the oldest waits for a block"),
            f"When no block is free, the request that came last has to go: {victim}. Its {blocks} are given back, and it is the first in the queue.",
        )

    def wait(self) -> Iterator[Question]:
        """Does the first of the queue come in?"""
        queue = {name: self.before.prompts.get(name, 0) for name in self.before.waiting} | dict(
            self.step.arrived
        )
        name, tokens = next(iter(queue.items()), ("", 0))
        if not name or self.step.preempted or name in self.lost:
            return
        joins, room, size = (
            any(one.id == name for one in self.step.requests),
            self.room(),
            self.step.block_size,
        )
        needs = -(-min(tokens, room) // size)
        answers = (
            "It joins the step.",
            "It waits: the budget is used up.",
            "It waits: too few blocks are free.",
        )
        # else nobody would doubt it
        if joins and needs <= self.free and (2 * needs > self.free or room < tokens):
            right = 0
            why = f"There is room in both: the budget has {counted(room, 'token')}, and {counted(needs, 'block')} are enough for what is computed now."
        elif not joins and room <= 0:
            right, why = 1, "What runs goes first, and nothing of the budget is left for another."
        elif not joins and needs > self.free:
            right = 2
            why = f"It would need {counted(needs, 'block')} for what this step could compute of it (fewer where the prefix cache has its beginning), and a request joins only where its blocks are free."
        else:
            return
        prompt = "" if self.step.arrived else f", with a prompt of {counted(tokens, 'token')}"
        ask = f"{name} is first in the queue{prompt}. Free are {counted(self.free, 'block')} of {size} tokens, and of the budget {room:,} of {self.step.budget:,} tokens. What happens to {name}?"
        yield ask, answers[right], answers, why

    def join(self) -> Iterator[Question]:
        """How many tokens of who joins?"""
        for one in self.step.requests:
            again, hit, room = one.id in self.lost, one.prefix_hit_tokens, self.left[one.id]
            total = hit + one.prefill_tokens if again else self.prompt(one.id)
            left = total - hit
            if (
                one.id in self.running
                or not one.prefill_tokens
                or one.prefill_tokens != min(left, room)
            ):
                continue
            ask, why = f"{one.id} joins with {total:,} tokens. ", ""
            if again:
                ask = f"{one.id} comes back: {total:,} tokens of it were known. "
                why = "A preempted request has lost its blocks: its prompt and its answer so far are computed again. "
            if hit:
                ask += f"The first {hit:,} are in the prefix cache. "
                why += f"What is cached is not computed again: {total:,} − {hit:,} = {left:,}. "
            ask += f"The budget has {room:,} of {self.step.budget:,} left. How many tokens of {one.id} are computed?"
            rest = f"{room:,}; the rest comes with the next steps" if left > room else "all of it"
            why += f"The budget has room for {rest}."
            yield ask, one.prefill_tokens, {1, total, left, min(room, total), hit} - {0}, why

    def chunk(self) -> Iterator[Question]:
        """How much of a prompt that is not yet whole?"""
        for one in self.step.requests:
            left, room = self.prompt(one.id) - one.computed_tokens, self.left[one.id]
            if (
                one.id not in self.running
                or one.id in self.lost
                or left <= 0
                or one.prefill_tokens != min(left, room)
            ):
                continue
            yield (
                f"{left:,} tokens of {one.id}'s prompt are not yet computed, and those that came before leave {room:,} of {self.step.budget:,} of the budget. How many of {one.id} are computed?",
                one.prefill_tokens,
                (1, left, min(left, self.step.budget), room),
                f"Who runs goes on in the order of coming, each with as much as there is room for: {'the budget ends it' if left > room else 'the rest fits'}.",
            )

    def end(self) -> Iterator[Question]:
        """How many blocks are free again?"""
        if len(self.step.finished) != 1 or self.step.preempted:
            return
        mine, owners = self.before.tables.get(self.step.finished[0], ()), self.before.owners
        shared = sum(len(owners[block]) > 1 for block in mine)
        if mine and len(self.step.freed) == len(mine) - shared:
            too = f", {shared} of which others hold too" if shared else ""
            yield (
                f"{self.step.finished[0]} holds {counted(len(mine), 'block')}{too}. How many blocks become free?",
                len(self.step.freed),
                (0, len(mine), shared or 1),
                "A block is free when nobody holds it any more. Its content stays, and the prefix cache finds it there until it is taken.",
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
        """Who takes a block for one token more?"""
        rows, full = self.step.requests, self.full()
        plain = (
            all(one.decode_tokens == 1 and one.id in self.running for one in rows)
            and not self.step.finished
        )
        if plain and full and 1 < len(rows) <= 5 and len(self.step.taken) == len(full):
            each = [
                f"{one.id} has {one.computed_tokens} in {len(self.before.tables[one.id])}"
                for one in rows
            ]
            yield (
                f"Everybody who runs gets one token. A block has room for {self.step.block_size}: {listed(each)}. Who takes a new block?",
                listed(full),
                (*(one.id for one in rows), "nobody"),
                f"A block is taken when the last one is full: {listed(full)} {verb(full, 'have', 'has')} no place left.",
            )

    def batch(self) -> Iterator[Question]:
        """Who is computed when nothing happens?"""
        names = [one.id for one in self.step.requests]
        if (
            len(names) > 1
            and names == list(self.running)
            and all(one.decode_tokens == 1 for one in self.step.requests)
        ):
            yield (
                "Nobody joins, nobody is preempted. What does the step compute?",
                f"one token of each: {listed(names)}",
                (
                    f"one token of {names[0]}, which came first",
                    f"as many tokens of {names[0]} as the budget has",
                ),
                "Continuous batching: each step computes the next token of every running request; the weights are read once for all.",
            )
