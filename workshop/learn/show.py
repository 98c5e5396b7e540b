"""Tables that notebooks show: what the doctor found, and a server's answer, field by field."""

from __future__ import annotations

import html
from collections.abc import Mapping

from workshop.launch import doctor as _doctor
from workshop.learn.widgets import style

# What each field of an answer means; the names are those of the OpenAI API, as vLLM fills them.
FIELDS = {
    "id": "the server's name for this request: its log has it too",
    "object": "the kind of answer: text_completion, or chat.completion",
    "created": "when, in seconds since 1970",
    "model": "who answered: the name that the request gave",
    "choices": "the answers, one for each of n",
    "usage": "what was counted: tokens of the prompt and of the answer",
    "index": "which of the n answers this is, from 0",
    "text": "what the model wrote, without the prompt",
    "message": "what the model wrote, in a chat",
    "finish_reason": "why it ended: length (max_tokens reached) or stop (a stop string, or the end-of-text token)",
    "stop_reason": "which stop string ended it; None for the end-of-text token",
    "logprobs": "log probabilities of the generated tokens, if asked for (notebook 05)",
    "prompt_logprobs": "the same for the prompt's tokens, if asked for (notebook 05)",
    "prompt_tokens": "tokens of the prompt",
    "completion_tokens": "tokens that were generated",
    "total_tokens": "tokens of prompt and answer together",
}


class Table:
    """An HTML table in notebooks, aligned text elsewhere."""

    def __init__(self, head: tuple[str, ...], rows: list[tuple[str, ...]], colours: list[str] | None = None):
        self.head, self.rows, self._colours = head, rows, colours or [style.TEXT] * len(rows)

    def __repr__(self) -> str:
        widths = [max(len(row[column]) for row in [self.head, *self.rows]) for column in range(len(self.head))]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
                         for row in [self.head, *self.rows])

    def _repr_html_(self) -> str:
        cell = ("padding:3px 14px 3px 4px;text-align:left;vertical-align:top;overflow-wrap:break-word;"
                f"border-bottom:1px solid {style.LINE}")
        head = "".join(f'<th style="{cell};color:{style.MUTED}">{html.escape(name)}</th>' for name in self.head)
        body = "".join(
            "<tr>" + "".join(f'<td style="{cell}{_lead(colour) if not number else ""}">'
                             f"{_breakable(text)}</td>" for number, text in enumerate(row)) + "</tr>"
            for row, colour in zip(self.rows, self._colours, strict=True))
        return style.panel(f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead>'
                           f"<tbody>{body}</tbody></table>")


def _breakable(text: str) -> str:
    """Escape; a path may go on in the next line after a slash, so that no table is wider than the page."""
    return html.escape(text).replace("/", "/<wbr>")


def _lead(colour: str) -> str:
    return f";color:{colour};font-weight:600;white-space:nowrap"


def doctor() -> Table:
    """Return what `workshop doctor` says, as a table."""
    checks = _doctor.examine()
    signs = {_doctor.OK: "✓", _doctor.NOTE: "·", _doctor.LACK: "✗"}
    colours = {_doctor.OK: style.GOOD, _doctor.NOTE: style.TEXT, _doctor.LACK: style.BAD}
    rows = [(f"{signs[check.state]} {check.name}", check.found, check.remedy if check.state != _doctor.OK else "")
            for check in checks]
    return Table(("", "found", "remedy"), rows, [colours[check.state] for check in checks])


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
    if isinstance(value, Mapping):
        return "counts"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
