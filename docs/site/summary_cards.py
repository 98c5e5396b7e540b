"""The summary cards of the notebooks, to print on two pages: what to remember of each, and its command.

A card is a cell of text with the tag `card`; or what follows a heading "Summary card"; or a table whose head is
`| card 1 | |`. The cards of the core come first.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nbconvert.filters import markdown2html

from workshop.course.progress import paths
from workshop.course.progress.course_map import Chapter

NAME, TITLE = "summary_cards", "Summary cards"
PAGES = 2
HEADING = re.compile(r"^#+ Summary card\b.*?\n(.*)", re.DOTALL | re.MULTILINE)
TABLE = re.compile(r"^\| *card\b[^\n]*\|\n(?:\|[^\n]*\|?(?:\n|$))+", re.MULTILINE | re.IGNORECASE)
TABLE_HEAD = re.compile(r"^\| *card\b[^|\n]*\|", re.IGNORECASE)
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


def text_of(cell: dict) -> str:
    """Return the card that a cell of a notebook holds; '' if it holds none."""
    if cell["cell_type"] != "markdown":
        return ""
    text = "".join(cell["source"])
    if "card" in cell.get("metadata", {}).get("tags", []):
        # its own heading says less than the notebook's title
        return re.sub(r"^#+ Summary card.*\n", "", text.strip())
    if match := HEADING.search(text):
        return match[1].strip()
    if match := TABLE.search(text):
        return TABLE_HEAD.sub("| |", match[0].strip(), count=1)
    return ""


def cards(chapters: Sequence[Chapter], folder: Path) -> list[Card]:
    """Return the cards of the notebooks in a folder, those of the core first."""
    in_order = sorted(chapters, key=lambda chapter: not paths.CORE.has(chapter.name))
    result = []
    for chapter in in_order:
        cells = json.loads((folder / f"{chapter.name}.ipynb").read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            if text := text_of(cell):
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
