"""The labels of the abstracts: their tokens and their measures; what the model is shown to do."""

from __future__ import annotations

import json
import random

import pytest

from benchmarks.teaching_model import card, labels, renew, sentences
from workshop.course.topics import abstracts
from workshop.teaching_model import FOLDER


def test_every_field_is_one_token_after_the_prompt():
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    prompt = tokenizer.encode(abstracts.prompt("Bees find flowers.")).ids
    for field in abstracts.FIELDS:
        ids = tokenizer.encode(f"{abstracts.prompt('Bees find flowers.')} {field}").ids
        assert ids[:-1] == prompt


def test_the_calibration_error_is_the_mean_gap_over_equal_bins():
    # ten at 0.95 of which nine are right; ten at 0.55 of which two are: (10·0.05 + 10·0.35) / 20
    confidences = [0.95] * 10 + [0.55] * 10
    right = [True] * 9 + [False] + [True] * 2 + [False] * 8
    assert labels.calibration_error(confidences, right) == pytest.approx(0.2)
    assert labels.calibration_error([1.0, 0.0], [True, False]) == 0


def test_the_figures_count_mistakes_among_the_least_sure_tenth():
    rows = [{"field": "biology", "topic": "a" if n < 5 else "b"} for n in range(20)]
    sure = {"biology": 0.9, "physics": 0.1}
    distributions = [{"biology": 0.4, "physics": 0.6}] * 2 + [{"biology": 0.1, "physics": 0.9}]
    figures = labels.figures(rows, distributions + [sure] * 17, {"a"})
    assert figures["labels_right"] == "17/20"
    assert figures["labels_right_of_unseen_topics"] == "2/5"
    assert figures["labels_mistakes_among_the_least_sure_tenth"] == "2/3"


def test_where_a_place_is_is_said_where_its_gloss_names_one_region(subtests):
    for name, gloss, sentence in [
        (
            "Apeldoorn",
            "a city of east central Netherlands; a tourist center",
            "Apeldoorn is in Netherlands.",
        ),
        ("Bahia Blanca", "a port city in eastern Argentina near Buenos Aires", None),
        ("New York Bay", "a bay in New York", None),
    ]:
        with subtests.test(name):
            entry = sentences.Entry("namenet", "n", "noun.location", (name,), gloss, ())
            assert sentences.where(name, entry) == sentence


def test_clauses_that_make_no_sentence_are_left_out_but_where_the_gloss_is_wanted_whole():
    entry = sentences.Entry(
        "namenet", "n", "noun.person", ("George Washington",),
        "1st President of the United States; commander-in-chief of the Continental Army (1732-1799)", (),
    )  # fmt: skip
    texts = [sentences.describe("George Washington", entry, random.Random(n)) for n in range(20)]
    assert not any(";" in text for text in texts)
    assert "commander" in sentences.describe(
        "George Washington", entry, random.Random(0), plain=True
    )


def test_a_measuring_instrument_has_an_article_and_clothing_has_none():
    assert (
        sentences.noun_phrase("measuring instrument for temperature", "noun.artifact")
        == "a measuring instrument for temperature"
    )
    assert sentences.noun_phrase("clothing for the feet", "noun.artifact") == (
        "clothing for the feet"
    )


def test_card_and_page_show_the_figures_that_were_measured():
    figures = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))
    for path, text in card.pages(figures).items():
        assert path.read_text(encoding="utf-8") == text, "python benchmarks/teaching_model/card.py"
    assert card.of("1889/2000") == "1,889 of 2,000 (94 %)"


def test_the_model_does_the_storys_job():
    figures = json.loads((FOLDER / "figures.json").read_text(encoding="utf-8"))

    def share(name: str) -> float:
        part, whole = map(int, figures[name].split("/"))
        return part / whole

    assert share("labels_right") >= 0.88
    assert figures["labels_calibration_error"] <= 0.05
    assert share("labels_mistakes_among_the_least_sure_tenth") >= 1 / 3
    assert share("core_places_right") == 1 and share("drawn_places_right") >= 0.9
    assert share("other_subjects_declined") >= 0.9


def test_every_step_of_make_model_names_a_script_that_is_there(capsys):
    for step in renew.STEPS.values():
        name = step.command.removeprefix("-m ").split()[0]
        file = name if name.endswith(".py") else name.replace(".", "/") + ".py"
        assert (renew.ROOT / file).is_file(), file
    assert renew.main([]) == 0 and renew.main(["weights"]) == 2
    assert "workshop/data/guesses.json" in capsys.readouterr().out
