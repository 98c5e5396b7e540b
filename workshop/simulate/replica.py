"""One replica in virtual time: vLLM's engine loop around its scheduler, each step as long as the clock says.

With asynchronous scheduling (vLLM's default) a step is scheduled while the one before still runs, so a request that
arrives waits for the rest of the running step and for the whole next one. Pipeline stages have as many more under way.
Source of the loop: vLLM 0.32.0, v1/engine/core.py, step and step_with_batch_queue.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

from workshop.errors import WorkshopError
from workshop.simulate.clock import Clock
from workshop.simulate.engine import Engine, Rules, Step
from workshop.simulate.report import Outcome

STUCK_STEPS = 100  # empty ones in a row


class Replica:
    """One server with its clock. `seen(replica, steps, end_s)` is called for every step that ran, before its answers.

    Where replicas of data parallelism share experts, `engines` is their number: they take each step together, as the
    slowest of them does, and one without work runs a dummy batch. Source: vLLM 0.32.0, v1/engine/core.py
    DPEngineCoreProc.run_busy_loop; v1/worker/dp_utils.py _synchronize_dp_ranks (all run the widest batch's graph).
    """

    def __init__(
        self,
        rules: Rules,
        clock: Clock,
        seen: Callable[[Replica, list[Step], float], None],
        engines: int = 1,
    ):
        self.engines, self.clock, self._seen = [Engine(rules) for _ in range(engines)], clock, seen
        self._depth = rules.pipeline_parallel_size + rules.async_scheduling
        self._now_s, self._stages_free_s = 0.0, [0.0] * clock.stages  # of the host, of the GPUs
        self.ended_s = 0.0  # the last step that ended
        self._under_way: deque[tuple[float, list[tuple[Engine, Step]]]] = deque()
        self._empty = 0
        self.requests: dict[str, Outcome] = {}
        self.gaps_s = array("d")  # between two tokens of one request
        self.held_tokens = 0  # of the prompts of all unfinished requests
        self._tokens_left: dict[str, int] = {}  # of the answers of those

    @property
    def unfinished(self) -> int:
        return sum(engine.unfinished for engine in self.engines)

    def add(self, name: str, arrival_s: float, prompt: list[int], max_tokens: int) -> None:
        """Take in a request; advance() to its arrival, plus its way in, comes first."""
        if not self._under_way:
            self._now_s = max(self._now_s, arrival_s + self.clock.way_in_s)
        self.requests[name] = Outcome(arrival_s, len(prompt))
        self.held_tokens += len(prompt)
        self._tokens_left[name] = max_tokens
        min(self.engines, key=lambda engine: engine.unfinished).add(name, prompt, max_tokens)

    def advance(self, until_s: float) -> None:
        """Do all that the host does by `until_s`; steps that it has scheduled stay under way."""
        while True:
            if self.unfinished and len(self._under_way) < self._depth:
                if self._now_s > until_s:
                    return
                self._schedule()
            elif self._under_way and self._under_way[0][0] <= until_s:
                self._finish(*self._under_way.popleft())
            else:
                return

    def _schedule(self) -> None:
        steps = [(engine, engine.schedule()) for engine in self.engines if engine.unfinished]
        works = [
            [(new, before) for _, new, before, _ in step.work] for _, step in steps if step.work
        ]
        self._empty = 0 if works else self._empty + 1
        if self._empty > STUCK_STEPS:
            raise WorkshopError(
                "A request needs more KV cache than there is.",
                "Take more GPUs or shorter requests.",
            )
        self._under_way.append((self._run(steps, works) if works else self._now_s, steps))

    def _run(self, steps: list[tuple[Engine, Step]], works: list[list[tuple[int, int]]]) -> float:
        """Return when the step ends; the host is free again once its last kernel is launched."""
        before_ms, launch_ms = (max(ms) for ms in zip(*map(self.clock.host_ms, works), strict=True))
        part_s = max(map(self.clock.gpu_ms, works)) / 1e3 / len(self._stages_free_s)
        end_s = self._now_s + before_ms / 1e3
        for _, step in steps:
            step.began_s = max(end_s, self._stages_free_s[0])
        self._now_s = end_s + launch_ms / 1e3
        for stage, free_s in enumerate(self._stages_free_s):
            self._stages_free_s[stage] = end_s = max(max(end_s, free_s) + part_s, self._now_s)
        return end_s

    def _finish(self, end_s: float, steps: list[tuple[Engine, Step]]) -> None:
        self.ended_s, self._now_s = end_s, max(self._now_s, end_s)
        for name in (name for _, step in steps for name in step.preempted):
            self.requests[name].preempted += 1
        for name, tokens in (hit for _, step in steps for hit in step.hits.items()):
            if not self.requests[name].preempted:  # what it finds again later is its own
                self.requests[name].hit_tokens = tokens
        if any(step.work for _, step in steps):
            self._seen(self, [step for _, step in steps], end_s)
        now_s = self._now_s + self.clock.way_out_s
        for name, tokens in (made for engine, step in steps for made in engine.update(step)):
            one = self.requests[name]
            if one.output_tokens:
                self.gaps_s.append(now_s - one.last_s)
            else:
                one.first_s = now_s
            one.last_s = now_s
            one.output_tokens += tokens
            if one.output_tokens >= self._tokens_left[name]:
                del self._tokens_left[name]
                self.held_tokens -= one.prompt_tokens

    def end(self) -> None:
        """Take an empty step, in which the last blocks are given back."""
        for engine in self.engines:
            engine.update(engine.schedule())

    def tokens_of(self, steps: list[Step]) -> tuple[int, int]:
        """Return how many tokens of prompts and of answers a step has, on all engines."""
        work = [each for step in steps for each in step.work]
        prompt = sum(
            max(0, min(new, self.requests[name].prompt_tokens - at)) for name, new, at, _ in work
        )
        return prompt, sum(new for _, new, _, _ in work) - prompt
