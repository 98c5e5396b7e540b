"""A page to keep after the course: what the learner has done, which predictions came true, and the cards."""

from __future__ import annotations

import json
import re
from pathlib import Path

from workshop import install_words
from workshop.course.drawing.html import Html, alone, code, join, muted, panel, table, tag, tiles
from workshop.course.exercises import checking
from workshop.course.progress import paths
from workshop.course.progress.course_map import CourseMap, course_map
from workshop.home import write_private
from workshop.timestamps import now

TITLE = "Distributed LLM inference with vLLM"
NAME = "certificate.html"
LOOK = (
    "body{max-width:860px;margin:0 auto;padding:28px 24px;background:#fff}"
    "body .workshop{max-width:none;font-size:16px;line-height:1.55}"
    "h1{font-size:30px;line-height:1.25;margin:0 0 6px;padding-bottom:12px;"
    "border-bottom:4px solid #0072B2}"
    "h2{font-size:19px;color:#0072B2;margin:30px 0 6px;padding-top:12px;"
    "border-top:1px solid #d0d7de;break-after:avoid}"
    "body .workshop .tile{font-size:14px;padding:12px 16px}body .workshop .tile>b{font-size:30px}"
    "table{border-collapse:collapse;width:100%;text-align:left}"
    "td{vertical-align:top;padding:5px 16px 5px 0;border-bottom:1px solid #eaeef2}"
    "td:first-child{font-weight:600;min-width:9em}"
    "pre{white-space:pre-wrap;background:#f6f8fa;border-radius:6px;padding:10px 14px;"
    "font-size:14px}tr,pre,.tiles{break-inside:avoid}"
)
CARD = re.compile(r"^\| card \d+ \| \|\n(\|---\|---\|\n(?:\|.*\|(?:\n|$))+)", re.MULTILINE)
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+) \|$", re.MULTILINE)
MARKS = re.compile(r"</?abbr[^>]*>|[`*]|\[([^]]+)\]\([^)]+\)")
COMMAND = "command"


def write(path: str | Path = NAME) -> Path:
    """Write the page, and return where it is. It is one file that needs no server.

    Raises:
        WorkshopError: the folder cannot be written.
    """
    target = Path(path).expanduser().resolve()
    write_private(target, page(), 0o644)
    return target


def page() -> str:
    """Return the page as HTML: counts, predictions that came true, and a card of each notebook begun."""
    progress = course_map()
    begun = [chapter for chapter in progress.chapters if chapter.name in progress.begun]
    parts: list[object] = [tag("h1", TITLE), tag("p", progress.summary()), _counts(progress)]
    true = _came_true(progress)
    if true:
        parts += [tag("h2", "Predictions that came true"), table(("", ""), true)]
    for chapter in begun:
        rows = card(chapter.name)
        if rows:
            parts += [tag("h2", chapter.title), _card(rows)]
    parts.append(muted(f"Written on {now()[:10]}."))
    head = f'<meta charset="utf-8">{tag("title", TITLE)}<style>{LOOK}</style>'
    return f'<!doctype html><html lang="en">{head}{alone(panel(*parts))}</html>\n'


def _counts(progress: CourseMap) -> Html:
    """Return the learner's own numbers."""
    core = progress.of_part(paths.CORE)
    finished = [chapter for chapter in core if progress.state(chapter) == "done"]
    numbers = [
        (f"{len(finished)} of {len(core)}", "notebooks of the core finished"),
        (f"{len(progress.done)}", "exercises solved"),
    ]
    if progress.predicted:
        right = f"{len(_came_true(progress))} of {len(progress.predicted)}"
        numbers.append((right, "predictions came true"))
    return tiles(numbers, len(numbers))


def _came_true(progress: CourseMap) -> list[tuple[str, str]]:
    """Return what came true as it was predicted, and why, in the order of the notebooks."""
    rows = []
    for chapter in progress.chapters:
        for key in (*chapter.predictions, *chapter.deeper_predictions):
            entry = progress.predicted.get(key, {})
            if entry and entry["predicted"] == entry["result"]:
                result = entry["result"]
                rows.append((f"{chapter.title}: {result}", checking.reason_of(key, result)))
    return rows


def card(notebook: str) -> list[tuple[str, str]]:
    """Return the summary card of a notebook (`01_memory`): its lines, each with its name. [] without one."""
    return [(name, MARKS.sub(r"\1", text)) for name, text in ROW.findall(card_table(notebook))]


def card_table(notebook: str) -> str:
    """Return the summary card of a notebook as a table in Markdown, without its number. "" without one."""
    path = install_words.course_folder() / f"{notebook}.ipynb"
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        match = CARD.search("".join(cell["source"]))
        if match:
            return f"| | |\n{match[1]}"
    return ""


def _card(rows: list[tuple[str, str]]) -> Html:
    """Return a card as a table, with its command to copy below."""
    lines = [row for row in rows if row[0] != COMMAND]
    commands = [code(text) for name, text in rows if name == COMMAND]
    return join([table(("", ""), lines), *commands])
