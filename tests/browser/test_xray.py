"""The X-ray in Chromium: the page by itself, and in JupyterLab, where a trace grows; by keyboard, with words."""

from __future__ import annotations

import pytest
from lab_page import OUTPUT
from widget_page import CUT, SILENT, choose_theme

from workshop.course.widgets.xray.case import RECORDED, Replay, letters, page
from workshop.engine import trace

pytestmark = pytest.mark.browser
STEPS = trace.read(RECORDED)
CELLS = "() => [...document.querySelectorAll('#pool i')].map(e => [+e.dataset.block, e.dataset.owners, e.className, e.title])"
SAID = "() => ['steps', 'budget', 'pool'].map(id => document.getElementById(id).getAttribute('aria-label'))"
WIDE = """() => [...document.querySelectorAll('body *:not(svg *)')].filter(e => e.offsetParent && !e.closest('#pool, #budget')
  && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 100))"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The page of the recorded trace, as `workshop xray --html` writes it."""
    replay = Replay(RECORDED.name)
    replay.extend(STEPS)
    file = tmp_path_factory.mktemp("xray") / "page.html"
    file.write_text(page(replay.data()), encoding="utf-8")
    return file.as_uri()


def at(page) -> int:
    return page.page.evaluate("nr(at)")


def test_every_block_drawn_is_the_traces_at_every_step(page, file):
    urls = []
    page.page.on("request", lambda request: urls.append(request.url))
    page.page.goto(file)
    names, drawn = (
        {},
        page.page.evaluate(f"() => x.steps.map((_, s) => {{ go(s); return ({CELLS})(); }})"),
    )
    for (step, pool), cells in zip(trace.replay(STEPS), drawn, strict=True):
        for name in (
            *(name for name, _ in step.arrived),
            *(request.id for request in step.requests),
        ):
            names.setdefault(name, len(names))
        expected = {
            block: {names[name] for name in holders} for block, holders in pool.owners.items()
        }
        assert {
            block: {int(number) for number in owners.split()}
            for block, owners, *_ in cells
            if owners
        } == expected, step.step
        assert len(cells) == step.num_blocks, "every block of a small pool is drawn"
        marked = {
            mark: {block for block, _, cls, _ in cells if mark in cls.split()}
            for mark in ("taken", "cached", "freed")
        }
        assert marked["taken"] == set(step.taken), step.step
        assert marked["cached"] == pool.hashes.keys() - expected.keys()
        for _block, owners, _, title in cells:
            assert all(letters(int(number)) in title for number in owners.split()), (
                "the mouse is told who holds it"
            )
    back = page.page.evaluate(
        f"() => x.steps.map((_, s) => {{ go(x.steps.length - 1 - s); return ({CELLS})(); }})"
    )
    assert back[::-1] == drawn, "backwards it is the same"
    assert urls == [file], "nothing else is asked for"


def test_keys_buttons_and_slider_move_the_cursor(page, file):
    page.page.goto(file)
    keyboard, last = page.page.keyboard, STEPS[-1].step
    moves = {
        "ArrowRight": 1,
        "PageDown": 11,
        "ArrowLeft": 10,
        "End": last,
        "PageUp": last - 10,
        "Home": 0,
    }
    for key, expected in moves.items():
        keyboard.press(key)
        assert at(page) == expected, key
    page.page.get_by_role("button", name="one step on").click()
    page.page.get_by_role("slider", name="step").press("ArrowRight")
    assert at(page) == 2, "each key counts once, also where the slider has the focus"
    page.page.get_by_label("go to step").fill("17")
    page.page.get_by_label("go to step").press("Enter")
    assert at(page) == 17
    page.page.locator("#steps").click(position={"x": 60, "y": 40})
    assert at(page) != 17, "a click on a column goes there"
    keyboard.press("Home")
    keyboard.press(" ")
    page.page.wait_for_function("at >= 2")
    keyboard.press(" ")
    assert page.page.evaluate("timer") is None, "space ends what it began"
    assert not page.errors


def test_a_prediction_hides_what_comes_and_says_why(page, file):
    page.page.goto(file)
    keyboard, right = page.page.keyboard, 0
    keyboard.press("p")
    for answered in range(1, 9):
        position = page.page.evaluate("asked")
        question = page.page.evaluate("x.steps[asked].question")
        assert at(page) == STEPS[position - 1].step
        for key in ("End", "PageDown"):
            keyboard.press(key)
            assert page.page.evaluate("at") == position - 1, (
                "what is asked about cannot be looked at"
            )
        option = (
            question["right"]
            if answered % 4
            else (question["right"] + 1) % len(question["options"])
        )
        right += option == question["right"]
        keyboard.press(str(option + 1))
        card = page.page.locator("#card").inner_text()
        assert f"{right} of {answered} right" in card and question["why"] in card
        assert ("Right." if option == question["right"] else "Not so.") in card
        assert page.page.evaluate("at") == position, "the step is shown beside the answer"
        keyboard.press("Enter")  # the focus is on the next question
    page.shot("xray_predict")
    assert not page.errors


@pytest.mark.parametrize("width", (900, 390))
def test_it_is_readable_and_said_in_words(page, file, width):
    page.page.set_viewport_size({"width": width, "height": 1000})
    page.page.goto(file)
    full = max(STEPS, key=lambda step: (len(step.preempted), step.kv_cache_usage)).step
    page.page.evaluate(f"go({full - STEPS[0].step})")
    steps, budget, pool = page.page.evaluate(SAID)
    step = STEPS[full - STEPS[0].step]
    assert f"In step {full}" in steps and "preempted" in steps
    assert f"{step.prefill_tokens} prefill, {step.decode_tokens} decode" in budget
    block_count = round(step.kv_cache_usage * step.num_blocks)
    assert f"{block_count} of {step.num_blocks} blocks held" in pool
    assert not page.page.evaluate(WIDE)
    keep(page, f"xray_{width}")
    page.page.keyboard.press("p")
    keep(page, f"xray_{width}_predict")
    assert not page.page.evaluate(WIDE)


def keep(page, name: str) -> None:
    """Keep the whole page as a picture."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    page.page.screenshot(path=OUTPUT / f"{name}.png", full_page=True)


def test_on_paper_are_all_steps(page, file):
    page.page.goto(file)
    page.page.emulate_media(media="print")
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    labels = page.page.evaluate(
        "() => [...document.querySelectorAll('#bands section')].map(e => e.getAttribute('aria-label'))"
    )
    assert labels[0].startswith("Steps 0 to ") and f"to {STEPS[-1].step}." in labels[-1]
    assert not page.page.locator("#slider").is_visible()
    keep(page, "xray_paper")


LIVE = """from workshop.course.notebooks import nb11
xray = nb11.XRay({path!r}, every_s=0.1).start()
xray"""


def test_in_jupyterlab_it_follows_a_trace_that_grows(page, course_lab, tmp_path):
    growing, lines = tmp_path / "growing.jsonl", RECORDED.read_text().splitlines(keepends=True)
    growing.write_text("")  # a server that nobody has asked yet
    notebook = course_lab.notebook("xray", LIVE.format(path=str(growing)), "xray.score")
    page.page.set_viewport_size({"width": 900, "height": 1000})
    page.open(notebook)
    page.page.keyboard.press("Control+b")
    page.run_all()
    assert not page.failures()
    inside = page.page.frame_locator(".xray-frame")
    inside.get_by_text("No step to show yet.").wait_for(timeout=60_000)
    growing.write_text("".join(lines[:10]))
    inside.get_by_text("of 9", exact=False).first.wait_for(timeout=60_000)
    frame = next(
        candidate
        for candidate in page.page.frames
        if candidate.parent_frame and candidate.evaluate("typeof x") == "object"
    )
    inside.locator("#slider").press("End")
    growing.write_text("".join(lines[:30]))
    frame.wait_for_function("x.steps.length === 30 && at === 29")
    frame.evaluate("document.activeElement.blur()")
    inside.locator("h1").click()
    for key, expected in {"ArrowLeft": 28, "Home": 0, "ArrowRight": 1}.items():
        page.page.keyboard.press(key)
        assert frame.evaluate("at") == expected, f"{key} is the page's, and not JupyterLab's"
    growing.write_text("".join(lines))
    frame.wait_for_function(f"x.steps.length === {len(lines)}")
    assert frame.evaluate("at") == 1, "who looks at an earlier step stays there"
    page.page.keyboard.press("p")
    page.page.keyboard.press(str(frame.evaluate("x.steps[asked].question.right") + 1))
    page.page.locator(".jp-CodeCell").last.locator(".cm-content").click()
    page.page.keyboard.press("Shift+Enter")
    page.page.get_by_text("(1, 1)").wait_for(timeout=60_000)
    height = page.page.locator(".xray-frame").bounding_box()["height"]
    assert frame.evaluate("document.documentElement.scrollHeight") <= height + 2, (
        "nothing of it is cut"
    )
    light = frame.evaluate("getComputedStyle(document.body).backgroundColor")
    page.shot("xray_in_jupyterlab")
    choose_theme(page.page, "JupyterLab Dark")
    assert frame.evaluate("getComputedStyle(document.body).backgroundColor") != light, (
        "it has the notebook's theme"
    )
    page.shot("xray_in_jupyterlab_dark")
    assert not page.page.evaluate(CUT) and not page.page.evaluate(SILENT)
    assert not page.elsewhere and not page.errors
