"""One Chromium for all browser tests."""

from __future__ import annotations

import pytest
from needs import lacking


@pytest.fixture(scope="session")
def browser():
    import lab_page

    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("the browser tests need playwright: make test installs it")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=lab_page.chromium(), args=lab_page.FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, request):
    import lab_page

    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    mine = lab_page.Page(context.new_page())
    yield mine
    if mine.page.url.startswith("http"):
        mine.shot(f"end_of_{request.node.name.split('[')[0]}")     # what was on screen, also where a test failed
    context.close()
