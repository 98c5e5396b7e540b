"""Measure twelve prompts through Transformers and through vLLM, on the same cores of this machine (notebook 6).

    python benchmarks/baseline.py

Prints JSON: seconds for the same twelve answers one after the other, in static batches of 4 and of 12 (Transformers),
and with 1, 4 and 12 threads (vLLM). The fastest of three runs counts: other programs only make a run slower. Needs the
extra `local` and two quiet cores; about 2 minutes.
"""

from __future__ import annotations

import json
import os
import time

from workshop.client.client import connect
from workshop.course.notebooks import live, nb06

PROMPTS = ["San Francisco is a", "Boston is a", "Chicago is a", "NYC is a"] * 3
RUNS = 3
AT_ONCE = (1, 4, 12)
NAME = "baseline"


def served_seconds(server, at_once: int) -> float:
    """Return how long vLLM takes for the twelve answers with so many threads."""
    began = time.perf_counter()
    live.timeline.ask(server, PROMPTS, at_once, nb06.LENGTHS, temperature=0.0)
    return time.perf_counter() - began


def main() -> None:
    """Measure both in turns, so that other programs disturb both alike, and print the figures."""
    live.start(NAME)
    server = connect(NAME)
    served_seconds(server, 12)
    figures = {}
    for at_once in AT_ONCE:
        transformers = []
        vllm = []
        for _ in range(RUNS):
            transformers.append(nb06.batches(PROMPTS, nb06.LENGTHS, at_once).took)
            vllm.append(served_seconds(server, at_once))
        figures[at_once] = {
            "transformers_s": round(min(transformers), 3),
            "vllm_s": round(min(vllm), 3),
        }
    live.stop(NAME)
    print(json.dumps({"seconds": figures, "load_average": os.getloadavg()}, indent=1))


if __name__ == "__main__":
    main()
