"""The explorer in words: what each slider does at its present value, and how a token is written. Pure."""

import math

from workshop.learn.numbers import percent
from workshop.use.sampling import Pipeline
from workshop.use.sampling_settings import LOWEST_TEMPERATURE, Settings

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
    return "·" * (len(shown) - len(shown.lstrip(" "))) + shown.lstrip(" ") if shown.strip(" ") else "·" * len(shown)


def spoken(text: str) -> str:
    """Return a token for a screen reader."""
    return text.replace("\n", " line end ").strip() or "space"


def words(settings: Settings, result: Pipeline, *, generated: int) -> dict[str, str]:
    """Return one sentence a parameter: what it does just now, to these tokens.

    Args:
        result: the pipeline at these settings.
        generated: how many tokens were generated so far; the penalties count these.
    """
    idle = "Nothing to do: greedy takes one token anyway." if settings.greedy else ""
    return {
        "temperature": _temperature(settings.temperature),
        "top_k": idle or _top_k(settings, result),
        "top_p": idle or _top_p(settings, result),
        "min_p": idle or _min_p(settings, result),
        "frequency_penalty": _penalty(settings.frequency_penalty, generated, "Each time a token has been generated"),
        "presence_penalty": _penalty(settings.presence_penalty, generated, "Once for each token generated"),
    }


def _temperature(value: float) -> str:
    if value == 0:
        return "Greedy: always the most probable token. The seed and the sliders below do nothing."
    if value == 1:
        return "The model's own probabilities, unchanged."
    odds = 2.0 ** (1 / max(value, LOWEST_TEMPERATURE))
    lead = "more than a million to one" if odds > 1e6 else f"{odds:,.0f}:1" if odds >= 10 else f"{odds:.2g}:1"
    how = "Sharper" if value < 1 else "Flatter"
    return f"{how}: where the model says 2:1 between two tokens, it is now {lead}."


def _top_k(settings: Settings, result: Pipeline) -> str:
    step, k = result.step("top_k"), settings.top_k
    if k <= 0:
        return "Off: any token may come."
    if step is None or step.removed == 0:
        return f"No more than {k:,} tokens were left anyway: it removes nothing."
    more = len(step.probabilities) - k
    ties = f", {more} more because they tie with the last (on GPUs vLLM may keep exactly {k:,})" if more > 0 else ""
    before = result.steps[result.steps.index(step) - 1]
    held = math.fsum(before.probabilities[token] for token in step.probabilities) * (1 - before.outside)
    return f"Only the {k:,} most probable may come{ties}; they held {percent(held)}."


def _top_p(settings: Settings, result: Pipeline) -> str:
    step, share = result.step("top_p"), percent(settings.top_p)
    if step is None:
        return "Off: the whole tail may come."
    left = len(step.probabilities)
    tokens = "1 token" if left == 1 else f"{left:,} tokens"
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
    floor = percent(settings.min_p * max(before.probabilities.values()) * (1 - before.outside))
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
