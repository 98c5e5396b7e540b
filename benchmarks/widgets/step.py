"""Kernel time of one step of each planner widget: what a slider costs before the browser draws.

    python benchmarks/widgets/step.py            # prints a table; --json for data
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable

from workshop.learn.widgets.kv_growth import KvGrowth
from workshop.learn.widgets.memory_sliders import MemorySliders
from workshop.learn.widgets.parallelism_explorer import ParallelismExplorer

STEPS = 300
LIMIT_MS = 16.0


def times(step: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Return the milliseconds of STEPS calls, sorted: on the clock, and of the processor (others may run beside)."""
    clock, processor = [], []
    for _ in range(STEPS):
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
            values = [option[1] if isinstance(option, tuple) else option for option in control.options]
            control.value = generator.choice(values)
        else:
            control.value = round(generator.uniform(control.min, control.max), 2)
    return step


def measure() -> dict[str, dict[str, float]]:
    """Return {widget: {"median_ms", "p99_ms", "p99_cpu_ms"}}; first steps and new models are among them."""
    generator = random.Random(0)
    growth = KvGrowth()
    frames = iter(range(10**6))

    def play() -> None:
        growth.step.value = next(frames) % len(growth.states)
    steps = {"memory sliders": random_steps(MemorySliders().controls, generator),
             "parallelism explorer": random_steps(ParallelismExplorer().controls, generator), "KV growth": play}
    found = {}
    for name, step in steps.items():
        clock, processor = times(step)
        last = int(0.99 * STEPS)
        found[name] = {"median_ms": round(statistics.median(clock), 2), "p99_ms": round(clock[last], 2),
                       "p99_cpu_ms": round(processor[last], 2)}
    return found


if __name__ == "__main__":
    results = measure()
    if "--json" in sys.argv:
        print(json.dumps(results, indent=1))
    else:
        for name, found in results.items():
            print(f"{name:22} median {found['median_ms']:6.2f} ms   99 % {found['p99_ms']:6.2f} ms   "
                  f"(processor {found['p99_cpu_ms']:6.2f} ms)   {STEPS} steps, any control to any value")
    sys.exit(any(found["p99_cpu_ms"] > LIMIT_MS for found in results.values()))
