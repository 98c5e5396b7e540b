"""`workshop batch --offline` beside `LLM.generate`, on the same engine in one process, as a ratio of tokens/s.

    python benchmarks/batch/offline.py [--rows 512] [--rounds 3] [--model FOLDER]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from workshop.batch import offline
from workshop.launch import local


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model")
    asked = parser.parse_args()
    llm = offline.start(local.resolve_model(asked.model)[0], ("--no-enable-prefix-caching",))
    from vllm import SamplingParams

    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(asked.rounds):
            chance = random.Random(number)
            work = [(f"{chance.random()} Boston is a", chance.randint(1, 256)) for _ in range(asked.rows)]
            tokens = sum(count for _, count in work)
            began = time.perf_counter()
            llm.generate([prompt for prompt, _ in work],
                         [SamplingParams(max_tokens=count, min_tokens=count, ignore_eos=True) for _, count in work],
                         use_tqdm=False)
            theirs.append(tokens / (time.perf_counter() - began))
            rows, out = Path(temporary) / f"{number}.jsonl", Path(temporary) / f"{number}.out.jsonl"
            rows.write_text("".join(json.dumps({"prompt": prompt, "max_tokens": count, "min_tokens": count,
                                                "ignore_eos": True}) + "\n" for prompt, count in work))
            began = time.perf_counter()
            summary = offline.run_offline(rows, out, llm=llm)
            ours.append(tokens / (time.perf_counter() - began))
            assert summary.answered == asked.rows and summary.completion_tokens == tokens
    offline.stop(llm)
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    print(json.dumps({"rows": asked.rows, "ratio_to_llm_generate": round(ratio, 3),
                      "tokens_per_s": {"run_offline": [round(each) for each in ours],
                                       "LLM.generate": [round(each) for each in theirs]}}, indent=1))


if __name__ == "__main__":      # the engine is a process of its own, which reads this file again
    main()
