"""Widgets, figures and code are whole in the window that a learner has: three widths, the file browser open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab_page import lab
from test_gallery import GALLERY
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
GPUS = """() => [...document.querySelectorAll('.jp-OutputArea-output svg text')]
  .filter(e => /^GPU \\d+$/.test(e.textContent)).map(e => {
    const box = e.closest('.scroll').getBoundingClientRect(), own = e.getBoundingClientRect();
    return [e.textContent, own.left >= box.left && own.right <= box.right];
  })"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    home = tmp_path_factory.mktemp("widths")
    mine = home / "mine"
    write_notebook(mine / "gallery.ipynb", *GALLERY.values())
    code = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["cell_type"] == "code":
                code.append("".join(cell["source"]))
    write_notebook(mine / "code.ipynb", *code)
    with lab(home / "home", mine, "--no-server") as address_of_lab:
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
            faults += [f"{theme}, {width} px: {each}" for each in cut]
            gpus = page.page.evaluate(GPUS)
            assert {f"GPU {number}" for number in range(16)} <= {name for name, _ in gpus}
            faults += [f"{theme}, {width} px: {name} is cut" for name, whole in gpus if not whole]
            page.shot(f"widths_{theme.split()[-1].lower()}_{width}")
    assert not faults, "\n".join(faults)
    assert not page.errors


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
