"""The logprobs viewer: a text coloured by what the model thought of each token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape
from typing import TYPE_CHECKING, TypeGuard

import ipywidgets as widgets

from workshop.client import logprobs
from workshop.client.logprobs import Row
from workshop.course.drawing.html import Html, alert, bold, div, join, muted, panel, span, tag
from workshop.course.drawing.readable_numbers import counted, percent
from workshop.course.widgets import style
from workshop.course.widgets.controls import View, button, in_a_row, made
from workshop.course.widgets.sampling.picture import spoken, token_label
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.client.client import Client

LONGEST_LIST = 12
MOST_LETTERS_BELOW_BARS = 160  # two lines of a notebook
WORDS_BELOW = 3  # bars of a long text that have their token below
MOST_BITS = 13.0  # the darkest shade: one token of 8,192
# bits, probability
STEPS = ((1, "50 %"), (3.32, "10 %"), (6.64, "1 %"), (9.97, "0.1 %"), (13, "0.01 % or less"))
_names = itertools.count()
# Arrow keys are the radio buttons', not JupyterLab's.
OWN_KEYS = 'data-lm-suppress-shortcuts="true"'


def _listed(row: Row) -> list[logprobs.Alternative]:
    """Return the best alternatives and the text's own token.

    Of several tokens with the same text the last one counts.
    """
    by_text = {token.token: token for token in row.alternatives}
    best_first = sorted(by_text.values(), key=lambda token: -token.logprob)
    listed = best_first[:LONGEST_LIST]
    for token in best_first[LONGEST_LIST:]:
        if token.token == row.token:
            listed.append(token)
    return listed


def picture(drawn: Sequence[Row], name: str, *, has_sums: bool) -> Html:
    """Return the text, the bars, the panels of all tokens and, with `has_sums`, the perplexities.

    `name` is unique in the page; the radio buttons and the CSS need it.
    """
    rules, radios, panels = [], [], []
    shown_first = _shown_first(drawn)
    for n, row in enumerate(drawn):
        # The chosen token's panel is shown, and the token and its bar have an edge.
        rules.append(f"#{name}-{n}:checked~div .{name}-p{n}{{display:block}}")
        rules.append(f"#{name}-{n}:checked~div .{name}-t{n}{{outline:2px solid var(--text)}}")
        rules.append(f"#{name}-{n}:focus-visible~div .{name}-t{n}{{outline:3px solid var(--blue)}}")
        checked = ""
        if n == shown_first:
            checked = "checked"
        own = f'id="{name}-{n}" {checked} {OWN_KEYS} aria-label="{_label(row)}"'
        radios.append(f'<input type="radio" name="{name}" {own}>')
        panels.append(_panel(row, n, name))
    bars = _Bars(drawn, name)
    if bars.stand_on_tokens:
        text = (_text(drawn, name, bars),)
    else:
        text = (_text(drawn, name), bars.plot())
    chosen = [Html("".join(radios)), _legend(), *text, div(Html("".join(panels)))]
    if has_sums:
        chosen.append(_sums(drawn))
    return panel(Html(f"<style>{''.join(rules)}</style>"), div(*chosen, cls="choose"))


def _shown_first(rows: Sequence[Row]) -> int:
    """Return the place of the most surprising token of the prompt.

    Without one it is the first generated token, or 0.
    """
    surprises = {}
    for place, row in enumerate(rows):
        if row.part == "prompt" and row.surprise_bits is not None:
            surprises[place] = row.surprise_bits
    if surprises:
        return max(surprises, key=surprises.__getitem__)
    for place, row in enumerate(rows):
        if row.part == "completion":
            return place
    return 0


def _label(row: Row) -> str:
    """Return what a screen reader says of a token, as an attribute."""
    return escape(f"{row.part} token {spoken(row.token)}: {_likelihood(row)}")


def _likelihood(row: Row) -> str:
    """Return how probable a token was, as a screen reader says it."""
    if row.probability is None:
        return "no logprob"
    return f"{percent(row.probability)}, {row.surprise_bits:.1f} bits"


def shade(row: Row) -> str:
    """Return the colour of a token: the more surprising, the stronger; no logprob, none."""
    bits = row.surprise_bits
    if bits is None or bits <= 0.25:
        return "transparent"
    return surprise_colour(bits)


def surprise_colour(bits: float) -> str:
    """Return orange, the stronger the more bits.

    It is never so strong that text on it gets hard to read.
    """
    return f"{style.ORANGE}{round(16 + 130 * min(1.0, bits / MOST_BITS)):02x}"


def _legend() -> Html:
    items = []
    for bits, probability in STEPS:
        key = tag("i", cls="key", style=f"background:{surprise_colour(bits)}")
        items.append(span(key, probability))
    return muted("Probability ", *items, cls="legend")


class _Bars:
    """The bars of a text: how surprising its tokens are, on one scale.

    Those of a short text stand on its tokens. Those of a longer one have a plot of their own.
    """

    def __init__(self, drawn: Sequence[Row], name: str):
        self.drawn = drawn
        self.name = name
        self.surprises = [row.surprise_bits or 0.0 for row in drawn]
        self.top = max([4.0, *filter(math.isfinite, self.surprises)])
        letters = sum(len(row.token) for row in drawn)
        has_lines = any("\n" in row.token for row in drawn)
        self.stand_on_tokens = letters <= MOST_LETTERS_BELOW_BARS and not has_lines

    def bar(self, n: int) -> str:
        """Return the bar of a token: in the colour of the token, and grey where that has none."""
        bits = self.surprises[n]
        height = 100 * min(bits, self.top) / self.top
        look, colour = "bg-grey", ""
        background = shade(self.drawn[n])
        if math.isinf(bits):
            look = "too-much"
        elif background != "transparent":
            edge = background[: len("#rrggbb")]
            look, colour = "", f";background:{background};box-shadow:inset 0 0 0 1px {edge}"
        return f'<i class="{self.name}-t{n} {look}" style="height:{height:.1f}%{colour}"></i>'

    def above(self, n: int) -> str:
        """Return the bar that stands on a token."""
        return f'<span class="token-bar" title="{_label(self.drawn[n])}">{self.bar(n)}</span>'

    def scale(self, *below: str) -> Html:
        """Return what stands to the left of bars: the number at the dotted line, and what they count."""
        names = [span(name) for name in (f"{self.top:.0f} bits", "surprise", *below)]
        return span(*names, cls="note beside-bars")

    def plot(self) -> Html:
        """One bar for each token, in the text's order; clickable like the tokens."""
        below = self._below()
        bars = []
        for n, row in enumerate(self.drawn):
            edge = ""
            if n > 0 and row.part != self.drawn[n - 1].part:
                edge = ' class="next-part"'
            label = f'<label for="{self.name}-{n}" title="{_label(row)}"{edge}>'
            bars.append(f"{label}{self.bar(n)}{below.get(n, '')}</label>")
        return div(self.scale(), div(Html("".join(bars)), cls="surprise"), cls="part")

    def _below(self) -> dict[int, str]:
        """Return, by place, the tokens below the highest bars, each on a line of its own."""
        places = range(len(self.drawn))
        highest = sorted(places, key=self.surprises.__getitem__)[-WORDS_BELOW:]
        below = {}
        for level, n in enumerate(sorted(highest)):
            side = "left"
            if n > len(self.drawn) / 2:
                side = "right"
            word = escape(token_label(self.drawn[n].token).strip("·"))
            below[n] = f'<span style="{side}:0;margin-top:{1 + 14 * level}px">{word}</span>'
        return below


def _text(drawn: Sequence[Row], name: str, bars: _Bars | None = None) -> Html:
    """The tokens, prompt and completion apart; each may be clicked. Bars may stand on them."""
    lines = []
    for part in ("prompt", "completion"):
        chips = []
        for n, row in enumerate(drawn):
            if row.part == part:
                bar = ""
                if bars is not None:
                    bar = bars.above(n)
                chips.append(_chip(n, row, name, bar))
        if not chips:
            continue
        text = Html("".join(chips))
        if bars is None:
            lines.append(div(span(part, cls="note"), div(text, cls="text"), cls="part"))
        else:
            lines.append(div(bars.scale(part), div(text, cls="text with-bars"), cls="part"))
    return div(*lines, role="presentation")


def _chip(n: int, row: Row, name: str, bar: str = "") -> str:
    text = row.token
    look = f"{name}-t{n}"
    if "�" not in text and text.strip():
        shown = text.replace("\n", "⏎\n")
    else:
        shown = token_label(text)
        look += " odd"
    if "\n" in text:
        look += " breaks"
    if not text or "�" in text:  # a piece of an emoji; or the first token, whose text nobody sends
        shown = "▯"
        if row.logprob is None:
            shown = "⟨start⟩"
    alternatives = []
    for token in _listed(row)[:5]:
        alternatives.append(f"{token_label(token.token)} {percent(math.exp(token.logprob))}")
    title = escape("; ".join(alternatives))
    own = f'class="{look}" title="{title}" style="background:{shade(row)}"'
    if bar:
        return f'<label for="{name}-{n}">{bar}<span {own}>{escape(shown)}</span></label>'
    return f'<label for="{name}-{n}" {own}>{escape(shown)}</label>'


def _panel(row: Row, n: int, name: str) -> str:
    """The numbers of one token, and bars of its alternatives."""
    body = "The first token has no logprob: nothing stands before it that could predict it."
    if row.logprob is not None and row.probability is not None:
        numbers = _numbers(row.logprob, row.probability, row.surprise_bits)
        body = escape(f"{numbers} · rank {row.rank or _unknown_rank(row)}")
        for token in _listed(row):
            body += _alternative(token, own=token.token == row.token)
    number = ""
    if row.token_id is not None:
        number = escape(f" · id {row.token_id}")
    head = f'<b class="mono">{escape(token_label(row.token))}</b>'
    head += f' <span class="note">{row.part}, token {row.position}{number}</span>'
    return f'<div class="{name}-p{n} one-token"><div>{head}</div>{body}</div>'


def _numbers(logprob: float, probability: float, bits: float | None) -> str:
    """Return a token's probability, logprob and surprise in words."""
    if math.isinf(logprob):
        return "logprob −∞: it is never sampled"
    return f"{percent(probability)} · logprob {logprob:.3f} · {bits:.1f} bits"


def _unknown_rank(row: Row) -> str:
    """Return what there is to say of the rank of a token that the server gave none."""
    others = len(row.alternatives) - 1
    if others > 0:
        return f"unknown, below the {others} best"
    return "unknown: no alternatives were asked for"


def _alternative(token: logprobs.Alternative, own: bool) -> str:
    p = math.exp(token.logprob)
    look, mark = "rank", ""
    if own:
        look, mark = "rank own", " ◀ stands in the text"
    rank = f"<span>{escape(str(token.rank or ''))}</span>"
    name = f'<span class="mono cut">{escape(token_label(token.token))}</span>'
    bar = f'<span><i style="width:{100 * p:.1f}%"></i></span>'
    number = f'<span class="number">{percent(p)}{mark}</span>'
    return f'<div class="{look}">{rank}{name}{bar}{number}</div>'


def _sums(drawn: Sequence[Row]) -> Html:
    """The perplexity of the prompt and of the completion, where their logprobs are there."""
    lines = []
    for part in ("prompt", "completion"):
        rows = [row for row in drawn if row.part == part and row.logprob is not None]
        if rows:
            perplexity = logprobs.perplexity(rows)
            number, bits = "∞", "∞"
            if math.isfinite(perplexity):
                number, bits = f"{perplexity:,.1f}", f"{math.log2(perplexity):.2f}"
            about = f" ({bits} bits per token, {counted(len(rows), 'token')})"
            lines += [" · ", f"{part}: perplexity ", bold(number), about]
    return div(join(lines[1:]), cls="sums")


class LogprobsViewer(View):
    """A text whose tokens are coloured by what the model thought of them.

    Click a token for its logprob, rank and alternatives.

    Bars show the surprise of each token (bits: −log2 of its probability), and below stands the
    perplexity of prompt and completion (2 to the mean bits). The most surprising token of the
    prompt is chosen at first.

    >>> from workshop import LogprobsViewer, connect
    >>> llm = connect()
    >>> answer = llm.complete("San Francisco is a", max_tokens=12, logprobs=5, prompt_logprobs=5)
    >>> viewer = LogprobsViewer(answer)         # or LogprobsViewer(llm), with a prompt to type
    >>> "perplexity" in viewer.picture.value
    True
    >>> simple = LogprobsViewer(llm, completion=False)      # a text to type, and nothing else

    Args:
        source: a response with logprobs, rows, or a client to ask with.
        prompt: what the prompt field holds at first (with a client).
        k: how many alternatives to ask for (with a client).
        completion: whether the completion, the fields for it and the perplexities are there, too.
    """

    def __init__(
        self,
        source: Client | Iterable[Row] | object,
        prompt: str = "San Francisco is a",
        k: int = 8,
        *,
        completion: bool = True,
    ):
        self.has_completion = completion
        self._name = f"lp{next(_names)}"
        self.banner = widgets.HTML()
        self.picture = widgets.HTML()
        self.client: Client | None = None
        form = ()
        if _is_client(source):
            self.client = source
            form = self._make_form(prompt, k)
        super().__init__(*form, self.banner, self.picture, max_width="1000px")
        if self.client:
            self.ask()
        else:
            self.show(source)

    def _make_form(self, prompt: str, k: int) -> tuple[widgets.Widget, ...]:
        self.prompt = made(widgets.Textarea, "prompt", prompt, "100%", rows=2)
        self.max_tokens = made(widgets.BoundedIntText, "max_tokens", 16, "150px", min=1, max=512)
        self.k = made(widgets.BoundedIntText, "logprobs", k, "140px", min=0, max=1000)
        limits = {"min": 0, "max": 2, "step": 0.1}
        self.ask_temperature = made(widgets.BoundedFloatText, "temperature", 1.0, "160px", **limits)
        self.seed = made(widgets.IntText, "seed", 1, "110px")
        if not self.has_completion:
            self.max_tokens.value = 1  # the least that a server takes
            show = button("Show", self.ask, button_style="primary", icon="play")
            return self.prompt, in_a_row(show)
        complete = button("Complete", self.ask, button_style="primary", icon="play")
        numbers = in_a_row(complete, self.max_tokens, self.k, self.ask_temperature, self.seed)
        return self.prompt, numbers

    def ask(self) -> None:
        """Send the prompt; keep the old picture if that fails."""
        if self.client is None:
            return
        try:
            if not self.prompt.value:
                raise BadInput("The prompt is empty.", "Type at least one character.")
            k = self.k.value
            response = self.client.complete(
                self.prompt.value,
                max_tokens=self.max_tokens.value,
                temperature=self.ask_temperature.value,
                seed=self.seed.value,
                logprobs=k,
                prompt_logprobs=k,
                return_token_ids=True,
                timeout=60,
            )
            rows = logprobs.rows(response, k=k)
            self.show(_with_first_text(rows, self.prompt.value))
        except WorkshopError as error:
            self.banner.value = alert(error)

    def show(self, source: object) -> None:
        """Show a response, or rows; BadInput if it has no logprobs."""
        rows = _rows(source)
        if not self.has_completion:
            rows = [row for row in rows if row.part == "prompt"]
        self.rows = rows
        self.banner.value = ""
        self.picture.value = picture(rows, self._name, has_sums=self.has_completion)


def _with_first_text(rows: list[Row], prompt: str) -> list[Row]:
    """Give the first token its text if the prompt begins with it: no server sends that text.

    Of a model that begins every text with a special token, the first token is no part of the prompt.
    """
    behind = "".join(row.token for row in rows[1:] if row.part == "prompt")
    if rows[0].token or not prompt.endswith(behind):
        return rows
    return [replace(rows[0], token=prompt.removesuffix(behind)), *rows[1:]]


def _is_client(source: object) -> TypeGuard[Client]:
    return hasattr(source, "openai")


def _rows(source: Iterable[Row] | object) -> list[Row]:
    if isinstance(source, list | tuple):
        return list(source)
    return logprobs.rows(source)
