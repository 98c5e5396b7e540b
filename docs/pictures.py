"""Take the pictures of the product in README.md and docs/: today's notebooks, in JupyterLab in Chromium.

python docs/pictures.py [NAME ...]     all of them, or those that are named (about a minute each)

What a picture shows is written beside it, docs/pictures/record.json: tests/guide/test_pictures.py fails when
that is no longer so.
"""

# ruff: noqa: E402      the helpers of the browser tests are found by the path that is set first

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "tests" / "browser")]

import cells
import lab_page  # pyright: ignore[reportMissingImports]  it lies in tests/browser
from playwright.sync_api import sync_playwright
from widget_page import address  # pyright: ignore[reportMissingImports]

from workshop.lab.places import place_of

FOLDER = ROOT / "docs" / "pictures"
RECORD = FOLDER / "record.json"
SIZE = {"width": 1400, "height": 1000}
LONGEST_MS = 400_000  # a machine that does other things as well


@dataclass(frozen=True)
class Picture:
    """A widget of a notebook, or the whole screen with the list of files beside it."""

    notebook: str
    code: str  # the beginning of a line of the cell that is shown
    is_screen: bool = False

    def cell(self) -> cells.Cell:
        """Return the cell that is shown. Raises ValueError if the notebook has none, or several."""
        shown = [
            cell for cell in cells.cells(self.notebook) if f"\n{self.code}" in f"\n{cell.source}"
        ]
        if len(shown) != 1:
            raise ValueError(f"{self.notebook} has {len(shown)} cells with a line {self.code!r}")
        return shown[0]


PICTURES = {
    "01_memory_sliders": Picture("01_memory", "sliders = MemorySliders(", is_screen=True),
}


def record_of(picture: Picture) -> dict[str, object]:
    """Return what a picture shows: notebook, code, its section's words, and the list of files if that is in sight."""
    cell = picture.cell()
    shown: dict[str, object] = {"notebook": picture.notebook, "code": cell.source}
    section = cells.section(picture.notebook, cell.headings[-1])
    shown["words"] = [other.source for other in section if other.kind == "markdown"]
    if picture.is_screen:
        shown["notebooks"] = sorted(place_of(path.stem) for path in cells.NOTEBOOKS.glob("*.ipynb"))
    return shown


def shortened(picture: Picture) -> str:
    """Return the notebook with the shown cell's section alone, and the cells that its cells need."""
    notebook = json.loads(
        (cells.NOTEBOOKS / f"{picture.notebook}.ipynb").read_text(encoding="utf-8")
    )
    cell = picture.cell()
    wanted = {cell.number}
    for other in cells.section(picture.notebook, cell.headings[-1]):
        wanted.add(other.number)
        if other.kind == "code":
            wanted.update(cells.needed(picture.notebook, other.number)[0])
    notebook["cells"] = [notebook["cells"][number] for number in sorted(wanted)]
    return json.dumps(notebook)


def take(name: str, picture: Picture, browser) -> None:
    """Take one picture."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        home, folder = Path(temporary) / "home", Path(temporary) / "my-notebooks"
        place = place_of(picture.notebook)
        (folder / place).parent.mkdir(parents=True)
        (folder / place).write_text(shortened(picture), encoding="utf-8")
        url = stack.enter_context(lab_page.lab(home, folder, "--no-server"))
        page = lab_page.Page(browser.new_page(viewport=SIZE))
        page.page.set_default_timeout(LONGEST_MS)
        page.page.goto(address(url, place))
        page.page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=LONGEST_MS)
        page.page.locator("#jp-main-statusbar", has_text="| Idle").wait_for(timeout=LONGEST_MS)
        if not picture.is_screen:
            page.page.keyboard.press("Control+b")  # the list of files
        page.run_all(timeout_s=400)
        shown = page.page.locator(".jp-CodeCell", has_text=picture.code).first
        shown.evaluate("element => element.scrollIntoView({block: 'center'})")
        page.page.wait_for_timeout(3000)
        target = FOLDER / f"{name}.png"
        if picture.is_screen:
            page.page.screenshot(path=target)
        else:
            shown.screenshot(path=target)


def main(names: list[str]) -> int:
    """Take the pictures that are named, or all; write what they show."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=lab_page.chromium(), args=lab_page.FLAGS
        )
        for name in names or PICTURES:
            take(name, PICTURES[name], browser)
            record[name] = record_of(PICTURES[name])
            print(name, flush=True)
            text = json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True)
            RECORD.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
