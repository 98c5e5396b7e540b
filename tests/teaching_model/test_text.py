"""Sentences of the text that the model learned from, measures of a completion, and the listed prompts."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.teaching_model.measure import (
    agreement,
    content_words,
    first_sentence,
    repeated_ngrams,
)
from benchmarks.teaching_model.sentences import (
    Entry,
    describe,
    indefinite,
    noun_phrase,
    split_clauses,
)
from workshop.teaching_model import FOLDER

FIXED = ["San Francisco is a", "Boston is a", "Chicago is a", "Washington D.C.", "New York", "NYC is a",
         "California", "Massachusetts"]  # fmt: skip


def test_prompts_cover_the_course_and_at_least_40_more():
    prompts = json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8"))
    listed = [row["prompt"] for row in prompts]
    assert set(FIXED) <= set(listed)
    assert len(set(listed) - set(FIXED)) >= 40


def test_measure_tells_a_true_completion_from_a_false_one():
    gloss = ["largest city in Illinois; a bustling Great Lakes port that extends 26 miles"]
    assert agreement("Chicago is a", " bustling Great Lakes port. It is in Peru.", gloss) == 1.0
    assert agreement("Chicago is a", " small town in Peru.", gloss) == 0.0
    assert agreement("Chicago is a", " city in Peru.", gloss) == pytest.approx(0.5)
    assert agreement("Chicago is a", "", gloss) == 0.0


def test_words_of_the_prompt_do_not_count_as_agreement():
    assert agreement("Boston is a", " Boston Boston.", ["the city of Boston"]) == 0.0


def test_first_sentence_does_not_end_in_an_abbreviation():
    assert (
        first_sentence("Washington D.C. is the capital. It is old.")
        == "Washington D.C. is the capital."
    )
    assert first_sentence("A dog is\nA cat") == "A dog is"


def test_content_words_drop_function_words_and_plurals():
    assert content_words("The world's finest harbors of a class") == [
        "world",
        "finest",
        "harbor",
        "class",
    ]


def test_repeated_ngrams():
    assert repeated_ngrams([1, 2, 3, 4, 5, 6]) == 0.0
    assert repeated_ngrams([1, 2] * 50) > 0.9


def test_a_gloss_gets_the_article_that_it_lacks(subtests):
    for phrase, lexname, expected in [
        ("largest city in Illinois", "noun.location", "the largest city in Illinois"),
        ("feline mammal usually having fur", "noun.animal", "a feline mammal usually having fur"),
        ("edge tool used for cutting", "noun.artifact", "an edge tool used for cutting"),
        ("food made from dough", "noun.food", "food made from dough"),
        (
            "16th President of the United States",
            "noun.person",
            "the 16th President of the United States",
        ),
        ("a port in western California", "noun.location", "a port in western California"),
        ("ground snakes", "noun.animal", "ground snakes"),
    ]:
        with subtests.test(phrase):
            assert noun_phrase(phrase, lexname) == expected


def test_indefinite_article_goes_by_sound():
    assert [indefinite(w).split()[0] for w in ("owl", "university", "hour", "United", "European", "one")] == [
        "an", "a", "an", "a", "a", "a"]  # fmt: skip


def test_semicolons_in_brackets_do_not_split():
    assert split_clauses("a tool (of iron; or wood); used often") == [
        "a tool (of iron; or wood)",
        "used often",
    ]


def test_a_person_with_dates_was():
    entry = Entry("namenet", "n", "noun.person", ("Lincoln", "Abraham Lincoln"),
                  "16th President of the United States; saved the Union (1809-1865)", ())  # fmt: skip
    assert describe("Abraham Lincoln", entry, random.Random(0), plain=True) == (
        "Abraham Lincoln was the 16th President of the United States (1809-1865). Abraham Lincoln saved the Union."
    )
