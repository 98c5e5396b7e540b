"""Tables that notebooks show, a server's answer field by field, logprobs as a frame; the capstone's page to hand in.

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
from typing import TYPE_CHECKING

from workshop.launch import doctor as _doctor
from workshop.learn.hand_in import hand_in
from workshop.learn.html import Html, alone, panel, span
from workshop.learn.html import table as table_html
from workshop.use.logprobs import Row, tidy

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "doctor", "fields", "hand_in", "to_frame"]
WORDS = tomllib.loads((files("workshop.learn") / "words.toml").read_text(encoding="utf-8"))
FIELDS = WORDS["fields"]  # of an answer: what each means


class Table:
    """An HTML table in notebooks, aligned text elsewhere.

    Args:
        head: names of the columns.
        rows: texts.
        kinds: how the first cell of each row is written: text, muted, good or bad (the colours of style.py).
    """

    def __init__(self, head: tuple[str, ...], rows: list[tuple[str, ...]], kinds: list[str] | None = None):
        self.head, self.rows, self._kinds = head, rows, kinds or ["text"] * len(rows)

    def __repr__(self) -> str:
        rows = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        rows = []
        for (first, *others), kind in zip(self.rows, self._kinds, strict=True):
            rows.append((span(_breakable(first), cls=f"ink-{kind}"), *map(_breakable, others)))
        return alone(panel(table_html(self.head, rows, "lead")))


def _breakable(text: str) -> Html:
    """Escape; a path may go on in the next line after a slash, so that no table is wider than the page."""
    return Html(escape(text, quote=False).replace("/", "/<wbr>"))


def doctor() -> Table:
    """Return what `workshop doctor` says, as a table."""
    looks = {_doctor.OK: ("✓", "good"), _doctor.NOTE: ("·", "text"), _doctor.LACK: ("✗", "bad")}
    rows, kinds = [], []
    for check in _doctor.examine():
        sign, kind = looks[check.state]
        rows.append((f"{sign} {check.name}", check.found, check.remedy if check.state != _doctor.OK else ""))
        kinds.append(kind)
    return Table(("", "found", "remedy"), rows, kinds)


def fields(answer: Mapping | object) -> Table:
    """Return an answer of the server field by field: of the answer, of its first choice, of its usage."""
    data = answer if isinstance(answer, Mapping) else answer.model_dump()
    rows = []
    for name, value in data.items():
        rows.append((name, _short(value), FIELDS.get(name, "")))
        inner = value[0] if name == "choices" and value else value if name == "usage" else None
        if isinstance(inner, Mapping):
            prefix = "  choices[0]." if name == "choices" else "  usage."
            rows += [(prefix + key, _short(each), FIELDS[key]) for key, each in inner.items() if key in FIELDS]
    return Table(("field", "value", "what it means"), [row for row in rows if row[2]])


def _short(value: object) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    text = "counts" if isinstance(value, Mapping) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def to_frame(rows: Iterable[Row], *, alternatives: bool = False) -> pd.DataFrame:
    """Return logprobs as a table: one line a token; with alternatives one line for each, `chosen` marks the text's own.

    Columns: part, position, token, token_id, logprob, probability, surprise_bits, rank, chosen.
    """
    import pandas as pd  # 0.5 s, and only notebooks need it

    table = pd.DataFrame(tidy(rows)).astype({"token_id": "Int64", "rank": "Int64"})
    return table if alternatives else table[table["chosen"]].drop(columns="chosen").reset_index(drop=True)
