"""A concept question and a word of the glossary in a real JupyterLab: what a learner sees, by mouse and by keyboard."""

from __future__ import annotations

import itertools
import json

import pytest
from widget_page import CUT

from workshop.course.exercises.checking import all_exercises

pytestmark = [pytest.mark.browser]


def test_a_question_answers_the_option_that_is_chosen(page, course_lab):
    options = all_exercises()["memory.training"].options
    page.open(course_lab.address("01_memory.ipynb"))
    page.page.locator(".jp-CodeCell", has_text='check("memory.training")').locator(
        ".cm-content"
    ).click()
    page.page.keyboard.press("Shift+Enter")
    buttons = page.page.locator(".workshop-options button")
    buttons.first.wait_for(timeout=60_000)
    page.scroll_to(".workshop-options")
    assert (
        buttons.count() == len(options)
        and not page.page.locator(".workshop-options .mod-active").count()
    )
    page.page.get_by_text(options["a"][0]).click()
    page.page.locator(".verdict.bad", has_text=options["a"][1]).wait_for()
    page.shot("question_wrong")
    page.page.keyboard.press("Tab")
    page.page.keyboard.press("Space")
    page.page.locator(".verdict.good", has_text=options["b"][1]).wait_for()
    page.shot("question_right")
    stored = json.loads((course_lab.home / "progress.json").read_text())["memory.training"]
    assert stored == {"first": "a", "tries": 2, "done": True}
    page.page.set_viewport_size({"width": 900, "height": 1000})
    page.page.keyboard.press("Control+b")  # the file browser takes half of it
    page.page.wait_for_timeout(500)
    assert not page.page.evaluate(CUT), "nothing is cut on a narrow screen"
    boxes = [buttons.nth(n).bounding_box() for n in range(len(options))]
    assert all(
        above["y"] + above["height"] <= below["y"] + 1 for above, below in itertools.pairwise(boxes)
    ), "no option covers another"
    word = page.page.locator("abbr", has_text="bfloat16").first
    word.hover()
    page.shot("question_narrow")
    assert "16 bits" in word.get_attribute("title")
    assert "dotted" in word.evaluate("word => getComputedStyle(word).textDecoration")
    assert not page.elsewhere and not page.errors
