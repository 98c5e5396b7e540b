"""The exercises of notebooks 04 and 05: right answers pass, typical wrong ones get told why."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from workshop.learn.exercises import all_exercises
from workshop.use.logprobs import total_logprob

RIGHT = {
    "sampling.length": SimpleNamespace(usage=SimpleNamespace(completion_tokens=33)),
    "sampling.softmax": math.exp(3) / (math.exp(3) + math.exp(1) + 1),
    "sampling.temperature": 0.25 / 0.325,
    "sampling.top_k": {"city": 5 / 7, "port": 2 / 7},
    "sampling.top_p": 3,
    "sampling.order": 4,
    "sampling.min_p": 3,
    "sampling.frequency_penalty": math.exp(-1.5),
    "sampling.constant": "repetition_penalty",
    "logprobs.entries": 6,
    "logprobs.generated": ("20", "49"),
    "logprobs.prompt": ("San", "Question"),
    "logprobs.probability": math.exp(-8.533774),
    "logprobs.bits": 10.0,
    "logprobs.perplexity": math.exp(2),
    "logprobs.classify": lambda scored: max(scored, key=lambda label: total_logprob(scored[label])),
    "logprobs.surprising": lambda rows: (
        max((row for row in rows if row.logprob is not None), key=lambda row: row.surprise_bits).token
    ),
    "logprobs.raw": math.log(0.4),
}
WRONG = [
    ("sampling.length", SimpleNamespace(usage=SimpleNamespace(completion_tokens=12)), "at least 30"),
    ("sampling.softmax", 3 / 4, "exponentiate first"),
    ("sampling.softmax", math.exp(3), "divide it"),
    ("sampling.length", "text", "no answer of a server"),
    ("sampling.temperature", 0.25, "divide by the sum"),
    ("sampling.top_k", {"city": 0.5, "port": 0.2}, "shared out"),
    ("sampling.top_k", {"city": 1.0}, "others should"),
    ("sampling.top_p", 2, "0.7"),
    ("sampling.order", 3, "divides by the temperature first"),
    ("sampling.min_p", 1, "relative to the best"),
    ("sampling.frequency_penalty", math.exp(-0.5), "each time"),
    ("sampling.constant", "nothing", "one parameter"),
    ("sampling.constant", "temperature", "cancels"),
    ("sampling.constant", "min_p", "differences"),
    ("sampling.constant", 5, "as a text"),
    ("logprobs.entries", 5, "when it is not"),
    ("logprobs.generated", ("49", "20"), "other way round"),
    ("logprobs.generated", ("20-minute", "49"), "two tokens"),
    ("logprobs.probability", -8.5338, "logprob itself"),
    (
        "logprobs.classify",
        lambda scored: max(scored, key=lambda label: sum(row.logprob for row in scored[label])),
        "None",
    ),
    ("logprobs.perplexity", 2.0, "exponentiate"),
    ("logprobs.classify", lambda scored: min(scored, key=lambda label: total_logprob(scored[label])), "more probable"),
    (
        "logprobs.classify",
        lambda scored: max(scored, key=lambda label: total_logprob(scored[label]) / len(scored[label])),
        "sums, not means",
    ),
    ("logprobs.surprising", lambda rows: rows[1], "least surprising"),
    ("logprobs.raw", 0.0, "processed one"),
]


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        ("sampling.softmax", 0.84),
        ("sampling.temperature", 0.77),
        ("sampling.top_k", {"city": 0.71, "port": 0.29}),
        ("sampling.frequency_penalty", 0.223),
        ("logprobs.probability", 0.0002),
        ("logprobs.perplexity", 7.39),
    ],
)
def test_an_answer_rounded_to_two_or_three_digits_is_right(key, answer):
    assert all_exercises()[key].test(answer) is None


def test_every_exercise_of_the_two_notebooks_is_tried_here():
    mine = {key for key in all_exercises() if key.split(".")[0] in ("sampling", "logprobs")}
    assert mine == set(RIGHT)


@pytest.mark.parametrize("key", RIGHT)
def test_the_right_answer_is_right(key):
    assert all_exercises()[key].test(RIGHT[key]) is None


@pytest.mark.parametrize(("key", "answer", "says"), WRONG)
def test_a_wrong_answer_is_told_why(key, answer, says):
    assert says in all_exercises()[key].test(answer)


@pytest.mark.parametrize("key", RIGHT)
def test_there_are_two_hints(key):
    assert len(all_exercises()[key].hints) >= 2
