"""Tables that notebooks show: any rows, the doctor, a server's answer field by field, logprobs.

`from workshop import show` is this module; it also has the page of the capstone.

>>> from workshop import show
>>> show.Table(("model", "GB in float16"), [("8B", "16"), ("405B", "810")])
model  GB in float16
8B     16
405B   810
>>> show.fields({"model": "llama", "usage": {"prompt_tokens": 5}}).rows[0]
('model', "'llama'", 'which model answered: the name in the request')
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from workshop.client.logprobs import Row
from workshop.course.drawing.html import Html, alone, div, panel, span, table
from workshop.course.notebooks.capstone_page import hand_in
from workshop.lab import doctor as _doctor

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "Text", "doctor", "fields", "hand_in", "to_frame"]
WORDS = tomllib.loads((files("workshop.course.drawing") / "words.toml").read_text(encoding="utf-8"))
FIELDS = WORDS["fields"]  # of an answer: what each means
COLUMNS = (
    "part",
    "position",
    "token",
    "token_id",
    "logprob",
    "probability",
    "surprise_bits",
    "rank",
)


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
        lines = []
        for row in rows:
            lines.append("  ".join(map(str.ljust, row, widths)).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for (first, *others), kind in zip(self.rows, self._kinds, strict=True):
            rows.append((span(_breakable(first), cls=f"ink-{kind}"), *map(_breakable, others)))
        return alone(panel(table(self.head, rows, "lead")))


class Text:
    """A long text, which a notebook wraps between its words and elsewhere is printed as it is."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return alone(panel(*map(div, self.text.splitlines())))


def _breakable(text: str) -> Html:
    """Escape a text, and allow a line break after each slash.

    A long path then does not make a table wider than the page.
    """
    return Html(escape(text, quote=False).replace("/", "/<wbr>"))


def doctor() -> Table:
    """Return what `workshop doctor` says, as a table."""
    looks = {_doctor.OK: ("✓", "good"), _doctor.NOTE: ("·", "text"), _doctor.LACK: ("✗", "bad")}
    checks = list(_doctor.examine())
    rows, kinds = [], []
    for examined in checks:
        sign, kind = looks[examined.state]
        remedy = examined.remedy
        if examined.state == _doctor.OK:
            remedy = ""
        rows.append((f"{sign} {examined.name}", examined.found, remedy))
        kinds.append(kind)
    return Table(("", "found", "remedy"), rows, kinds)


def fields(answer: Any) -> Table:
    """Return the fields of a server's answer, with those of its first choice and its usage.

    Args:
        answer: as `openai` gives it, or as JSON.
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
    text = "counts"
    if not isinstance(value, Mapping):
        text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:57]}…"


def to_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return logprobs as a table: one line a token, its COLUMNS."""
    import pandas as pd  # 0.5 s, and only notebooks need it

    lines = []
    for row in rows:
        lines.append([getattr(row, name) for name in COLUMNS])
    frame = pd.DataFrame(lines, columns=list(COLUMNS))
    return frame.astype({"token_id": "Int64", "rank": "Int64"})
