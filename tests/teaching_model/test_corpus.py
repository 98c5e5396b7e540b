"""The text that the model learned from: whole, with nothing in it that was held out."""

from __future__ import annotations

import json
import lzma
import random
from dataclasses import replace

import pytest

from benchmarks.teaching_model import corpus, dialogue, editions, labels
from benchmarks.teaching_model.abstracts.select import UNSEEN
from workshop.course.topics import abstracts
from workshop.teaching_model import FOLDER


@pytest.fixture(scope="module")
def data() -> corpus.Corpus:
    """The corpus, read once: all tests that take it are in this file, as pytest-xdist shares out files."""
    return corpus.load()


def test_the_corpus_is_whole(data):
    with lzma.open(corpus.CORPUS / "glosses.jsonl.xz") as lines:
        assert sum(1 for _ in lines) == 120_570
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
    part = replace(data, entries=data.entries[::10], prose=data.prose[::40])
    first = editions.edition(part, 3)
    assert len(first) > 100 and first == editions.edition(part, 3)
    assert first != editions.edition(part, 4)


def test_training_text_leaves_out_what_a_class_should_not_meet(data):
    unfit = data.by_name["pornography"]
    assert unfit and not any(entry in data.entries for entry in unfit)


def test_capitals_come_from_the_glosses(data):
    pairs = dict(dialogue.capitals(data.entries))
    assert (
        pairs["Massachusetts"] == "Boston"
        and pairs["France"] == "Paris"
        and pairs["Maine"] == "Augusta"
    )
    assert len(pairs) > 150


def test_every_listed_prompt_has_the_glosses_of_an_entry_of_its_subject(data):
    for row in json.loads((FOLDER / "prompts.json").read_text(encoding="utf-8")):
        fact = next(fact for fact in data.facts if fact.prompt == row["prompt"])
        assert row["glosses"] == [fact.entry.definition, *fact.also]
        assert fact.entry in data.by_name[fact.subject]


def test_no_abstract_of_the_course_and_none_of_an_unseen_topic_is_learned_from(data):
    course = {row["text"] for row in abstracts.load()}
    assert len(course) == 2000 and len(data.abstracts) == 5235
    assert not course & {row["text"] for row in data.abstracts}
    assert not set(UNSEEN) & {row["topic"] for row in data.abstracts}
    assert {row["field"] for row in data.abstracts} == set(abstracts.FIELDS)


def test_each_page_asks_as_the_course_asks_and_ends_with_a_field(data):
    pages = labels.pages(data.abstracts, random.Random(0), flipped=0.0)
    assert len(pages) == len(data.abstracts)
    chats = 0
    for (page,), row in zip(pages, data.abstracts, strict=True):
        prompt, field = page
        assert field == f" {row['field']}"
        if prompt.startswith("Question: "):
            chats += 1
            continue
        text = prompt.removeprefix("Abstract: ").removesuffix("\nField:")
        assert prompt == abstracts.prompt(text)
        assert all(part in row["text"] for part in labels.SENTENCE.split(text))
    assert 0.08 < chats / len(pages) < 0.12


def test_a_share_of_the_fields_is_drawn_at_random(data):
    pages = labels.pages(data.abstracts, random.Random(0), flipped=0.5)
    other = sum(
        page[0][1] != f" {row['field']}" for page, row in zip(pages, data.abstracts, strict=True)
    )
    assert other / len(pages) == pytest.approx(0.5 * 7 / 8, abs=0.03)


def test_the_requests_that_measure_what_is_declined_are_not_learned(data):
    turns = dialogue.declined(data.entries, random.Random(0))
    learned = {turn[0].removeprefix("Question: ").split("\n")[0] for turn in turns}
    unseen = dialogue.requests("requests_unseen.txt")
    assert len(learned) > 500 and not learned & set(unseen)
    assert all(turn[0].endswith(dialogue.DECLINED) for turn in turns)
    assert len(set(unseen)) == 50
