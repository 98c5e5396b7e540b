"""`make site` prints the summary cards on two pages: one card of each core notebook, whatever marks it as a card."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import summary_cards
from static_page import page as page_of

from workshop.course.progress import paths
from workshop.course.progress.course_map import chapters

ROOT = Path(__file__).parents[2]
pytest.importorskip("nbconvert")


CELLS = {
    "a tag": {"metadata": {"tags": ["card"]}, "source": "## Summary card\n**formula** a = b"},
    "a heading": {"metadata": {}, "source": "Text before.\n\n### Summary card 4\n**formula** a = b"},
    "a table": {"metadata": {}, "source": "Text.\n\n| card 4 | |\n|---|---|\n| **formula** | a = b |\n\nNext."},
}  # fmt: skip


@pytest.mark.parametrize("how", CELLS)
def test_a_card_is_found_by(how):
    text = summary_cards.text_of({"cell_type": "markdown", **CELLS[how]})
    assert "**formula**" in text and "a = b" in text
    assert "Text" not in text and "Next" not in text and "Summary" not in text
    assert summary_cards.text_of({"cell_type": "code", **CELLS[how]}) == ""
    no_card = {
        "cell_type": "markdown",
        "metadata": {},
        "source": "| a | b |\n|---|---|\n| card | 1 |",
    }
    assert summary_cards.text_of(no_card) == ""


def test_each_core_notebook_has_one_card_and_they_come_first():
    cards = summary_cards.cards(chapters(), ROOT / "notebooks")
    numbers = [card.notebook[:2] for card in cards]
    assert numbers[:6] == list(paths.CORE.notebooks)
    assert len(numbers) == len(set(numbers)), "one card for each notebook"


@pytest.mark.browser
def test_the_cards_print_on_two_pages(browser, tmp_path):
    cards = summary_cards.cards(chapters(), ROOT / "notebooks")
    path = tmp_path / "summary_cards.html"
    path.write_text(page_of(summary_cards.TITLE, summary_cards.body(cards)), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    printed = page.pdf(prefer_css_page_size=True)
    output = ROOT / ".ci" / "output"
    output.mkdir(parents=True, exist_ok=True)
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1030})
    page.screenshot(path=output / "summary_cards.png", full_page=True)
    context.close()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 2
