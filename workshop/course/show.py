"""Tables that notebooks show, a server's answer field by field, logprobs as a frame; the capstone's
page to hand in.

>>> from workshop import show
>>> show.Table(("model", "GB in float16"), [("8B", "16"), ("405B", "810")])
model  GB in float16
8B     16
405B   810
>>> show.fields({"model": "llama", "usage": {"prompt_tokens": 5}}).rows[0]
('model', "'llama'", 'who answered: the name that the request gave')
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from inference_planner.parallelism import Plan

from workshop.batch.answers import load
from workshop.batch.progress import Summary
from workshop.client.logprobs import Row, tidy
from workshop.course.course_map import course_map
from workshop.course.html import Html, alone, code, join, muted, panel, span, table, tag, tiles
from workshop.course.numbers import number
from workshop.course.widgets.reconcile.view import picture
from workshop.engine.reconcile import Reconciliation
from workshop.servers import doctor as _doctor
from workshop.servers.home import write_private

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "doctor", "fields", "hand_in", "to_frame"]
WORDS = tomllib.loads((files("workshop.course") / "words.toml").read_text(encoding="utf-8"))
FIELDS = WORDS["fields"]  # of an answer: what each means
LOOK = "body{max-width:900px;margin:0 auto;padding:8px 20px;font:16px/1.6 system-ui,sans-serif}"
LOOK += "pre{white-space:pre-wrap}"  # of the page to hand in


class Table:
    """An HTML table in notebooks, aligned text elsewhere.

    Args:
        head: names of the columns.
        rows: texts.
        kinds: how the first cell of each row is written: text, muted, good or bad (the colours of
            style.py).
    """

    def __init__(
        self, head: tuple[str, ...], rows: list[tuple[str, ...]], kinds: list[str] | None = None
    ):
        self.head, self.rows, self._kinds = head, rows, kinds or ["text"] * len(rows)

    def __repr__(self) -> str:
        rows = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        rows = []
        for (first, *others), kind in zip(self.rows, self._kinds, strict=True):
            rows.append((span(_breakable(first), cls=f"ink-{kind}"), *map(_breakable, others)))
        return alone(panel(table(self.head, rows, "lead")))


def _breakable(text: str) -> Html:
    """Escape; a path may go on in the next line after a slash, so that no table is wider than the
    page.
    """
    return Html(escape(text, quote=False).replace("/", "/<wbr>"))


def doctor() -> Table:
    """Return what `workshop doctor` says, as a table."""
    looks = {_doctor.OK: ("✓", "good"), _doctor.NOTE: ("·", "text"), _doctor.LACK: ("✗", "bad")}
    checks = list(_doctor.examine())
    rows, kinds = [], []
    for examined in checks:
        sign, kind = looks[examined.state]
        remedy = "" if examined.state == _doctor.OK else examined.remedy
        rows.append((f"{sign} {examined.name}", examined.found, remedy))
        kinds.append(kind)
    return Table(("", "found", "remedy"), rows, kinds)


class Response(Protocol):
    """A server's answer, as `openai` gives it."""

    def model_dump(self) -> dict[str, Any]:
        """Return it as JSON."""
        ...


def fields(answer: Mapping | Response) -> Table:
    """Return an answer of the server field by field: of the answer, of its first choice, of its
    usage.
    """
    data = answer if isinstance(answer, Mapping) else answer.model_dump()
    rows = []
    for name, value in data.items():
        rows.append((name, _short(value), FIELDS.get(name, "")))
        if name == "choices" and value:
            rows += _inner_fields("  choices[0].", value[0])
        elif name == "usage":
            rows += _inner_fields("  usage.", value)
    explained = [row for row in rows if row[2]]
    return Table(("field", "value", "what it means"), explained)


def _inner_fields(prefix: str, inner: object) -> list[tuple[str, str, str]]:
    """Return the fields of a part of an answer that the course explains."""
    rows = []
    if isinstance(inner, Mapping):
        for key, value in inner.items():
            if key in FIELDS:
                rows.append((prefix + key, _short(value), FIELDS[key]))
    return rows


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = "counts" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def to_frame(rows: Iterable[Row], *, alternatives: bool = False) -> pd.DataFrame:
    """Return logprobs as a table: one line a token.

    With alternatives one line for each, `chosen` marks the text's own.

    Columns: part, position, token, token_id, logprob, probability, surprise_bits, rank, chosen.
    """
    import pandas as pd  # 0.5 s, and only notebooks need it

    frame = pd.DataFrame(tidy(rows)).astype({"token_id": "Int64", "rank": "Int64"})
    if alternatives:
        return frame
    chosen = frame[frame["chosen"]]
    assert isinstance(chosen, pd.DataFrame)  # a mask selects rows
    return chosen.drop(columns="chosen").reset_index(drop=True)


def hand_in(to: str | Path, title: str, *, plan: Plan | None = None, script: str | None = None,
            compared: Reconciliation | None = None, summary: Summary | None = None,
            words: Mapping[str, str] | None = None) -> Path:  # fmt: skip
    """Write the page and return where it is; what is not given, or still `...`, is "not done yet".

    Args:
        compared: the plan against a log, as ReconcileView(…).result is.
        summary: what batch.run returned.
        words: need, surprise and next, in the learner's words.
    """
    own_words = dict(words) if isinstance(words, Mapping) else {}
    parts = (
        ("What it is for", own_words.get("need")),
        ("The plan", plan and _plan(plan)),
        ("What starts it", _script(script)),
        ("The plan against the log", compared and picture(compared)),
        ("The batch", summary and _batch(summary)),
        ("What was a surprise", own_words.get("surprise")),
        ("What comes next", own_words.get("next")),
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


def _plan(plan: Plan) -> Html:
    figures = (
        (
            f"{plan.gpus} × {plan.gpu}",
            f"TP {plan.tensor_parallel_size} × PP {plan.pipeline_parallel_size}",
        ),
        (f"{plan.weights_gib_per_gpu:.1f} GiB", "weights on each GPU"),
        (f"{plan.kv_cache_tokens:,}", "tokens of KV cache"),
        (number(plan.single_stream_tokens_per_s), "tokens/s for one stream"),
    )
    reasons = tag("ul", *(tag("li", reason) for reason in plan.reasons))
    return panel(tiles(figures, 2), code(plan.command), reasons)
