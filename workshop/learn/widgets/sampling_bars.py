"""The bars of the next token, as HTML. Pure: numbers in, text out.

A token keeps its row and the axis its end while sliders move: both come from the model's own distribution, which no
slider changes.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from workshop.learn.widgets import style
from workshop.learn.widgets.sampling_words import percent, spoken, token_label
from workshop.use.distribution import entropy_bits
from workshop.use.sampling import Pipeline, Token

ROWS = 14
AXES = (0.05, 0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Bar:
    """One row: the model's probability, the sampled one, and that of the pinned settings (None without)."""

    label: str
    model: float
    sampled: float
    pinned: float | None = None
    removed_by: str = ""
    generated: int = 0


@dataclass(frozen=True)
class Bars:
    """All rows, and what stands below them."""

    rows: tuple[Bar, ...]
    axis: float                        # the probability at the right end
    others: Bar
    other_tokens: int
    chain: tuple[tuple[str, int], ...]   # parameter → tokens left
    bits: tuple[float, float]          # entropy of the model's and of the sampled distribution
    outside: float = 0.0               # share of the model's distribution that is not listed
    border: int = 0


def rows_shown(model: dict[Token, float], generated: Iterable[Token], count: int = ROWS) -> list[Token]:
    """Return which tokens get a row: the model's most probable, and what was generated (penalties move these)."""
    ranked = sorted(model, key=model.__getitem__, reverse=True)   # nearly free: it arrives sorted
    shown = ranked[:count]
    for token in dict.fromkeys(reversed(list(generated))):
        if token in model and token not in shown and len(shown) < count + 2:
            shown.append(token)
    return shown


def bars(result: Pipeline, shown: list[Token], label: Callable[[Token], str], *, pinned: Pipeline | None = None,
         generated: Iterable[Token] = ()) -> Bars:
    """Return what is to be drawn of one pipeline (and of a second one, for comparison)."""
    generated = list(generated)
    model, last = result.steps[0], result.steps[-1]
    scale, visible = 1.0 - model.outside, 1.0 - last.outside
    rows = tuple(Bar(label(token), model.probabilities.get(token, 0.0) * scale,
                     last.probabilities.get(token, 0.0) * visible, _of(pinned, token),
                     _removed_by(result, token), generated.count(token)) for token in shown)
    top = max(row.model for row in rows)
    axis = next(end for end in AXES if end >= min(1.0, 1.5 * top))
    others = Bar("all others", max(0.0, 1.0 - sum(row.model for row in rows)),
                 max(0.0, 1.0 - sum(row.sampled for row in rows)),
                 None if pinned is None else max(0.0, 1.0 - sum(row.pinned or 0.0 for row in rows)))
    left = len(last.probabilities) - sum(row.sampled > 0 for row in rows)
    chain = tuple((step.name, len(step.probabilities)) for step in result.steps)
    return Bars(rows, axis, others, left, chain, (entropy_bits(model.probabilities), entropy_bits(last.probabilities)),
                model.outside, len(result.border))


def _of(pinned: Pipeline | None, token: Token) -> float | None:
    if pinned is None:
        return None
    last = pinned.steps[-1]
    return last.probabilities.get(token, 0.0) * (1.0 - last.outside)


def _removed_by(result: Pipeline, token: Token) -> str:
    if token in result.steps[-1].probabilities:
        return ""
    return next((step.name for step in result.steps if token not in step.probabilities), "")


def bars_html(drawn: Bars) -> str:
    """Return the picture, with its numbers as text for those who cannot see it."""
    said = ", ".join(f"{spoken(row.label)} {percent(row.sampled)}" for row in drawn.rows[:6] if row.sampled)
    two = drawn.others.pinned is not None
    body = [_legend(two), '<div style="display:grid;grid-template-columns:minmax(76px,140px) 1fr 58px;'
            'column-gap:8px;align-items:center">', _axis(drawn.axis)]
    body += [_row(row, drawn.axis) for row in drawn.rows]
    if drawn.others.model > 5e-5 or drawn.others.sampled > 5e-5:
        body.append(_row(drawn.others, drawn.axis, muted=True))
    body.append("</div>")
    body.append(_foot(drawn))
    return style.panel("".join(body), label=f"Next token: {said}")


def _legend(two: bool) -> str:
    def key(box: str, text: str) -> str:
        return (f'<span style="display:inline-flex;align-items:center;gap:6px;margin-right:16px">'
                f'<span style="width:22px;height:9px;border-radius:3px;{box}"></span>{text}</span>')
    keys = [key(f"box-sizing:border-box;border:1px solid {style.MUTED}", "the model's probability"),
            key(f"background:{style.BLUE}", "what is sampled")]
    if two:
        keys.append(key(f"background:{style.ORANGE}", "with the pinned settings"))
    return f'<div style="font-size:12px;color:{style.MUTED};margin-bottom:2px">{"".join(keys)}</div>'


def _count(number: float) -> str:
    return f"{number:,.1f}" if number < 9.95 else f"{number:,.0f}"


def _axis(end: float) -> str:
    def mark(part: float) -> str:
        place = f"left:{100 * part:.0f}%;transform:translateX(-{100 * part:.0f}%)"
        text = percent(end * part) if part else "0"
        return f'<span style="position:absolute;{place};white-space:nowrap">{text}</span>'
    marks = "".join(mark(part) for part in (0, 0.5, 1))
    return (f'<span></span><div style="position:relative;height:15px;font-size:11px;color:{style.MUTED}">{marks}</div>'
            f"<span></span>")


def _row(row: Bar, axis: float, *, muted: bool = False) -> str:
    label = html.escape(token_label(row.label)) if not muted else row.label
    colour = style.MUTED if muted or row.sampled == 0 else style.TEXT
    font = f"font-family:{style.MONO};" if not muted else "font-style:italic;"
    times = f' <span style="color:{style.ORANGE}" title="generated {row.generated} times">×{row.generated}</span>' \
        if row.generated else ""
    name = (f'<div style="{font}font-size:13px;color:{colour};text-align:right;overflow:hidden;white-space:nowrap;'
            f'text-overflow:ellipsis" title="{spoken(row.label)}">{label}{times}</div>')
    return name + _track(row, axis, muted) + (
        f'<div style="font-size:12px;font-variant-numeric:tabular-nums;white-space:nowrap;color:{colour}">'
        f"{percent(row.sampled)}</div>")


def _track(row: Bar, axis: float, muted: bool) -> str:
    """The model's bar as an outline, the sampled one filled inside it, the pinned one thin below."""
    fill = style.GREY if muted else style.BLUE
    parts = []
    height = "60%" if row.pinned is not None else "100%"
    if row.sampled > 0:
        parts.append(f'<div style="position:absolute;left:0;top:0;height:{height};width:{_width(row.sampled, axis)};'
                     f'background:{fill};border-radius:0 3px 3px 0"></div>')
    if row.pinned:
        parts.append(f'<div style="position:absolute;left:0;bottom:0;height:34%;width:{_width(row.pinned, axis)};'
                     f'background:{style.ORANGE};border-radius:0 3px 3px 0"></div>')
    parts.append(f'<div style="position:absolute;inset:-1px auto -1px 0;width:{_width(row.model, axis)};'
                 f'box-sizing:border-box;border:1px solid {style.MUTED};border-left:none;'
                 f'border-radius:0 3px 3px 0"></div>')
    if row.sampled > axis:
        parts.append('<div style="position:absolute;right:4px;top:-2px;color:#fff;font-size:12px" '
                     'title="longer than the axis">▶</div>')
    if row.removed_by:
        parts.append(f'<div style="position:absolute;left:calc({_width(row.model, axis)} + 6px);top:-1px;'
                     f'font-size:11px;color:{style.BAD};white-space:nowrap">{_why(row.removed_by)}</div>')
    return (f'<div style="position:relative;height:15px;margin:2.5px 0;border-left:1px solid {style.GREY}">'
            f'{"".join(parts)}</div>')


def _why(name: str) -> str:
    return "not the best: greedy" if name == "temperature" else f"cut by {name}"


def _width(p: float, axis: float) -> str:
    return f"{100 * min(p / axis, 1.0):.2f}%"


def _foot(drawn: Bars) -> str:
    """The chain of parameters with the tokens left, and how much is left to chance."""
    def link(name: str, left: int) -> str:
        return (f'<span style="white-space:nowrap"><code style="font-size:12px">{name}</code> '
                f'<b>{left:,}</b></span>')
    arrow = f' <span style="color:{style.MUTED}">→</span> '
    chain = arrow.join(link(name, left) for name, left in drawn.chain)
    before, after = drawn.bits
    notes = [f"Tokens left: {chain}",
             f"Uncertainty: {before:.1f} → {after:.1f} bits, as much as {_count(2 ** after)} equally likely tokens."]
    if drawn.outside:
        notes.append(f"{percent(drawn.outside)} of the model's probability lies on tokens that are not listed.")
    if drawn.border:
        notes.append(f"{drawn.border} tokens of exactly equal probability stand at the border of top_p; "
                     "which of them vLLM keeps depends on its sort.")
    return (f'<div style="font-size:12px;color:{style.MUTED};margin-top:8px;line-height:1.6">'
            f'{"<br>".join(notes)}</div>')
