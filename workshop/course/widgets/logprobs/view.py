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
from workshop.client.sampling_settings import Settings
from workshop.course.html import BR, Html, alert, bold, div, join, muted, panel, span, tag
from workshop.course.numbers import counted, percent
from workshop.course.widgets import style
from workshop.course.widgets.controls import Explorer, button, in_a_row, made, real, whole
from workshop.course.widgets.sampling.picture import spoken, token_label
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.client.client import Client

LONGEST_LIST = 12
MOST_BITS = 13.0  # the darkest shade: one token of 8,192
RANKS = (
    (1, style.GREEN, "1: the most probable"),
    (5, style.SKY, "2 to 5"),
    (20, style.YELLOW, "6 to 20"),
    (math.inf, style.VERMILLION, "beyond 20, or not listed"),
)
# bits, probability
STEPS = (1, "50 %"), (3.32, "10 %"), (6.64, "1 %"), (9.97, "0.1 %"), (13, "0.01 % or less")
SLIDERS = {  # name → kind, value, lowest, highest, step, width
    "temperature": (real, 1.0, 0, 2, 0.05, "235px"),
    "top_k": (whole, 0, 0, 20, 1, "235px"),
    "top_p": (real, 1.0, 0.01, 1, 0.01, "235px"),
    "frequency_penalty": (real, 0.0, -2, 2, 0.1, "290px"),
}
_names = itertools.count()
OWN_KEYS = (
    'data-lm-suppress-shortcuts="true"'  # arrow keys are the radio buttons', not JupyterLab's
)


def processed(rows: Iterable[Row], settings: Settings | None = None) -> list[Row]:
    """Return the rows; with settings the completion's logprobs are processed ones (the prompt has none)."""
    found, so_far = [], []
    for row in rows:
        if row.part == "completion":
            if settings is not None and row.alternatives and row.logprob is not None:
                now = logprobs.processed(row, settings, output_tokens=so_far)
                listed = tuple(replace(one, logprob=now[one.token]) for one in row.alternatives)
                row = replace(row, logprob=now[row.token], alternatives=listed)
            so_far.append(row.token)
        found.append(row)
    return found


def _listed(row: Row) -> list[logprobs.Alternative]:
    """Return the best alternatives and the text's own token; of several tokens with the same text the last one."""
    best_first = sorted(
        {one.token: one for one in row.alternatives}.values(), key=lambda one: -one.logprob
    )
    return [
        one
        for number, one in enumerate(best_first)
        if number < LONGEST_LIST or one.token == row.token
    ]


def picture(
    drawn: Sequence[Row], *, colour_by: str = "probability", name: str = "x", kind: str = "raw"
) -> Html:
    """Return the text, the plot, the panels of all tokens and the perplexities.

    Args:
        colour_by: "probability" or "rank".
        name: unique in the page; the radio buttons and the CSS need it.
        kind: "raw" or "processed", for the captions.
    """
    first = next((number for number, row in enumerate(drawn) if row.part == "completion"), 0)
    said, rules, radios = [], [], []
    for n, row in enumerate(drawn):
        said.append(escape(f"{row.part} token {spoken(row.token)}: {_likelihood(row)}"))
        # The chosen token's panel is shown, and the token and its bar have an edge.
        rules.append(f"#{name}-{n}:checked~div .{name}-p{n}{{display:block}}")
        rules.append(f"#{name}-{n}:checked~div .{name}-t{n}{{outline:2px solid var(--text)}}")
        rules.append(f"#{name}-{n}:focus-visible~div .{name}-t{n}{{outline:3px solid var(--blue)}}")
        own = f'id="{name}-{n}" {"checked" if n == first else ""} {OWN_KEYS} aria-label="{said[n]}"'
        radios.append(f'<input type="radio" name="{name}" {own}>')
    panels = div(Html("".join(_panel(row, n, name, kind) for n, row in enumerate(drawn))))
    parts = (
        _legend(colour_by),
        _text(drawn, colour_by, name),
        _plot(drawn, said, name, kind),
        panels,
    )
    chosen = div(Html("".join(radios)), *parts, _sums(drawn, kind), cls="choose")
    return panel(Html(f"<style>{''.join(rules)}</style>"), chosen)


def _likelihood(row: Row) -> str:
    """Return how probable a token was, as a screen reader says it."""
    if row.probability is None:
        return "no logprob"
    return f"{percent(row.probability)}, {row.surprise_bits:.1f} bits"


def shade(row: Row, colour_by: str) -> str:
    """Return the colour of a token: the more surprising, the stronger; no logprob, none."""
    bits = row.surprise_bits
    if bits is None:
        return "transparent"
    if colour_by == "rank":
        rank = math.inf if row.rank is None else row.rank
        return next(colour for limit, colour, _ in RANKS if rank <= limit) + "66"
    return surprise_colour(bits) if bits > 0.25 else "transparent"


def surprise_colour(bits: float) -> str:
    """Return orange, the stronger the more bits; never so strong that text on it gets hard to read."""
    return f"{style.ORANGE}{round(16 + 130 * min(1.0, bits / MOST_BITS)):02x}"


def _legend(colour_by: str) -> Html:
    ranks = [(f"{colour}66", words) for _, colour, words in RANKS]
    keys = (
        ranks if colour_by == "rank" else [(surprise_colour(bits), words) for bits, words in STEPS]
    )
    shown = (
        span(tag("i", cls="key", style=f"background:{colour}"), words) for colour, words in keys
    )
    return muted(f"{colour_by.capitalize()} ", *shown, cls="legend")


def _text(drawn: Sequence[Row], colour_by: str, name: str) -> Html:
    """The tokens, prompt and completion apart; each may be clicked."""
    lines = []
    for part in ("prompt", "completion"):
        chips = "".join(
            _chip(n, row, colour_by, name) for n, row in enumerate(drawn) if row.part == part
        )
        if chips:
            lines.append(div(span(part, cls="note"), div(Html(chips), cls="text"), cls="part"))
    return div(*lines, role="presentation")


def _chip(n: int, row: Row, colour_by: str, name: str) -> str:
    text = row.token
    plain = "�" not in text and text.strip()
    shown = text.replace("\n", "⏎\n") if plain else token_label(text)
    if not text or "�" in text:  # a piece of an emoji; or the first token, whose text nobody sends
        shown = "⟨start⟩" if row.logprob is None else "▯"
    look = f"{name}-t{n}{'' if plain else ' odd'}{' breaks' if chr(10) in text else ''}"
    listed = "; ".join(
        f"{token_label(one.token)} {percent(math.exp(one.logprob))}" for one in _listed(row)[:5]
    )
    own = f'class="{look}" title="{escape(listed)}" style="background:{shade(row, colour_by)}"'
    return f'<label for="{name}-{n}" {own}>{escape(shown)}</label>'


def _plot(drawn: Sequence[Row], said: Sequence[str], name: str, kind: str) -> Html:
    """Surprise a token: one bar each, in the text's order; clickable like the tokens."""
    surprises = [row.surprise_bits or 0.0 for row in drawn]
    top, bars = max([4.0, *filter(math.isfinite, surprises)]), []
    for n, (row, bits) in enumerate(zip(drawn, surprises, strict=True)):
        edge = ' class="next-part"' if n and row.part != drawn[n - 1].part else ""
        look = (
            "too-much" if math.isinf(bits) else "bg-blue" if row.part == "completion" else "bg-grey"
        )
        bar = f'<i class="{name}-t{n} {look}" style="height:{100 * min(bits, top) / top:.1f}%"></i>'
        bars.append(f'<label for="{name}-{n}" title="{said[n]}"{edge}>{bar}</label>')
    axis = span(f"surprise, {kind}", BR, f"{top:.0f} bits", cls="note")
    return div(axis, div(Html("".join(bars)), cls="surprise"), cls="part")


def _panel(row: Row, n: int, name: str, kind: str) -> str:
    """What is known of one token: its numbers, and bars of its alternatives."""
    kind = kind if row.part == "completion" else "raw"  # a prompt is not sampled
    body = "The first token has no logprob: nothing stands before it that could predict it."
    if row.logprob is not None and row.probability is not None:
        unknown = f", below the {len(row.alternatives) - 1} best"
        unknown = unknown if len(row.alternatives) > 1 else ": no alternatives were asked for"
        p = f"{percent(row.probability)} · logprob {row.logprob:.3f} ({kind}) · {row.surprise_bits:.1f} bits"
        numbers = (
            f"logprob −∞ ({kind}): these settings never sample it" if math.isinf(row.logprob) else p
        )
        body = escape(f"{numbers} · rank {row.rank or 'unknown' + unknown}")
        body += "".join(_alternative(one, own=one.token == row.token) for one in _listed(row))
    number = escape(f" · id {row.token_id}") if row.token_id is not None else ""
    head = f'<b class="mono">{escape(token_label(row.token))}</b> <span class="note">{row.part}, token {row.position}'
    return f'<div class="{name}-p{n} one-token"><div>{head}{number}</span></div>{body}</div>'


def _alternative(one: logprobs.Alternative, own: bool) -> str:
    p = math.exp(one.logprob)
    mark = " ◀ stands in the text" if own else ""
    bar = f'<span><i style="width:{100 * p:.1f}%"></i></span>'
    name = f'<span class="mono cut">{escape(token_label(one.token))}</span>'
    said = f'<span class="number">{percent(p)}{mark}</span>'
    return f'<div class="rank{" own" * own}"><span>{escape(str(one.rank or ""))}</span>{name}{bar}{said}</div>'


def _sums(drawn: Sequence[Row], kind: str) -> Html:
    lines = []
    for part in ("prompt", "completion"):
        known = [row for row in drawn if row.part == part and row.logprob is not None]
        if known:
            value = logprobs.perplexity(known)
            shown, bits = (
                (f"{value:,.1f}", f"{math.log2(value):.2f}") if math.isfinite(value) else ("∞", "∞")
            )
            about = f" ({bits} bits a token, {counted(len(known), 'token')}, {kind if part == 'completion' else 'raw'})"
            lines += [" · ", f"{part}: perplexity ", bold(shown), about]
    return div(join(lines[1:]), cls="sums")


class LogprobsViewer(Explorer[list[Row]]):
    """A text, each token coloured by what the model thought of it; click one for its logprob, rank and alternatives.

    Below stand the surprise of each token (bits: −log2 of its probability) and the perplexity of prompt and
    completion (2 to the mean bits). "processed" shows the logprobs after temperature, top_k, top_p and a penalty.

    >>> from workshop import LogprobsViewer, connect
    >>> llm = connect()
    >>> answer = llm.complete("San Francisco is a", max_tokens=12, logprobs=5, prompt_logprobs=5)
    >>> viewer = LogprobsViewer(answer)         # or LogprobsViewer(llm), with a prompt to type
    >>> "perplexity" in viewer.picture.value
    True

    Args:
        source: a response with logprobs, rows, or a client to ask with.
        prompt: what the prompt field holds at first (with a client).
        k: how many alternatives to ask for (with a client).
    """

    def __init__(
        self,
        source: Client | Iterable[Row] | object,
        prompt: str = "San Francisco is a",
        k: int = 8,
    ):
        self.client: Client | None = source if _is_client(source) else None
        self.rows = [] if self.client else _rows(source)
        self._name = f"lp{next(_names)}"
        self.banner = widgets.HTML()
        self.form = self._make_form(prompt, k) if self.client else ()
        about = ["what the model says", "after the sampling parameters, computed"]
        self.colour = made(
            widgets.ToggleButtons, "colour by", "probability", options=["probability", "rank"]
        )
        self.kind = made(
            widgets.ToggleButtons, "logprobs", "raw", options=["raw", "processed"], tooltips=about
        )
        for buttons in (self.colour, self.kind):
            buttons.style.button_width = "auto"
        sliders = {
            name: make(name, *where, width=width) for name, (make, *where, width) in SLIDERS.items()
        }
        super().__init__({"colour": self.colour, "kind": self.kind, **sliders}, max_width="1000px")
        if self.client:
            self.ask()

    def arranged(self) -> tuple[widgets.Widget, ...]:
        self.processing = in_a_row(*(self.controls[name] for name in SLIDERS))
        return (
            *self.form,
            in_a_row(self.colour, self.kind),
            self.processing,
            self.banner,
            self.picture,
        )

    def _make_form(self, prompt: str, k: int) -> tuple[widgets.Widget, ...]:
        self.prompt = made(widgets.Textarea, "prompt", prompt, "100%", rows=2)
        self.max_tokens = made(widgets.BoundedIntText, "max_tokens", 16, "150px", min=1, max=512)
        self.k = made(widgets.BoundedIntText, "logprobs", k, "140px", min=0, max=1000)
        limits = {"min": 0, "max": 2, "step": 0.1}
        self.ask_temperature = made(widgets.BoundedFloatText, "temperature", 1.0, "160px", **limits)
        self.seed = made(widgets.IntText, "seed", 1, "110px")
        complete = button("Complete", self.ask, button_style="primary", icon="play")
        return self.prompt, in_a_row(
            complete, self.max_tokens, self.k, self.ask_temperature, self.seed
        )

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
            self.show(logprobs.rows(response, k=k))
        except WorkshopError as error:
            self.banner.value = alert(error)

    def show(self, source: object) -> None:
        """Show a response, or rows; BadInput if it has no logprobs."""
        self.rows = _rows(source)
        self.banner.value = ""
        self.draw()

    @property
    def settings(self) -> Settings | None:
        """What the processed logprobs are processed with; None while raw ones are shown."""
        if self.kind.value == "raw":
            return None
        values = self.values
        return Settings(**{name: values[name] for name in SLIDERS})

    def compute(self) -> list[Row]:
        self.processing.layout.display = "none" if self.kind.value == "raw" else ""
        return processed(self.rows, self.settings)

    def picture_of(self, result: list[Row]) -> str:
        if not result:
            return ""
        values = self.values
        return picture(result, colour_by=values["colour"], name=self._name, kind=values["kind"])


def _is_client(source: object) -> TypeGuard[Client]:
    return hasattr(source, "openai")


def _rows(source: Iterable[Row] | object) -> list[Row]:
    return list(source) if isinstance(source, list | tuple) else logprobs.rows(source)
