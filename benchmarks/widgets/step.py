"""Kernel time of one step of each widget: what a slider costs before the browser draws.

    python benchmarks/widgets/step.py [--steps 300] [--json]

The sampling explorer has its own: benchmarks/sampling/cost.py.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable

from workshop.client import logprobs
from workshop.course.widgets.kv_cache.view import KvCacheExplorer
from workshop.course.widgets.logprobs.view import picture, processed
from workshop.course.widgets.memory.view import MemorySliders
from workshop.course.widgets.metrics import view as metrics
from workshop.course.widgets.parallelism.view import ParallelismExplorer
from workshop.course.widgets.reconcile.view import LOGS
from workshop.course.widgets.reconcile.view import picture as comparison
from workshop.engine.exact import plan
from workshop.engine.metrics import Metrics
from workshop.engine.reconcile.compare import reconcile

LIMIT_MS = 16.0  # a frame
# redrawn by a click, not by a drag: 100 ms are fast enough
CLICKS = ("logprobs viewer, 200 tokens",)
CLICK_MS = 100.0


def times(step: Callable[[], None], count: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of `count` calls, sorted: on the clock, and of the processor (others may run beside)."""
    clock, processor = [], []
    for _ in range(count):
        started, used = time.perf_counter(), time.thread_time()
        step()
        clock.append((time.perf_counter() - started) * 1e3)
        processor.append((time.thread_time() - used) * 1e3)
    return sorted(clock), sorted(processor)


def random_steps(controls: dict, generator: random.Random) -> Callable[[], None]:
    """Return a function that moves one control, chosen at random, to a random other value."""

    def step() -> None:
        control = controls[generator.choice(list(controls))]
        if hasattr(control, "options"):
            values = [
                option[1] if isinstance(option, tuple) else option for option in control.options
            ]
            control.value = generator.choice(values)
        else:
            control.value = round(generator.uniform(control.min, control.max), 2)

    return step


def measure(count: int) -> dict[str, dict[str, float]]:
    """Return {widget: {"median_ms", "p99_ms", "p99_cpu_ms"}}; first steps and new models are among them."""
    generator = random.Random(0)
    growth = KvCacheExplorer()
    frames = iter(range(10**6))

    def play() -> None:
        growth.step.value = next(frames) % len(growth.states)

    path = LOGS / "llama-3.1-405b-fp8_tp4_h200.log"
    looks = [
        Metrics(
            time=1000 + second,
            requests_running=second % 9,
            requests_waiting=2,
            preemptions_total=0,
            kv_cache_usage=(second % 100) / 100,
            prompt_tokens_total=10 * second,
            generation_tokens_total=50.0 * second,
        )
        for second in range(metrics.KEPT)
    ]
    tokens = processed(
        logprobs.rows(
            {
                "choices": [
                    {
                        "logprobs": {
                            "tokens": ["a"] * 200,
                            "token_logprobs": [-1.0] * 200,
                            "top_logprobs": [{"a": -1.0, **{f"t{i}": -2.0 - i for i in range(8)}}]
                            * 200,
                        }
                    }
                ]
            }
        )
    )
    steps = {
        "memory sliders": random_steps(MemorySliders().controls, generator),
        "parallelism explorer": random_steps(ParallelismExplorer().controls, generator),
        "KV growth": play,
        "reconcile view": lambda: comparison(reconcile(path, None, "h200")),
        "metrics, ten minutes": lambda: metrics.picture(looks),
        CLICKS[0]: lambda: picture(tokens),
        "one plan": lambda: plan(
            "llama-3.1-70b", "h200", max_model_len=generator.randrange(1000, 100_000)
        ),
    }
    by_step = {}
    for name, step in steps.items():
        clock, processor = times(step, count)
        last = int(0.99 * count)
        by_step[name] = {
            "median_ms": round(statistics.median(clock), 2),
            "p99_ms": round(clock[last], 2),
            "p99_cpu_ms": round(processor[last], 2),
        }
    return by_step


def main() -> int:
    """Print the table; return 1 if a step takes too long."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    options = parser.parse_args()
    results = measure(options.steps)
    if options.json:
        print(json.dumps(results, indent=1))
    is_slow = False
    for name, figures in results.items():
        limit_ms = CLICK_MS if name in CLICKS else LIMIT_MS
        is_slow = is_slow or figures["p99_cpu_ms"] > limit_ms
        if not options.json:
            print(
                f"{name:28} median {figures['median_ms']:6.2f} ms   99 % {figures['p99_ms']:6.2f} ms   "
                f"(processor {figures['p99_cpu_ms']:6.2f} ms)   {options.steps} steps, any control to any value"
            )
    return int(is_slow)


if __name__ == "__main__":
    sys.exit(main())
