"""`workshop lab` as a learner meets it: a browser, the first notebook, a server that answers."""

from __future__ import annotations

import psutil
import pytest
from lab_page import lab
from widget_page import CUT, SILENT

pytestmark = [pytest.mark.browser, pytest.mark.live]


def test_the_first_notebook_runs_in_a_real_jupyterlab(page, server, live_home, tmp_path):
    with lab(live_home, tmp_path / "mine") as url:
        page.open(url)
        page.run_all()
        page.shot("00_start_top")
        text = page.page.locator(".jp-Notebook").inner_text()
        page.scroll_to(".widget-html, .jupyter-widgets")
        page.shot("00_start")
        assert "teaching-model answers" in text, "the panel found the server"
        assert "completion: 401   health: 200" in text
        assert page.page.locator(".workshop-check[data-state=unanswered]").count() == 2
        assert page.page.locator(".workshop-check[data-state=right]").count() == 0
        assert page.page.get_by_text("Held back until you have tried").count() == 2, (
            "both solutions are silent"
        )
        assert (
            page.page.locator(".jp-Cell-inputWrapper .jp-Placeholder, .jp-InputPlaceholder").count()
            == 2
        ), "results of predictions are collapsed"
        assert 'total_tokens, "counted"' not in text, (
            "no solution's code is on the page, nor a click away"
        )
        solutions = page.page.locator(".jp-CodeCell", has_text="# Solution: run this cell")
        assert solutions.count() == 2
        assert not page.failures() and not page.elsewhere and not page.errors
        page.page.set_viewport_size({"width": 900, "height": 1000})
        page.page.keyboard.press("Control+b")  # the file browser takes a third of it
        page.page.wait_for_timeout(500)
        assert not page.page.evaluate(CUT), "nothing is cut on a narrow screen"
        assert not page.page.evaluate(SILENT), "no picture is without words"
        page.page.locator(".jp-MarkdownCell", has_text="Optional: this section").locator(
            ".jp-showHiddenCellsButton"
        ).click()
        page.replace(
            "total_tokens = ...", 'total_tokens = 40\ncheck("start.total_tokens", total_tokens)'
        )
        page.page.locator(".workshop-check[data-state=wrong]").wait_for()
        # the solution is the next cell; one hint is open, and it waits for the other
        page.page.keyboard.press("Shift+Enter")
        page.page.get_by_text("Held back until you have tried once more").wait_for()
        assert page.page.locator(".workshop-check[data-state=right]").count() == 0
        hint = page.page.locator(".jp-OutputArea-output summary", has_text="Hint 1 of 2")
        hint.first.click()
        assert page.page.get_by_text("Which of the two has changed").first.is_visible()
        assert not page.page.get_by_text("Hint 2 of 2").count(), (
            "the next hint waits for the next wrong answer"
        )
        page.replace(
            "total_tokens = 40", 'total_tokens = 41\ncheck("start.total_tokens", total_tokens)'
        )
        page.page.get_by_text("Hint 2 of 2").wait_for()
        page.page.keyboard.press("Shift+Enter")
        page.page.locator(".workshop-check[data-state=right]").wait_for()
        assert page.page.get_by_text("The solution, which has run").is_visible()
        page.shot("00_start_wrong")
    left = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if str(tmp_path) in line], "Ctrl-C leaves nothing"
