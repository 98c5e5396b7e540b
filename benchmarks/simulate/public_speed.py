"""Score the simulator on public points: closed loops, measured by others.

    python benchmarks/simulate/public_speed.py          simulate every point, then write docs/speed.md
    python benchmarks/simulate/public_speed.py page     write the page from the record

The points are rows of `systems/silicon_sample.csv` in the wheel aisimulate 0.13.0 (NVIDIA,
Apache-2.0), which has them from a public benchmark's dumps of 2026. Its servers' flags are
`public_speed/recipes.json`, its load is `closed_loop.public_benchmark`, and its figures are means
(ai-dynamo/aiconfigurator, "silicon_ttft_ms": mean_ttft). The record has a line for each point, so
that a point whose figures change is a line that changes.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import median
from typing import Any

from closed_loop import BENCHMARK_SHORTEST, public_benchmark
from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_model
from inference_planner.errors import BadInput

from workshop.engine.planning import plan
from workshop.simulate.intervals import share_of_time

HERE = Path(__file__).resolve().parent
POINTS = HERE / "public_speed" / "points.csv"
RECIPES = json.loads((HERE / "public_speed" / "recipes.json").read_text(encoding="utf-8"))[
    "recipes"
]
RECORD = HERE / "public_speed" / "record.jsonl"
PAGE = HERE.parents[1] / "docs" / "speed.md"
MORE_TOKENS = 200  # of max_model_len, besides the prompt and the answer
# The checkpoints that hold the weights as a row says; a row's model_path is that of the family.
CHECKPOINTS = {
    ("MiniMaxAI/MiniMax-M2.5", "nvfp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("moonshotai/Kimi-K2.5", "nvfp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("meta-llama/Llama-3.1-70B", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("meta-llama/Llama-3.1-70B", "nvfp4"): "nvidia/Llama-3.1-70B-Instruct-NVFP4",
    ("Qwen/Qwen3-32B", "fp8"): "Qwen/Qwen3-32B-FP8",
}
# The nightly build of March 2026 lies between two releases; its points are planned as the later.
NIGHTLY = "0.19.0"
# (model, release, split begins with) -> why the figures cannot be those of the load that stands there.
# They are scored like all others, and left out once more in a line of their own.
DOUBTFUL = {
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "0.12.0", "TP"): (
        "with lone prompts the tokens a second would take up to 100 % of the card's peak FLOP/s, so "
        "prompts must have been shared"
    ),
    ("openai/gpt-oss-120b", "0.11.2", "TP"): (
        "first tokens after minutes and fast ones after them: the server ran far fewer than 512 "
        "requests at once"
    ),
    ("Qwen/Qwen3-235B-A22B-FP8", "0.12.0", "DP"): (
        "the source says TP 1, on which the model does not fit; read as data parallel"
    ),
}
INSIDE = 0.9  # the share of measured figures that an interval shall hold


@dataclass(frozen=True)
class Point:
    """A published point: what was run, and its means in ms."""

    id: str
    model: str
    gpu: str
    version: str  # "" where the source does not say it
    tp: int
    dp: int
    ep: bool
    concurrency: int
    prompt: int
    output: int
    ttft_ms: float
    tpot_ms: float

    @property
    def split(self) -> str:
        """The split in words, such as "TP 4" or "DP 2 × TP 2, EP"."""
        text = f"TP {self.tp}"
        if self.dp > 1:
            text = f"DP {self.dp} × {text}"
        return text + (", EP" if self.ep else "")


@dataclass(frozen=True)
class Score:
    """Our figures of a point, in ms, and the shares by which they may be off."""

    id: str
    basis: str
    ttft_ms: float
    tpot_ms: float
    ttft_share: float
    tpot_share: float
    refusal: str = ""


def points() -> list[Point]:
    """Return the published points."""
    with POINTS.open(encoding="utf-8") as file:
        return [point_of(row) for row in csv.DictReader(file)]


def point_of(row: dict[str, str]) -> Point:
    """Return a row as a point. `batch_size` counts the requests of a data-parallel rank.

    Where a row has TP × DP with experts over all of them, the source counted the GPUs twice: the
    benchmark's own configuration (nvidia-master.yaml) has experts over the TP ranks.
    """
    model = CHECKPOINTS.get((row["model_path"], row["moe_quant_mode"]), row["model_path"])
    tp = int(row["tp_size"])
    dp = int(row["attention_dp_size"] or 1)
    ep = int(row["moe_ep_size"] or 1)
    gpus = int(row["moe_tp_size"] or 1) * ep
    requests = int(row["batch_size"]) * dp
    if gpus > tp * dp and load_model(model).moe is not None:
        dp = gpus // tp  # the source leaves it empty where it is not 1
    if ep > 1 and tp > 1:
        dp = 1
    version = row["backend_version"]
    return Point(
        id=row["id"],
        model=model,
        gpu=row["system"].removesuffix("_sxm"),
        version=NIGHTLY if version.startswith("nightly") else version,
        tp=tp,
        dp=dp,
        ep=ep > 1,
        concurrency=requests,
        prompt=int(row["isl"]),
        output=int(row["osl"]),
        ttft_ms=float(row["silicon_ttft_ms"]),
        tpot_ms=float(row["silicon_tpot_ms"]),
    )


def recipe_of(point: Point) -> dict[str, Any]:
    """Return how a point was measured; {} where no recipe is known."""
    for recipe in RECIPES:
        if point.model.startswith(recipe["model"]) and point.gpu in recipe["gpus"]:
            return recipe
    return {}


def settings_of(point: Point) -> dict[str, Any]:
    """Return the flags of the server that a point was measured on; none where no recipe is known."""
    recipe = recipe_of(point)
    settings = dict(recipe.get("settings", {}))
    if "tokens_of_prompts" in recipe:
        settings["max_num_batched_tokens"] = recipe["tokens_of_prompts"] * point.prompt
    if recipe.get("seqs_of_concurrency"):
        settings["max_num_seqs"] = point.concurrency
    return settings


@lru_cache(maxsize=256)
def plan_of(
    model: str,
    gpu: str,
    version: str,
    tp: int,
    dp: int,
    ep: bool,
    max_model_len: int,
    settings: str,
) -> Plan:
    """Return our plan of what a point ran; the default release where its own is unknown."""
    return plan(
        model,
        gpu,
        tensor_parallel_size=tp,
        data_parallel_size=dp,
        enable_expert_parallel=ep,
        max_model_len=max_model_len,
        vllm_version=version or None,
        **json.loads(settings),
    )


def score(point: Point) -> Score:
    """Simulate a point; several have the same case, which is simulated once."""
    return replace(_score_of_case(replace(point, id="", ttft_ms=0, tpot_ms=0)), id=point.id)


@lru_cache(maxsize=1024)
def _score_of_case(point: Point) -> Score:
    longest = point.prompt + point.output + MORE_TOKENS
    settings = json.dumps(settings_of(point))
    p = plan_of(
        point.model, point.gpu, point.version, point.tp, point.dp, point.ep, longest, settings
    )
    if not p.fits:
        return Score(point.id, p.basis, 0, 0, 0, 0, "it does not fit")
    shortest = 1.0 if recipe_of(point).get("equal_lengths") else BENCHMARK_SHORTEST
    times = public_benchmark(p, point.concurrency, point.prompt, point.output, shortest)
    return Score(
        id=point.id,
        basis=p.basis,
        ttft_ms=round(times.ttft_ms, 2),
        tpot_ms=round(times.tpot_ms, 2),
        ttft_share=round(
            share_of_time("ttft", "mean", p.spread.time_share, p.spread.prefill_share), 3
        ),
        tpot_share=round(share_of_time("tpot", "mean", p.spread.time_share), 3),
    )


def record() -> None:
    """Simulate every point, and write the record."""
    lines: list[str] = []
    for point in points():
        try:
            result = score(point)
        except BadInput as error:
            result = Score(point.id, "", 0, 0, 0, 0, error.message)
        lines.append(json.dumps(asdict(result)))
        if len(lines) % 50 == 0:
            print(len(lines), file=sys.stderr, flush=True)
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")


def scores() -> list[Score]:
    """Return what was recorded."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return [Score(**json.loads(line)) for line in lines]


@dataclass(frozen=True)
class Row:
    """A point beside its score."""

    point: Point
    score: Score

    @property
    def is_scored(self) -> bool:
        """True where the source says the release and our plan fits."""
        return bool(self.point.version) and not self.score.refusal

    @property
    def doubt(self) -> str:
        """Why the figures cannot be those of the stated load, or empty."""
        for (model, version, split), why in DOUBTFUL.items():
            point = self.point
            if (point.model, point.version) == (model, version) and point.split.startswith(split):
                return why
        return ""

    @property
    def case(self) -> tuple[str, str]:
        """The model and the card."""
        return self.point.model, self.point.gpu

    @cached_property
    def kind(self) -> str:
        """Return what decides how sure a figure is: dense, experts, or experts that ranks share."""
        if load_model(self.point.model).moe is None:
            return "dense"
        return "shared experts" if self.point.ep or self.point.dp > 1 else "experts"

    def error(self, measure: str) -> float:
        """Return by which share our figure is above the published one."""
        return getattr(self.score, f"{measure}_ms") / getattr(self.point, f"{measure}_ms") - 1

    def is_within(self, measure: str, share: float) -> bool:
        """Return True if the published figure lies in an interval of this half-width."""
        return abs(math.log1p(self.error(measure))) <= math.log1p(share)

    def is_inside(self, measure: str) -> bool:
        """Return True if the published figure lies in our interval."""
        return self.is_within(measure, getattr(self.score, f"{measure}_share"))


def rows() -> list[Row]:
    """Return every point with its recorded score."""
    by_id = {result.id: result for result in scores()}
    return [Row(point, by_id[point.id]) for point in points()]


HEAD = (
    "| | points | TPOT, median error | between | inside | half-width "
    "| TTFT, median error | between | inside | half-width |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
)


def line(title: str, part: list[Row]) -> str:
    """Return a line of a table: errors, share inside and half-width of some points."""
    text = f"| {title} | {len(part)} "
    for measure in ("tpot", "ttft"):
        errors = sorted(row.error(measure) for row in part)
        tenth = len(errors) // 10
        inside = sum(row.is_inside(measure) for row in part) / len(part)
        half = median(getattr(row.score, f"{measure}_share") for row in part)
        text += f"| {median(errors):+.0%} | {errors[tenth]:+.0%} to {errors[-1 - tenth]:+.0%} "
        text += f"| {inside:.0%} | ± {half:.0%} "
    return text + "|"


def left_out(part: list[Row], measure: str) -> tuple[float, float]:
    """Return the share inside and the median half-width of widths that never saw the point's case.

    A point's width is what holds nine of ten errors of its kind on all other models and cards; its
    own interval where no other case is of that kind.
    """
    inside = 0
    widths: list[float] = []
    for row in part:
        others = [r for r in part if r.kind == row.kind and r.case != row.case]
        width = getattr(row.score, f"{measure}_share")
        if others:
            errors = sorted(abs(math.log1p(r.error(measure))) for r in others)
            width = math.expm1(errors[math.ceil(INSIDE * len(errors)) - 1])
        widths.append(width)
        inside += row.is_within(measure, width)
    return inside / len(part), median(widths)


GROUPS: dict[str, Callable[[Row], str]] = {
    "model": lambda row: row.point.model,
    "card": lambda row: row.point.gpu,
    "split": lambda row: row.point.split,
    "release": lambda row: row.point.version or "unknown",
    "requests at once": lambda row: f"{row.point.concurrency:>4}",
    "tokens": lambda row: f"{row.point.prompt:,} in, {row.point.output:,} out",
}


def tables(part: list[Row], by: Iterator[str] | list[str]) -> Iterator[str]:
    """Yield a table for each way of grouping."""
    for name in by:
        groups: dict[str, list[Row]] = defaultdict(list)
        for row in part:
            groups[GROUPS[name](row)].append(row)
        yield f"\n**By {name}**\n"
        yield from HEAD
        for title in sorted(groups):
            yield line(title, groups[title])


def page(everything: list[Row]) -> str:
    """Return the page."""
    scored = [row for row in everything if row.is_scored]
    unknown = [row for row in everything if not row.point.version and not row.score.refusal]
    credible = [row for row in scored if not row.doubt]
    doubtful = Counter((row.point.model, row.point.split, row.doubt) for row in scored if row.doubt)
    refused = Counter(
        (row.point.model, row.point.split, row.score.refusal)
        for row in everything
        if row.score.refusal
    )
    half = median(row.score.tpot_share for row in scored)
    inside = sum(row.is_inside("tpot") for row in scored) / len(scored)
    tpot_left_out, tpot_half = left_out(credible, "tpot")
    ttft_left_out, ttft_half = left_out(credible, "ttft")
    lines = [
        "# Public speed points: does the simulation hold?",
        "",
        f"{len(everything)} points of a public benchmark, measured by others: vLLM 0.11 to 0.19 on H100, H200, B200 and "
        "B300. A closed loop has so many requests at once; the figures are means. Source: "
        "`systems/silicon_sample.csv` of the wheel aisimulate 0.13.0 (NVIDIA, Apache-2.0). Made by "
        "`python benchmarks/simulate/public_speed.py`, in about two minutes of one core; a test compares.",
        "",
        f"**{inside:.0%} of the {len(scored)} scored points have their time per output token (TPOT) inside the interval, "
        f"whose half-width is ± {half:.0%} in the median.** The goal is 90 % inside at ± 15 %.",
        "",
        *HEAD,
        line("all that are scored", scored),
        line("without those whose load is not as stated (below)", credible),
        f"| left out: widths from the other models and cards | {len(credible)} | | | {tpot_left_out:.0%} "
        f"| ± {tpot_half:.0%} | | | {ttft_left_out:.0%} | ± {ttft_half:.0%} |",
        line("release unknown: shown, not scored", unknown),
        "",
        "An error is ours over theirs; *between* leaves out the lowest and the highest tenth. The line *left out* takes "
        "each model on each card away, and gives its points the width that holds nine of ten errors of their kind (dense, "
        "experts, experts that ranks share) on all others.",
        "",
        "The benchmark sends ten waves of lengths between 80 and 100 %, all requests of the first at once, to servers with "
        "flags of its own (FP8 KV cache and CUDA graphs up to 2,048 tokens on Blackwell, among others: "
        "`benchmarks/simulate/public_speed/recipes.json`). Both are simulated here; the release is planned as it stands in "
        "the row. Hosts are unknown. Its servers have FlashInfer, and most runs at home have not. Every release here is "
        "older than the planner's oldest row of its own, so `basis` and interval say that.",
        "",
        "Some constants were fitted to these points: small kernels and products of experts, NVFP4, MXFP4 and INT4 "
        "of these releases and cards, and the all-reduce of eight GPUs (each with its source in "
        "`planner/inference_planner/speed/kernels.py`, `releases/versions.py` and `split/communication.py`). So the page "
        "says how well a few constants describe many points, and nothing of a configuration that is not here.",
    ]
    for (model, split, why), count in sorted(doubtful.items()):
        lines.append(f"\nNot as stated: {count} points of {model}, {split}: {why}.")
    for (model, split, why), count in sorted(refused.items()):
        lines.append(f"\nNot scored: {count} points of {model}, {split}: {why}")
    lines += tables(scored, list(GROUPS))
    lines += ["\n## The release is unknown", *tables(unknown, ["model", "card", "split"])]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Record and write the page, or write the page alone."""
    parser = argparse.ArgumentParser(description="Score the simulator on public points.")
    parser.add_argument("what", nargs="?", choices=["page"], help="write the page alone")
    if parser.parse_args().what is None:
        record()
    PAGE.write_text(page(rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
