"""The first minute in a real JupyterLab: type, see words branch; and a page that cannot show widgets is told why."""

from __future__ import annotations

import re

import pytest
from widget_page import CUT, SILENT, UNNAMED

from workshop.course.widgets.sampling.branching import WHOLE_PX

pytestmark = [pytest.mark.browser]
BOX = "from workshop import FirstWords\n\nbox = FirstWords()\nbox"
CHECK = "box.check_page()"
LABEL = "document.querySelector('.workshop[role=img]').getAttribute('aria-label')"
WIDTH = "parseFloat(getComputedStyle(document.querySelector('.flow > path')).strokeWidth)"


def test_words_branch_as_she_types_and_as_the_temperature_moves(page, course_lab):
    notebook = course_lab.notebook("first", BOX, CHECK)
    page.open(notebook)
    page.page.locator(".jp-CodeCell").first.click()
    page.page.keyboard.press("Shift+Enter")
    picture = page.page.locator(".workshop[role=img]").first
    picture.wait_for()
    assert "port" in picture.get_attribute("aria-label")
    box = page.page.get_by_placeholder("the beginning of a sentence")
    box.fill("A dog is a")
    page.page.wait_for_function(f"{LABEL}.includes('member 100 %')")
    box.fill("San Francisco is a")
    page.page.wait_for_function(f"{LABEL}.includes('port 5')")
    page.page.wait_for_timeout(600)  # the glide
    as_it_was = page.page.evaluate(WIDTH)
    page.page.locator(".widget-slider .noUi-handle").press("Home")
    page.page.wait_for_function(f"{LABEL}.includes('port 100 %')")
    first_frames = page.page.evaluate(WIDTH)
    page.page.wait_for_timeout(600)
    assert as_it_was == pytest.approx(0.52 * WHOLE_PX, abs=2)
    assert as_it_was - 1 < first_frames <= page.page.evaluate(WIDTH) == pytest.approx(WHOLE_PX)
    page.page.get_by_role("button", name="Add a word").click()
    page.page.wait_for_function(f"!{LABEL}.includes('port 100 %')")
    assert box.input_value() == "San Francisco is a port"
    page.page.keyboard.press("Control+b")
    for width, height in ((1280, 900), (1024, 700)):
        page.page.set_viewport_size({"width": width, "height": height})
        page.shot(f"first_words_{width}")
        assert not page.page.evaluate(CUT)
    assert not page.page.evaluate(SILENT) and not page.page.evaluate(UNNAMED)
    page.page.locator(".jp-CodeCell", has_text="check_page").click()
    page.page.keyboard.press("Shift+Enter")
    page.page.get_by_text("✓ Buttons and sliders work here.").wait_for()
    assert not page.failures() and not page.errors and not page.elsewhere


def test_a_page_that_cannot_show_widgets_gets_causes_and_the_static_form(page, course_lab):
    notebook = course_lab.notebook("first", BOX, CHECK)
    # an environment that serves the page without the widgets' extension
    page.page.route(
        re.compile(r"@jupyter-widgets/jupyterlab-manager/"), lambda route: route.abort()
    )
    page.open(notebook)
    page.page.locator(".jp-CodeCell").first.click()
    page.page.keyboard.press("Shift+Enter")
    static = page.page.locator(".workshop[role=img]").first
    static.wait_for()
    assert "port" in static.get_attribute("aria-label"), "the static form"
    page.page.wait_for_timeout(4500)  # a page has this long to answer
    page.page.keyboard.press("Shift+Enter")
    page.page.get_by_text("This page has not shown the widget above").wait_for()
    page.shot("first_words_not_shown")
    for cause in (
        "lacks the widgets' extension",
        "is older than the kernel",
        "cuts websockets",
    ):
        assert page.page.get_by_text(cause).count() == 1
    assert page.page.locator(".workshop[role=img]").count() == 2


def test_cells_that_are_run_at_once_raise_no_alarm(page, course_lab):
    notebook = course_lab.notebook("first", BOX, CHECK)
    page.open(notebook)
    page.run_all()
    assert not page.page.get_by_text("This page has not shown").count()
