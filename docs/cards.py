"""Write docs/cards.md: every public measurement and log with its source, our figure, its interval, and whether it holds.

python docs/cards.py             (again after each change of a formula or of the public figures)
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ACCURACY = HERE.parent / "benchmarks" / "accuracy"
sys.path.insert(0, str(ACCURACY))

import public_points  # noqa: E402      of the folder above
from inference_planner.answer.parallelism import Plan  # noqa: E402
from inference_planner.catalog import load_model  # noqa: E402
from inference_planner.catalog.read import from_dict  # noqa: E402
from inference_planner.ground.intervals import Interval, of_speed  # noqa: E402
from inference_planner.releases import versions  # noqa: E402

from workshop.engine.measured_runs import plan_of, runs  # noqa: E402
from workshop.simulate.intervals import of_rate, share_of_time  # noqa: E402

PAGE = HERE / "cards.md"
LOGS = ACCURACY / "public_logs.json"

# A figure of a published log: its name on the page, the plan's name for it, digits.
MEMORY = {
    "weights_gib": ("weights, GiB", "weights_gib_per_gpu", 2),
    "kv_cache_gib": ("KV cache, GiB", "available_kv_gib_per_gpu", 2),
    "kv_cache_tokens": ("KV cache, tokens", "kv_cache_tokens", 0),
    "max_concurrency": ("requests at once", "max_concurrency", 2),
}
HALF_OF_LAST_DIGIT = 0.005  # published logs round to two digits


@dataclass(frozen=True)
class Row:
    """One published figure, ours, and the interval around ours."""

    point: str
    judges: bool  # False: it set a width of "never measured"
    figure: str
    published: float
    ours: float
    interval: Interval
    basis: str
    digits: int

    @property
    def holds(self) -> bool:
        """True if the published figure lies within, give or take what it was rounded by."""
        rounding = HALF_OF_LAST_DIGIT if self.digits == 2 else 0.0
        low, high = self.interval.low - rounding, self.interval.high + rounding
        return low <= self.published <= high

    @property
    def error_percent(self) -> float:
        return 100 * (self.ours / self.published - 1)

    @property
    def half_percent(self) -> float:
        """Half of the interval in percent of our figure."""
        return 100 * (self.interval.high - self.interval.low) / 2 / self.ours

    def as_markdown(self) -> str:
        numbers = [self.published, self.ours, self.interval.low, self.interval.high]
        published, ours, low, high = [f"{number:,.{self.digits}f}" for number in numbers]
        error = f"{self.error_percent:+.1f} %"
        verdict = "✓" if self.holds else "✗"
        return f"| {self.figure} | {published} | {ours} | {error} | {low} to {high} | {verdict} |"


def points() -> list[dict]:
    """Return the public measurements, then the public logs, each in the order of its id."""
    logs = json.loads(LOGS.read_text(encoding="utf-8"))["points"]
    both = [*public_points.points(), *logs]
    return sorted(both, key=lambda point: (point["id"].startswith("log-"), point["id"]))


def judges(point: dict) -> bool:
    """Return False for the points with which a width or a constant was found."""
    return "seen" not in point


def plan(point: dict) -> Plan:
    """Return our plan of a point."""
    model = point["model"]
    if point.get("unquantized"):  # the catalog has the FP8 checkpoint alone
        raw = dict(load_model(model).raw)
        del raw["quantization_config"]
        model = from_dict(raw, name=point["published_model"])
    return public_points.plan_of({**point, "model": model})


def memory_rows(point: dict, result: Plan) -> Iterator[Row]:
    for name, (title, attribute, digits) in MEMORY.items():
        published = point["memory"].get(name)
        ours = getattr(result, attribute)
        if published is None:
            continue
        interval = result.intervals[attribute]
        yield Row(
            point["id"], judges(point), title, published, ours, interval, result.basis, digits
        )


def speed_rows(point: dict, result: Plan, simulated: bool) -> Iterator[Row]:
    share = result.spread.time_share
    for load in point["loads"]:
        if "trace" in load["load"]:
            continue  # its lengths are not copied here
        if not (simulated or load["load"].get("single_stream")):
            continue
        predicted = public_points.predicted(point, load["load"])
        for figure, published in load["measured"].items():
            ours = predicted[figure]
            if load["load"].get("single_stream"):
                interval = of_speed(ours, share)
            elif figure == "tokens_per_s":
                interval = of_rate(ours, 1.0, 0.0, share)
            else:
                measure, name = figure.split("_ms_")
                first_token = result.spread.prefill_share
                interval = of_speed(ours, share_of_time(measure, name, share, first_token))
            title = f"{load['name']}: {figure.replace('_ms_', ' ').replace('_per_', '/')}"
            yield Row(point["id"], judges(point), title, published, ours, interval, result.basis, 1)


def rows_of(point: dict, simulated: bool = True) -> list[Row]:
    """Return the rows of a point; none where it cannot be planned as it was run.

    Without `simulated`, only those that need no simulation, which takes seconds.
    """
    if point["plan"] is None:
        return []
    result = plan(point)
    return [*memory_rows(point, result), *speed_rows(point, result, simulated)]


def coverage(rows: list[Row]) -> str:
    """Return how many of the published figures lie within, as "17 of 19 (89 %)"."""
    if not rows:
        return "none"
    inside = sum(row.holds for row in rows)
    return f"{inside} of {len(rows)} ({inside / len(rows):.0%})"


def is_memory(row: Row) -> bool:
    return row.figure in [title for title, _, _ in MEMORY.values()]


def by_measure(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    """Return the rows of speed, and of these the first tokens and all others."""
    first = [row for row in rows if ": ttft " in row.figure]
    others = [row for row in rows if ": ttft " not in row.figure]
    return [("speed", rows), ("tokens/s and TPOT", others), ("first token", first)]


def at_home() -> str:
    """Return coverage and width over the recorded runs."""
    inside = 0
    halves = []
    for run in runs():
        if "kv_cache_tokens" not in run:
            continue
        result = plan_of(run)
        interval = result.intervals["kv_cache_tokens"]
        inside += run["kv_cache_tokens"] in interval
        halves.append(100 * (interval.high - interval.low) / 2 / result.kv_cache_tokens)
    width = f"± {statistics.median(halves):.2f} % in the median, ± {max(halves):.1f} % at most"
    return f"{inside} of {len(halves)}; the interval is {width}"


def summary(rows: list[Row]) -> list[str]:
    """Return the table at the top: how many figures lie within, and the error of KV-cache tokens."""
    memory = [row for row in rows if is_memory(row)]
    speed = [row for row in rows if not is_memory(row)]
    tokens = [abs(row.error_percent) for row in rows if row.figure == "KV cache, tokens"]
    lines = ["| | all | points that judge | points that were seen |", "|---|---:|---:|---:|"]
    for title, part in (("memory", memory), *by_measure(speed), ("together", rows)):
        judging = [row for row in part if row.judges]
        setting = [row for row in part if not row.judges]
        lines.append(
            f"| {title}, inside the interval | {coverage(part)} | {coverage(judging)} | {coverage(setting)} |"
        )
    tokens_width = statistics.median(
        row.half_percent for row in rows if row.figure == "KV cache, tokens"
    )
    widths = [
        f"of {title} ± {statistics.median(row.half_percent for row in part):.0f} %"
        for title, part in by_measure(speed)
    ]
    error = f"{statistics.median(tokens):.2f} % in the median, {max(tokens):.1f} % at most"
    lines += ["", f"KV-cache tokens on {len(tokens)} public points: {error}."]
    lines += [
        f"Their intervals are ± {tokens_width:.1f} % wide in the median, those {', '.join(widths)}."
    ]
    lines += [f"At home, KV-cache tokens of the recorded runs: {at_home()}."]
    return lines


def section(point: dict, rows: list[Row]) -> list[str]:
    """Return a point's part of the page."""
    card = point["gpu"]
    version = f"vLLM {point['vllm_version']}" if point["vllm_version"] else "version unknown"
    lines = ["", f"**{point['id']}**: {point['published_model']} on {card}, {version}."]
    lines[-1] += f" Source: {point['source']}."
    if rows:
        formulas = versions.nearest_formulas(point["vllm_version"])
        lines[-1] += f" Ground: {rows[0].basis}."
        if formulas != point["vllm_version"]:
            lines[-1] += f" Formulas of {formulas}."
    lines[-1] += f" {point['note']}"
    if not rows:
        return lines
    lines += [
        "",
        "| figure | published | ours | error | interval | |",
        "|---|---:|---:|---:|---:|:-:|",
    ]
    return [*lines, *[row.as_markdown() for row in rows]]


def tables() -> list[tuple[dict, list[Row]]]:
    """Return each point with its rows."""
    return [(point, rows_of(point)) for point in points()]


def page(parts: list[tuple[dict, list[Row]]]) -> str:
    """Return the whole page."""
    rows = [row for _, part in parts for row in part]
    scored = [(point, part) for point, part in parts if part]
    others = [point for point, part in parts if not part]
    lines = [
        "# Other people's cards: does the interval hold?",
        "",
        "Every figure here was measured and published by somebody else. Beside it stand ours and its interval: nine of "
        "ten measured figures are to lie inside. Made by `python docs/cards.py`; a test compares.",
        "",
        *summary(rows),
        "",
        "How the widths were found is in `planner/inference_planner/ground/intervals.py`: some of the points below set those of "
        "cards that were never measured, or a constant; the others judge them.",
        "",
        "## How to read an interval",
        "",
        "Every figure of a plan has a low and a high value, and nine of ten measured figures are to lie between them. "
        "The farther a case is from what was measured, the wider its interval: `basis` names that distance, and "
        "`workshop plan --explain` each doubt that widens it. One start of your own narrows it: "
        "`workshop serve` and a job of SLURM keep what they measured, `workshop reconcile server.log` that of another start.",
        "",
        "## What `basis` means",
        "",
        "| basis | the case is |",
        "|---|---|",
        "| `measured here` | the same card, version and kind of model as a recorded run, or as a log that you kept |",
        "| `measured on this kind of GPU` | on a card whose runs had such kernels, such kinds of attention and so many GPUs |",
        "| `same generation` | on a card of a generation that was measured (Hopper), or on a measured one with other kernels or more GPUs |",
        "| `never measured` | on any other card |",
        "",
        "## Send a log",
        "",
        "Your card is missing, or our interval does not hold? `workshop reconcile server.log --anonymise` removes your names, "
        "addresses, keys and prompts from vLLM's log and shows what it removed. Send what is left as an issue of this "
        "repository: it becomes a row here. `workshop reconcile server.log` uses it on your own site at once.",
        "",
        "## The points",
    ]
    for point, part in scored:
        lines += section(point, part)
    lines += ["", "## Not scored", "", "No plan can say what these ran, or a setting is unknown."]
    for point in others:
        lines += section(point, [])
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page(tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
