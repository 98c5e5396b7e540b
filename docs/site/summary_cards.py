"""The summary cards of the notebooks, to print on two pages: what to remember of each, and its command.

A card is a table whose head is `| card 1 | |`. The cards of the core come first.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from nbconvert.filters import markdown2html

from workshop.course.progress import certificate, paths
from workshop.course.progress.course_map import Chapter

NAME, TITLE = "summary_cards", "Summary cards"
PAGES = 2
LOOK = """<style>
.cards { display: grid; grid-template-columns: 1fr 1fr; gap: 14px; align-content: start; }
.card { border: 1px solid #888; border-radius: 8px; padding: 6px 12px; break-inside: avoid; overflow-wrap: anywhere; }
.card h2 { font-size: 16px; margin: 2px 0 4px; }
.card table { display: table !important; margin: 4px 0 !important; width: 100%; font-size: 12.5px; }
.card td, .card th { vertical-align: top; padding: 2px 8px 2px 0; }
.card td:first-child { white-space: nowrap; }
.card code { font-size: 11px; white-space: pre-wrap; }
@media (max-width: 700px) { .cards { grid-template-columns: 1fr; } }
@page { size: A4; margin: 11mm; }
@media print {
  main { max-width: none !important; padding: 0 !important; } h1 { display: none; }
  .cards { display: block; columns: 2; column-gap: 4mm; break-after: page; } .cards:last-child { break-after: auto; }
  .card { padding: 1.5mm 3mm; margin: 0 0 3mm; } .card h2 { font-size: 11pt; }
  .card table { font-size: 9pt; line-height: 1.3; } .card code { font-size: 8pt; }
}
</style>"""


@dataclass(frozen=True)
class Card:
    """The part of a notebook that is to be remembered, in Markdown."""

    notebook: str
    title: str
    text: str


def cards(chapters: Sequence[Chapter]) -> list[Card]:
    """Return the cards of the notebooks, those of the core first."""
    in_order = sorted(chapters, key=lambda chapter: not paths.CORE.has(chapter.name))
    result = []
    for chapter in in_order:
        text = certificate.card_table(chapter.name)
        if text:
            result.append(Card(chapter.name, chapter.title, text))
    return result


def body(course_cards: Sequence[Card]) -> str:
    """Return the page's body: as many cards on the first sheet as on the second."""
    on_a_sheet = -(-len(course_cards) // PAGES)
    sheets = []
    for first in range(0, len(course_cards), max(1, on_a_sheet)):
        drawn = "".join(map(_card, course_cards[first : first + on_a_sheet]))
        sheets.append(f'<section class="cards markdown">{drawn}</section>')
    return f"{LOOK}<h1>{TITLE}</h1><p class='note'>They print on two pages.</p>{''.join(sheets)}"


def _card(card: Card) -> str:
    return f'<article class="card"><h2>{html.escape(card.title)}</h2>{markdown2html(card.text)}</article>'
