"""The deck's modules, and the built deck in Chromium: built once for the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from needs import lacking

ROOT = Path(__file__).parents[2]
SLIDES = ROOT / "slides"
sys.path.insert(0, str(SLIDES))


@pytest.fixture(scope="session")
def built() -> Path:
    """The folder with workshop.html and workshop.pdf, made by the command that `make slides` runs."""
    import build

    try:
        build.chromium()
        build.install()
    except build.CannotBuild as error:
        lacking(f"the deck cannot be built: {error}")
    done = subprocess.run([sys.executable, SLIDES / "build.py"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return SLIDES / "build"


@pytest.fixture(scope="session")
def page(built, browser):
    """The deck in Chromium, at its own size, without a network; `page.asked` is what it tried to fetch."""
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    page.asked = []
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto((built / "workshop.html").as_uri())
    page.evaluate("document.fonts.ready")
    yield page
    context.close()
