"""The course as a JupyterLab in the browser alone: notebooks run, the model answers, nothing is asked of elsewhere."""

from __future__ import annotations

import functools
import http.server
import sys
from pathlib import Path

import lab_page
import pytest
from small_server import serving

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "site"))
from lite import build as lite

pytestmark = pytest.mark.browser
CELLS = 6  # of notebook 5: a question, the model, a prediction, logprobs, what was predicted (folded), an exercise
ERROR = ".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr'], .jp-OutputArea-output .ansi-red-fg"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("lite") / "site"
    lite.build(folder)
    return folder


@pytest.fixture(scope="module")
def address(built):
    """Where the site is served."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=built)
    handler.log_message = lambda *_: None
    with serving(handler) as address:
        yield address


def test_a_notebook_runs_with_the_model_in_the_browser(browser, address):
    context = browser.new_context(viewport={"width": 1200, "height": 1000})
    elsewhere = []

    def only_here(route) -> None:
        if route.request.url.startswith(address):
            route.continue_()
        else:
            elsewhere.append(route.request.url)
            route.abort()

    context.route("**/*", only_here)
    page = context.new_page()
    page.goto(f"{address}/lab/index.html?path=05_logprobs.ipynb")
    page.locator(".jp-Notebook .jp-CodeCell").first.click(timeout=90_000)
    page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", timeout=120_000)
    for _ in range(3 * CELLS):  # text stands between the cells
        page.keyboard.press("Shift+Enter")
    page.wait_for_function(
        "n => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].some(e => e.innerText.includes(`[${n}]`))",
        arg=CELLS,
        timeout=180_000,
    )
    said = page.locator(".jp-Notebook").inner_text()
    assert "logprobs=3:" in said and "' port'" in said, "the model has answered"
    assert not page.locator(ERROR).count()
    lab_page.OUTPUT.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=lab_page.OUTPUT / "lite.png")
    assert page.locator(".jp-DirListing-itemText", has_text="my-progress").count(), (
        "progress is a folder of the browser's"
    )
    context.close()
    assert not elsewhere


def test_from_a_file_it_says_how_to_serve_it(browser, built):
    context = browser.new_context()
    page = context.new_page()
    page.goto((built / "lab" / "index.html").as_uri())
    assert "python3 -m http.server" in page.locator("body").inner_text()
    context.close()
