"""The widgets of notebooks 08 and 09 in a real JupyterLab: three columns beside or below each other, and bits that move."""

from __future__ import annotations

import json
import re

import pytest
from lab_page import Page, lab

pytestmark = pytest.mark.browser
SOURCE = """from IPython.display import display
from workshop.course.widgets.bits.view import BitsExplorer
from workshop.course.widgets.elsewhere.view import ThreePlaces
display(ThreePlaces("llama-3.1-70b", "h100", gpus_per_node=4), BitsExplorer())"""


@pytest.fixture
def notebook(tmp_path):
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "id": "one",
        "source": SOURCE,
    }
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "elsewhere.ipynb").write_text(
        json.dumps(
            {
                "cells": [cell],
                "metadata": {"kernelspec": kernel},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )
    return folder


def test_three_places_and_bits(browser, notebook, tmp_path):
    with lab(tmp_path / "home", notebook, "--no-server") as url:
        base, token = re.match(r"(http://[^/]+/)\S*?(token=\w+)", url).groups()
        for width in (1400, 900):
            context = browser.new_context(viewport={"width": width, "height": 1100})
            page = Page(context.new_page())
            page.open(f"{base}lab/tree/elsewhere.ipynb?reset&{token}")
            page.run_all()
            assert not page.failures() and not page.elsewhere
            made_by = re.compile(r"workshop (plan|slurm submit) ")
            columns = page.page.locator("section", has_text=made_by)
            assert columns.count() == 3
            tops = {round(columns.nth(n).bounding_box()["y"]) for n in range(3)}
            assert (len(tops) == 1) == (width == 1400), (
                "side by side where there is room, else below each other"
            )
            page.scroll_to("section")
            page.shot(f"elsewhere_{width}")
            change_bits(page)
            context.close()


def change_bits(page: Page) -> None:
    """Move the slider from 4 bits to 2 by its keys, and read the picture's words."""
    picture = page.page.locator("[aria-label*='bits a weight']")
    assert "4.25 bits" in picture.get_attribute("aria-label")
    handle = page.page.locator(".widget-slider [role=slider], .widget-slider .noUi-handle").first
    handle.focus()
    for _ in range(2):
        page.page.keyboard.press("ArrowLeft")
    page.page.locator("[aria-label*='2.25 bits a weight']").wait_for(timeout=60_000)
