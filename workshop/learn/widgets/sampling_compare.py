"""Two panels of the explorer: the same seed under two settings, and 20 completions at once."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.learn.widgets.sampling_source import Completion
from workshop.use.sampling_settings import DEFAULTS, Settings

if TYPE_CHECKING:
    from workshop.learn.widgets.sampling_explorer import SamplingExplorer

MANY, MAX_TOKENS = 20, 24


def in_words(settings: Settings) -> str:
    """Return what is switched on: `temperature 0.7, top_p 0.9`."""
    return ", ".join(f"{name} {value:g}" for name, value in settings.request().items())


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many tokens two texts share at their beginning."""
    return next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def side_by_side_html(pairs: list[tuple[int, Completion, Completion]], a: Settings, b: Settings) -> str:
    """Return a table: seed, the text under A, the text under B, with the first difference marked."""
    head = "".join(f'<th style="text-align:left;padding:4px 10px;border-bottom:2px solid {colour}">{name}: '
                   f"<code>{html.escape(in_words(settings))}</code></th>"
                   for name, settings, colour in (("A", a, style.BLUE), ("B", b, style.ORANGE)))
    lines = [f'<tr><th style="padding:4px 10px 4px 0;text-align:left">seed</th>{head}</tr>']
    same = 0
    for seed, one, other in pairs:
        shared = common_length(one.tokens, other.tokens)
        same += one.tokens == other.tokens
        lines.append(f'<tr style="vertical-align:top"><td style="padding:4px 10px 4px 0">{seed}</td>'
                     f"{_cell(one, shared, style.BLUE)}{_cell(other, shared, style.ORANGE)}</tr>")
    note = (f"{same} of {len(pairs)} seeds gave the same text. A seed fixes the luck, not the text: while the "
            "luckiest token is the same under both, the texts agree; from the first difference they go apart.")
    return style.panel(f'<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:13px">'
                       f'{"".join(lines)}</table></div><div style="font-size:12px;color:{style.MUTED};margin-top:6px">'
                       f"{note}</div>")


def _cell(one: Completion, shared: int, colour: str) -> str:
    before, after = "".join(one.tokens[:shared]), "".join(one.tokens[shared:])
    return (f'<td style="padding:4px 10px;text-align:left;max-width:360px;overflow-wrap:anywhere">'
            f'<span style="color:{style.MUTED}">{html.escape(before)}</span>'
            f'<span style="border-bottom:2px solid {colour}">{html.escape(after)}</span></td>')


def diversity(completions: list[Completion]) -> dict[str, int]:
    """Return how many there are, how many differ, how many first tokens differ, and words used in all."""
    return {"completions": len(completions), "different": len({one.text for one in completions}),
            "first_tokens": len({one.tokens[:1] for one in completions}),
            "words": len({word.strip(".,;:!?\"'()").lower() for one in completions for word in one.text.split()})}


def completions_html(completions: list[Completion], settings: Settings) -> str:
    """Return the list, equal ones counted, with the diversity above."""
    counts = Counter(one.text for one in completions)
    found = diversity(completions)
    if settings.greedy:
        top = "Temperature 0: one completion stands for all, they would be the same."
    else:
        top = (f"<b>{found['different']} of {found['completions']}</b> differ · {found['first_tokens']} different "
               f"first tokens · {found['words']} different words")
    ended = {one.text for one in completions if one.ended}
    lines = "".join(
        f'<li style="display:flex;gap:10px;padding:2px 0;border-bottom:1px solid {style.LINE}">'
        f'<span style="min-width:30px;text-align:right;color:{style.MUTED}">{f"{count} ×" if count > 1 else ""}</span>'
        f'<span style="overflow-wrap:anywhere">{html.escape(text)}'
        f'<span style="color:{style.MUTED}">{" ■" if text in ended else " …"}</span></span></li>'
        for text, count in counts.most_common())
    legend = f"with {html.escape(in_words(settings))}; ■ the model ended, … cut at {MAX_TOKENS} tokens"
    return style.panel(f'<div>{top} <span style="color:{style.MUTED}">{legend}</span></div>'
                       f'<ul style="list-style:none;margin:6px 0 0;padding:0;font-size:13px">{lines}</ul>')


class _Panel(widgets.VBox):
    """A button, a picture, and what went wrong."""

    def __init__(self, explorer: SamplingExplorer, text: str, *controls: widgets.Widget):
        self.explorer, self.picture = explorer, widgets.HTML()
        self.button = widgets.Button(description=text, button_style="primary", layout=widgets.Layout(width="auto"))
        self.button.on_click(lambda _: self.run())
        row = widgets.HBox([self.button, *controls], layout=widgets.Layout(flex_flow="row wrap", align_items="center"))
        super().__init__([row, self.picture])

    def run(self) -> None:
        """Ask the source; say why if that fails."""
        self.button.disabled = True
        self.picture.value = style.panel(f'<span style="color:{style.MUTED}">…</span>')
        try:
            self.picture.value = self.work()
        except WorkshopError as error:
            from workshop.learn.widgets.sampling_explorer import complaint_html
            self.picture.value = complaint_html(error)
        finally:
            self.button.disabled = False

    def work(self) -> str:
        """Return the picture."""
        raise NotImplementedError

    def ask(self, settings: Settings, seed: int, n: int = 1) -> list[Completion]:
        """Ask for completions of what stands in the explorer."""
        return self.explorer.source.complete(self.explorer.prompt.value, tuple(self.explorer.output), settings,
                                             n=n, seed=seed, max_tokens=MAX_TOKENS)


class SameSeedPanel(_Panel):
    """A is where the sliders stand, B what was pinned (or the model's own distribution)."""

    SEEDS = 5

    def __init__(self, explorer: SamplingExplorer):
        self.which = widgets.HTML()
        super().__init__(explorer, f"Run both with seeds 1 to {self.SEEDS}", self.which)
        self.refresh()

    def refresh(self) -> None:
        """Say what B is."""
        other = self.explorer.pinned
        text = "the model’s own distribution (pin other settings to compare with those)" if other is None \
            else in_words(other)
        self.which.value = style.panel(f'<span style="font-size:12px;color:{style.MUTED}">A: the sliders; '
                                       f"B: {html.escape(text)}</span>")

    def work(self) -> str:
        a, b = self.explorer.settings, self.explorer.pinned or DEFAULTS
        if self.explorer.source.live:
            pairs = [(seed, self.ask(a, seed)[0], self.ask(b, seed)[0]) for seed in range(1, self.SEEDS + 1)]
        else:   # one request was recorded with n=20: its i-th answer has seed + i
            n = self.SEEDS
            one, other = (self.ask(settings, 1, n) * (n if settings.greedy else 1) for settings in (a, b))
            pairs = [(seed + 1, x, y) for seed, (x, y) in enumerate(zip(one, other, strict=True))]
        return side_by_side_html(pairs, a, b)


class CompletionsPanel(_Panel):
    """Twenty at once: n=20 in one request."""

    def __init__(self, explorer: SamplingExplorer):
        super().__init__(explorer, f"Write {MANY} completions")

    def work(self) -> str:
        settings = self.explorer.settings
        return completions_html(self.ask(settings, self.explorer.seed.value, MANY), settings)
