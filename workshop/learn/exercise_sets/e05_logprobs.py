"""Exercises of notebook 05: reading log probabilities, and working with them."""

from __future__ import annotations

import math

from workshop.learn.exercises import Exercise, close_to
from workshop.use.logprobs import Row, total_logprob


def _pair(expected: tuple[str, str], near: dict[tuple, str]):
    def test(answer: object) -> str | None:
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            return "the answer is two texts: the generated token and the most probable one"
        given = tuple(str(one).strip() for one in answer)
        return None if given == expected else near.get(given, f"{given[0]!r} and {given[1]!r} are not it")

    return test


def _entries(answer: object) -> str | None:
    if answer == 6:
        return None
    if answer == 5:
        return "five is right whenever the generated token is among the five best; and when it is not?"
    return f"{answer!r} is not it"


def _best_label(answer: object) -> str | None:
    """Call the learner's function on made-up rows."""
    if not callable(answer):
        return f"{answer!r} is no function"
    sure = [Row("prompt", 0, "a", math.log(0.9)), Row("prompt", 1, "b", math.log(0.8))]
    unsure = [Row("prompt", 0, "c", math.log(0.3))]
    start = [Row("prompt", 0, "", None), Row("prompt", 1, "d", math.log(0.5))]
    for scored, expected in (
        ({"yes": unsure, "no": sure}, "no"),
        ({"one": start, "two": unsure}, "one"),
        ({"long": sure * 9, "short": unsure}, "short"),
    ):
        try:
            got = answer(scored)
        except TypeError as error:
            return f"{error}: the first row of a prompt has the logprob None; total_logprob leaves it out"
        if got != expected:
            if expected == "short":
                return "eighteen fairly sure tokens are less probable together than one at 0.3: compare sums, not means"
            sums = {label: round(total_logprob(tokens), 2) for label, tokens in scored.items()}
            return f"it returned {got!r} for texts of the logprobs {sums}: the more probable one is {expected!r}"
    return None


def _surprising(answer: object) -> str | None:
    """Call the learner's function on made-up rows."""
    if not callable(answer):
        return f"{answer!r} is no function"
    rows = [
        Row("prompt", 0, "", None),
        Row("prompt", 1, " Paris", -0.1),
        Row("prompt", 2, " Berlin", -9.0),
        Row("prompt", 3, ".", -0.5),
    ]
    got = answer(rows)
    if isinstance(got, Row):
        got = got.token
    if got == " Paris":
        return "that is the least surprising token: the lowest logprob is the highest surprise"
    if got == "":
        return "the first token has no logprob (None): leave it out"
    return None if got == " Berlin" else f"it returned {got!r}, and ' Berlin' has the lowest logprob"


EXERCISES = {
    "logprobs.entries": Exercise(
        "How many entries logprobs=5 can give for one token",
        _entries,
        ("The generated token is always listed.", "And if it is not among the five best?"),
    ),
    "logprobs.generated": Exercise(
        "Which token was generated, and which was the most probable",
        _pair(
            ("20", "49"),
            {
                ("49", "20"): "the other way round: the text begins with the generated token",
                ("20-minute", "49"): "20-minute is two tokens: only the first of them stands at this position",
                ("20", "20"): "look at the numbers again: the higher logprob is the one nearer to 0",
            },
        ),
        (
            "The answer's text begins with the generated token.",
            "The most probable one has the highest logprob: -1.76 is higher than -4.01.",
        ),
    ),
    "logprobs.prompt": Exercise(
        "Which token stood in the prompt, and which was the most probable",
        _pair(("San", "Question"), {("Question", "San"): "the other way round: rank 1 is the most probable"}),
        ("What did the prompt begin with?", "rank says it: 1 is the most probable."),
    ),
    "logprobs.probability": Exercise(
        "How probable “San” was",
        close_to(
            1.966e-4,
            rel=0.02,
            near_misses={
                -8.5338: "that is the logprob itself: exponentiate",
                12.31: "that is its surprise in bits",
                0.01966: "that is in percent: divide by 100",
            },
        ),
        ("A logprob is a natural logarithm.", "math.exp(-8.5338)"),
    ),
    "logprobs.bits": Exercise(
        "The surprise of a token of probability 1/1024, in bits",
        close_to(
            10.0,
            rel=0.001,
            near_misses={
                6.931: "that is in nats, the natural logarithm: divide by log 2",
                -10.0: "a surprise is positive",
            },
        ),
        ("How many coin tosses are as improbable?", "-math.log2(1 / 1024)"),
    ),
    "logprobs.perplexity": Exercise(
        "The perplexity of three logprobs",
        close_to(
            math.exp(2),
            rel=0.005,
            near_misses={
                2.0: "that is the mean; now exponentiate",
                math.exp(6): "divide by the number of tokens first",
                math.exp(-2): "the sign: the mean logprob is negative, the perplexity 1 or more",
            },
        ),
        ("Mean, minus sign, exp.", "math.exp(-(-1 - 2 - 3) / 3)"),
    ),
    "logprobs.classify": Exercise(
        "Choose the more probable text",
        _best_label,
        (
            "The logprob of a text is the sum over its tokens; total_logprob leaves out the token that has none.",
            "max(scored, key=lambda label: total_logprob(scored[label]))",
        ),
    ),
    "logprobs.surprising": Exercise(
        "Find the most surprising token",
        _surprising,
        (
            "Rows have surprise_bits; it is None where there is no logprob.",
            "max((row for row in rows if row.logprob is not None), key=lambda row: row.surprise_bits).token",
        ),
    ),
    "logprobs.raw": Exercise(
        "What the server sends as the logprob of a token that top_k=1 made certain",
        close_to(
            math.log(0.4),
            rel=0.01,
            near_misses={
                0.0: "that is the processed one; the server sends raw logprobs, from before the sampling parameters",
                0.4: "that is the probability: take its logarithm",
            },
        ),
        ("Raw means: what the model said, before top_k.", "math.log(0.4)"),
    ),
}
