"""The capstone's page to hand in: one HTML file of the learner's plan, script, log, batch and words."""

from collections.abc import Mapping
from pathlib import Path

from workshop.batch.answers import load
from workshop.batch.progress import Summary
from workshop.engine.reconcile import Reconciliation
from workshop.launch.home import write_private
from workshop.learn.course_map import course_map
from workshop.learn.html import Html, alone, code, join, muted, panel, table, tag, tiles
from workshop.learn.numbers import number
from workshop.learn.widgets.reconcile.case import picture
from workshop.plan.parallelism import Plan

LOOK = "body{max-width:900px;margin:0 auto;padding:8px 20px;font:16px/1.6 system-ui,sans-serif}"
LOOK += "pre{white-space:pre-wrap}"


def hand_in(to: str | Path, title: str, *, plan: Plan | None = None, script: str | None = None,
            compared: Reconciliation | None = None, summary: Summary | None = None,
            words: Mapping[str, str] | None = None) -> Path:  # fmt: skip
    """Write the page and return where it is; what is not given, or still `...`, is "not done yet".

    Args:
        compared: the plan against a log, as ReconcileView(…).result is.
        summary: what batch.run returned.
        words: need, surprise and next, in the learner's words.
    """
    said, starts = dict(words) if isinstance(words, Mapping) else {}, None
    if isinstance(script, str):
        starts = tag("details", tag("summary", "the whole text"), tag("pre", script))
    if batch := summary:
        answers = load(summary.output).head(3)[["prompt", "text"]].astype(str).itertuples(index=False)
        batch = panel(tag("p", str(summary)), table(("prompt", "answer"), answers, "lead"))
    parts = (
        ("What it is for", said.get("need")),
        ("The plan", plan and _plan(plan)),
        ("What starts it", starts),
        ("The plan against the log", compared and picture(compared)),
        ("The batch", batch),
        ("What was a surprise", said.get("surprise")),
        ("What comes next", said.get("next")),
    )
    done = [join([tag("h2", head), tag("div", part or "Not done yet.")]) for head, part in parts]
    body = alone(join([tag("h1", title), *done, panel(muted(course_map().summary()))]))
    head = f'<meta charset="utf-8">{tag("title", title)}<style>{LOOK}</style>'
    path = Path(to).expanduser().resolve()
    write_private(path, f'<!doctype html><html lang="en">{head}{body}</html>\n', 0o644)
    return path


def _plan(plan: Plan) -> Html:
    figures = (
        (f"{plan.gpus} × {plan.gpu}", f"TP {plan.tensor_parallel_size} × PP {plan.pipeline_parallel_size}"),
        (f"{plan.weights_gib_per_gpu:.1f} GiB", "weights on each GPU"),
        (f"{plan.kv_cache_tokens:,}", "tokens of KV cache"),
        (number(plan.single_stream_tokens_per_s), "tokens/s for one stream"),
    )
    reasons = tag("ul", *(tag("li", reason) for reason in plan.reasons))
    return panel(tiles(figures, 2), code(plan.command), reasons)
