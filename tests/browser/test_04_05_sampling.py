"""The explorer and the viewer in a real JupyterLab, driven as a learner drives them, in the dark theme.

tests/browser/test_gallery.py looks at both in both themes, in windows of six widths.
"""

from __future__ import annotations

import json

import pytest
from lab_page import Page
from widget_page import CUT, SILENT

pytestmark = [pytest.mark.browser, pytest.mark.live]
DARK = "@jupyterlab/apputils-extension/themes.jupyterlab-settings"
EXPLORER = """from workshop import connect
from workshop.course.widgets.sampling.view import SamplingExplorer
from workshop.client.sampling_settings import Settings
SamplingExplorer(connect(), "The king said to the", Settings(temperature=1.3, top_k=12, top_p=0.9))"""
VIEWER = """from workshop import connect
from workshop.course.widgets.logprobs.view import LogprobsViewer
LogprobsViewer(connect(), "San Francisco is a port in western California near the Golden Gate. Boston is on the moon.")"""


def test_explorer_and_viewer(page, live_lab):
    settings = live_lab.settings / DARK
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"theme": "JupyterLab Dark"}))
    page.page.set_viewport_size({"width": 900, "height": 1300})
    explorer, viewer = live_lab.notebook("explorer", EXPLORER), live_lab.notebook("viewer", VIEWER)
    drive_explorer(page, explorer, "explorer_dark_900")
    drive_viewer(page, viewer, "logprobs_dark_900")
    assert not page.elsewhere, "nothing outside this machine is asked for"
    assert not page.errors


def drive_explorer(page: Page, url: str, shot: str) -> None:
    """Move a slider by keyboard, sample two tokens."""
    page.open(url)
    page.page.keyboard.press("Control+b")  # the file browser takes a third of a narrow screen
    page.run_all()
    bars = page.page.locator(".workshop[role=img]").first
    bars.wait_for(timeout=60_000)
    rows = bars.locator("div[title]").all_inner_texts()
    before = bars.inner_text()
    handle = page.page.locator(".widget-slider .noUi-handle").first
    handle.focus()
    for _ in range(6):
        page.page.keyboard.press("ArrowLeft")
    page.page.wait_for_function(
        "old => document.querySelector('.workshop[role=img]').innerText !== old", arg=before
    )
    assert bars.locator("div[title]").all_inner_texts() == rows, "rows keep their places"
    page.page.wait_for_timeout(800)  # six steps
    page.shot(shot)
    for number in range(2):
        page.page.get_by_role("button", name="Sample a token").click()
        page.page.wait_for_function(
            "count => document.querySelectorAll('.workshop span.token').length === count",
            arg=number + 1,
        )
    whole(page)


def drive_viewer(page: Page, url: str, shot: str) -> None:
    """Choose a token by mouse, the next by arrow key; look at what greedy decoding would have taken."""
    page.open(url)
    page.page.keyboard.press("Control+b")
    page.run_all()
    chosen = "document.querySelector('.workshop input:checked').id.split('-')[1]"
    page.page.locator(".workshop label").nth(7).click()
    assert page.page.evaluate(chosen) == "7"
    page.page.keyboard.press("ArrowRight")
    assert page.page.evaluate(chosen) == "8", "arrow keys move from token to token"
    shown = page.page.locator(".workshop div[class*='-p8']")
    assert "stands in the text" in shown.inner_text()
    page.shot(shot)
    whole(page)


def whole(page: Page) -> None:
    """Nothing is cut, no picture is without words, no cell failed."""
    assert not page.page.evaluate(CUT)
    assert not page.page.evaluate(SILENT)
    assert not page.failures()
