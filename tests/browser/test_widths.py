"""Widgets, figures and code are whole in the window that a learner has: three widths, the file browser open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_page import lab
from test_gallery import ERRORS, GALLERY, IDEAS, LINES, STEP, SWEEP, TIMELINE
from widget_page import CUT, address, choose_theme, write_notebook

pytestmark = [pytest.mark.browser]
ROOT = Path(__file__).parents[2]
# What a scroll bar hides, which few notice: a drawing or a table that is wider than its frame.
SCROLLED = """() => [...document.querySelectorAll('.jp-OutputArea-output .scroll')].filter(e => e.offsetParent
  && e.scrollWidth > e.clientWidth + 1).map(e => `${e.textContent.trim().slice(0, 60)} `
  + `(${e.scrollWidth} in ${e.clientWidth})`)"""
# Code that leaves its box at the right.
WIDE_CODE = """() => [...document.querySelectorAll('.jp-InputArea-editor .cm-scroller')].filter(e => e.offsetParent
  && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 80))"""
# The number of drawings that are on the page: a test that looks at none would pass.
DRAWINGS = "document.querySelectorAll('.jp-OutputArea-output svg').length"
# The smallest text of each picture: its size on the screen in pixels, and its words.
SMALLEST = """() => [...document.querySelectorAll('.jp-OutputArea-output svg')].filter(e => e.getScreenCTM())
  .map(svg => [...svg.querySelectorAll('text')].map(e => [
    parseFloat(getComputedStyle(e).fontSize) * svg.getScreenCTM().a, e.textContent]).sort((a, b) => a[0] - b[0])[0])"""
ROOFLINE = "from workshop.course.topics import roofline\nroofline.picture('h200')"
FIGURES = ("import pandas as pd", ERRORS, LINES, SWEEP, STEP, TIMELINE, ROOFLINE)
GPUS = """() => [...document.querySelectorAll('.jp-OutputArea-output svg text')]
  .filter(e => /^GPU \\d+$/.test(e.textContent)).map(e => {
    const box = e.closest('.scroll').getBoundingClientRect(), own = e.getBoundingClientRect();
    return [e.textContent, own.left >= box.left && own.right <= box.right];
  })"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    home = tmp_path_factory.mktemp("widths")
    folder = home / "mine"
    write_notebook(folder / "gallery.ipynb", *GALLERY.values())
    write_notebook(folder / "figures.ipynb", *FIGURES)
    write_notebook(folder / "drawings.ipynb", IDEAS)
    code = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                code.append("".join(cell["source"]))
    write_notebook(folder / "code.ipynb", *code)
    with lab(home / "home", folder, "--no-server") as address_of_lab:
        yield address_of_lab


def open_file_browser(page) -> None:
    if not page.page.locator("#jp-left-stack").is_visible():
        page.page.keyboard.press("Control+b")
        page.page.locator("#jp-left-stack").wait_for()


def test_widgets_and_figures_are_whole_beside_the_file_browser(page, url):
    page.open(address(url, "gallery.ipynb"))
    page.run_all()
    open_file_browser(page)
    faults = []
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        choose_theme(page.page, theme)
        for width in (900, 1280, 1920):
            page.page.set_viewport_size({"width": width, "height": 16000})
            page.page.wait_for_timeout(1000)
            assert page.page.evaluate(DRAWINGS) >= 15
            cut = page.page.evaluate(CUT) + page.page.evaluate(SCROLLED)
            faults += [f"{theme}, {width} px: {element}" for element in cut]
            gpus = page.page.evaluate(GPUS)
            assert {f"GPU {number}" for number in range(16)} <= {name for name, _ in gpus}
            faults += [f"{theme}, {width} px: {name} is cut" for name, whole in gpus if not whole]
            page.shot(f"widths_{theme.split()[-1].lower()}_{width}")
    assert not faults, "\n".join(faults)
    assert not page.errors


@pytest.mark.parametrize(("notebook", "beside_files"), [("figures", True), ("drawings", False)])
def test_text_in_pictures_has_ten_pixels_in_a_narrow_window(page, url, notebook, beside_files):
    """It had 7 in figures at 900 pixels. A drawing has its full width there once the file browser is closed."""
    page.page.set_viewport_size({"width": 900, "height": 9000})
    page.open(address(url, f"{notebook}.ipynb"))
    page.run_all()
    open_file_browser(page)
    if not beside_files:
        page.page.keyboard.press("Control+b")
        page.page.locator("#jp-left-stack").wait_for(state="hidden")
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        choose_theme(page.page, theme)
        page.page.wait_for_timeout(1000)
        smallest = page.page.evaluate(SMALLEST)
        assert len(smallest) >= 6
        assert all(pixels >= 10 for pixels, _ in smallest), smallest
        assert page.page.evaluate(SCROLLED) == []
        page.shot(f"{notebook}_{theme.split()[-1].lower()}_900")


def test_no_line_of_code_is_cut(page, url):
    """25 lines of notebook 1 were, at 1280 pixels with the file browser open."""
    page.page.set_viewport_size({"width": 1280, "height": 16000})
    page.page.goto(address(url, "code.ipynb"))
    page.page.locator(".jp-CodeCell .cm-line").first.wait_for(timeout=60_000)
    page.page.wait_for_timeout(3000)
    open_file_browser(page)
    for width in (900, 1280):
        page.page.set_viewport_size({"width": width, "height": 16000})
        page.page.wait_for_timeout(1500)
        assert page.page.locator(".jp-CodeCell .cm-content").count() > 20
        assert page.page.evaluate(WIDE_CODE) == []
