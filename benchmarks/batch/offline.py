"""`workshop batch --offline` beside `LLM.generate`, on the same engine in one process, as a ratio of tokens/s.

    python benchmarks/batch/offline.py [--rows 512] [--rounds 3] [--model FOLDER | --dummy NAME] [flags of the engine]

--dummy llama-3.1-8b: a catalog model with dummy weights, where nothing can be downloaded.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks" / "gpu")]
import dummy  # noqa: E402

from workshop.batch import offline  # noqa: E402
from workshop.servers import local  # noqa: E402


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--longest", type=int, default=256, help="answers have 1 to so many tokens")
    parser.add_argument("--model")
    parser.add_argument("--dummy")
    options, engine_args = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        model = options.model
        if options.dummy:
            model = str(dummy.write(options.dummy, Path(temporary) / options.dummy))
            engine_args += ["--load-format", "dummy"]
        began = time.perf_counter()
        llm = offline.start(
            local.resolve_model(model)[0], ("--no-enable-prefix-caching", *engine_args)
        )
        result = {
            "model": options.dummy or options.model or local.TEACHING_MODEL,
            "rows": options.rows,
            "start_s": round(time.perf_counter() - began, 1),
            **compare(llm, options, Path(temporary)),
        }
        offline.stop(llm)
    print(json.dumps(result, indent=1))


def compare(llm, options: argparse.Namespace, folder: Path) -> dict:
    """Return tokens/s of both, round by round, and the median of their ratios; they take turns in being first."""
    from vllm import SamplingParams

    def theirs(work: list[tuple[str, int]], number: int) -> float:
        began = time.perf_counter()
        llm.generate(
            [prompt for prompt, _ in work],
            [
                SamplingParams(max_tokens=count, min_tokens=count, ignore_eos=True)
                for _, count in work
            ],
            use_tqdm=False,
        )
        return time.perf_counter() - began

    def ours(work: list[tuple[str, int]], number: int) -> float:
        rows, out = folder / f"{number}.jsonl", folder / f"{number}.out.jsonl"
        rows.write_text(
            "".join(
                json.dumps(
                    {"prompt": prompt, "max_tokens": count, "min_tokens": count, "ignore_eos": True}
                )
                + "\n"
                for prompt, count in work
            )
        )
        began = time.perf_counter()
        summary = offline.run_offline(rows, out, llm=llm)
        seconds = time.perf_counter() - began
        assert summary.answered == len(work) and summary.completion_tokens == sum(
            count for _, count in work
        )
        return seconds

    speeds: dict[str, list[float]] = {"run_offline": [], "LLM.generate": []}
    for number in range(options.rounds):
        chance = random.Random(number)
        work = [
            (f"{chance.random()} Boston is a", chance.randint(1, options.longest))
            for _ in range(options.rows)
        ]
        tokens = sum(count for _, count in work)
        for name, way in [("run_offline", ours), ("LLM.generate", theirs)][
            :: -1 if number % 2 else 1
        ]:
            speeds[name].append(tokens / way(work, number))
    ratio = statistics.median(own / other for own, other in zip(*speeds.values(), strict=True))
    return {
        "ratio_to_llm_generate": round(ratio, 3),
        "tokens_per_s": {name: [round(rate) for rate in rates] for name, rates in speeds.items()},
    }


if __name__ == "__main__":  # the engine is a process of its own, which reads this file again
    main()
