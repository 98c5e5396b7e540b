"""The site in Chromium: pictures of widgets without a kernel, nothing from elsewhere, nothing cut at 900 pixels."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import lab_page
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.live]
BUILD = Path(__file__).parents[2] / "docs" / "site" / "website.py"


def refuse_all_but_files(context) -> list[str]:
    """Abort what is asked for elsewhere, and return the list that it is written into."""
    urls = []

    def refuse(route) -> None:
        urls.append(route.request.url)
        route.abort()

    context.route(re.compile(r"^(?!file:|data:)"), refuse)
    return urls


def test_pages_with_widgets_need_nothing_from_elsewhere(browser, server, live_home, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            str(BUILD),
            "--only",
            "04_sampling",
            "--home",
            str(live_home),
            "--to",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for scheme in ("light", "dark"):
        context = browser.new_context(viewport={"width": 900, "height": 1200}, color_scheme=scheme)
        elsewhere = refuse_all_but_files(context)
        page = context.new_page()
        for name in ("index", "04_sampling"):
            page.goto((tmp_path / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 900, (
                f"{name} is wider than the screen"
            )
            silent = page.locator("img:not([alt]), [role=img]:not([aria-label])")
            assert not silent.count(), f"{name} has a picture without words"
            lab_page.OUTPUT.mkdir(parents=True, exist_ok=True)
            page.screenshot(path=lab_page.OUTPUT / f"site_{name}_{scheme}.png", full_page=True)
        assert page.locator(".widget [role=img]").count(), "the explorer's picture is there"
        explorer = page.locator(".widget", has=page.get_by_text("temperature:")).first
        box = explorer.locator("[role=img]").first.bounding_box()
        assert explorer.is_visible() and box["width"] > 300 and box["height"] > 100
        assert not page.locator("input, button").count(), "nothing pretends that it can be moved"
        assert page.locator("details.solution").first.locator("pre").first.is_hidden(), (
            "solutions are folded"
        )
        page.locator("details.solution summary").first.click()
        assert page.locator("details.solution").first.locator("pre").first.is_visible()
        assert page.locator(".workshop-check[data-state=right]").count() >= 5, (
            "they were run, and are right"
        )
        assert not elsewhere
        context.close()
