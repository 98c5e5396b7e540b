"""Test whether a server keeps all tokens that tie with the k-th of top_k, or exactly k.

    python benchmarks/sampling/ties.py          # a server of the teaching model that connect() finds

For five prompts, four settings and two seeds, 2,000 samples each are compared with both computations (how probable is
as much evidence by chance, at most: evidence.py), and the logprobs of one sequence with those of 32 computed at once.
Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]
import truth  # noqa: E402
from cases import on_gpu, ours, ties_of_top_p  # noqa: E402

CASES = (
    "everything off",
    "top_k 20, temperature 1.5",
    "top_k 30, top_p 0.8, temperature 1.5",
    "top_p 0.9, temperature 0.6",
)
# n samples of seed s are those of s, s + 1, …: 2,000 apart, so that none is drawn twice
SEEDS = 11, 2011
AT_ONCE = 32


def together(llm, prompt: str, listed: int) -> tuple[dict[int, float], list[int]]:
    """Return the logprobs that most of AT_ONCE sequences got, and how many of them got each of the different ones."""
    answer = llm.complete(
        prompt,
        max_tokens=1,
        n=AT_ONCE,
        temperature=1.0,
        seed=3,
        logprobs=listed,
        return_tokens_as_token_ids=True,
    )
    counts = Counter(
        tuple(
            sorted(
                (int(name.removeprefix("token_id:")), x)
                for name, x in choice.logprobs.top_logprobs[0].items()
            )
        )
        for choice in answer.choices
    )
    (most, _), *_ = counts.most_common()
    return dict(most), sorted(counts.values(), reverse=True)


def by_chance(counts: Counter, result: truth.Pipeline) -> float:
    """Bound the probability of what was sampled; tokens that tie at top_p's border are not compared."""
    groups = [truth.group(counts, result.probabilities, leave_out=ties_of_top_p(result))]
    return truth.chance(truth.evidence(groups), truth.freedom(groups))


def compare(llm) -> list[dict]:
    """Return a row for each prompt, setting and seed."""
    server, rows = truth.Server(llm), []
    for prompt in truth.PROMPTS:
        logprobs, _ = server.position(prompt)
        several, vectors = together(llm, prompt, len(logprobs))
        differ = max(abs(several[token] - x) for token, x in logprobs.items() if token in several)
        for case in (case for case in truth.CASES if case.name in CASES):
            for seed in SEEDS:
                answer = llm.complete(
                    prompt,
                    max_tokens=1,
                    n=truth.SAMPLES,
                    seed=seed,
                    return_token_ids=True,
                    **case.settings.request(),
                )
                counts = Counter(choice.token_ids[0] for choice in answer.choices)
                all_kept, exactly_k = (
                    by_chance(counts, compute(logprobs, case.settings, (), (), 0.0))
                    for compute in (ours, on_gpu)
                )
                rows.append(
                    {
                        "prompt": prompt,
                        "case": case.name,
                        "seed": seed,
                        "p_all_ties_kept": all_kept,
                        "p_exactly_k": exactly_k,
                        "logprobs_differ_by": differ,
                        "vectors_of_32": vectors,
                    }
                )
    return rows


def main() -> None:
    """Compare, and print it."""
    from workshop import connect

    print(json.dumps({"top_k": compare(connect())}, indent=1))


if __name__ == "__main__":
    main()
