"""The deck's modules, and the built deck in Chromium: built once for the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import lacking

ROOT = Path(__file__).parents[2]
SLIDES = ROOT / "slides"


@pytest.fixture(scope="session")
def node() -> None:
    """Node, which runs the X-ray's drawing."""
    if not shutil.which("node"):
        lacking("X-rays of the slides are drawn by Node: apt-get install nodejs.")


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder with HTML and PDF of each deck, made by the command that `make slides` runs."""
    import build

    try:
        build.chromium()
        build.install()
    except build.CannotBuild as error:
        lacking(f"the deck cannot be built: {error}")
    done = subprocess.run(
        [sys.executable, SLIDES / "build.py"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return SLIDES / "build"


@pytest.fixture(scope="module", params=("workshop", "day_two"))
def page(request, built, browser):
    """Each deck in Chromium, at its own size, without a network.

    `page.request_urls` is what it tried to fetch.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.request_urls = []
    page.deck = request.param
    page.on("request", lambda request: page.request_urls.append(request.url))
    page.goto((built / f"{request.param}.html").as_uri())
    page.evaluate("document.fonts.ready")
    yield page
    context.close()
