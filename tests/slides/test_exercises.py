"""Slides, schedules and notebooks are one thing: an exercise is seen, reached by a jump, and not answered before."""

from __future__ import annotations

import re

import cells
import deck
import pytest
import recorder
from drawings.recorded import answers
from predictions import RIGHT, Prediction, predictions, told

from workshop.course.exercises.checking import all_exercises
from workshop.course.progress import course_map, paths

SLIDES = tuple(slide for name in deck.DECKS for slide in deck.slides(name))
EXERCISES = [slide for slide in SLIDES if "_class: exercise" in slide.source]
PREDICTIONS = {
    prediction.key: prediction
    for path in cells.NOTEBOOKS.glob("*.ipynb")
    for prediction in predictions(path)
}
CORE_KEYS = [
    (chapter.name, key)
    for chapter in course_map.chapters()
    for key in chapter.checks
    if paths.CORE.has(chapter.name)
]


def title(slide: deck.Slide) -> str:
    return f"{slide.deck}: {slide.number} {slide.title}"


@pytest.mark.parametrize("slide", EXERCISES, ids=title)
def test_an_exercise_names_a_heading_and_a_cell_that_a_learner_sees(slide):
    [(notebook, heading, keys)] = slide.wheres
    assert heading in cells.headings(notebook), f"{notebook} shows no heading {heading!r}"
    assert keys, "name a check or a prediction"
    for key in keys:
        cell = cells.key_cell(notebook, key)
        assert cell, f"{notebook} has no {key}"
        assert cell.is_visible, f"{notebook} [{cell.number}], {key}, is folded"
        assert heading in cell.headings, f"{key} is under {cell.headings}"


def test_the_three_hours_exercise_the_core_in_its_order():
    notebooks = [slide.wheres[0][0] for slide in EXERCISES if slide.deck == "workshop"]
    assert notebooks == sorted(notebooks)
    assert [notebook[:2] for notebook in dict.fromkeys(notebooks)] == list(paths.CORE.notebooks)


def asked_on(exercise: deck.Slide) -> list[str]:
    """Return the predictions that an exercise's slide names.

    On the last slide of a notebook, all others follow that a learner sees there without *Deeper*.
    """
    of_notebook = [
        slide
        for slide in EXERCISES
        if (slide.deck, slide.wheres[0][0]) == (exercise.deck, exercise.wheres[0][0])
    ]
    named = exercise.wheres[0][2]
    if exercise == of_notebook[-1]:
        elsewhere = {key for slide in of_notebook[:-1] for key in slide.wheres[0][2]}
        for key in PREDICTIONS:
            cell = cells.key_cell(exercise.wheres[0][0], key)
            if cell and cell.is_visible and key not in elsewhere:
                named = [*named, key]
    return [key for key in dict.fromkeys(named) if key in PREDICTIONS]


def spoilers(slides: tuple[deck.Slide, ...], exercise: deck.Slide) -> list[str]:
    """Return what earlier slides of its deck show of the answers of an exercise's predictions."""
    shown = []
    for key in asked_on(exercise):
        for slide in slides:
            if slide.deck == exercise.deck and slide.number <= exercise.number:
                text = deck.fill(deck.NOTE.sub("", slide.source), slide)
                # a number of the answer alone tells nothing beside so many others
                clues = [
                    clue for clue in told(visible(text), PREDICTIONS[key]) if not is_number(clue)
                ]
                shown += [f"{slide.title}: {key}: {clue}" for clue in clues]
    return shown


def visible(text: str) -> str:
    """Return what is read on a slide: the texts of its pictures, and their words for screen readers."""
    labels = " ".join(re.findall(r'aria-label="([^"]*)"', text))
    return f"{re.sub('<[^>]+>', ' ', text)} {labels}"


def is_number(clue: str) -> bool:
    return clue.replace(",", "").replace(".", "").isdigit()


@pytest.mark.parametrize("slide", EXERCISES, ids=title)
def test_no_slide_before_an_exercise_answers_its_prediction(slide):
    assert not spoilers(SLIDES, slide)


def test_an_answer_on_an_earlier_slide_is_found():
    exercise = next(slide for slide in EXERCISES if "logprobs.odd_word" in slide.source)
    early = deck.Slide(exercise.deck, exercise.part, 1, "# Bits\n\n{{figure surprise}}", 1, "")
    assert spoilers((early,), exercise)


def test_an_answer_before_another_exercise_of_the_notebook_is_found():
    exercise = next(slide for slide in EXERCISES if "parallelism.enough" in slide.source)
    early = deck.Slide(exercise.deck, exercise.part, 1, "# 810 GB: eleven H100", 1, "")
    assert spoilers((early,), exercise)
    last = next(slide for slide in EXERCISES if "parallelism.decide" in slide.source)
    assert "parallelism.prompt" in asked_on(last) and "parallelism.enough" not in asked_on(last)


@pytest.mark.parametrize(("notebook", "key"), CORE_KEYS, ids=lambda value: value)
def test_an_exercise_of_the_core_is_reached_by_the_cells_above_it(notebook, key):
    cell = cells.key_cell(notebook, key)
    assert cell and cell.is_visible
    _, missing = cells.needed(notebook, cell.number)
    assert not missing, f"{notebook} [{cell.number}]: nothing above defines {missing}"


def test_a_name_that_only_a_solution_defines_is_missing():
    # notebook 1: `math` of "how many GPUs for 405B?" is imported in its solution alone
    cell = cells.key_cell("01_memory", "memory.gpus_405b")
    solution = next(c for c in cells.cells("01_memory")[cell.number :] if "solution" in c.tags)
    assert "gpus" not in cells.needed("01_memory", solution.number)[1]
    assert cells.needed("01_memory", cell.number) == ([4], set())
    assert cells._defined("import numpy as np") == {"np"}


def test_every_exercise_slide_says_how_to_jump():
    for slide in EXERCISES:
        hint = "Run All Above Selected Cell"
        if "When it fails" in slide.source:  # above it, a cell may submit a job
            hint = "Begin at this heading"
        assert hint in deck.fill(slide.source, slide)


def test_the_story_runs_through_every_part_of_both_decks():
    assert any("Tonight" in slide.title for slide in deck.slides("workshop"))
    by_part: dict[tuple[str, str], str] = {}
    for slide in SLIDES:
        by_part[slide.deck, slide.part] = by_part.get((slide.deck, slide.part), "") + slide.source
    assert [part for part, text in by_part.items() if "abstract" not in text] == []


def test_the_sentence_of_the_slides_is_that_of_the_notebook():
    viewer = cells.section("05_logprobs", "The viewer")
    written = [cell for cell in viewer if f'odd = "{recorder.ODD_SENTENCE}"' in cell.source]
    assert written and answers()["surprise"]["request"]["prompt"] == recorder.ODD_SENTENCE
    assert any(recorder.ODD_SENTENCE in slide.source for slide in EXERCISES)


def test_every_key_on_a_slide_is_a_check_or_a_prediction():
    for slide in EXERCISES:
        for key in slide.wheres[0][2]:
            assert (key in all_exercises()) != (key in RIGHT), key
    assert isinstance(next(iter(PREDICTIONS.values())), Prediction)
