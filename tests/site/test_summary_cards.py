"""`make site` prints the summary cards on two pages: one card of each core notebook."""

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


def test_each_core_notebook_has_one_card_and_they_come_first():
    cards = summary_cards.cards(chapters())
    numbers = [card.notebook[:2] for card in cards]
    assert numbers[:6] == list(paths.CORE.notebooks)
    assert all(card.text.startswith("| | |\n|---|---|\n| **") for card in cards)


@pytest.mark.browser
def test_the_cards_print_on_two_pages(browser, tmp_path):
    cards = summary_cards.cards(chapters())
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
