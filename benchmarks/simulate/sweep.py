"""The search's question against a recorded sweep: which batch settings give the most tokens/s? 512 requests, 4 H200.

python benchmarks/simulate/sweep.py        the table of docs/simulate.md

The sweep (workshop/data/tuning/h200_vllm_0.25.1_batch.json) ran 16 layers of Llama 3.1 70B, TP 4, 512 prompts at once.
"""

from __future__ import annotations

from inference_planner.catalog import load_model
from inference_planner.catalog.read import from_dict

from workshop.engine.measured_runs import tuning
from workshop.engine.planning import plan
from workshop.simulate.arrivals import drawn
from workshop.simulate.load import on_plan

PROMPT, OUTPUT, AT_ONCE = 256, 128, 512  # as benchmarks/gpu/measure.py sends them


def rows() -> list[tuple[str, float, float]]:
    """Return (settings, measured tokens/s, simulated tokens/s) of each run of the sweep."""
    results = []
    for run in (candidate for candidate in tuning() if "batch512_tok_s" in candidate):
        extra = dict(run["extra"])
        if not extra.pop("enable_chunked_prefill", True):
            continue  # the search does not try it
        model = from_dict(
            {**load_model(run["model"]).raw, "num_hidden_layers": run["layers"]}, name=run["name"]
        )
        p = plan(model, "h200", tensor_parallel_size=run["tp"], max_model_len=4096, **extra)
        simulation = on_plan(
            p, drawn(burst=AT_ONCE, prompt=(PROMPT, PROMPT), output=(OUTPUT, OUTPUT))
        )
        results.append(
            (run["name"].removeprefix("batch-"), run["batch512_tok_s"], simulation.tokens_per_s)
        )
    return results


def main() -> None:
    results = rows()
    print("| settings | measured, tokens/s | simulated |\n|---|---:|---:|")
    for name, measured, simulated in results:
        print(f"| {name} | {measured:,.0f} | {simulated:,.0f} ({simulated / measured - 1:+.1%}) |")
    chosen, best = max(results, key=lambda row: row[2]), max(results, key=lambda row: row[1])
    print(f"\nchosen: {chosen[0]}, {chosen[1] / best[1]:.1%} of the best ({best[0]})")


if __name__ == "__main__":
    main()
