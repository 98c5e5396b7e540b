"""One replica in virtual time: vLLM's engine loop around its scheduler, by a clock of steps.

With asynchronous scheduling (vLLM's default) a step is scheduled while the one before still runs,
so a request that arrives waits for the rest of the running step and for the whole next one.
Pipeline stages have as many more under way. Source of the loop: vLLM 0.32.0, v1/engine/core.py,
step and step_with_batch_queue.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable

from workshop.errors import WorkshopError
from workshop.simulate.clock import Clock, Work
from workshop.simulate.engine import Engine, Rules, ScheduledStep
from workshop.simulate.report import Outcome

STUCK_STEPS = 100  # empty ones in a row


class Replica:
    """One server with its clock; `on_step(replica, steps)` is called before tokens are returned.

    Data-parallel ranks that share experts are the `engines` of one replica: they take each step
    together, so each takes as long as the slowest, and one without work runs a dummy batch. Source:
    vLLM 0.32.0, v1/engine/core.py DPEngineCoreProc.run_busy_loop; v1/worker/dp_utils.py
    _synchronize_dp_ranks (all run the widest batch's graph).
    """

    def __init__(
        self,
        rules: Rules,
        clock: Clock,
        on_step: Callable[[Replica, list[ScheduledStep]], None],
        engines: int = 1,
    ):
        self.engines: list[Engine] = []
        for _ in range(engines):
            self.engines.append(Engine(rules))
        self.clock = clock
        self._on_step = on_step
        self._most_under_way = rules.pipeline_parallel_size + int(rules.async_scheduling)
        self._now_s = 0.0  # the host's time
        self._stages_free_s = [0.0] * clock.stages  # when each stage's GPUs are free
        # when the last token of a request that is under way is sampled
        self._sampled_s: dict[str, float] = {}
        self.ended_s = 0.0  # when the last step ended
        self._under_way: deque[tuple[float, list[tuple[Engine, ScheduledStep]]]] = deque()
        self._empty_steps = 0  # consecutive ones
        self.requests: dict[str, Outcome] = {}
        self.gaps_s = array("d")  # between two tokens of one request
        self._tokens_left: dict[str, int] = {}  # of the answers of unfinished requests
        self.ended: list[str] = []  # requests that ended and that nobody has asked for yet

    @property
    def unfinished(self) -> int:
        return sum(engine.unfinished for engine in self.engines)

    def add(
        self,
        name: str,
        arrival_s: float,
        prompt: list[int],
        max_tokens: int,
        answer_token: int | None = None,
    ) -> None:
        """Add a request. Before that, advance() to when the engine has it (the clock's `arrives_s`).

        Args:
            answer_token: the token that its answer consists of, where a later prompt has the
                answer.
        """
        if not self._under_way:
            self._now_s = max(self._now_s, self.clock.arrives_s(arrival_s, len(prompt)))
        self.requests[name] = Outcome(arrival_s, len(prompt))
        self._tokens_left[name] = max_tokens
        idlest = min(self.engines, key=lambda engine: engine.unfinished)
        idlest.add(name, prompt, max_tokens, answer_token)

    def advance(self, until_s: float, *, to_an_end: bool = False) -> None:
        """Run the host until `until_s`; steps that it has scheduled stay under way.

        to_an_end: no longer than to the end of an answer.
        """
        while not (to_an_end and self.ended):
            if self.unfinished and len(self._under_way) < self._most_under_way:
                if self._now_s > until_s:
                    return
                self._schedule()
            elif self._under_way and self._under_way[0][0] <= until_s:
                self._finish(*self._under_way.popleft())
            else:
                return

    def _schedule(self) -> None:
        steps = []
        works = []
        for engine in self.engines:
            if engine.unfinished:
                step = engine.schedule()
                steps.append((engine, step))
                if step.work:
                    works.append(step.tokens())
        if works:
            self._empty_steps = 0
        else:
            self._empty_steps += 1
        if self._empty_steps > STUCK_STEPS:
            raise WorkshopError(
                "A request needs more KV cache than there is.",
                "Take more GPUs or shorter requests.",
            )
        end_s = self._now_s
        if works:
            end_s = self._run(steps, works)
        self._under_way.append((end_s, steps))

    def _run(self, steps: list[tuple[Engine, ScheduledStep]], works: list[list[Work]]) -> float:
        """Return when the step ends; the host is free again once its last kernel is launched."""
        before_ms = launch_ms = gpu_ms = 0.0
        for work in works:
            engine_before_ms, engine_launch_ms = self.clock.host_ms(work)
            before_ms = max(before_ms, engine_before_ms)
            launch_ms = max(launch_ms, engine_launch_ms)
            gpu_ms = max(gpu_ms, self.clock.gpu_ms(work))
        part_s = gpu_ms / 1e3 / len(self._stages_free_s)
        host_s = self._now_s + before_ms / 1e3
        end_s = max(host_s, self._tokens_ready_s(steps))
        for _, step in steps:
            step.began_s = max(end_s, self._stages_free_s[0])
        self._now_s = host_s + launch_ms / 1e3
        for stage, free_s in enumerate(self._stages_free_s):
            end_s = max(max(end_s, free_s) + part_s, self._now_s)
            self._stages_free_s[stage] = end_s
        for _, step in steps:
            for name, _, _, samples in step.work:
                if samples:
                    self._sampled_s[name] = end_s
        return end_s

    def _tokens_ready_s(self, steps: list[tuple[Engine, ScheduledStep]]) -> float:
        """Return when the first stage has the last tokens of these requests from the last stage."""
        ready_s = 0.0
        for _, step in steps:
            for name, _, _, _ in step.work:
                ready_s = max(ready_s, self._sampled_s.get(name, 0.0))
        return ready_s

    def _finish(self, end_s: float, steps: list[tuple[Engine, ScheduledStep]]) -> None:
        self.ended_s = end_s
        self._now_s = max(self._now_s, end_s)
        for _, step in steps:
            for name in step.preempted:
                self.requests[name].preempted += 1
        for _, step in steps:
            for name, tokens in step.hits.items():
                # after a preemption a request finds its own blocks again
                if not self.requests[name].preempted:
                    self.requests[name].hit_tokens = tokens
        scheduled_steps = [step for _, step in steps]
        if any(step.work for step in scheduled_steps):
            self._on_step(self, scheduled_steps)
        now_s = self._now_s + self.clock.way_out_s
        for engine, step in steps:
            for name, tokens in engine.update(step):
                self._receive(name, tokens, now_s)

    def _receive(self, name: str, tokens: int, now_s: float) -> None:
        """Record that the client of a request receives tokens."""
        outcome = self.requests[name]
        if outcome.output_tokens:
            self.gaps_s.append(now_s - outcome.last_s)
        else:
            outcome.first_s = now_s
        outcome.last_s = now_s
        outcome.output_tokens += tokens
        if outcome.output_tokens >= self._tokens_left[name]:
            del self._tokens_left[name]
            self._sampled_s.pop(name, None)
            self.ended.append(name)

    def end(self) -> None:
        """Schedule an empty step, in which the last blocks are freed."""
        for engine in self.engines:
            engine.update(engine.schedule())
