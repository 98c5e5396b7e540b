"""The pictures of the sampling explorer: the branching and bars of the next token, and the text.

The functions are pure: numbers in, HTML out. A token keeps its row while sliders move: the order
comes from the model's own distribution, which no slider changes. The axis fits the longest bar.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workshop.client.sampling import Pipeline, SampledStep, Token, entropy_bits
from workshop.client.sampling_settings import LOWEST_TEMPERATURE, Settings
from workshop.course.drawing.html import (
    Html,
    between,
    bold,
    div,
    join,
    legend,
    muted,
    panel,
    span,
    tag,
)
from workshop.course.drawing.readable_numbers import counted, percent
from workshop.course.widgets.sampling.branching import Word, branching

ROWS = 8
AXES = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # where the axis of probabilities may end
HAIRLINE = 0.02  # of the axis: 2 pixels or less, of which an outline would leave a dark line
PROMPT_SHOWN = 160  # characters: the box above has the whole prompt
USUAL = {
    "temperature": "Usual: 0 for facts and code, 0.7 for talk, 1 for variety.",
    "top_k": "Usual: off, or 20 to 50.",
    "top_p": "Usual: 0.9 to 0.95.",
    "min_p": "Usual: 0.02 to 0.1, often instead of top_p.",
    "frequency_penalty": "Usual: 0 to 0.5; more makes odd texts.",
    "presence_penalty": "Usual: 0 to 0.5.",
}


def token_label(text: str) -> str:
    """Return how a token is shown: with visible spaces and line ends.

    What is no text has a description.
    """
    if text == "":
        return "▯ (no text)"
    if "�" in text:
        return text.replace("�", "▯") + " (part of a character)"
    shown = text.replace("\n", "⏎").replace("\t", "⇥").replace("\r", "␍")
    without_spaces = shown.lstrip(" ")
    leading_spaces = len(shown) - len(without_spaces)
    return "·" * leading_spaces + without_spaces


def spoken(text: str) -> str:
    """Return a token for a screen reader."""
    return text.replace("\n", " line end ").strip() or "space"


def effects(settings: Settings, result: Pipeline, *, generated: int) -> dict[str, str]:
    """Return a sentence for each parameter: what it does now.

    `generated` is the number of tokens so far, which the penalties count.
    """
    sentences = {"temperature": _temperature(settings.temperature)}
    if settings.greedy:
        idle = "Nothing to do: greedy takes one token anyway."
        sentences |= {"top_k": idle, "top_p": idle, "min_p": idle}
    else:
        sentences["top_k"] = _top_k(settings, result)
        sentences["top_p"] = _top_p(settings, result)
        sentences["min_p"] = _min_p(settings, result)
    sentences["frequency_penalty"] = _penalty(
        settings.frequency_penalty, generated, "Each time a token has been generated"
    )
    sentences["presence_penalty"] = _penalty(
        settings.presence_penalty, generated, "Once for each token generated"
    )
    return sentences


def _temperature(value: float) -> str:
    if value == 0:
        return (
            "Greedy: always the most probable token. The seed, min_p, top_k and top_p do nothing."
        )
    if value == 1:
        return "The model's own probabilities, unchanged."
    change = "Flatter"
    if value < 1:
        change = "Sharper"
    odds = _odds(2.0 ** (1 / max(value, LOWEST_TEMPERATURE)))
    return f"{change}: where the model says 2:1 between two tokens, it is now {odds}."


def _odds(odds: float) -> str:
    """Return odds against one in words: 1.4:1, 1,024:1."""
    if odds > 1e6:
        return "more than a million to one"
    if odds >= 10:
        return f"{odds:,.0f}:1"
    return f"{odds:.2g}:1"


def _top_k(settings: Settings, result: Pipeline) -> str:
    k = settings.top_k
    if k <= 0:
        return "Off: any token may come."
    step = result.step("top_k")
    if step is None or step.removed == 0:
        return f"No more than {k:,} tokens were left anyway: it removes nothing."
    before = _step_before(step, result)
    listed_share = math.fsum(before.probabilities[token] for token in step.probabilities)
    share = percent(listed_share * before.listed_share)
    # those that tie with the k-th included
    return f"Only the {len(step.probabilities):,} most probable may come; they held {share}."


def _step_before(step: SampledStep, result: Pipeline) -> SampledStep:
    """Return the step whose distribution this one changes."""
    return result.steps[result.steps.index(step) - 1]


def _top_p(settings: Settings, result: Pipeline) -> str:
    step = result.step("top_p")
    if step is None:
        return "Off: the whole tail may come."
    share = percent(settings.top_p)
    tokens_before = len(step.probabilities)
    tokens = counted(tokens_before, "token")
    if step.outside:
        more = f"more tokens than the {tokens_before:,} listed here"
        return f"The smallest set that holds {share}: {more}."
    if step.removed == 0:
        return f"All {tokens} that were left are needed to hold {share}: it removes nothing."
    return f"The smallest set that holds {share}: here {tokens}."


def _min_p(settings: Settings, result: Pipeline) -> str:
    step = result.step("min_p")
    if step is None:
        return "Off: no token is too improbable."
    before = _step_before(step, result)
    floor = percent(settings.min_p * max(before.probabilities.values()) * before.listed_share)
    less = f"less than {percent(settings.min_p)} as probable as the best"
    return f"Removes what is {less}: below {floor}, {step.removed:,} tokens."


def _penalty(value: float, generated: int, when: str) -> str:
    if value == 0:
        return "Off: repeating costs nothing."
    factor = math.exp(-value)
    odds = f"{factor:.1f}"
    if factor < 10:
        odds = f"{factor:.2g}"
    way = "raises"
    if value > 0:
        way = "lowers"
    sentence = f"{when}, this {way} its logit by {abs(value):g}: its odds × {odds}."
    if generated == 0:
        sentence += " Nothing has been generated yet, so it does nothing."
    return sentence


@dataclass(frozen=True)
class TokenBar:
    """One row: the model's probability and the sampled one."""

    token: Token | None
    label: str
    model: float
    sampled: float
    removed_by: str = ""
    generated: int = 0


@dataclass(frozen=True)
class Bars:
    rows: tuple[TokenBar, ...]
    axis: float  # the probability at the right end
    others: TokenBar
    result: Pipeline


def rows_shown(
    model: dict[Token, float], generated: Iterable[Token], count: int = ROWS
) -> list[Token]:
    """Return which tokens get a row: the model's most probable ones, and generated ones.

    Penalties change the generated ones.
    """
    ranked = sorted(model, key=model.__getitem__, reverse=True)  # nearly free: it arrives sorted
    shown = ranked[:count]
    latest_first = dict.fromkeys(reversed(list(generated)))  # each once
    for token in latest_first:
        if token in model and token not in shown and len(shown) < count + 2:
            shown.append(token)
    return shown


def bars(
    result: Pipeline,
    shown: list[Token],
    label: Callable[[Token], str],
    *,
    generated: Iterable[Token] = (),
) -> Bars:
    """Return what is drawn of a pipeline; `generated` are tokens."""
    generated = list(generated)
    rows = []
    for token in shown:
        row = TokenBar(
            token,
            label(token),
            _share(token, result.steps[0]),
            _share(token, result.steps[-1]),
            removed_by=_removed_by(token, result),
            generated=generated.count(token),
        )
        rows.append(row)
    longest = max(max(row.model, row.sampled) for row in rows)
    axis = next(end for end in AXES if end >= min(1.0, longest))
    return Bars(tuple(rows), axis, _others(rows), result)


def _others(rows: list[TokenBar]) -> TokenBar:
    """Return the bar of all tokens that have no row: what the rows leave of 1."""
    model, sampled = 0.0, 0.0
    for row in rows:
        model += row.model
        sampled += row.sampled
    return TokenBar(None, "all others", max(0.0, 1.0 - model), max(0.0, 1.0 - sampled))


def _removed_by(token: Token, result: Pipeline) -> str:
    """Return the name of the first step that removes a token; "" if it stays."""
    for step in result.steps:
        if token not in step.probabilities:
            return step.name
    return ""


def _share(token: Token, step: SampledStep) -> float:
    """Return a token's share of the whole distribution, what is not listed included."""
    return step.probabilities.get(token, 0.0) * step.listed_share


def picture(
    drawn: Bars,
    text: str,
    before: Bars | None = None,
    *,
    is_still: bool = False,
    is_short: bool = False,
) -> Html:
    """Return the branching with the bars, and their numbers as text for those who cannot see them.

    Args:
        drawn: what is shown.
        text: what the tokens follow.
        before: what was shown before it; branches and bars glide from there.
        is_still: they do not.
        is_short: without the line on how much is left to chance.
    """
    keys = [("edge", "the model's probability"), ("bg-blue", "what is sampled")]
    old_rows = {}
    if before is not None:
        old_rows = {row.token: row for row in (*before.rows, before.others)}
    next_words = []
    for row in (*drawn.rows, drawn.others):
        old = old_rows.get(row.token, TokenBar(row.token, row.label, 0.0, 0.0))
        next_words.append(_word(row, old, drawn.axis, before.axis if before else drawn.axis))
    marks = div(span("0"), span(percent(drawn.axis / 2)), span(percent(drawn.axis)), cls="axis")
    shown = branching(text, next_words, marks, is_still=is_still)
    return panel(
        legend(keys), shown, _foot(drawn, is_short=is_short), label=spoken_shares(drawn.rows)
    )


def spoken_shares(rows: Iterable[TokenBar]) -> str:
    """Return the first tokens with their shares, for a screen reader."""
    shares = []
    for row in list(rows)[:6]:
        if row.sampled:
            shares.append(f"{spoken(row.label)} {percent(row.sampled)}")
    return f"Next token: {', '.join(shares)}"


def word_name(row: TokenBar) -> Html:
    """Return the name of a row."""
    quiet = ""
    if row.token is None or row.sampled == 0:
        quiet = " ink-muted"
    if row.token is None:
        return div(row.label, cls=f"name cut others{quiet}", title=row.label)
    times = ""
    if row.generated:
        times = span(
            f" ×{row.generated}", cls="ink-orange", title=f"generated {row.generated} times"
        )
    return div(token_label(row.label), times, cls=f"name cut{quiet}", title=spoken(row.label))


def _word(row: TokenBar, old: TokenBar, axis: float, old_axis: float) -> Word:
    quiet = ""
    if row.sampled == 0:
        quiet = " ink-muted"
    track = _track(row, old, axis, old_axis)
    number = div(percent(row.sampled), cls=f"number{quiet}")
    return Word(word_name(row), row.sampled, old.sampled, join([track, number]), look_of(row))


def look_of(row: TokenBar) -> str:
    """Return the colour of a row's branch: grey for all tokens that have no row."""
    if row.token is None:
        return "grey"
    return "blue"


def _track(row: TokenBar, old: TokenBar, axis: float, old_axis: float) -> Html:
    """Draw the model's bar as an outline, the sampled one inside it."""

    def bar(look: str, share: float, old_share: float) -> Html:
        place = f"width:{_percent(share, axis)};--w0:{_percent(old_share, old_axis)}"
        return tag("i", cls=look, style=place)

    parts = []
    if row.sampled > 0:
        parts.append(bar(f"bg-{look_of(row)}", row.sampled, old.sampled))
    if row.model > HAIRLINE * axis:
        parts.append(bar("model", row.model, old.model))
    if max(row.model, row.sampled) > axis:  # all others together
        parts.append(span("▶", cls="over", title="longer than the axis"))
    if row.removed_by:
        why = f"cut by {row.removed_by}"
        if row.removed_by == "temperature":
            why = "not the best: greedy"
        place = f"left:calc({_percent(row.model, axis)} + 6px)"
        parts.append(span(why, cls="why ink-bad", style=place))
    return div(*parts, cls="track")


def _percent(p: float, axis: float) -> str:
    return f"{100 * min(p / axis, 1.0):.2f}%"


def _foot(drawn: Bars, *, is_short: bool) -> Html:
    """The chain of parameters with the tokens left and, unless it is short, how much is left to chance."""
    steps = drawn.result.steps
    links = []
    for step in steps:
        tokens_left = bold(f"{len(step.probabilities):,}")
        links.append(span(tag("code", step.name), " ", tokens_left, cls="whole"))
    lines = [div("Tokens that may come: ", *between(" → ", links))]
    if not is_short:
        lines.append(div(_uncertainty(steps)))
    outside = steps[0].outside
    if outside:
        share = percent(outside)
        lines.append(div(f"{share} of the model's probability lies on tokens that are not listed."))
    return muted(*lines)


def _uncertainty(steps: Sequence[SampledStep]) -> str:
    """Return among how many equally likely tokens one would be as unsure, before all steps and after."""
    before, after = (2 ** entropy_bits(step.probabilities) for step in (steps[0], steps[-1]))
    return f"As unsure as among {_few(before)} equally likely tokens; now {_few(after)}."


def _few(count: float) -> str:
    """Return a number of tokens, with one decimal below ten."""
    return f"{count:,.0f}" if count >= 9.95 else f"{count:,.1f}"


def head(about: str, model: SampledStep, listed: int) -> Html:
    """Return one line: whose distribution this is, and how much of it is listed."""
    what = f"the {listed:,} most probable tokens"
    if not model.outside:
        what = f"all {listed:,} tokens"
    return panel(muted(f"{about} · {what}."))


def story(prompt: str, tokens: Sequence[str]) -> Html:
    """Return the prompt, then every generated token with its border visible."""
    chips = [span(text or "·", cls="token") for text in tokens]
    if len(prompt) > PROMPT_SHOWN:
        prompt = f"… {prompt[-PROMPT_SHOWN:].partition(' ')[2]}"
    return panel(
        div(span(prompt, cls="ink-muted"), *chips, span("\u200b", cls="cursor"), cls="story")
    )
