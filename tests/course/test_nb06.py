"""What notebook 6 computes of a static batch, and the same twelve answers through Transformers."""

from __future__ import annotations

import cells
import pytest
from needs import lacking

from workshop.course.notebooks import nb06
from workshop.course.topics.timeline import Span

# three batches of four: the longest answers have 120, 90 and 100 tokens
STEPS = 120 + 90 + 100


@pytest.fixture
def light(monkeypatch):
    """The light base: without Transformers."""
    monkeypatch.setattr(nb06, "has_transformers", lambda: False)


def test_a_static_batch_takes_the_steps_of_its_longest_answers(light):
    batched = nb06.batches([""] * 12, nb06.LENGTHS, at_once=4)
    assert (batched.took, batched.unit) == (STEPS, "steps")
    assert (batched.written_tokens, batched.computed_tokens) == (550, 4 * STEPS)


def test_one_after_another_computes_nothing_for_nobody(light):
    alone = nb06.one_after_another([""] * 12, nb06.LENGTHS)
    assert alone.took == alone.computed_tokens == 550


def test_four_places_that_are_always_taken_need_170_steps(light):
    # by hand: 120 | 20 40→… each next answer goes to the place that is free first
    spans = [Span("", 0.0, 0.1, 1.0, tokens) for tokens in nb06.LENGTHS]
    assert nb06.served(spans, at_once=4).took == 170


def test_an_empty_place_is_the_difference_to_the_longest_answer_of_its_batch():
    assert nb06.slots([3, 1, 2, 2], at_once=2) == [(3, 0), (1, 2), (2, 0), (2, 0)]


def test_transformers_writes_all_tokens_that_were_asked_for():
    if not nb06.has_transformers():
        lacking("torch and transformers, of the extra `local`")
    run = nb06.batches(["Boston is a", "NYC is a"], [3, 1], at_once=2)
    assert run.unit == "seconds" and run.took > 0
    assert (run.written_tokens, run.computed_tokens) == (4, 6)


def test_throughput_stops_at_the_first_number_near_the_highest(subtests):
    results: list[str] = []
    cell = cells.with_text("06_many_prompts", 'predict("many.flat_after", result=')
    at_once = (1, 2, 4, 8, 16, 32, 64, 128)
    for tokens_per_s, stops in [
        # measured on a busy machine: two numbers dip, and their doubles recover
        ((151, 268, 436, 462, 1255, 1130, 1416, 1271), "16"),
        ((215, 416, 734, 1226, 1487, 2145, 2531, 2670), "32"),
        ((225, 400, 410, 420, 430, 440, 450, 460), "4 or fewer"),
        ((1, 2, 4, 8, 16, 32, 64, 128), "it still grows at 128"),
    ]:
        with subtests.test(stops):
            names = {
                "sweep": {n: (rate, 0.1) for n, rate in zip(at_once, tokens_per_s, strict=True)},
                "predict": lambda key, result: results.append(result),
            }
            exec(cell, names)
            assert results.pop() == stops
