"""Write the tables and the picture of docs/gpu.md, and the README's table, from the recorded runs (workshop/data).

python benchmarks/gpu/report.py            # tests/planner/ground/test_gpu_report.py holds that docs/gpu.md is up to date
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.page_tables import with_tables  # noqa: E402
from workshop.course.drawing import plots  # noqa: E402
from workshop.course.drawing.figure import svg  # noqa: E402
from workshop.engine import measured_runs as recorded  # noqa: E402

CLAIMED = (  # what the workshop's first slides said, and the run on the nearest hardware that we had
    ("Llama 3.1 8B", "—", "8b"),
    ("Llama 3.1 8B, vLLM 0.32.0", "—", "h100_llama-3.1-8b_0.32"),
    ("Llama 3.1 8B FP8, vLLM 0.32.0", "—", "h100_llama-3.1-8b_fp8_0.32"),
    ("Mistral Small 24B, vLLM 0.32.0", "—", "h100_mistral-small-24b_0.32"),
    ("Llama 3.1 70B", "about 50 (4 × H100)", "70b-tp4"),
    ("Llama 3.1 405B FP8", "18 to 20 (16-bit, 16 × H100)", "405b-fp8-tp4"),
)
LOG = (  # run, beside which, what was changed, expected, verdict
    (
        "bf16-fused",
        "bf16-base",
        "all-reduce and norm in one kernel (`fuse_allreduce_rms`, FlashInfer)",
        "up to +7 %: two small kernels a layer less",
        "keep for one stream; vLLM's own default on Hopper with FlashInfer",
    ),
    (
        "bf16-sizes",
        "bf16-base",
        "`compile_sizes: [1]`: kernels tuned for one token",
        "up to +7 %: products closer to the bandwidth",
        "**keep**: the products of one row become reductions that read at "
        "up to 98 % of the bandwidth, with norm and activation inside; the start takes 30 to 60 s longer",
    ),
    ("bf16-fused-sizes", "bf16-base", "both", "sum of both", "**keep**"),
    (
        "bf16-fused-sizes-one-split",
        "bf16-fused-sizes",
        "attention without split and combine",
        "+1 %: one kernel a layer less",
        "drop: nothing gained, and long contexts need the split",
    ),
    (
        "bf16-full-decode",
        "bf16-base",
        "CUDA graphs for decoding only (`FULL_DECODE_ONLY`)",
        "0 %",
        "drop",
    ),
    (
        "bf16-sync",
        "bf16-base",
        "`--no-async-scheduling`",
        "−10 %: scheduling between the steps",
        "drop: worse with fewer layers than it is with all, as the step is shorter",
    ),
    ("bf16-nccl", "bf16-base", "`--disable-custom-all-reduce`: NCCL's", "−10 %", "drop"),
    (
        "bf16-ngram",
        "bf16-base",
        "n-gram speculation, 4 tokens",
        "× 5 at most, where all is accepted",
        "for repetitive text only: dummy weights repeat themselves and every draft "
        "was accepted, so this is the upper bound",
    ),
    ("fp8-fused", "fp8-base", "FP8: all-reduce and norm in one kernel", "+4 %", "**keep**"),
    (
        "fp8-fused-sizes",
        "fp8-fused",
        "FP8: `compile_sizes: [1]` as well",
        "less than for bf16: the products are CUTLASS', which are not compiled",
        "drop: nothing gained",
    ),
    (
        "fp8-norm-quant",
        "fp8-fused",
        "FP8: `+quant_fp8`, `+rms_norm` and vLLM's own fused kernels",
        "+2 %",
        "drop: the compiler's are faster",
    ),
    ("fp8-fused-sizes-torch", "fp8-fused", "FP8: PyTorch's scaled products", "0 %", "drop"),
    ("405b-fused", "405b-base", "405B FP8: all-reduce and norm in one kernel", "+4 %", "**keep**"),
    (
        "70b-tp4-best",
        "70b-tp4-unfused",
        "all 80 layers: fused, `compile_sizes: [1]`",
        "+14 %: 18 µs a layer less, as with 16 layers",
        "**slurm/70b.sbatch**",
    ),
)


BATCH = (  # run, what was changed from vLLM's defaults, expected, verdict
    ("batch-base", "nothing: 1,024 sequences, 8,192 tokens a step", "", ""),
    (
        "batch-seqs-64",
        "`--max-num-seqs 64`",
        "−40 %: a step of 64 takes nearly as long as one of 512",
        "never limit it for a batch",
    ),
    ("batch-seqs-256", "`--max-num-seqs 256`", "not predicted", "drop: nothing gained"),
    (
        "batch-tokens-2048",
        "`--max-num-batched-tokens 2048`",
        "−2 %: more steps for the prompts",
        "drop: nothing gained",
    ),
    (
        "batch-tokens-16384",
        "`--max-num-batched-tokens 16384`, as `LLM()` has it",
        "0 %",
        "drop: within the noise",
    ),
    (
        "batch-whole-prompts",
        "`--no-enable-chunked-prefill`",
        "not predicted",
        "drop: within the noise, and long prompts would halt everybody",
    ),
)
CHAIN = ROOT / "workshop" / "data" / "chain" / "h200_vllm_0.25.1.json"


def run(name: str) -> dict:
    """Return the run of that name: one of the tuning log, else a recorded one."""
    names = {r["name"] for r in recorded.tuning()}
    return recorded.tuned(name) if name in names else recorded.measured(name)


def claims() -> str:
    """Return the table: claimed, limit, measured, predicted."""
    lines = [
        "| model | first slides | GPUs here | limit by bandwidth | measured | of the limit | predicted | run |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    limit = recorded.limit_tokens_per_s
    for name, claimed, key in CLAIMED:
        r = run(key)
        predicted = recorded.plan_of(r).single_stream_tokens_per_s
        lines.append(
            f"| {name} | {claimed} | {r['tp']} × {r['gpu'].upper()} | {limit(r):.0f} | {r['single_tok_s']:.0f} | "
            f"{r['single_tok_s'] / limit(r):.0%} | {predicted:.0f} | `{key}` |"
        )
    best, fp8 = run("70b-tp4-best"), run("70b-fp8-tp4-best")
    lines.append(
        f"| Llama 3.1 70B, tuned | | 4 × H200 | {limit(run('70b-tp4')):.0f} | {best['single_tok_s']:.0f} | "
        f"{best['single_tok_s'] / limit(run('70b-tp4')):.0%} | | `70b-tp4-best` |"
    )
    lines.append(
        f"| Llama 3.1 70B FP8, fused | | 4 × H200 | | {fp8['single_tok_s']:.0f} | | | `70b-fp8-tp4-best` |"
    )
    return "\n".join(lines)


def log() -> str:
    """Return the tuning log: expected, measured (one stream and a batch of 64), verdict."""
    lines = [
        "| run | changed | expected | one stream, tokens/s | batch of 64 | verdict |",
        "|---|---|---|---:|---:|---|",
    ]
    for name, base, what, expected, verdict in LOG:
        tuned, other = run(name), run(base)
        gain = tuned["single_tok_s"] / other["single_tok_s"] - 1
        batch = (
            f"{tuned['batch64_tok_s'] / other['batch64_tok_s'] - 1:+.0%}"
            if "batch64_tok_s" in tuned
            else ""
        )
        layers = f", {tuned['layers']} layers" if "layers" in tuned else ""
        lines.append(
            f"| `{name}`{layers} | {what} | {expected} | {other['single_tok_s']:.0f} → "
            f"{tuned['single_tok_s']:.0f} ({gain:+.0%}) | {batch} | {verdict} |"
        )
    return "\n".join(lines)


def batch() -> str:
    """Return the log of batch settings: 512 prompts at once, and the same without the prompts' time."""
    base = recorded.tuned("batch-base")
    lines = [
        "| run, 16 layers | changed | expected | batch of 512, tokens/s | decoding alone | verdict |",
        "|---|---|---|---:|---:|---|",
    ]
    for name, what, expected, verdict in BATCH:
        tuned = recorded.tuned(name)
        gains = [
            f"{tuned[key]:,}"
            + ("" if name == base["name"] else f" ({tuned[key] / base[key] - 1:+.0%})")
            for key in ("batch512_tok_s", "batch512_decode_tok_s")
        ]
        lines.append(f"| `{name}` | {what} | {expected} | {gains[0]} | {gains[1]} | {verdict} |")
    return "\n".join(lines)


def chain() -> str:
    """Return the table of the whole chain on a GPU."""
    teaching, dummy = json.loads(CHAIN.read_text(encoding="utf-8"))["runs"]
    both = (teaching, dummy)

    def row(what: str, *cells: str) -> str:
        return f"| {what} | {' | '.join(cells)} |"

    def offline(results: dict) -> str:
        ratio = statistics.median(
            ours / theirs
            for ours, theirs in zip(
                *results["offline_to_generate"]["tokens_per_s"].values(), strict=True
            )
        )
        before = results["offline_to_generate"].get("before")
        was = "before rows were tokenized together" + (f": {before['ratio']:.2f}" if before else "")
        return f"**{ratio:.2f}**, {results['offline_to_generate']['rows']:,} rows ({was})"

    def killed(results: dict) -> str:
        assert results["killed"]["each_once"]
        return (
            f"killed at {results['killed']['at']:,} of {results['killed']['rows']:,}: each row once"
        )

    klass = teaching["class"]
    return "\n".join(
        [
            "| step | teaching model | Llama 3.1 8B, dummy weights |",
            "|---|---|---|",
            row(
                "`workshop serve` until it answers",
                *(f"{results['serve_s']:.0f} s" for results in both),
            ),
            row(
                "explorer: one token asked for",
                *(
                    f"{results['explorer']['sampled_token_ms']:.0f} ms, {results['explorer']['listed']:,} listed"
                    for results in both
                ),
            ),
            row(
                "`workshop batch`, server, answers of 32 tokens at most",
                *(
                    f"{results['batch']['rows']:,} rows, {results['batch']['rows_per_s']:.0f} a second"
                    for results in both
                ),
            ),
            row("the same, killed and run again", *map(killed, both)),
            row(
                f"`workshop bench --class {klass['learners']}`",
                f"{klass['completed']:,} requests, {sum(klass['errors'].values()) or 'no'} error; "
                f"95 % of first tokens in {klass['p95_ttft_ms']:.0f} ms",
                "",
            ),
            row(
                "`workshop reconcile`: KV cache, tokens",
                *(f"{results['reconcile']['KV cache size']:+.2f} %" for results in both),
            ),
            row("`workshop batch --offline` / `LLM.generate`, tokens/s", *map(offline, both)),
        ]
    )


def tables() -> dict[str, str]:
    """Return every table by the name of its mark."""
    return {"claims": claims(), "log": log(), "batch": batch(), "chain": chain()}


def picture() -> str:
    """Return the time of one token, part by part, as the SVG of docs/gpu.md: on white, for a page of any colour."""
    title, shades = "Llama 3.1 70B on 4 H200: what one token waits for", plots.STEP_COLOURS
    made = plots.figure(
        plots.step_table(), "stacked", xlabel="ms of one token", title=title, colours=shades
    )
    return svg(made, alone=True) + "\n"


def main() -> None:
    """Bring the documents and the picture up to date."""
    for path in (ROOT / "docs" / "gpu.md", ROOT / "docs" / "figures.md"):
        path.write_text(with_tables(path.read_text(), **tables()))
    (ROOT / "docs" / "pictures" / "gpu_step.svg").write_text(picture())


if __name__ == "__main__":
    main()
