"""A closed loop of equal requests on the simulator's clock, without vLLM's scheduler.

`concurrency` requests are under way at once: whoever ends is followed by the next. Requests of
equal lengths need few of the scheduler's decisions, and while all of them decode, many steps are
added up at once. So a load of minutes takes milliseconds. tests/simulate/test_public_speed.py
compares it with the simulation.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from statistics import mean, median

from inference_planner.answer.parallelism import Plan

from workshop.simulate.clock import Clock, of

WAVES = 2
# The public benchmark's load (github.com/SemiAnalysisAI/InferenceX, benchmarks/benchmark_lib.sh):
# ten waves of lengths between 80 and 100 %, all of the first sent at once. Of a large load fewer
# waves are simulated, and those in the middle count for all.
BENCHMARK_WAVES = 10
BENCHMARK_SHORTEST = 0.8
SIMULATED_WAVES = 4
MOST_OF_ALL_WAVES = 16  # requests at once
# Decoding steps that are added up at once: over so many tokens the time of a step grows evenly.
JUMP_STEPS = 256


@dataclass(eq=False)
class Request:
    """A request under way."""

    sent_s: float
    prompt: int
    output: int
    prompt_left: int
    output_left: int
    computed: int = 0
    first_s: float = 0.0
    last_s: float = 0.0

    @property
    def ttft_ms(self) -> float:
        """The time to its first token."""
        return 1e3 * (self.first_s - self.sent_s)

    @property
    def tpot_ms(self) -> float:
        """The time of each further token."""
        return 1e3 * (self.last_s - self.first_s) / (self.output - 1)

    def take(self, new: int, work: list[tuple[int, int]], sampling: list[Request]) -> None:
        """Schedule `new` tokens; with the last of its prompt it samples a token."""
        work.append((new, self.computed))
        self.computed += new
        self.prompt_left = max(0, self.prompt_left - new)
        if not self.prompt_left:
            self.output_left -= 1
            sampling.append(self)


@dataclass(frozen=True)
class Times:
    """The medians of a load, or its means, in ms."""

    ttft_ms: float
    tpot_ms: float


class Loop:
    """One engine, its queue and its clients, in virtual time."""

    def __init__(self, plan: Plan, clock: Clock, lengths: list[tuple[int, int]]) -> None:
        self.clock = clock
        self.settings = plan.deployment.settings
        self.unsent = deque(lengths)  # (tokens of the prompt, tokens of the answer)
        self.most_under_way = 2 if self.settings.version.schedules_ahead else 1
        self.room = plan.kv_cache_tokens // max(1, plan.data_parallel_size)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.ended: list[Request] = []
        self.now_s = 0.0  # the host's time
        self.free_s = 0.0  # when the GPUs are free
        self.under_way: deque[tuple[float, list[Request], list[Request]]] = deque()

    def send(self, sent_s: float) -> None:
        """Send the next request, if one is left."""
        if self.unsent:
            prompt, output = self.unsent.popleft()
            self.waiting.append(Request(sent_s, prompt, output, prompt, output))

    def arrives_s(self, request: Request) -> float:
        """Return when the engine has a request."""
        return self.clock.arrives_s(request.sent_s, request.prompt)

    def run(self, concurrency: int) -> list[Request]:
        """Run until every request has ended, and return them in the order in which they were sent."""
        for _ in range(concurrency):
            self.send(0.0)
        while self.waiting or self.running or self.under_way:
            if len(self.under_way) < self.most_under_way and self._schedule():
                continue
            if self.under_way:
                self._finish(*self.under_way.popleft())
            else:
                self.now_s = self.arrives_s(self.waiting[0])
        return sorted(self.ended, key=lambda request: request.sent_s)

    def _schedule(self) -> bool:
        """Schedule one step, or many that only decode; return False if nothing can run."""
        budget = self.settings.max_num_batched_tokens
        work: list[tuple[int, int]] = []
        sampling: list[Request] = []
        for request in self.running:
            new = min(budget, request.prompt_left or min(1, request.output_left))
            if new:
                budget -= new
                request.take(new, work, sampling)
        cached = sum(request.computed for request in self.running)
        while self.waiting and budget and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            late = self.arrives_s(request) > self.now_s
            if late or (self.running and cached + request.prompt > self.room):
                break
            cached += request.prompt
            self.running.append(self.waiting.popleft())
            new = min(budget, request.prompt_left)
            budget -= new
            request.take(new, work, sampling)
        if not work:
            return False
        steps = self._steps_alike(work, sampling)
        before_ms, launch_ms = self.clock.host_ms(work)
        if steps == 1:
            seconds = self.clock.gpu_ms(work) / 1e3
            host_s = self.now_s + before_ms / 1e3
            self.now_s = host_s + launch_ms / 1e3
            self.free_s = max(max(host_s, self.free_s) + seconds, self.now_s)
        else:
            last = [(1, before + steps - 1) for _, before in work]
            gpu_ms = (self.clock.gpu_ms(work) + self.clock.gpu_ms(last)) / 2
            if self.most_under_way == 1:
                step_ms = before_ms + max(gpu_ms, launch_ms)
            else:
                step_ms = max(gpu_ms, before_ms + launch_ms)
            step_s = step_ms / 1e3
            for request in sampling:
                request.computed += steps - 1
                request.output_left -= steps - 1
            self.free_s = max(self.free_s, self.now_s) + steps * step_s
            self.now_s = self.free_s - step_s  # the host is one step ahead
        last_tokens = [request for request in sampling if not request.output_left]
        self.under_way.append((self.free_s, sampling, last_tokens))
        return True

    def _steps_alike(self, work: list[tuple[int, int]], sampling: list[Request]) -> int:
        """Return how many steps in a row only decode, the scheduled one among them."""
        if self.waiting or any(new > 1 for new, _ in work) or len(sampling) < len(self.running):
            return 1
        if any(last_tokens for _, _, last_tokens in self.under_way):
            return 1
        return min(JUMP_STEPS, 1 + min(request.output_left for request in sampling))

    def _finish(self, end_s: float, sampling: list[Request], last_tokens: list[Request]) -> None:
        """Give a step's tokens to the clients, who send the next requests."""
        self.now_s = max(self.now_s, end_s)
        received_s = end_s + self.clock.way_out_s
        for request in sampling:
            request.first_s = request.first_s or received_s
            request.last_s = received_s
        for request in last_tokens:
            self.running.remove(request)
            self.ended.append(request)
            self.send(received_s)


def closed_loop(
    plan: Plan, concurrency: int, prompt: int, output: int, waves: int = WAVES
) -> Times:
    """Return the medians of `waves` × `concurrency` equal requests on a plan.

    Data-parallel engines share the requests evenly, and take as long as each other.
    """
    of_engine = _of_engine(plan, concurrency)
    lengths = [(prompt, output)] * (waves * of_engine)
    requests = Loop(plan, of(plan.deployment), lengths).run(of_engine)
    return Times(
        median(request.ttft_ms for request in requests),
        median(request.tpot_ms for request in requests),
    )


def public_benchmark(
    plan: Plan, concurrency: int, prompt: int, output: int, shortest: float = BENCHMARK_SHORTEST
) -> Times:
    """Return the means of the public benchmark's load: ten waves of lengths of `shortest` to 1."""
    of_engine = _of_engine(plan, concurrency)
    waves = BENCHMARK_WAVES if of_engine <= MOST_OF_ALL_WAVES else SIMULATED_WAVES
    dice = random.Random(0)
    lengths: list[tuple[int, int]] = []
    for _ in range(waves * of_engine):
        prompt_share = dice.uniform(shortest, 1)
        output_share = dice.uniform(shortest, 1)
        lengths.append((max(1, round(prompt * prompt_share)), max(2, round(output * output_share))))
    requests = Loop(plan, of(plan.deployment), lengths).run(of_engine)
    first, last = requests[:of_engine], requests[-of_engine:]
    parts = (first, requests[of_engine:-of_engine], last)
    weights = (1 / BENCHMARK_WAVES, 1 - 2 / BENCHMARK_WAVES, 1 / BENCHMARK_WAVES)
    ttft_ms = 0.0
    tpot_ms = 0.0
    for part, weight in zip(parts, weights, strict=True):
        ttft_ms += weight * mean(request.ttft_ms for request in part)
        tpot_ms += weight * mean(request.tpot_ms for request in part)
    return Times(ttft_ms, tpot_ms)


def _of_engine(plan: Plan, concurrency: int) -> int:
    return max(1, round(concurrency / plan.data_parallel_size))
