"""The pictures of the sampling explorer: bars of the next token, texts side by side, twenty at once. Pure: text out.

A token keeps its row and the axis its end while sliders move: both come from the model's own distribution, which no
slider changes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from workshop.client.sampling import Pipeline, Step, Token, entropy_bits
from workshop.client.sampling_settings import LOWEST_TEMPERATURE, Settings
from workshop.course.html import (
    Html,
    between,
    bold,
    div,
    join,
    legend,
    muted,
    panel,
    span,
    table,
    tag,
)
from workshop.course.numbers import counted, percent
from workshop.course.widgets.sampling.source import Completion

ROWS, AXES = 14, (0.05, 0.1, 0.25, 0.5, 1.0)
MANY, MAX_TOKENS = 20, 24
NOTE = "A seed fixes the luck, not the text: while the luckiest token is the same under both, the texts agree; from the first difference they go apart."
USUAL = {
    "temperature": "Usual: 0 for facts and code, 0.7 for talk, 1 for variety.",
    "top_k": "Usual: off, or 20 to 50.",
    "top_p": "Usual: 0.9 to 0.95.",
    "min_p": "Usual: 0.02 to 0.1, often instead of top_p.",
    "frequency_penalty": "Usual: 0 to 0.5; more makes odd texts.",
    "presence_penalty": "Usual: 0 to 0.5.",
}


def token_label(text: str) -> str:
    """Return how a token is shown: spaces and line ends visible, and what is no text said in words."""
    if text == "":
        return "▯ (no text)"
    if "�" in text:
        return text.replace("�", "▯") + " (part of a character)"
    shown = text.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")
    return (
        "·" * (len(shown) - len(shown.lstrip(" "))) + shown.lstrip(" ")
        if shown.strip(" ")
        else "·" * len(shown)
    )


def spoken(text: str) -> str:
    """Return a token for a screen reader."""
    return text.replace("\n", " line end ").strip() or "space"


def words(settings: Settings, result: Pipeline, *, generated: int) -> dict[str, str]:
    """Return one sentence a parameter: what it does just now. generated: tokens so far, which the penalties count."""
    idle = "Nothing to do: greedy takes one token anyway." if settings.greedy else ""
    return {
        "temperature": _temperature(settings.temperature),
        "top_k": idle or _top_k(settings, result),
        "top_p": idle or _top_p(settings, result),
        "min_p": idle or _min_p(settings, result),
        "frequency_penalty": _penalty(
            settings.frequency_penalty, generated, "Each time a token has been generated"
        ),
        "presence_penalty": _penalty(
            settings.presence_penalty, generated, "Once for each token generated"
        ),
    }


def _temperature(value: float) -> str:
    if value == 0:
        return "Greedy: always the most probable token. The seed and the sliders below do nothing."
    if value == 1:
        return "The model's own probabilities, unchanged."
    odds = 2.0 ** (1 / max(value, LOWEST_TEMPERATURE))
    lead = (
        "more than a million to one"
        if odds > 1e6
        else f"{odds:,.0f}:1"
        if odds >= 10
        else f"{odds:.2g}:1"
    )
    how = "Sharper" if value < 1 else "Flatter"
    return f"{how}: where the model says 2:1 between two tokens, it is now {lead}."


def _top_k(settings: Settings, result: Pipeline) -> str:
    step, k = result.step("top_k"), settings.top_k
    if k <= 0:
        return "Off: any token may come."
    if step is None or step.removed == 0:
        return f"No more than {k:,} tokens were left anyway: it removes nothing."
    more = len(step.probabilities) - k
    ties = (
        f", {more} more because they tie with the last (on GPUs vLLM may keep exactly {k:,})"
        if more > 0
        else ""
    )
    before = result.steps[result.steps.index(step) - 1]
    held = math.fsum(before.probabilities[token] for token in step.probabilities) * before.seen
    return f"Only the {k:,} most probable may come{ties}; they held {percent(held)}."


def _top_p(settings: Settings, result: Pipeline) -> str:
    step, share = result.step("top_p"), percent(settings.top_p)
    if step is None:
        return "Off: the whole tail may come."
    left, tokens = len(step.probabilities), counted(len(step.probabilities), "token")
    if step.outside:
        return f"The smallest set that holds {share}: more tokens than the {left:,} listed here."
    if step.removed == 0:
        return f"All {tokens} that were left are needed to hold {share}: it removes nothing."
    return f"The smallest set that holds {share}: here {tokens}."


def _min_p(settings: Settings, result: Pipeline) -> str:
    step = result.step("min_p")
    if step is None:
        return "Off: no token is too improbable."
    before = result.steps[result.steps.index(step) - 1]
    floor = percent(settings.min_p * max(before.probabilities.values()) * before.seen)
    less = f"less than {percent(settings.min_p)} as probable as the best"
    return f"Removes what is {less}: below {floor}, {step.removed:,} tokens."


def _penalty(value: float, generated: int, when: str) -> str:
    if value == 0:
        return "Off: repeating costs nothing."
    effect = math.exp(-value)
    change = f"its odds × {effect:.2g}" if effect < 10 else f"its odds × {effect:.1f}"
    way = "lowers" if value > 0 else "raises"
    waiting = " Nothing has been generated yet, so it does nothing." if generated == 0 else ""
    return f"{when}, this {way} its logit by {abs(value):g}: {change}.{waiting}"


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
    rows: tuple[Bar, ...]
    axis: float  # the probability at the right end
    others: Bar
    result: Pipeline


def rows_shown(
    model: dict[Token, float], generated: Iterable[Token], count: int = ROWS
) -> list[Token]:
    """Return which tokens get a row: the model's most probable, and what was generated (penalties move these)."""
    ranked = sorted(model, key=model.__getitem__, reverse=True)  # nearly free: it arrives sorted
    shown = ranked[:count]
    for token in dict.fromkeys(reversed(list(generated))):
        if token in model and token not in shown and len(shown) < count + 2:
            shown.append(token)
    return shown


def bars(
    result: Pipeline,
    shown: list[Token],
    label: Callable[[Token], str],
    *,
    pinned: Pipeline | None = None,
    generated: Iterable[Token] = (),
) -> Bars:
    """Return what is to be drawn of one pipeline (and of a second one, for comparison); `generated` are tokens."""
    generated = list(generated)
    model = _share(result.steps[0])
    sampled = _share(result.steps[-1])
    of_pinned = _share(pinned.steps[-1]) if pinned else None
    rows = []
    for token in shown:
        removers = (step.name for step in result.steps if token not in step.probabilities)
        row = Bar(
            label(token),
            model(token),
            sampled(token),
            of_pinned(token) if of_pinned else None,
            removed_by=next(removers, ""),
            generated=generated.count(token),
        )
        rows.append(row)
    longest = max(row.model for row in rows)
    axis = next(end for end in AXES if end >= min(1.0, 1.5 * longest))
    others = Bar(
        "all others",
        _rest(row.model for row in rows),
        _rest(row.sampled for row in rows),
        _rest(row.pinned or 0.0 for row in rows) if of_pinned else None,
    )
    return Bars(tuple(rows), axis, others, result)


def _rest(shares: Iterable[float]) -> float:
    """Return what the shares leave of 1."""
    return max(0.0, 1.0 - sum(shares))


def _share(step: Step) -> Callable[[Token], float]:
    """Return a token's share of the whole distribution, what is not listed included."""
    return lambda token: step.probabilities.get(token, 0.0) * step.seen


def picture(drawn: Bars) -> Html:
    """Return the bars, with their numbers as text for those who cannot see them."""
    said = ", ".join(
        f"{spoken(row.label)} {percent(row.sampled)}" for row in drawn.rows[:6] if row.sampled
    )
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
        times = span(
            f" ×{row.generated}", cls="ink-orange", title=f"generated {row.generated} times"
        )
    look, label = (
        f"name cut{' others' if others else ''}{quiet}",
        row.label if others else token_label(row.label),
    )
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
        why = (
            "not the best: greedy"
            if row.removed_by == "temperature"
            else f"cut by {row.removed_by}"
        )
        parts.append(
            span(why, cls="why ink-bad", style=f"left:calc({_percent(row.model, axis)} + 6px)")
        )
    return div(*parts, cls="track" if row.pinned is None else "track two")


def _bar(p: float, axis: float, look: str) -> Html:
    return Html(f'<i class="{look}" style="width:{_percent(p, axis)}"></i>')


def _percent(p: float, axis: float) -> str:
    return f"{100 * min(p / axis, 1.0):.2f}%"


def _foot(drawn: Bars) -> Html:
    """The chain of parameters with the tokens left, and how much is left to chance."""
    steps, border = drawn.result.steps, len(drawn.result.border)
    links = [
        span(tag("code", each.name), " ", bold(f"{len(each.probabilities):,}"), cls="whole")
        for each in steps
    ]
    before, after = (entropy_bits(each.probabilities) for each in (steps[0], steps[-1]))
    many = f"{2**after:,.1f}" if 2**after < 9.95 else f"{2**after:,.0f}"
    said = [
        f"Uncertainty: {before:.1f} → {after:.1f} bits, as much as {many} equally likely tokens."
    ]
    if steps[0].outside:
        said.append(
            f"{percent(steps[0].outside)} of the model's probability lies on tokens that are not listed."
        )
    if border:
        which = "which of them vLLM keeps depends on its sort"
        said.append(
            f"{border} tokens of exactly equal probability stand at the border of top_p; {which}."
        )
    return muted(div("Tokens left: ", *between(" → ", links)), *map(div, said))


def head(about: str, model: Step, listed: int) -> Html:
    """Return one line: whose distribution this is, and how much of it is listed."""
    seen = (
        f"the {listed:,} most probable tokens"
        if model.outside
        else f"{listed:,} tokens, its whole vocabulary"
    )
    return panel(muted(f"{about} · {seen}."))


def story(prompt: str, tokens: Sequence[str]) -> Html:
    """Return the prompt, then every generated token with its border visible."""
    chips = [span(text or "·", cls="token") for text in tokens]
    return panel(
        div(span(prompt, cls="ink-muted"), *chips, span("\u200b", cls="cursor"), cls="story")
    )


def in_words(settings: Settings) -> str:
    """Return what is switched on: `temperature 0.7, top_p 0.9`."""
    return ", ".join(f"{name} {value:g}" for name, value in settings.request().items())


def side_by_side(pairs: list[tuple[int, Completion, Completion]], a: Settings, b: Settings) -> Html:
    """Return a table: seed, the text under A, the text under B, with what differs marked."""
    heads = [
        join([f"{name}: ", tag("code", in_words(each))]) for name, each in (("A", a), ("B", b))
    ]
    rows, same = [], sum(one.tokens == other.tokens for _, one, other in pairs)
    for seed, one, other in pairs:
        alike = takewhile(
            lambda pair: pair[0] == pair[1], zip(one.tokens, other.tokens, strict=False)
        )
        shared = len(list(alike))
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
