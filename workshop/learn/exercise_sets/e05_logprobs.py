"""Exercises of notebook 05: reading log probabilities, and working with them."""

from __future__ import annotations

import math

from workshop.learn.judging import Exercise, Judge, close_to, exactly, pair
from workshop.use.logprobs import Row, total_logprob


def _tokens(*expected: str) -> Judge:
    def judge(answer: object) -> str | None:
        given = pair(answer)
        if given is None:
            return "the answer is two texts: the token of the text, and the most probable one"
        given = tuple(str(one).strip() for one in given)
        if given == expected[::-1]:
            return "the other way round: the token of the text comes first, then the most probable one"
        return None if given == expected else f"{given[0]!r} and {given[1]!r} are not it"

    return judge


def _rows(*logprobs: tuple[str, float | None]) -> list[Row]:
    return [Row("prompt", position, token, logprob) for position, (token, logprob) in enumerate(logprobs)]


def _best_label(answer: object) -> str | None:
    """Call the learner's function on made-up rows."""
    if not callable(answer):
        return f"{answer!r} is no function"
    sure, unsure = _rows(("a", math.log(0.9)), ("b", math.log(0.8))), _rows(("c", math.log(0.3)))
    start = _rows(("", None), ("d", math.log(0.5)))
    for scored, expected in (
        ({"yes": unsure, "no": sure}, "no"),
        ({"one": start, "two": unsure}, "one"),
        ({"long": sure * 9, "short": unsure}, "short"),
    ):
        try:
            got = answer(scored)
        except TypeError as error:
            return f"{error}: the first row of a prompt has the logprob None; total_logprob leaves it out"
        if got == expected:
            continue
        if expected == "short":
            return "eighteen fairly sure tokens are less probable together than one at 0.3: compare sums, not means"
        sums = {label: round(total_logprob(tokens), 2) for label, tokens in scored.items()}
        return f"it returned {got!r} for texts of the logprobs {sums}: the more probable one is {expected!r}"
    return None


def _surprising(answer: object) -> str | None:
    """Call the learner's function on two lists of made-up rows, so that no constant is right."""
    if not callable(answer):
        return f"{answer!r} is no function"
    for tokens, least, most in (
        (_rows(("", None), (" Paris", -0.1), (" Berlin", -9.0), (".", -0.5)), " Paris", " Berlin"),
        (_rows(("", None), (" moon", -7.0), (" in", -0.2), (" the", -2.0)), " in", " moon"),
    ):
        got = answer(tokens)
        got = got.token if isinstance(got, Row) else got
        if got == least:
            return "that is the least surprising token: the lowest logprob is the highest surprise"
        if got == "":
            return "the first token has no logprob (None): leave it out"
        if got != most:
            return f"it returned {got!r}, and {most!r} has the lowest logprob"
    return None


EXERCISES = {
    "logprobs.entries": Exercise(
        "How many entries logprobs=5 can give for one token",
        exactly(6, "entries"),
        "The generated token is always listed.",
        "Where the generated token is among the five best, there are five entries. What if it is not?",
        wrong={
            5: "five is right whenever the generated token is among the five best; and when it is not?",
            1: "that is logprobs=0: the generated token alone",
            4: "the five best are always there",
            10: "the list has the five best, and at most the generated token besides",
            8192: "that is the whole vocabulary, logprobs=-1",
        },
    ),
    "logprobs.generated": Exercise(
        "Which token was generated, and which was the most probable",
        _tokens("20", "49"),
        "The answer's text begins with the generated token.",
        "The most probable one has the highest logprob: -1.76 is higher than -4.01.",
        wrong={
            ("20-minute", "49"): "20-minute is two tokens: only the first of them stands at this position",
            ("20", "20"): "look at the numbers again: the higher logprob is the one nearer to 0",
            ("49", "49"): "the text begins with the generated token, and that is not 49",
        },
    ),
    "logprobs.prompt": Exercise(
        "Which token stood in the prompt, and which was the most probable",
        _tokens("San", "Question"),
        "What did the prompt begin with?",
        "rank says which of the two was expected: 1 is the most probable.",
        wrong={
            ("San Francisco", "Question"): "that is two tokens: only the first of them stands at this position",
            ("San", "San"): "the token of the prompt has not rank 1: the other entry has it",
            ("Question", "Question"): "the token with rank 1 is what was expected; what stood there?",
        },
    ),
    "logprobs.probability": Exercise(
        "How probable “San” was",
        close_to(math.exp(-8.533774), rel=0.002, digits=1),
        "A logprob is a natural logarithm.",
        "What undoes a natural logarithm? math has it.",
        wrong={
            -8.5338: "that is the logprob itself: exponentiate",
            12.31: "that is its surprise in bits",
            0.01966: "that is in percent: divide by 100",
            5085: "the sign: exp of the negative number",
            2.7e-3: "the base of a logprob is e, not 2",
        },
    ),
    "logprobs.bits": Exercise(
        "The surprise of a token of probability 1/1024, in bits",
        exactly(10, "bits"),
        "How many coin tosses are as improbable?",
        "A bit is a halving. How often is 1 halved until 1/1024 is left?",
        wrong={
            6.931: "that is in nats, the natural logarithm: divide by log 2",
            -10: "a surprise is positive",
            1024: "that is among how many; count the halvings",
            3.0103: "that is with base 10; bits have base 2",
            0.000977: "that is the probability itself",
        },
    ),
    "logprobs.perplexity": Exercise(
        "The perplexity of three logprobs",
        close_to(math.exp(2)),
        "First the mean of the three, then turn its sign.",
        "The mean surprise is in nats. Which function turns nats into a number of choices?",
        wrong={
            2: "that is the mean; now exponentiate",
            math.exp(6): "divide by the number of tokens first",
            math.exp(-2): "the sign: the mean logprob is negative, the perplexity 1 or more",
            4: "logprobs are natural logarithms: exponentiate with e, not with 2",
            math.exp(1): "all three count: the mean of -1, -2 and -3",
        },
    ),
    "logprobs.classify": Exercise(
        "Choose the more probable text",
        _best_label,
        "The logprob of a text is the sum over its tokens; total_logprob leaves out the token that has none.",
        "max(scored, key=…) returns a label. The key is a function: from a label to what its rows add up to.",
    ),
    "logprobs.surprising": Exercise(
        "Find the most surprising token",
        _surprising,
        "Rows have surprise_bits; it is None where there is no logprob.",
        "First leave out the rows whose logprob is None. Then max(…, key=…) finds a row, and the row has a token.",
    ),
    "logprobs.raw": Exercise(
        "What the server sends as the logprob of a token that top_k=1 made certain",
        close_to(math.log(0.4), rel=0.01, digits=1),
        "Raw means: what the model said, before top_k.",
        "The model said 0.4. The server sends logarithms, not probabilities.",
        wrong={
            0: "that is the processed one; the server sends raw logprobs, from before the sampling parameters",
            0.4: "that is the probability: take its logarithm",
            0.9163: "the sign: the logarithm of a number below 1 is negative",
            -1.3219: "that is in bits; a logprob is a natural logarithm",
            -0.3979: "that is with base 10; a logprob is a natural logarithm",
        },
    ),
}
