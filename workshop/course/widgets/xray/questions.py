"""Questions about the next step, made from the step itself.

A question has real alternatives, and names the rule of vLLM that decides.

Source of the rules: vLLM 0.32.0, v1/core/sched/scheduler.py (schedule) and
v1/core/kv_cache_manager.py.
"""

from collections.abc import Iterable, Iterator, Sequence

from workshop.course.drawing.readable_numbers import counted
from workshop.engine.trace import Pool, Step

Question = tuple[str, object, Iterable[object], str]  # the question, the right answer, others, why
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
        last = f"{len(most) - MOST_NAMED + 3} more"
        most = most[: MOST_NAMED - 2]
    if not most:
        return last
    return f"{', '.join(most)} and {last}"


def verb(names: Sequence[str], plural: str, singular: str = "") -> str:
    """Return the verb for one name or several."""
    if len(names) > 1:
        return plural
    return singular or f"{plural}s"


class Asker:
    """Find a question about a step that is not yet shown.

    Each kind yields questions, or none where it has no place.
    """

    def __init__(self):
        self.lost: set[str] = set()  # those that were preempted once
        self.last: dict[str, int] = {}  # kind → the step that it was asked about

    def question(self, step: Step, before: Pool) -> dict | None:
        """Return what to ask before a step is shown, or None.

        The keys are ask, options, right (the number of the right option) and why.

        before: the pool as it was. Where a rule that is known here does not explain the step,
        nothing is asked.
        """
        self.step, self.before = step, before
        self.running = dict.fromkeys(before.tables)  # names in the order of coming
        for name in step.finished:
            self.running.pop(name, None)
        self.left = self._left()
        for kind, gap in GAPS.items():
            if step.step - self.last.get(kind, -gap) < gap:
                continue
            for ask, right, others, why in getattr(self, kind)():
                options = sorted(
                    {right, *others}, key=lambda option: (isinstance(option, str), option)
                )
                if len(options) > 1:
                    self.last[kind] = step.step
                    return {
                        "ask": f"{self.news()}{ask}",
                        "options": list(map(_option, options)),
                        "right": options.index(right),
                        "why": why,
                    }
        return None

    def _left(self) -> dict[str, int]:
        """Return the tokens of the budget that those before each request leave."""
        budget_left = {}
        budget = self.step.budget
        for request in self.step.requests:
            budget_left[request.id] = budget
            budget -= request.prefill_tokens + request.decode_tokens
        return budget_left

    def news(self) -> str:
        """Return what comes from outside, and nobody could predict."""
        news = ""
        if self.step.finished:
            news = f"{listed(self.step.finished)} got the last token. "
        for name, tokens in self.step.arrived:
            news += f"{name} arrives with a prompt of {tokens:,} tokens. "
        return news

    @property
    def free(self) -> int:
        """Blocks that are free once those that ended have given theirs back."""
        used_blocks: set[int] = set()
        for name, blocks in self.before.tables.items():
            if name not in self.step.finished:
                used_blocks.update(blocks)
        return self.step.num_blocks - len(used_blocks)

    def room(self) -> int:
        """Tokens of the budget that are left by all that ran before.

        What those before one request leave: `left`.
        """
        room = self.step.budget
        for request in self.step.requests:
            if request.id in self.running:
                room -= request.prefill_tokens + request.decode_tokens
        return room

    def prompt(self, name: str) -> int:
        return self.before.prompts.get(name) or dict(self.step.arrived).get(name, 0)

    def full(self) -> list[str]:
        """Return who decodes and has no place for one more token."""
        full = []
        for request in self.step.requests:
            slots = self.step.block_size * len(self.before.tables.get(request.id, ()))
            if request.decode_tokens == 1 and request.computed_tokens == slots:
                full.append(request.id)
        return full

    def preempt(self) -> Iterator[Question]:
        """Yield the question which request is preempted when no block is free."""
        running = list(self.running)
        if len(self.step.preempted) != 1 or len(running) < 2:
            return
        victim = running[-1]
        if self.step.preempted[0] != victim:
            return
        full = self.full()
        needing = ""
        if full:
            needing = f"{listed(full)} {verb(full, 'need')} a new block. "
        pool = counted(self.step.num_blocks, "block")
        blocks = counted(len(self.before.tables.get(victim, ())), "block")
        yield (
            f"{needing}{self.free} of {pool} are free, which is too few. "
            f"They came in the order {listed(running)}. Who is preempted?",
            victim,
            (*running[:2], *running[-2:], "nobody: the oldest waits for a block"),
            f"When no block is free, the request that came last has to go: {victim}. "
            f"Its {blocks} are given back, and it is the first in the queue.",
        )

    def first_in_queue(self) -> tuple[str, int]:
        """Return who waits first, with the tokens of the prompt; "" if nobody waits."""
        for name in self.before.waiting:
            return name, dict(self.step.arrived).get(name, self.before.prompts.get(name, 0))
        for name, tokens in self.step.arrived:
            return name, tokens
        return "", 0

    def wait(self) -> Iterator[Question]:
        """Does the first of the queue come in?"""
        name, tokens = self.first_in_queue()
        if not name or self.step.preempted or name in self.lost:
            return
        joins = any(request.id == name for request in self.step.requests)
        room = self.room()
        size = self.step.block_size
        needs = -(-min(tokens, room) // size)
        answers = (
            "It joins the step.",
            "It waits: the budget is used up.",
            "It waits: too few blocks are free.",
        )
        is_close = 2 * needs > self.free or room < tokens  # else nobody would doubt it
        if joins and needs <= self.free and is_close:
            right = 0
            why = f"There is room in both: the budget has {counted(room, 'token')}, "
            why += f"and {counted(needs, 'block')} are enough for what is computed now."
        elif not joins and room <= 0:
            right = 1
            why = "What runs goes first, and nothing of the budget is left for another."
        elif not joins and needs > self.free:
            right = 2
            why = f"It would need {counted(needs, 'block')} for what this step could compute of it "
            why += "(fewer where the prefix cache has its beginning), "
            why += "and a request joins only where its blocks are free."
        else:
            return
        ask = f"{name} is first in the queue"
        if not self.step.arrived:
            ask += f", with a prompt of {counted(tokens, 'token')}"
        ask += f". Free are {counted(self.free, 'block')} of {size} tokens, and of the budget "
        ask += f"{room:,} of {self.step.budget:,} tokens. What happens to {name}?"
        yield ask, answers[right], answers, why

    def join(self) -> Iterator[Question]:
        """Yield the question how many tokens of a request that joins are computed."""
        for request in self.step.requests:
            name, computed = request.id, request.prefill_tokens
            again = name in self.lost
            hit = request.prefix_hit_tokens
            total = self.prompt(name)
            if again:
                total = hit + computed
            uncomputed, room = total - hit, self.left[name]
            if name in self.running or not computed or computed != min(uncomputed, room):
                continue
            ask, why = f"{name} joins with {total:,} tokens. ", ""
            if again:
                ask = f"{name} comes back: {total:,} tokens of it were known. "
                why = "A preempted request has lost its blocks: "
                why += "its prompt and its answer so far are computed again. "
            if hit:
                ask += f"The first {hit:,} are in the prefix cache. "
                why += (
                    f"What is cached is not computed again: {total:,} − {hit:,} = {uncomputed:,}. "
                )
            ask += f"The budget has {room:,} of {self.step.budget:,} left. "
            ask += f"How many tokens of {name} are computed?"
            rest = "all of it"
            if uncomputed > room:
                rest = f"{room:,}; the rest comes with the next steps"
            why += f"The budget has room for {rest}."
            yield ask, computed, {1, total, uncomputed, min(room, total), hit} - {0}, why

    def chunk(self) -> Iterator[Question]:
        """Yield the question how many tokens of a prompt are computed that is not yet whole."""
        for request in self.step.requests:
            name = request.id
            uncomputed, room = self.prompt(name) - request.computed_tokens, self.left[name]
            if name not in self.running or name in self.lost:
                continue
            if uncomputed <= 0 or request.prefill_tokens != min(uncomputed, room):
                continue
            end = "the rest fits"
            if uncomputed > room:
                end = "the budget ends it"
            ask = f"{uncomputed:,} tokens of {name}'s prompt are not yet computed, and those that "
            ask += f"came before leave {room:,} of {self.step.budget:,} of the budget. "
            ask += f"How many of {name} are computed?"
            yield (
                ask,
                request.prefill_tokens,
                (1, uncomputed, min(uncomputed, self.step.budget), room),
                "Who runs goes on in the order of coming, each with as much as there is room for: "
                f"{end}.",
            )

    def end(self) -> Iterator[Question]:
        """Yield the question how many blocks become free when a request ends."""
        if len(self.step.finished) != 1 or self.step.preempted:
            return
        name = self.step.finished[0]
        blocks = self.before.tables.get(name, ())
        shared = 0
        for block in blocks:
            if len(self.before.owners[block]) > 1:
                shared += 1
        freed = len(self.step.freed)
        if not blocks or freed != len(blocks) - shared:
            return
        others = ""
        if shared:
            others = f", {shared} of which others hold too"
        yield (
            f"{name} holds {counted(len(blocks), 'block')}{others}. How many blocks become free?",
            freed,
            (0, len(blocks), shared or 1),
            "A block is free when nobody holds it any more. "
            "Its content stays, and the prefix cache finds it there until it is taken.",
        )

    def draft(self) -> Iterator[Question]:
        """Yield the question how many tokens the step computes of a request with draft tokens."""
        for request in self.step.requests:
            drafted, name = request.drafted, request.id
            if drafted and request.decode_tokens == drafted + 1:
                yield (
                    f"The draft has guessed {counted(drafted, 'token')} for {name}. "
                    f"How many tokens of {name} does the step compute?",
                    request.decode_tokens,
                    (1, drafted),
                    f"The model checks all {drafted} guesses in one pass, "
                    "and computes one token that is its own.",
                )

    def blocks(self) -> Iterator[Question]:
        """Yield the question which request takes a new block for its next token."""
        requests, full = self.step.requests, self.full()
        if not self._only_decodes() or self.step.finished or not full:
            return
        if not 1 < len(requests) <= 5 or len(self.step.taken) != len(full):
            return
        names, tables = [], []
        for request in requests:
            names.append(request.id)
            blocks = len(self.before.tables[request.id])
            tables.append(f"{request.id} has {request.computed_tokens} in {blocks}")
        yield (
            f"Everybody who runs gets one token. A block has room for {self.step.block_size}: "
            f"{listed(tables)}. Who takes a new block?",
            listed(full),
            (*names, "nobody"),
            f"A block is taken when the last one is full: {listed(full)} "
            f"{verb(full, 'have', 'has')} no place left.",
        )

    def _only_decodes(self) -> bool:
        """Return whether every request of the step ran before, and gets one token."""
        for request in self.step.requests:
            if request.decode_tokens != 1 or request.id not in self.running:
                return False
        return True

    def batch(self) -> Iterator[Question]:
        """Yield the question what the step computes when nobody joins and nobody leaves."""
        names = [request.id for request in self.step.requests]
        if len(names) > 1 and names == list(self.running) and self._only_decodes():
            yield (
                "Nobody joins, nobody is preempted. What does the step compute?",
                f"one token of each: {listed(names)}",
                (
                    f"one token of {names[0]}, which came first",
                    f"as many tokens of {names[0]} as the budget has",
                ),
                "Continuous batching: each step computes the next token of every running request; "
                "the weights are read once for all.",
            )


def _option(value: object) -> object:
    """Return an option as the page shows it: 8,192."""
    if isinstance(value, int):
        return f"{value:,}"
    return value
