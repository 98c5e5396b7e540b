"""Exercises of notebook 04: what the sampling parameters do to one distribution."""

from __future__ import annotations

import math
from dataclasses import asdict

from workshop.learn.exercises import Exercise, close_to
from workshop.use.sampling import next_token_probabilities
from workshop.use.sampling_settings import DEFAULTS

TOY = {"city": 0.5, "port": 0.2, "town": 0.15, "lake": 0.1, "cat": 0.05}  # the notebook's made-up model


def _length(answer: object) -> str | None:
    usage = getattr(answer, "usage", None)
    if usage is None:
        return "this is no answer of a server: put the whole response of llm.complete into it"
    count = usage.completion_tokens
    if count < 30:
        return f"the answer has {count} tokens: ask for at least 30 (min_tokens)"
    if count > 40:
        return f"the answer has {count} tokens: limit it to 40 (max_tokens)"
    return None


def _two(expected: dict[str, float]):
    def test(answer: object) -> str | None:
        if not isinstance(answer, dict):
            return f"{answer!r} is no dictionary of tokens and probabilities"
        if set(answer) != set(expected):
            return f"{', '.join(map(str, answer)) or 'nothing'} came through: others should"
        total = sum(answer.values())
        if abs(total - 1) > 0.02:  # two digits are enough
            return f"the probabilities sum to {total:.3g}: what was removed has to be shared out among the rest"
        wrong = [token for token, p in expected.items() if abs(answer[token] - p) > 5e-3]
        return f"the probability of {wrong[0]!r} is {answer[wrong[0]]:.3f}, which is not it" if wrong else None

    return test


def _count(expected: int, why: dict[int, str]):
    def test(answer: object) -> str | None:
        if isinstance(answer, bool) or not isinstance(answer, int):
            return f"{answer!r} is no number of tokens"
        if answer == expected:
            return None
        return why.get(answer, f"{answer} is too {'many' if answer > expected else 'few'}")

    return test


def _constant(answer: object) -> str | None:
    if answer == "repetition_penalty":
        return None
    if answer == "nothing":
        return "softmax does not see the constant, but one parameter divides logits before softmax comes"
    if answer == "everything":
        return "divide all exp(logit + 5) by their sum: the factor exp(5) cancels"
    if answer == "temperature":
        return "it divides all logits, and so the constant too: it is the same for every token still, and cancels"
    if answer in asdict(DEFAULTS) or answer in ("max_tokens", "logprobs", "seed"):
        return f"{answer} sees differences between logits or probabilities only, or none of them"
    return "give 'nothing', 'everything', or the name of one parameter, as a text"


EXERCISES = {
    "sampling.length": Exercise(
        "An answer of 30 to 40 tokens",
        _length,
        (
            "Two parameters: one forbids the end until there are enough tokens, one cuts.",
            "llm.complete(prompt, min_tokens=…, max_tokens=…)",
        ),
    ),
    "sampling.softmax": Exercise(
        "From logits to a probability",
        close_to(
            0.8438,
            near_misses={
                20.09: "that is exp(3): divide it by the sum over all three",
                0.75: "logits are not probabilities: exponentiate first",
            },
        ),
        (
            "probability = exp(logit) / sum of exp(logit) over all tokens.",
            "math.exp(3) / (math.exp(3) + math.exp(1) + math.exp(0))",
        ),
    ),
    "sampling.temperature": Exercise(
        "The probability of “city” at temperature 0.5",
        close_to(
            0.7692,
            rel=0.005,
            near_misses={
                0.25: "you squared it; now divide by the sum of all squares",
                0.5: "that is at temperature 1",
                0.3398: "you took the root, which is temperature 2",
            },
        ),
        ("Dividing logprobs by 0.5 is squaring probabilities.", "0.25 / (0.25 + 0.04 + 0.0225 + 0.01 + 0.0025)"),
    ),
    "sampling.top_k": Exercise(
        "What top_k=2 leaves",
        _two(next_token_probabilities({token: math.log(p) for token, p in TOY.items()}, top_k=2)),
        ("Keep the two most probable.", "Then divide each by their sum, 0.7."),
    ),
    "sampling.top_p": Exercise(
        "How many tokens top_p=0.8 keeps",
        _count(3, {2: "two hold 0.7, which is less than 0.8", 4: "three hold 0.85 already"}),
        ("Add up from the most probable until the sum reaches 0.8.", "0.5, 0.7, 0.85: stop."),
    ),
    "sampling.order": Exercise(
        "How many tokens top_p=0.8 keeps at temperature 2",
        _count(4, {3: "that is at temperature 1: vLLM divides by the temperature first", 5: "four hold 0.89"}),
        (
            "Temperature comes before top_p: compute the flattened distribution first.",
            "Temperature 2 takes square roots: 0.34, 0.21, 0.19, 0.15, 0.11 after dividing by their sum.",
        ),
    ),
    "sampling.min_p": Exercise(
        "How many tokens min_p=0.25 keeps",
        _count(
            3,
            {
                1: "0.25 is not the limit itself: it is relative to the best",
                2: "0.15 is above the limit: 0.25 · 0.5 = 0.125",
                4: "0.1 is below the limit: 0.25 · 0.5 = 0.125",
            },
        ),
        ("The limit is min_p times the highest probability.", "0.25 · 0.5 = 0.125."),
    ),
    "sampling.frequency_penalty": Exercise(
        "What three repetitions cost at frequency_penalty 0.5",
        close_to(
            0.2231,
            rel=0.01,
            near_misses={
                0.6065: "that is after one repetition: it is subtracted each time",
                1.5: "that is what its logit lost; the odds fall by a factor exp of that",
                4.4817: "the other way round: a penalty makes odds smaller",
            },
        ),
        ("The logit loses 0.5 for each time the token was generated.", "math.exp(-0.5 * 3)"),
    ),
    "sampling.constant": Exercise(
        "What a constant added to all logits changes",
        _constant,
        (
            "Compare softmax of [3, 1, 0] with softmax of [8, 6, 5]: does the constant cancel?",
            "Which penalty divides a logit instead of subtracting from it?",
        ),
    ),
}
