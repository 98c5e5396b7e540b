"""A page of its own for each browser test."""

from __future__ import annotations

import pytest


@pytest.fixture
def page(browser, request):
    import lab_page

    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    notebook_page = lab_page.Page(context.new_page())
    yield notebook_page
    if notebook_page.page.url.startswith("http"):
        # what was on screen, also where a test failed
        notebook_page.shot(f"end_of_{request.node.name.split('[')[0]}")
    context.close()
