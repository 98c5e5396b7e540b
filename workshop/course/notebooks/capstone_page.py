"""The page that a learner hands in after the capstone: the plan, the script, the log, the batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from inference_planner.answer.parallelism import Plan
from inference_planner.answer.report import plus_minus

from workshop.batch.keep.answers import load
from workshop.batch.progress import Summary
from workshop.course.drawing.html import Html, alone, code, join, muted, panel, table, tag, tiles
from workshop.course.drawing.readable_numbers import number
from workshop.course.progress.course_map import course_map
from workshop.course.widgets.reconcile.view import picture
from workshop.engine.reconcile.compare import Reconciliation
from workshop.home import write_private

LOOK = (
    "body{max-width:900px;margin:0 auto;padding:8px 20px;font:16px/1.6 system-ui,sans-serif}"
    "pre{white-space:pre-wrap}"
)


def hand_in(to: str | Path, title: str, *, plan: Plan | None = None, script: str | None = None,
            compared: Reconciliation | None = None, summary: Summary | None = None,
            in_own_words: Mapping[str, str] | None = None) -> Path:  # fmt: skip
    """Write the page and return where it is; what is not given, or still `...`, is "not done yet".

    Args:
        compared: the plan against a log, as ReconcileView(…).result is.
        summary: what batch.run returned.
        in_own_words: need, surprise and next, in the learner's words.
    """
    learners_words = {}
    if isinstance(in_own_words, Mapping):
        learners_words = dict(in_own_words)
    parts = (
        ("What it is for", learners_words.get("need")),
        ("The plan", plan and _plan(plan)),
        ("What starts it", _script(script)),
        ("The plan against the log", compared and picture(compared)),
        ("The batch", summary and _batch(summary)),
        ("What was a surprise", learners_words.get("surprise")),
        ("What comes next", learners_words.get("next")),
    )
    sections: list[object] = [tag("h1", title)]
    for head, part in parts:
        sections += [tag("h2", head), tag("div", part or "Not done yet.")]
    sections.append(panel(muted(course_map().summary())))
    head = f'<meta charset="utf-8">{tag("title", title)}<style>{LOOK}</style>'
    path = Path(to).expanduser().resolve()
    page = f'<!doctype html><html lang="en">{head}{alone(join(sections))}</html>\n'
    write_private(path, page, 0o644)
    return path


def _script(script: object) -> Html | None:
    """Return the script folded; None where it is not written yet."""
    if not isinstance(script, str):
        return None
    return tag("details", tag("summary", "the whole text"), tag("pre", script))


def _batch(summary: Summary) -> Html:
    """Return what a batch has done, and its first three answers."""
    first = load(summary.output).head(3)[["prompt", "text"]].astype(str)
    answers = first.itertuples(index=False)
    return panel(tag("p", str(summary)), table(("prompt", "answer"), answers, "lead"))


def _give_or_take(plan: Plan) -> str:
    if plan.kv_cache_tokens:
        return f" ({plus_minus(plan)})"
    return ""


def _range(plan: Plan) -> str:
    """Return between which values the speed lies, in brackets; empty where there is none."""
    speed = plan.intervals.get("single_stream_tokens_per_s")
    if speed and plan.fits:
        return f" ({speed.low:,.0f} to {speed.high:,.0f})"
    return ""


def _plan(plan: Plan) -> Html:
    figures = (
        (
            f"{plan.gpus} × {plan.gpu}",
            f"TP {plan.tensor_parallel_size} × PP {plan.pipeline_parallel_size}",
        ),
        (f"{plan.weights_gib_per_gpu:.1f} GiB", "weights on each GPU"),
        (f"{plan.kv_cache_tokens:,}", f"tokens of KV cache{_give_or_take(plan)}"),
        (number(plan.single_stream_tokens_per_s), f"tokens/s for one stream{_range(plan)}"),
    )
    reasons = tag("ul", *[tag("li", reason) for reason in plan.reasons])
    return panel(tiles(figures, 2), code(plan.command), reasons)
