"""The picture of the logprobs viewer, as HTML. Pure.

A token is a label of a radio button; the panel of the chosen one is shown by CSS alone, so a click needs no kernel,
arrow keys move from token to token, and a saved page still works.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workshop.learn.widgets import style
from workshop.learn.widgets.sampling_words import percent, spoken, token_label
from workshop.use.logprobs import Row, perplexity, processed
from workshop.use.sampling_settings import Settings

MOST_BITS = 13.0   # the darkest shade: one token of 8,192
RANKS = ((1, style.GREEN, "1: the most probable"), (5, style.SKY, "2 to 5"), (20, style.YELLOW, "6 to 20"),
         (math.inf, style.VERMILLION, "beyond 20, or not listed"))
LONGEST_LIST = 12
OWN_KEYS = 'data-lm-suppress-shortcuts="true"'   # arrow keys are the radio buttons', not JupyterLab's
TRACK = "var(--jp-layout-color2, #eeeeee)"
COLUMNS = "display:grid;grid-template-columns:86px 1fr"


@dataclass(frozen=True)
class Cell:
    """One token as drawn: `logprob` is raw or processed, as the viewer is told; `listed` its alternatives."""

    row: Row
    logprob: float | None
    listed: tuple[tuple[str, float, int | None], ...]   # text, logprob, rank

    @property
    def bits(self) -> float | None:
        """The surprise."""
        return None if self.logprob is None else -self.logprob / math.log(2) + 0.0


def cells(rows: Sequence[Row], settings: Settings | None = None) -> list[Cell]:
    """Return what is to be drawn; with settings the completion's logprobs are processed (the prompt has none)."""
    found, so_far = [], []
    for row in rows:
        listed: Mapping[str, float] = {one.token: one.logprob for one in row.alternatives}
        logprob = row.logprob
        if row.part == "completion":
            if settings is not None and listed and logprob is not None:
                listed = processed(row, settings, output_tokens=so_far)
                logprob = listed[row.token]
            so_far.append(row.token)
        ranks = {one.token: one.rank for one in row.alternatives}
        best_first = sorted(listed.items(), key=lambda item: -item[1])[:LONGEST_LIST]
        if row.token in listed and all(token != row.token for token, _ in best_first):
            best_first.append((row.token, listed[row.token]))
        found.append(Cell(row, logprob, tuple((token, value, ranks[token]) for token, value in best_first)))
    return found


def viewer_html(drawn: Sequence[Cell], *, colour_by: str = "probability", name: str = "logprobs",
                kind: str = "raw") -> str:
    """Return the text, the plot, the panels of all tokens and the perplexities.

    Args:
        colour_by: "probability" or "rank".
        name: unique in the page; the radio buttons and the CSS need it.
        kind: "raw" or "processed", for the captions.
    """
    first = next((number for number, cell in enumerate(drawn) if cell.row.part == "completion"), 0)
    rules = "".join(f"#{name}-{n}:checked~div .{name}-p{n}{{display:block!important}}"
                    f"#{name}-{n}:checked~div .{name}-t{n}{{outline:2px solid {style.TEXT}}}"
                    f"#{name}-{n}:focus-visible~div .{name}-t{n}{{outline:3px solid {style.BLUE}}}"
                    for n in range(len(drawn)))
    radios = "".join(f'<input type="radio" name="{name}" id="{name}-{n}" {"checked" if n == first else ""} '
                     f'{OWN_KEYS} aria-label="{_said(cell)}" style="position:absolute;opacity:0;width:1px;height:1px">'
                     for n, cell in enumerate(drawn))
    parts = [f"<style>{rules}</style>", f'<div style="position:relative">{radios}',
             _legend(colour_by), _text(drawn, colour_by, name), _plot(drawn, colour_by, name, kind),
             "<div>" + "".join(_panel(cell, n, name, kind) for n, cell in enumerate(drawn)) + "</div>",
             _sums(drawn, kind), "</div>"]
    return style.panel("".join(parts))


def shade(cell: Cell, colour_by: str) -> str:
    """Return the colour of a token: the more surprising, the stronger; no logprob, none."""
    if cell.logprob is None:
        return "transparent"
    if colour_by == "rank":
        rank = math.inf if cell.row.rank is None else cell.row.rank
        return next(colour for limit, colour, _ in RANKS if rank <= limit) + "66"
    return surprise_colour(cell.bits) if cell.bits > 0.25 else "transparent"


def surprise_colour(bits: float) -> str:
    """Return orange, the stronger the more bits; never so strong that text on it gets hard to read."""
    return f"{style.ORANGE}{round(16 + 134 * min(1.0, bits / MOST_BITS)):02x}"


def _said(cell: Cell) -> str:
    known = "no logprob" if cell.logprob is None else f"{percent(math.exp(cell.logprob))}, {cell.bits:.1f} bits"
    return f"{cell.row.part} token {spoken(cell.row.token)}: {known}"


def _legend(colour_by: str) -> str:
    def key(colour: str, text: str) -> str:
        return (f'<span style="margin-right:14px;white-space:nowrap"><span style="display:inline-block;width:14px;'
                f'height:12px;vertical-align:-1px;border-radius:3px;background:{colour}"></span> {text}</span>')
    if colour_by == "rank":
        keys = "Rank " + "".join(key(colour + "66", text) for _, colour, text in RANKS)
    else:
        steps = ((1, "50 %"), (3.32, "10 %"), (6.64, "1 %"), (9.97, "0.1 %"), (13, "0.01 % or less"))
        keys = "Probability " + "".join(key(surprise_colour(bits), text) for bits, text in steps)
    return f'<div style="font-size:12px;color:{style.MUTED};margin-bottom:6px">{keys}</div>'


def _text(drawn: Sequence[Cell], colour_by: str, name: str) -> str:
    """The tokens, prompt and completion apart; each may be clicked."""
    lines = []
    for part in ("prompt", "completion"):
        tokens = [(n, cell) for n, cell in enumerate(drawn) if cell.row.part == part]
        if not tokens:
            continue
        chips = "".join(_chip(n, cell, colour_by, name) for n, cell in tokens)
        lines.append(f'<div style="{COLUMNS};margin:4px 0"><span style="font-size:12px;color:{style.MUTED};'
                     f'padding-top:7px">{part}</span><div style="font-size:16px;line-height:1.9;'
                     f'overflow-wrap:anywhere">{chips}</div></div>')
    return f'<div role="presentation">{"".join(lines)}</div>'


def _chip(n: int, cell: Cell, colour_by: str, name: str) -> str:
    text = cell.row.token
    plain = "�" not in text and text.strip()
    if plain:
        shown = html.escape(text.replace("\n", "⏎\n"))
    elif not text or "�" in text:   # a piece of an emoji; or the first token, whose text nobody sends
        shown = "⟨start⟩" if cell.logprob is None else "▯"
    else:
        shown = html.escape(token_label(text))
    dim = "" if plain else f"color:{style.MUTED};font-size:13px;"
    block = "" if "\n" in text else "display:inline-block;line-height:1.3;"
    listed = "; ".join(f"{token_label(token)} {percent(math.exp(value))}" for token, value, _ in cell.listed[:5])
    return (f'<label for="{name}-{n}" class="{name}-t{n}" title="{html.escape(listed, quote=True)}" '
            f'style="cursor:pointer;white-space:pre-wrap;padding:2px 1px;margin-right:1px;border-radius:3px;'
            f'{dim}{block}background:{shade(cell, colour_by)}">{shown}</label>')


def _plot(drawn: Sequence[Cell], colour_by: str, name: str, kind: str) -> str:
    """Surprise a token: one bar each, in the text's order; clickable like the tokens."""
    known = [cell.bits for cell in drawn if cell.bits is not None and math.isfinite(cell.bits)]
    top = max([4.0, *known])
    bars = []
    for n, cell in enumerate(drawn):
        bits = 0.0 if cell.bits is None else min(cell.bits, top)
        edge = f"border-left:2px dashed {style.MUTED};" if n and cell.row.part != drawn[n - 1].row.part else ""
        infinite = cell.bits is not None and math.isinf(cell.bits)
        fill = f"repeating-linear-gradient(45deg,{style.BAD},{style.BAD} 4px,transparent 4px,transparent 8px)" \
            if infinite else (style.BLUE if cell.row.part == "completion" else style.GREY)
        bars.append(f'<label for="{name}-{n}" title="{_said(cell)}" style="flex:1 1 4px;max-width:26px;height:100%;'
                    f'display:flex;align-items:flex-end;cursor:pointer;{edge}"><span class="{name}-t{n}" '
                    f'style="width:100%;margin:0 1px;border-radius:2px 2px 0 0;height:{100 * bits / top:.1f}%;'
                    f'min-height:1px;background:{fill}"></span></label>')
    return (f'<div style="{COLUMNS};margin-top:8px"><span style="font-size:12px;'
            f'color:{style.MUTED}">surprise, {kind}<br>{top:.0f} bits</span><div style="height:92px;display:flex;'
            f'border-bottom:1px solid {style.GREY};border-top:1px dotted {style.LINE}">{"".join(bars)}</div></div>')


def _panel(cell: Cell, n: int, name: str, kind: str) -> str:
    """What is known of one token: its numbers, and bars of its alternatives."""
    row = cell.row
    kind = kind if row.part == "completion" else "raw"   # a prompt is not sampled
    if cell.logprob is None:
        body = "The first token has no logprob: nothing stands before it that could predict it."
    else:
        rank = f"rank {row.rank}" if row.rank else f"rank unknown, below the {len(row.alternatives) - 1} best"
        if len(row.alternatives) <= 1 and row.rank is None:
            rank = "rank unknown: no alternatives were asked for"
        infinite = math.isinf(cell.logprob)
        numbers = (f"logprob −∞ ({kind}): these settings never sample it" if infinite else
                   f"{percent(math.exp(cell.logprob))} · logprob {cell.logprob:.3f} ({kind}) · {cell.bits:.1f} bits")
        bars = "".join(_bar(cell, *one) for one in cell.listed)
        body = f'<div>{numbers} · {rank}</div><div style="margin-top:4px">{bars}</div>'
    number = f" · id {row.token_id}" if row.token_id is not None else ""
    return (f'<div class="{name}-p{n}" style="display:none;border:1px solid {style.LINE};border-radius:6px;'
            f'padding:8px 12px;margin-top:10px"><div style="margin-bottom:2px"><b style="font-family:{style.MONO}">'
            f'{html.escape(token_label(row.token))}</b> <span style="color:{style.MUTED};font-size:12px">'
            f"{row.part}, token {row.position}{number}</span></div>"
            f'<div style="font-size:13px">{body}</div></div>')


def _bar(cell: Cell, token: str, value: float, rank: int | None) -> str:
    own = token == cell.row.token
    p = math.exp(value)
    colour = style.ORANGE if own else style.BLUE
    weight = "font-weight:600;" if own else ""
    place = "" if rank is None else f"{rank}"
    mark = " ◀ stands in the text" if own else ""
    fill = f"display:block;height:9px;border-radius:3px;background:{colour};width:{100 * p:.1f}%"
    name = f"{weight}font-family:{style.MONO};overflow:hidden;text-overflow:ellipsis;white-space:nowrap"
    return (f'<div style="display:grid;grid-template-columns:34px 120px 1fr 170px;gap:8px;align-items:center;'
            f'font-size:12px"><span style="color:{style.MUTED};text-align:right">{place}</span>'
            f'<span style="{name}">{html.escape(token_label(token))}</span>'
            f'<span style="background:{TRACK};border-radius:3px;height:9px"><span style="{fill}"></span></span>'
            f'<span style="font-variant-numeric:tabular-nums;white-space:nowrap">{percent(p)}{mark}</span></div>')


def _sums(drawn: Sequence[Cell], kind: str) -> str:
    lines = []
    for part in ("prompt", "completion"):
        rows = [Row(part, 0, "", cell.logprob) for cell in drawn if cell.row.part == part]
        known = [row for row in rows if row.logprob is not None]
        if known:
            value = perplexity(known)
            shown = "∞" if math.isinf(value) else f"{value:,.1f}"
            bits = "∞" if math.isinf(value) else f"{math.log2(value):.2f}"
            label = kind if part == "completion" else "raw"
            lines.append(f"{part}: perplexity <b>{shown}</b> ({bits} bits a token, {len(known)} tokens, {label})")
    return f'<div style="font-size:13px;margin-top:10px">{" · ".join(lines)}</div>'
