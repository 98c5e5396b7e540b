"""Exercises of notebook 04: what the sampling parameters do to one distribution."""

from __future__ import annotations

import math
from dataclasses import asdict

from workshop.learn.exercise_sets.e00_start import prompt_problem
from workshop.learn.judging import Exercise, Judge, close_to, exactly, not_a_number
from workshop.use.sampling import next_token_probabilities
from workshop.use.sampling_settings import DEFAULTS

QUESTION = "Question: What is Boston?\nAnswer:"  # the notebook's
TOY = {"city": 0.5, "port": 0.2, "town": 0.15, "lake": 0.1, "cat": 0.05}  # the notebook's made-up model


def _length(answer: object) -> str | None:
    if not isinstance(answer, dict) or not answer.get("usage"):
        return "this is no answer of a server: put the whole response of llm.complete into it"
    count = answer["usage"]["completion_tokens"]
    if count < 30:
        return f"the answer has {count} tokens: ask for at least 30 (min_tokens)"
    if count > 40:
        return f"the answer has {count} tokens: limit it to 40 (max_tokens)"
    return prompt_problem(answer, QUESTION)


def _distribution(expected: dict[str, float]) -> Judge:
    def judge(answer: object) -> str | None:
        if not isinstance(answer, dict):
            return f"{answer!r} is no dictionary of tokens and probabilities"
        if set(answer) != set(expected):
            return f"{', '.join(map(str, answer)) or 'nothing'} came through: others should"
        for token, probability in answer.items():
            if problem := not_a_number(probability):
                return f"{token}: {problem}"
        total = sum(answer.values())
        if abs(total - 1) > 0.02:  # two digits are enough
            return f"the probabilities sum to {total:.3g}: what was removed has to be shared out among the rest"
        wrong = [token for token, p in expected.items() if abs(answer[token] - p) > 5e-3]
        return f"the probability of {wrong[0]!r} is {answer[wrong[0]]:.3f}, which is not it" if wrong else None

    return judge


def _constant(answer: object) -> str | None:
    name = answer.lower().replace(" ", "_").replace("-", "_") if isinstance(answer, str) else answer
    if name == "repetition_penalty":
        return None
    if name in asdict(DEFAULTS) or name in ("max_tokens", "logprobs", "seed"):
        return f"{name} sees differences between logits or probabilities only, or none of them"
    return "give 'nothing', 'everything', or the name of one parameter, as a text"


EXERCISES = {
    "sampling.length": Exercise(
        "An answer of 30 to 40 tokens",
        _length,
        "Two parameters: one forbids the end until there are enough tokens, one cuts.",
        "llm.complete takes both of them beside the question. Which of the two numbers, 30 and 40, goes to which?",
    ),
    "sampling.softmax": Exercise(
        "From logits to a probability",
        close_to(math.exp(3) / (math.exp(3) + math.exp(1) + math.exp(0))),
        "probability = exp(logit) / sum of exp(logit) over all tokens.",
        "math.exp(3) is above the line. Three such numbers are below it; the last is exp(0), which is 1.",
        wrong={
            20.09: "that is exp(3): divide it by the sum over all three",
            0.75: "logits are not probabilities: exponentiate first",
            23.8: "that is the sum of all three, which goes below the line",
            0.8808: "three tokens: exp(0) is 1, not 0",
            84.38: "give a probability from 0 to 1, not percent",
        },
    ),
    "sampling.temperature": Exercise(
        "The probability of “city” at temperature 0.5",
        close_to(0.25 / 0.325),
        "Dividing logprobs by 0.5 is squaring probabilities.",
        "Square all five probabilities. Which share of their sum has the square of city's?",
        wrong={
            0.25: "you squared it; now divide by the sum of all squares",
            0.5: "that is at temperature 1",
            0.3398: "you took the root, which is temperature 2",
            0.325: "that is the sum of the squares: divide the square of 0.5 by it",
            76.92: "give a probability from 0 to 1, not percent",
        },
    ),
    "sampling.top_k": Exercise(
        "What top_k=2 leaves",
        _distribution(next_token_probabilities({token: math.log(p) for token, p in TOY.items()}, top_k=2)),
        "Keep the two most probable.",
        "The two that stay have to add up to 1 again: divide each by what they add up to now.",
    ),
    "sampling.top_p": Exercise(
        "How many tokens top_p=0.8 keeps",
        exactly(3, "tokens"),
        "Add up from the most probable until the sum reaches 0.8.",
        "0.5 is not enough, 0.5 + 0.2 is not enough. The token that reaches 0.8 stays.",
        wrong={
            1: "one holds 0.5, which is less than 0.8",
            2: "two hold 0.7, which is less than 0.8",
            4: "fewer hold 0.8 already: stop as soon as the sum reaches it",
            5: "that is all of them; the last ones are not needed to reach 0.8",
            0: "top_p always keeps at least the most probable token",
        },
    ),
    "sampling.order": Exercise(
        "How many tokens top_p=0.8 keeps at temperature 2",
        exactly(4, "tokens"),
        "Temperature comes before top_p: compute the flattened distribution first.",
        "Temperature 2 takes square roots: 0.34, 0.21, 0.19, 0.15, 0.11 after dividing by their sum. Add up to 0.8.",
        wrong={
            3: "that is at temperature 1: vLLM divides by the temperature first",
            5: "fewer hold 0.89 already: stop as soon as the sum reaches 0.8",
            2: "the flattened two hold 0.55 only",
            1: "that would be a temperature below 1, which makes the best more probable",
            0: "top_p always keeps at least the most probable token",
        },
    ),
    "sampling.min_p": Exercise(
        "How many tokens min_p=0.25 keeps",
        exactly(3, "tokens"),
        "The limit is min_p times the highest probability.",
        "The highest is 0.5. Which of the five are at least a quarter of that?",
        wrong={
            1: "0.25 is not the limit itself: it is relative to the best",
            2: "0.15 is above the limit: 0.25 · 0.5 = 0.125",
            4: "0.1 is below the limit: 0.25 · 0.5 = 0.125",
            5: "0.05 is below the limit: 0.25 · 0.5 = 0.125",
            0: "min_p always keeps the best: it is compared with itself",
        },
    ),
    "sampling.frequency_penalty": Exercise(
        "What three repetitions cost at frequency_penalty 0.5",
        close_to(math.exp(-1.5)),
        "The logit loses 0.5 for each time the token was generated.",
        "Odds are exp of a difference of logits. By how much does the difference change after three times?",
        wrong={
            0.6065: "that is after one repetition: it is subtracted each time",
            1.5: "that is what its logit lost; the odds fall by a factor exp of that",
            -1.5: "that is the change of its logit; the odds change by the factor exp of that",
            4.4817: "the other way round: a penalty makes odds smaller",
            0.125: "it is subtracted from a logit: the odds are not halved each time",
        },
    ),
    "sampling.constant": Exercise(
        "What a constant added to all logits changes",
        _constant,
        "Compare softmax of [3, 1, 0] with softmax of [8, 6, 5]: does the constant cancel?",
        "Softmax, temperature and subtraction keep differences. One penalty of the notebook does not subtract.",
        wrong={
            "nothing": "softmax does not see the constant, but one parameter divides logits before softmax comes",
            "everything": "divide all exp(logit + 5) by their sum: the factor exp(5) cancels",
            "temperature": "it divides all logits, so the constant is still the same for every token, and cancels",
            "frequency_penalty": "it subtracts: a difference of logits is the same with and without the constant",
            "presence_penalty": "it subtracts: a difference of logits is the same with and without the constant",
        },
    ),
}
