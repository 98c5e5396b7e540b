"""A link of a notebook opens in the JupyterLab of the course, and its terminal knows `workshop`.

That every link leads to a file is in tests/lab/test_course_pages.py.
"""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.browser]
# JupyterLab opens a link in a tab of its own from the moment that it points here.
CONNECTED = "[href*='/files/']"


def test_the_first_link_of_the_course_shows_the_glossary(page, course_lab):
    page.open(course_lab.address("00_start.ipynb"))
    page.page.locator(f".jp-RenderedMarkdown a[href*='docs/']{CONNECTED}").first.click()
    tab = page.page.locator(".lm-TabBar-tab", has_text="glossary.md")
    tab.wait_for(timeout=60_000)
    page.page.locator(".jp-MarkdownViewer h1", has_text="Glossary").wait_for(timeout=60_000)
    page.shot("glossary_in_lab")
    # and from there to a notebook
    page.page.locator(f".jp-MarkdownViewer a[href*='01_memory']{CONNECTED}").first.click()
    page.page.locator(".lm-TabBar-tab", has_text="01_memory.ipynb").wait_for(timeout=60_000)


def test_a_terminal_of_jupyterlab_runs_workshop(page, course_lab):
    page.open(course_lab.address("00_start.ipynb"))
    page.page.get_by_role("menuitem", name="File", exact=True).click()
    page.page.locator(".lm-Menu-itemLabel", has_text=re.compile("^New$")).hover()
    page.page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Terminal$")).click()
    terminal = page.page.locator(".jp-Terminal .xterm-screen")
    terminal.wait_for(timeout=60_000)
    page.page.wait_for_timeout(1500)
    terminal.click()
    page.page.keyboard.type("workshop --version > from_terminal.txt 2>&1\n")
    written = course_lab.folder / "from_terminal.txt"
    for _ in range(300):
        if written.is_file() and written.read_text():
            break
        page.page.wait_for_timeout(200)
    assert written.read_text().startswith("workshop, version")
