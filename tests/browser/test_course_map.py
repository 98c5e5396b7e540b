"""The course map in a real JupyterLab: reachable by keyboard, and a step opens its notebook."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.browser]


def test_a_step_of_the_map_opens_its_notebook_by_keyboard(page, course_lab):
    progress = course_lab.home / "progress.json"
    progress.write_text(json.dumps({"start.stop": {"tries": 1, "done": True}}))
    page.page.set_viewport_size({"width": 900, "height": 1000})
    page.open(course_lab.address("00_start.ipynb"))
    page.page.keyboard.press("Control+b")  # the file browser takes a third of a narrow screen
    page.page.locator(".jp-Notebook .jp-CodeCell", has_text="course_map()").first.click()
    page.page.keyboard.press("Shift+Enter")
    steps = page.page.get_by_role("navigation", name="Course map")
    steps.wait_for(timeout=60_000)
    page.scroll_to("nav[aria-label='Course map']")
    page.shot("course_map")
    assert "go on here" in steps.inner_text(), "one of five checks of notebook 0 is answered"
    assert steps.get_by_role("img", name="1 of 4 checks").is_visible()
    cut = steps.evaluate("nav => nav.scrollWidth > nav.clientWidth + 1")
    assert not cut, "nothing is cut at 900 pixels"
    link = steps.get_by_role("link", name="1. Memory")
    link.focus()
    page.page.keyboard.press("Enter")
    page.page.get_by_role("tab", name="01_memory.ipynb").wait_for(timeout=30_000)
    assert not page.elsewhere and not page.errors
