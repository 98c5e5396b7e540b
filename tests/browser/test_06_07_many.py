"""What notebooks 06 and 07 show, with a real server behind: a timeline, metrics while it works, a batch's progress."""

from __future__ import annotations

import itertools
import re

import pytest
from widget_page import CUT, SILENT, Widget

pytestmark = [pytest.mark.browser, pytest.mark.live]
TIMELINE = """import workshop
from workshop.course.topics import timeline
llm = workshop.connect()
at_once = 1
timeline.draw(timeline.ask(llm, ["Boston is a"] * 6, at_once=at_once, max_tokens=[30, 10, 20, 40, 10, 20]))"""
PANEL = """from workshop.course.widgets.metrics.view import MetricsPanel
panel = MetricsPanel(llm, every_s=0.25).start()
panel"""
WORK = """for _ in range(20):         # a busy machine may not let the panel look while one round is answered
    spans = timeline.ask(llm, ["Chicago is a"] * 24, at_once=4, max_tokens=[120] * 24)
    if max(look.requests_running for look in panel.looks) >= 2:
        break
looks = panel.stop()
print("most running:", max(look.requests_running for look in looks))"""
BATCH = """import json, tempfile
from pathlib import Path
from workshop import batch
from workshop.course.widgets.batch.view import BatchProgress
folder = Path(tempfile.mkdtemp())
(folder / "prompts.json").write_text(json.dumps([f"Paris {n} is" for n in range(60)]))
bar = BatchProgress().show()
print(batch.run(folder / "prompts.json", folder / "answers.jsonl", max_tokens=40, min_tokens=40, report=bar))"""
# Notes every value that an attribute takes, as nobody can look as often as a running batch draws.
WATCH = """([selector, name]) => { const seen = window[name] = [];
  const look = () => document.querySelectorAll(selector).forEach(e => {
    const value = e.getAttribute('aria-valuenow') || e.getAttribute('aria-label');
    if (!seen.includes(value)) seen.push(value); });
  new MutationObserver(look).observe(document.body, {subtree: true, childList: true, attributes: true}); }"""


def test_timeline_metrics_and_batch_follow_the_server(page, live_lab):
    page.page.set_viewport_size({"width": 900, "height": 1300})
    page.open(live_lab.notebook("many", TIMELINE, PANEL, WORK, BATCH))
    page.page.keyboard.press("Control+b")
    page.page.evaluate(WATCH, [".workshop[role=img][aria-label^='Server metrics']", "metrics"])
    page.page.evaluate(WATCH, ["[role=progressbar][aria-label='rows answered']", "answered"])
    page.run_all()
    assert not page.failures()
    timeline_changes(page)
    running = [
        int(number)
        for number in re.findall(r"running (\d+)", " ".join(page.page.evaluate("metrics")))
    ]
    assert max(running) >= 2 and running[-1] == 0, (
        "the panel was drawn while the requests ran, and after"
    )
    answered = [int(number) for number in page.page.evaluate("answered")]
    assert answered == sorted(answered) and len(answered) >= 2 and answered[-1] == 100
    assert "60 of 60 rows answered" in page.page.locator(".jp-Notebook").inner_text()
    page.shot("06_07_many")
    assert not page.page.evaluate(CUT) and not page.page.evaluate(SILENT)
    assert not page.elsewhere and not page.errors


def timeline_changes(page) -> None:
    """Edit the cell as a learner would: three at once in place of one, so that bars overlap."""
    cell = page.page.locator(".jp-CodeCell").first
    picture = Widget(page.page, cell.locator(".jp-Cell-outputArea"))
    spans = re.findall(
        r"sent at (\d+\.\d+), first token \d+\.\d+, ended (\d+\.\d+)", picture.picture()
    )
    assert len(spans) == 6
    assert all(
        float(sent) >= float(ended) - 0.02 for (_, ended), (sent, _) in itertools.pairwise(spans)
    )
    cell.locator(".cm-line", has_text="at_once = 1").click()
    page.page.keyboard.press("End")
    page.page.keyboard.press("Backspace")
    page.page.keyboard.type("3")
    text = picture.changes(lambda: page.page.keyboard.press("Control+Enter"), seconds=30)
    first_three = re.findall(r"sent at (\d+\.\d+)", text)[:3]
    assert max(map(float, first_three)) < 0.2, "three were sent together"
