"""A learner's copy of a notebook's core, run cell by cell in a fresh shell of IPython, with the text that each cell shows."""

from __future__ import annotations

import html
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import ipywidgets
from cells import NOTEBOOKS, Cell, cells
from check_rows import rows_of
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from workshop.lab.solutions import held_back

NOT_WORDS = re.compile(r"<(style|script|defs)\b.*?</\1>|<[^>]*>", re.DOTALL)
OWN_ECHO = re.compile(r"Out\[\d+\]: .*", re.DOTALL)  # of a shell without a page
COLOURS = re.compile(r"\x1b\[[\d;]*m")
OPEN_ANSWER = re.compile(r"^(\w+) = .*\.\.\..*$", re.MULTILINE)
# Right answers that are made of a notebook's own names; others are the first of the rows of test_every_check.
MADE_IN_THE_NOTEBOOK = {
    "start.stop": 'llm.complete("San Francisco is a", max_tokens=100, temperature=0, stop=["."])',
    "memory.one_change": 'MemorySliders(**nb01.TIGHT, kv_cache_dtype="fp8").case',
    "offline.left": "len(many) - lines_after_kill",
    "offline.once": '{"lines": len(many), "different": len(many), "twice": 0}',
}


def sources(notebook: str) -> list[str | None]:
    """Return the code of each cell of a learner's copy, None for text. A copy has no solutions."""
    copy = json.loads(held_back((NOTEBOOKS / f"{notebook}.ipynb").read_bytes()))
    return [
        "".join(cell["source"]) if cell["cell_type"] == "code" else None for cell in copy["cells"]
    ]


@dataclass(frozen=True)
class Ran:
    """What a cell did: its result, the text that it shows, and its error, if it has one."""

    result: object
    text: str
    error: BaseException | None


class Shell:
    """An IPython shell, in the place of a notebook's kernel."""

    def __init__(self, shell: InteractiveShell):
        self.shell = shell
        self.names = shell.user_ns

    def run(self, source: str) -> Ran:
        """Run a cell as a notebook does; its error is part of what comes back."""
        with capture_output() as captured:
            done = self.shell.run_cell(source, store_history=True)
        shown = [OWN_ECHO.sub("", captured.stdout), captured.stderr]
        for output in captured.outputs:
            shown.append(_text_of_data(output.data))
        if done.result is not None:
            shown.append(self._text_of(done.result))
        text = COLOURS.sub("", "\n".join(part for part in shown if part.strip()))
        return Ran(done.result, text, done.error_before_exec or done.error_in_exec)

    def _text_of(self, value: object) -> str:
        if isinstance(value, ipywidgets.Widget):
            return "\n".join(_texts_of_widget(value))
        data, _ = self.shell.display_formatter.format(value)
        return _text_of_data(data)


@dataclass(frozen=True)
class CoreCell:
    """A cell of a notebook's core that has run: as it stands and, if it is an exercise, with a right answer before."""

    cell: Cell
    ran: Ran
    key: str = ""
    answered: Ran | None = None


def run_core(notebook: str, first_heading: str = "") -> Iterator[CoreCell]:
    """Run a learner's copy in a fresh shell, without Deeper: all cells, or those from a heading on.

    When a cell runs, what is above it has run, and nothing else: as after Run All Above Selected Cell.
    A right answer is tried in another home: the exercise stays open for the cells that follow.
    """
    has_begun = not first_heading
    with fresh_shell() as shell, tempfile.TemporaryDirectory() as other_home:
        for cell, source in zip(cells(notebook), sources(notebook), strict=True):
            has_begun = has_begun or first_heading in cell.headings
            if source is None or cell.is_deeper or not has_begun:
                continue
            key, answered = "", None
            if "solution" not in cell.tags and OPEN_ANSWER.search(source):
                [key] = re.findall(r'check\("([\w.]+)"', source)
                with patch.dict(os.environ, WORKSHOP_HOME=other_home):
                    answered = shell.run(with_answer(notebook, key, source))
            yield CoreCell(cell, shell.run(source), key, answered)


def with_answer(notebook: str, key: str, source: str) -> str:
    """Return the source of an exercise with a right answer in the place of its open one."""
    answer = MADE_IN_THE_NOTEBOOK.get(key) or repr(rows_of(notebook)[key][0][0])
    return OPEN_ANSWER.sub(lambda match: f"{match[1]} = {answer}", source, count=1)


@contextmanager
def fresh_shell() -> Iterator[Shell]:
    """Give a new shell, and forget it afterwards."""
    InteractiveShell.clear_instance()
    try:
        yield Shell(InteractiveShell.instance())
    finally:
        InteractiveShell.clear_instance()


def plain_text(markup: str) -> str:
    """Return the words of HTML, those of its titles included."""
    return " ".join(html.unescape(NOT_WORDS.sub(" ", markup)).split())


def _text_of_data(data: dict) -> str:
    if "text/html" in data:
        return plain_text(data["text/html"])
    return data.get("text/plain", "")


def _texts_of_widget(widget: ipywidgets.Widget) -> Iterator[str]:
    """Yield the texts of a widget and of those in it."""
    if isinstance(widget, ipywidgets.HTML):
        yield plain_text(widget.value)
    elif getattr(widget, "description", ""):
        yield widget.description
    for child in getattr(widget, "children", ()):
        yield from _texts_of_widget(child)
