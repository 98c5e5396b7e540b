"""The text that the model learned from: sentences, editions, measures, and the listed prompts."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from benchmarks.teaching_model import corpus, dialogue, editions
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


def prompts() -> list[dict]:
    return json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8"))


def test_prompts_cover_the_course_and_at_least_40_more():
    listed = [row["prompt"] for row in prompts()]
    assert set(FIXED) <= set(listed)
    assert len(set(listed) - set(FIXED)) >= 40


def test_every_listed_completion_agrees_with_a_gloss_of_the_corpus_or_a_sentence_of_ours(
    data, subtests
):
    for row in prompts():
        with subtests.test(row["prompt"]):
            fact = next(f for f in data.facts if f.prompt == row["prompt"])
            assert row["glosses"] == [fact.entry.definition, *fact.also]
            assert fact.entry in data.by_name[fact.subject]
            score = agreement(row["prompt"], row["completion"], row["glosses"])
            assert score >= 0.9, f"{row['prompt']}{row['completion']} | {row['glosses']}"
            assert score == pytest.approx(row["agreement"], abs=0.001)


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


def test_the_corpus_is_whole(data):
    assert len(corpus.read_entries()) == 120_570
    assert 1000 < len(data.held_out_entries) < 1300 and len(data.held_out_prose) > 5
    assert len(data.facts) >= 80


def test_nothing_held_out_is_trained_on(data):
    held_out_entries = set(data.held_out_entries)
    assert not held_out_entries & set(data.entries)
    part = replace(data, entries=data.entries[::10])  # all of the prose
    text = "\n".join("".join(s) for page in editions.edition(part, 0) for s in page)
    paragraphs = [p for block in data.held_out_prose for p in block if len(p) > 200]
    assert paragraphs and not any(p in text for p in paragraphs)


def test_an_edition_is_reproducible_and_varies_with_its_number(data):
    part = replace(data, entries=data.entries[::10], prose=data.prose[::10])
    first = editions.edition(part, 3)
    assert len(first) > 100 and first == editions.edition(part, 3)
    assert first != editions.edition(part, 4)


def test_training_text_leaves_out_what_a_class_should_not_meet(data):
    assert not [e for e in data.entries if corpus.UNFIT.search(e.definition)]


def test_capitals_come_from_the_glosses(data):
    pairs = dict(dialogue.capitals(data.entries))
    assert (
        pairs["Massachusetts"] == "Boston"
        and pairs["France"] == "Paris"
        and pairs["Maine"] == "Augusta"
    )
    assert len(pairs) > 150
