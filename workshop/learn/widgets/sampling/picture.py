"""The pictures of the sampling explorer: bars of the next token, texts side by side, twenty at once. Pure: text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from workshop.learn.html import Html, between, bold, div, join, legend, muted, panel, span, table, tag
from workshop.learn.numbers import percent
from workshop.learn.widgets.sampling.bars import Bar, Bars
from workshop.learn.widgets.sampling.source import Completion
from workshop.learn.widgets.sampling.words import spoken, token_label
from workshop.use.sampling import Step
from workshop.use.sampling_settings import Settings

MANY, MAX_TOKENS = 20, 24
NOTE = "A seed fixes the luck, not the text: while the luckiest token is the same under both, the texts agree; from the first difference they go apart."


def picture(drawn: Bars) -> Html:
    """Return the bars, with their numbers as text for those who cannot see them."""
    said = ", ".join(f"{spoken(row.label)} {percent(row.sampled)}" for row in drawn.rows[:6] if row.sampled)
    keys = [("edge", "the model's probability"), ("bg-blue", "what is sampled")]
    if drawn.others.pinned is not None:
        keys.append(("bg-orange", "with the pinned settings"))
    rows = [_row(row, drawn.axis) for row in drawn.rows]
    if drawn.others.model > 5e-5 or drawn.others.sampled > 5e-5:
        rows.append(_row(drawn.others, drawn.axis, others=True))
    marks = div(span("0"), span(percent(drawn.axis / 2)), span(percent(drawn.axis)), cls="axis")
    bars = div(span(), marks, span(), *rows, cls="tokens")
    return panel(legend(keys), bars, _foot(drawn), label=f"Next token: {said}")


def _row(row: Bar, axis: float, *, others: bool = False) -> Html:
    quiet = " ink-muted" if others or row.sampled == 0 else ""
    times = ""
    if row.generated:
        times = span(f" ×{row.generated}", cls="ink-orange", title=f"generated {row.generated} times")
    look, label = f"name cut{' others' if others else ''}{quiet}", row.label if others else token_label(row.label)
    name = div(label, times, cls=look, title=spoken(row.label))
    return join([name, _track(row, axis, others), div(percent(row.sampled), cls=f"number{quiet}")])


def _track(row: Bar, axis: float, others: bool) -> Html:
    """The model's bar as an outline, the sampled one filled inside it, the pinned one thin below."""
    parts = []
    if row.sampled > 0:
        parts.append(_bar(row.sampled, axis, "bg-grey" if others else "bg-blue"))
    if row.pinned:
        parts.append(_bar(row.pinned, axis, "pin"))
    parts.append(_bar(row.model, axis, "model"))
    if row.sampled > axis:
        parts.append(span("▶", cls="over", title="longer than the axis"))
    if row.removed_by:
        why = "not the best: greedy" if row.removed_by == "temperature" else f"cut by {row.removed_by}"
        parts.append(span(why, cls="why", style=f"left:calc({_percent(row.model, axis)} + 6px)"))
    return div(*parts, cls="track" if row.pinned is None else "track two")


def _bar(p: float, axis: float, look: str) -> Html:
    return Html(f'<i class="{look}" style="width:{_percent(p, axis)}"></i>')


def _percent(p: float, axis: float) -> str:
    return f"{100 * min(p / axis, 1.0):.2f}%"


def _foot(drawn: Bars) -> Html:
    """The chain of parameters with the tokens left, and how much is left to chance."""
    links = [span(tag("code", name), " ", bold(f"{left:,}"), cls="whole") for name, left in drawn.chain]
    before, after = drawn.bits
    many = f"{2**after:,.1f}" if 2**after < 9.95 else f"{2**after:,.0f}"
    said = [f"Uncertainty: {before:.1f} → {after:.1f} bits, as much as {many} equally likely tokens."]
    if drawn.outside:
        said.append(f"{percent(drawn.outside)} of the model's probability lies on tokens that are not listed.")
    if drawn.border:
        which = "which of them vLLM keeps depends on its sort"
        said.append(f"{drawn.border} tokens of exactly equal probability stand at the border of top_p; {which}.")
    return muted(div("Tokens left: ", *between(" → ", links)), *map(div, said))


def head(about: str, model: Step, listed: int) -> Html:
    """Return one line: whose distribution this is, and how much of it is listed."""
    seen = f"the {listed:,} most probable tokens" if model.outside else f"{listed:,} tokens, its whole vocabulary"
    return panel(muted(f"{about} · {seen}."))


def story(prompt: str, tokens: Sequence[str]) -> Html:
    """Return the prompt, then every generated token with its border visible."""
    chips = [span(text or "·", cls="token") for text in tokens]
    return panel(div(span(prompt, cls="ink-muted"), *chips, span("\u200b", cls="cursor"), cls="story"))


def in_words(settings: Settings) -> str:
    """Return what is switched on: `temperature 0.7, top_p 0.9`."""
    return ", ".join(f"{name} {value:g}" for name, value in settings.request().items())


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Return how many tokens two texts share at their beginning."""
    return next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def side_by_side(pairs: list[tuple[int, Completion, Completion]], a: Settings, b: Settings) -> Html:
    """Return a table: seed, the text under A, the text under B, with what differs marked."""
    heads = [join([f"{name}: ", tag("code", in_words(each))]) for name, each in (("A", a), ("B", b))]
    rows, same = [], sum(one.tokens == other.tokens for _, one, other in pairs)
    for seed, one, other in pairs:
        shared = common_length(one.tokens, other.tokens)
        rows.append((seed, _text(one, shared, "a"), _text(other, shared, "b")))
    note = f"{same} of {len(pairs)} seeds gave the same text. {NOTE}"
    return panel(div(table(("seed", *heads), rows, "pair"), cls="scroll"), muted(note, cls="gap"))


def _text(one: Completion, shared: int, look: str) -> Html:
    before, after = "".join(one.tokens[:shared]), "".join(one.tokens[shared:])
    return join([span(before, cls="ink-muted"), span(after, cls=look)])


def completions(found: list[Completion], settings: Settings) -> Html:
    """Return the list, equal ones counted, with the diversity above."""
    counts, firsts = Counter(one.text for one in found), {one.tokens[:1] for one in found}
    used = {word.strip(".,;:!?\"'()").lower() for one in found for word in one.text.split()}
    same = ["Temperature 0: one completion stands for all, they would be the same."]
    words = f" differ · {len(firsts)} different first tokens · {len(used)} different words"
    top = same if settings.greedy else [bold(f"{len(counts)} of {len(found)}"), words]
    ended = {one.text for one in found if one.ended}
    lines = []
    for text, n in counts.most_common():
        end = span(" ■" if text in ended else " …", cls="ink-muted")
        lines.append(tag("li", span(f"{n} ×" if n > 1 else "", cls="ink-muted"), span(text, end)))
    about = f" with {in_words(settings)}; ■ the model ended, … cut at {MAX_TOKENS} tokens"
    return panel(div(*top, span(about, cls="ink-muted")), tag("ul", *lines, cls="completions"))
