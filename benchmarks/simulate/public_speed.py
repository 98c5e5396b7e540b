"""Score the simulator on public points: closed loops of equal requests, measured by others.

    python benchmarks/simulate/public_speed.py          simulate every point, then write docs/speed.md
    python benchmarks/simulate/public_speed.py page     write the page from the record

The points are rows of `systems/silicon_sample.csv` in the wheel aisimulate 0.13.0 (NVIDIA,
Apache-2.0), which has them from a public benchmark's dumps of 2026. The record has a line for each
point, so that a point whose figures change is a line that changes.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

from closed_loop import closed_loop
from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_model
from inference_planner.errors import BadInput

from workshop.engine.exact import plan
from workshop.simulate.intervals import share_of_time

HERE = Path(__file__).resolve().parent
POINTS = HERE / "public_speed" / "points.csv"
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
# The public benchmark's own load: ten waves, lengths of 80 to 100 % (github.com/InferenceMAX, its
# README: RANDOM_RANGE_RATIO 0.8, num-prompts 10 × CONC).
SOURCE_WAVES = 10
SOURCE_SHORTEST = 0.8
MOST_OF_TEN_WAVES = 128  # requests at once; larger loads have four waves


@dataclass(frozen=True)
class Point:
    """A published point: what was run, and its medians in ms."""

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
    """Our figures of a point, in ms, and the shares by which they may be off.

    `source_ttft_ms` and `source_tpot_ms` are those of the public benchmark's own load.
    """

    id: str
    basis: str
    ttft_ms: float
    tpot_ms: float
    source_ttft_ms: float
    source_tpot_ms: float
    ttft_share: float
    tpot_share: float
    refusal: str = ""


def points() -> list[Point]:
    """Return the published points."""
    with POINTS.open(encoding="utf-8") as file:
        return [point_of(row) for row in csv.DictReader(file)]


def point_of(row: dict[str, str]) -> Point:
    """Return a row as a point. `batch_size` counts the requests of a data-parallel rank."""
    model = CHECKPOINTS.get((row["model_path"], row["moe_quant_mode"]), row["model_path"])
    tp = int(row["tp_size"])
    dp = int(row["attention_dp_size"] or 1)
    ep = int(row["moe_ep_size"] or 1)
    gpus = int(row["moe_tp_size"] or 1) * ep
    requests = int(row["batch_size"]) * dp
    if gpus > tp * dp and load_model(model).moe is not None:
        dp = gpus // tp  # the source leaves it empty where it is not 1
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


@lru_cache(maxsize=256)
def plan_of(
    model: str, gpu: str, version: str, tp: int, dp: int, ep: bool, max_model_len: int
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
    )


def score(point: Point) -> Score:
    """Simulate a point."""
    longest = point.prompt + point.output + MORE_TOKENS
    p = plan_of(point.model, point.gpu, point.version, point.tp, point.dp, point.ep, longest)
    if not p.fits:
        return Score(point.id, p.basis, 0, 0, 0, 0, 0, 0, "it does not fit")
    times = closed_loop(p, point.concurrency, point.prompt, point.output)
    waves = SOURCE_WAVES if point.concurrency <= MOST_OF_TEN_WAVES else 4
    source = closed_loop(p, point.concurrency, point.prompt, point.output, waves, SOURCE_SHORTEST)
    return Score(
        id=point.id,
        basis=p.basis,
        ttft_ms=round(times.ttft_ms, 2),
        tpot_ms=round(times.tpot_ms, 2),
        source_ttft_ms=round(source.ttft_ms, 2),
        source_tpot_ms=round(source.tpot_ms, 2),
        ttft_share=round(share_of_time("ttft", "p50", p.spread.time_share), 3),
        tpot_share=round(share_of_time("tpot", "p50", p.spread.time_share), 3),
    )


def record() -> None:
    """Simulate every point, and write the record."""
    lines: list[str] = []
    for point in points():
        try:
            result = score(point)
        except BadInput as error:
            result = Score(point.id, "", 0, 0, 0, 0, 0, 0, error.message)
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

    def error(self, measure: str) -> float:
        """Return by which share our figure is above the published one."""
        published = getattr(self.point, f"{measure.removeprefix('source_')}_ms")
        return getattr(self.score, f"{measure}_ms") / published - 1

    def is_inside(self, measure: str) -> bool:
        """Return True if the published figure lies in our interval."""
        ratio = 1 + self.error(measure)
        share = getattr(self.score, f"{measure.removeprefix('source_')}_share")
        return 1 / (1 + share) <= ratio <= 1 + share


def rows() -> list[Row]:
    """Return every point with its recorded score."""
    by_id = {result.id: result for result in scores()}
    return [Row(point, by_id[point.id]) for point in points()]


HEAD = (
    "| | points | TPOT, median error | between | inside | half-width | TTFT, median error | inside |",
    "|---|---:|---:|---:|---:|---:|---:|---:|",
)


def line(title: str, part: list[Row], load: str = "") -> str:
    """Return a line of a table: errors, share inside and half-width of some points."""
    errors = sorted(row.error(f"{load}tpot") for row in part)
    ninth = len(errors) // 10
    inside = sum(row.is_inside(f"{load}tpot") for row in part) / len(part)
    ttft = median(row.error(f"{load}ttft") for row in part)
    ttft_inside = sum(row.is_inside(f"{load}ttft") for row in part) / len(part)
    half = median(row.score.tpot_share for row in part)
    return (
        f"| {title} | {len(part)} | {median(errors):+.0%} "
        f"| {errors[ninth]:+.0%} to {errors[-1 - ninth]:+.0%} | {inside:.0%} | ± {half:.0%} "
        f"| {ttft:+.0%} | {ttft_inside:.0%} |"
    )


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
    lines = [
        "# Public speed points: does the simulation hold?",
        "",
        f"{len(everything)} points of a public benchmark, measured by others: vLLM 0.11 to 0.19 on H100, H200, B200 and "
        "B300. A closed loop has so many requests at once; the figures are medians. Source: "
        "`systems/silicon_sample.csv` of the wheel aisimulate 0.13.0 (NVIDIA, Apache-2.0). Made by "
        "`python benchmarks/simulate/public_speed.py`, in about two minutes of one core; a test compares.",
        "",
        f"**{inside:.0%} of the {len(scored)} scored points have their time per output token (TPOT) inside the interval, "
        f"whose half-width is ± {half:.0%} in the median.** The goal is 90 % inside at ± 15 %.",
        "",
        *HEAD,
        line("all that are scored", scored),
        line("without those whose load is not as stated (below)", credible),
        line("all, by the public benchmark's own load", scored, "source_"),
        line("release unknown: shown, not scored", unknown),
        "",
        "An error is ours over theirs; *between* leaves out the lowest and the highest tenth. Ours is of two waves of equal "
        "requests, all of the first sent at once. The public benchmark sends ten waves of lengths between 80 and 100 % "
        "(its README), so its requests come one by one: its TTFT is that of a single prompt beside a running batch, and "
        "ours that of a burst. The third line has its load.",
        "",
        "The source does not say flags, host or client. Its servers have FlashInfer, and most runs at home have not. "
        "Every release here is older than the planner's oldest row of its own, so `basis` and interval say that.",
        "",
        "Some constants were fitted to these points: the launch of steps, small kernels of experts, NVFP4, MXFP4 and INT4 "
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
