"""The page of the first minute: on a phone, from its file, with the network cut."""

from __future__ import annotations

import lab_page
import pytest
from live import first_page, pages

from workshop.course.drawing.html import Html, div, span
from workshop.course.drawing.readable_numbers import percent
from workshop.course.widgets.sampling.branching import Word, branching, end_of
from workshop.course.widgets.sampling.first_words import FirstWords, plain
from workshop.course.widgets.sampling.picture import spoken
from workshop.course.widgets.sampling.source import TeachingModel

pytestmark = pytest.mark.browser
WORDS = (" port", " <b>\"'&", "\n", "", " \n ", "�x", "all others")
SHARES = ((0.515, 0.189, 0.115, 0.0412, 0.0000123, 0.0, 0.1396877), (1.0, 0, 0, 0, 0, 0, 0))
LABEL = "document.getElementById('picture').getAttribute('aria-label')"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The page."""
    path = tmp_path_factory.mktemp("first") / "first.html"
    path.write_text(first_page.first_page(pages.packed), encoding="utf-8")
    return path


@pytest.fixture
def opened(open_offline, built):
    """Return a function that opens the page on a phone."""

    def open_page(scheme: str = "light", **options: object):
        phone = {"width": 390, "height": 844}
        return open_offline(built.as_uri(), viewport=phone, color_scheme=scheme, **options)

    return open_page


def test_on_a_phone_words_branch_as_she_types_and_as_the_temperature_moves(opened):
    page = opened(has_touch=True, is_mobile=True)
    box = FirstWords(TeachingModel())
    for text, temperature in (("San Francisco is a", 1), ("A dog is a", 1), ("Boston is a", 0.5)):
        page.get_by_label("Type:").fill(text)
        page.get_by_label("temperature").fill(str(temperature))
        box.controls["text"].value = text
        box.controls["temperature"].value = temperature
        label = page.evaluate(LABEL)
        assert label.split(",")[0] in box.picture.value, "what the notebook's box says"
    page.get_by_label("temperature").fill("0")
    assert page.evaluate(LABEL) == "Next token: city 100 %"
    page.get_by_role("button", name="Add a word").tap()
    assert page.get_by_label("Type:").input_value() == "Boston is a city"
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    bottom = page.locator("#picture").bounding_box()
    assert bottom["y"] + bottom["height"] <= 844, "box, temperature and picture on one screen"
    lab_page.OUTPUT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=lab_page.OUTPUT / "first_page_390.png")


def test_it_draws_as_the_course_does(opened):
    page = opened()
    for shares, before in (SHARES, SHARES[::-1]):
        rows, next_words = [], []
        for text, share, old in zip(WORDS, shares, before, strict=True):
            look = "grey" if text == WORDS[-1] else "blue"
            rows.append({"text": text, "share": share, "before": old, "look": look})
            name = div(plain(text), cls="name cut", title=spoken(text))
            next_words.append(Word(name, share, old, span(percent(share), cls="number"), look))
        for is_still in (False, True):
            arguments = ["one two three four five six seven", rows, is_still]
            drawn = page.evaluate("rows => drawing.branching(...rows)", arguments)
            assert Html(drawn) == branching(
                arguments[0], next_words, look="plain", is_still=is_still
            )
    for text in ("San Francisco is a", "a\nb", "x" * 99, "one two three four five six seven"):
        assert page.evaluate("text => drawing.endOf(text)", text) == end_of(text)


def test_a_browser_that_is_too_old_says_so(browser, built):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.add_init_script("delete globalThis.DecompressionStream")
    page.goto(built.as_uri())
    page.locator("#status", has_text="too old for the model").wait_for()
    assert page.locator(".word").count() == 9, "the first picture is there all the same"
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_wants_less_motion_sees_none(opened, scheme):
    page = opened(scheme, reduced_motion="reduce")
    page.get_by_label("temperature").fill("0.3")
    running = "document.getElementById('picture').getAnimations({subtree: true}).length"
    assert page.evaluate(running) == 0
    page.screenshot(path=lab_page.OUTPUT / f"first_page_{scheme}.png")
