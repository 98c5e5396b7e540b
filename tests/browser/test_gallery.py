"""Every widget and picture of the course on one page: operated by keyboard, said in words, whole in every window.

Needs no server: what a server would send is recorded. The widgets on a live server are in the tests beside this one.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import cells
import pytest
from widget_page import CUT, SILENT, UNNAMED, Widget, choose_theme

from workshop.lab.places import place_of

pytestmark = [pytest.mark.browser]
ROOT = Path(__file__).parents[2]
WIDGETS = "workshop.course.widgets"
LOGPROBS = f"""from {WIDGETS}.logprobs.view import LogprobsViewer
from workshop.client.logprobs import Alternative, Row
def row(part, place, token, *probable):
    import math
    listed = tuple(Alternative(t, math.log(p), rank=n) for n, (t, p) in enumerate(probable, 1))
    chosen = next((option for option in listed if option.token == token), None)
    logprob, rank = (chosen.logprob, chosen.rank) if chosen else (None, None)
    return Row(part, place, token, logprob, rank=rank, alternatives=listed)
LogprobsViewer([row("prompt", 0, "Boston"), row("prompt", 1, " is", (" was", .5), (" is", .3)),
    row("completion", 0, " a", (" a", .6), (" the", .2)),
    row("completion", 1, " moon", (" city", .7), (" moon", .001))])"""
TIMELINE = """from workshop.course.topics.timeline import Span, draw
draw([Span(f"{n}: {20 * n} tokens", 0.1 * n, 0.1 * n + 0.05, 0.1 * n + 0.2 * n, 20 * n) for n in range(1, 13)])"""
METRICS = f"""from {WIDGETS}.metrics.view import picture
from {WIDGETS}.metrics.view import MetricsPanel
from workshop.engine.metrics import Metrics
panel = MetricsPanel("http://127.0.0.1:9/v1")
panel.picture.value = picture([Metrics(time=s, requests_running=s % 5, requests_waiting=s % 3,
    kv_cache_usage=s / 40, prompt_tokens_total=10 * s, generation_tokens_total=s ** 2, preemptions_total=s // 10)
    for s in range(30)])
panel"""
BATCH = f"""from {WIDGETS}.batch.view import BatchProgress
from workshop.batch.progress import Progress
bar = BatchProgress()
bar(Progress(50, 31, 2, 31, 4.0, 7.7, 240.0, 8, 16, running=8, waiting=1, kv_cache_usage=0.34))
bar"""
CHECKS = """from IPython.display import display
from workshop.course.exercises.checking import check
display(check("server.split", ...), check("server.split", (16, 1)), check("server.split", (8, 2)))"""
ERRORS = f"""from {WIDGETS}.reconcile.view import recorded_errors
import pandas as pd
from workshop.course.drawing import plots
plots.figure(pd.DataFrame(recorded_errors()).T, "points", limit=60, xlabel="error, %", title="Errors")"""
SWEEP = """plots.figure({.2: 160, .22: 290, .27: 480, .37: 700, .64: 800}, names=["1", "2", "4", "8", "16 at once"],
             xlabel="seconds a request", ylabel="tokens/s of all", title="The knee")"""
LINES = """from workshop.course.drawing import plots
curves = {"without a cache": [n * n for n in range(64)], "with a KV cache": range(64)}
plots.figure(pd.DataFrame(curves), xlabel="tokens", ylabel="work", title="Growth")"""
KV_CACHING = "from workshop.course.drawing import plots\nplots.kv_caching()"
PARALLEL = "from workshop.course.drawing import plots\ndisplay(plots.kinds(), plots.links(), plots.megatron())"
IDEAS = """from workshop.course.drawing import plots
for name in ("request", "llama", "attention", "heads", "cluster", "next_token", "sampling", "surprise", "batch",
             "places", "chat_text", "engine_step", "draft", "chain", "static_batch", "fewer_bits", "nvfp4",
             "agent_turns", "scale_out"):
    display(plots.drawing(name))"""
STEP = """plots.figure(plots.step_table(), "stacked", xlabel="ms of one token", colours=plots.STEP_COLOURS)
plots.course_style()
pd.DataFrame({"tokens/s": [160, 290, 480]}).plot(title="A plot of one's own", xlabel="at once", ylabel="tokens/s");"""
CLUSTER = """from workshop.course.notebooks import nb03
display(nb03.directives("70b"), nb03.tail("B", 3), nb03.grep("D", "died"))
print(nb03.body("405b"))"""
FIELDS = """from workshop import show
display(show.doctor(), show.fields({"id": "cmpl-b8a636bec93490d8", "object": "text_completion", "created": 1,
    "model": "teaching-model", "choices": [{"index": 0, "text": " city", "finish_reason": "length", "logprobs": None,
    "prompt_logprobs": None}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}))"""
ROOFLINE = "from workshop.course.topics import roofline\nroofline.picture('h200')"
COURSE = """from workshop.course.progress.course_map import course_map
display(course_map(), course_map("01_memory"))"""
GALLERY = {
    "server_panel": f"from {WIDGETS}.server.view import ServerPanel\nServerPanel()",
    "gpu_field": f"from {WIDGETS}.gpu_field.view import GpuField\nGpuField()",
    "memory_sliders": f"from {WIDGETS}.memory.view import MemorySliders\nMemorySliders()",
    "kv_cache": f"from {WIDGETS}.kv_cache.view import KvCacheExplorer\nKvCacheExplorer()",
    "parallelism_explorer": f"from {WIDGETS}.parallelism.view import ParallelismExplorer\n"
    'ParallelismExplorer("llama-3.1-405b", nodes=2, gpus_per_node=8, tp=8, pp=2)',
    "load_explorer": f"from {WIDGETS}.load.view import LoadExplorer\nLoadExplorer()",
    "loading_view": f"from {WIDGETS}.loading.view import LoadingView\nLoadingView()",
    "reconcile": f"from {WIDGETS}.reconcile.view import ReconcileView\nReconcileView()",
    "first_words": f"from {WIDGETS}.sampling.first_words import FirstWords\nFirstWords()",
    "sampling_explorer": f"from {WIDGETS}.sampling.view import SamplingExplorer\nSamplingExplorer()",
    "logprobs_viewer": LOGPROBS,
    "metrics_panel": METRICS,
    "batch_progress": BATCH,
    "timeline": TIMELINE,
    "xray": f"from {WIDGETS}.xray.view import XRay\nXRay()",
    "three_places": f'from {WIDGETS}.elsewhere.view import ThreePlaces\nThreePlaces("llama-3.1-70b", "h100", '
    "gpus_per_node=4)",
    "bits_explorer": f"from {WIDGETS}.bits.view import BitsExplorer\nBitsExplorer()",
    "checks": CHECKS,
    "errors": ERRORS,
    "sweep": SWEEP,
    "lines": LINES,
    "kv_caching": KV_CACHING,
    "parallelism": PARALLEL,
    "ideas": IDEAS,
    "step": STEP,
    "roofline": ROOFLINE,
    "cluster": CLUSTER,
    "fields": FIELDS,
    "course_map": COURSE,
}


def test_nothing_that_notebooks_show_is_left_out():
    shown = "\n".join(GALLERY.values())
    for path in sorted((ROOT / "workshop/course/widgets").glob("*/*.py")):
        for node in ast.parse(path.read_text()).body:
            bases = [ast.unparse(base) for base in getattr(node, "bases", ())]
            if (
                isinstance(node, ast.ClassDef)
                and {"View", "Watching", "Explorer", "widgets.VBox"} & {*bases}
                and not node.name.startswith("_")
            ):
                assert f"import {node.name}" in shown, (
                    f"{node.name} of {path.name} is not in the gallery"
                )
    for path in (ROOT / "workshop/course/drawing/pictures").glob("*.svg"):
        assert re.search(rf"\b{path.stem}\b", shown), f"{path.stem} is not in the gallery"
    assert all(f'"{kind}"' in shown for kind in ("stacked", "points")), (
        "kinds of charts that notebooks draw"
    )


def output(page, name: str):
    return (
        page.page.locator(".jp-CodeCell")
        .nth(list(GALLERY).index(name))
        .locator(".jp-Cell-outputArea")
    )


FIGURES = ("errors", "lines", "sweep", "step", "timeline", "roofline")
# What a scroll bar hides, which few notice: a drawing or a table that is wider than its frame.
SCROLLED = """() => [...document.querySelectorAll('.jp-OutputArea-output .scroll')].filter(e => e.offsetParent
  && e.scrollWidth > e.clientWidth + 1).map(e => `${e.textContent.trim().slice(0, 60)} `
  + `(${e.scrollWidth} in ${e.clientWidth})`)"""
# Each text of a picture: its size on the screen in pixels, and its words.
TEXTS = """cell => [...cell.querySelectorAll('svg')].filter(e => e.getScreenCTM())
  .flatMap(svg => [...svg.querySelectorAll('text')].map(e => [
    parseFloat(getComputedStyle(e).fontSize) * svg.getScreenCTM().a, e.textContent]))"""
GPUS = """() => [...document.querySelectorAll('.jp-OutputArea-output svg text')]
  .filter(e => /^GPU \\d+$/.test(e.textContent)).map(e => {
    const box = e.closest('.scroll').getBoundingClientRect(), own = e.getBoundingClientRect();
    return [e.textContent, own.left >= box.left && own.right <= box.right];
  })"""
TOPS = "sections => sections.map(e => Math.round(e.getBoundingClientRect().top))"
ON_SCREEN = """cell => cell.querySelector('.branching').getBoundingClientRect().bottom
  - cell.querySelector('.widget-slider').getBoundingClientRect().top"""


def test_all_are_whole_and_said_in_words_and_answer_the_keyboard(page, course_lab):
    page.open(course_lab.notebook("gallery", *GALLERY.values()))
    page.run_all()
    assert not page.failures()
    faults = []
    for theme in ("Light", "Dark"):
        choose_theme(page.page, f"JupyterLab {theme}")
        show_file_browser(page, False)
        for width in (1400, 900, 600):  # 600: beside a chat
            faults += cut(page, theme, width)
            assert width < 1400 or tops(page) == 1, "three places beside each other"
            if width == 900:  # a drawing has its full width once the file browser is closed
                faults += small_text(page, "ideas") + page.page.evaluate(SCROLLED)
            if width == 1400:
                page.shot(f"gallery_{theme.lower()}")
        show_file_browser(page, True)
        for width in (900, 1280, 1920):
            faults += cut(page, theme, width) + page.page.evaluate(SCROLLED)
            gpus = page.page.evaluate(GPUS)
            assert {f"GPU {number}" for number in range(16)} <= {name for name, _ in gpus}
            faults += [f"{theme}, {width} px: {name} is cut" for name, whole in gpus if not whole]
            if width == 900:
                assert tops(page) == 3, "below each other"
                faults += [fault for name in FIGURES for fault in small_text(page, name)]
        page.shot(f"gallery_{theme.lower()}_beside_files")
    silent = page.page.evaluate(SILENT)
    unnamed = page.page.evaluate(UNNAMED)
    choose_theme(page.page, "JupyterLab Light")
    show_file_browser(page, False)
    page.page.set_viewport_size({"width": 1400, "height": 1000})
    operate(page)
    unnamed += page.page.evaluate(UNNAMED)
    page.page.set_viewport_size({"width": 1024, "height": 700})  # a projector
    notebook = page.page.locator(".jp-WindowedPanel-outer").first.bounding_box()
    explorer = output(page, "sampling_explorer")
    assert explorer.evaluate(ON_SCREEN) <= notebook["height"], "all sliders and the picture"
    assert not faults, "\n".join(faults)
    assert not silent, "pictures without words: " + "\n".join(silent)
    assert not unnamed, "\n".join(unnamed)
    assert not page.elsewhere, "nothing outside this machine is asked for"
    assert not page.errors


def show_file_browser(page, shown: bool) -> None:
    """Open or close what takes a third of a narrow screen."""
    files = page.page.locator("#jp-left-stack")
    if files.is_visible() != shown:
        page.page.keyboard.press("Control+b")
        files.wait_for(state="visible" if shown else "hidden")


def tops(page) -> int:
    """Return at how many heights the columns of ThreePlaces begin."""
    return len(set(output(page, "three_places").locator("section").evaluate_all(TOPS)))


def cut(page, theme: str, width: int) -> list[str]:
    """Return what is cut in a window of this width, so high that all of the notebook is in it."""
    page.page.set_viewport_size({"width": width, "height": 16000})
    page.page.wait_for_timeout(500)
    return [f"{theme}, {width} px: {element}" for element in page.page.evaluate(CUT)]


def small_text(page, name: str) -> list[str]:
    """Return the texts below ten pixels of the pictures of a cell."""
    texts = output(page, name).evaluate(TEXTS)
    assert texts, f"{name} has no picture"
    return [f"{name}: {text!r} has {pixels} px" for pixels, text in texts if pixels < 10]


NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
# Code that leaves its box at the right.
WIDE_CODE = """() => [...document.querySelectorAll('.jp-InputArea-editor .cm-scroller')].filter(e => e.offsetParent
  && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 80))"""
MANY_EDITORS = "document.querySelectorAll('.jp-CodeCell .cm-content').length > 20"
WIDE = """() => [...document.querySelectorAll('.jp-RenderedMarkdown *')].filter(e => e.offsetParent
  && (e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).display !== 'inline'
      || e.getBoundingClientRect().right > innerWidth)).map(e => e.outerHTML.slice(0, 120))"""


# JupyterLab then gives its commands to scripts of the page.
EXPOSE = """new MutationObserver((_, watching) => {
  const config = document.getElementById('jupyter-config-data');
  if (!config || !config.textContent.includes('exposeAppInBrowser')) return;
  watching.disconnect();
  config.textContent = JSON.stringify({...JSON.parse(config.textContent), exposeAppInBrowser: true});
}).observe(document, {childList: true, subtree: true})"""


def open_without_kernel(page, path: str) -> None:
    """Open a file as a double click does, but start no kernel."""
    page.page.evaluate(
        """async path => {
            const kernelPreference = {shouldStart: false};
            await jupyterapp.commands.execute('docmanager:open', {path, kernelPreference});
        }""",
        path,
    )


def test_each_notebook_opens_at_a_clean_page(page, course_lab):
    page.page.add_init_script(EXPOSE)
    page.open(course_lab.address("00_start.ipynb"))
    page.page.set_viewport_size({"width": 900, "height": 1000})
    show_file_browser(page, False)
    for name in NOTEBOOKS:
        open_without_kernel(page, place_of(name))
        first = page.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-MarkdownCell").first
        number = rf"{int(name[:2])}\. " if name[0].isdigit() else "Capstone: "
        first.get_by_role("heading", level=1, name=re.compile(f"^{number}")).wait_for()
        text = first.inner_text()
        assert "You will be able to" in text and re.search(r"\d+ minutes · needs: ", text), name
        assert first.bounding_box()["height"] < 400, (
            f"{name}: the first page is for more than its head"
        )
        for _ in range(40):  # formulas are typeset after the text
            if not (wide := page.page.evaluate(WIDE)):
                break
            page.page.wait_for_timeout(250)
        assert not wide, name
        page.shot(f"opening_{name}")
        page.page.evaluate("void jupyterapp.commands.execute('application:close')")
    assert not page.elsewhere and not page.errors


def test_no_line_of_code_is_cut(page, course_lab):
    """25 lines of notebook 1 were, at 1280 pixels with the file browser open."""
    code = [source for name in NOTEBOOKS for source in cells.code(name)]
    page.page.goto(course_lab.notebook("code", *code))
    page.page.locator(".jp-CodeCell .cm-line").first.wait_for()
    show_file_browser(page, True)
    for width in (900, 1280):
        page.page.set_viewport_size({"width": width, "height": 16000})
        page.page.wait_for_function(MANY_EDITORS)
        page.page.wait_for_timeout(1000)
        assert page.page.evaluate(WIDE_CODE) == []


def operate(page) -> None:
    """Reach a control of each by Tab, move it by an arrow key, and see the picture change; then the rest of it."""
    for name, control, key in (
        ("memory_sliders", "requests", "ArrowRight"),
        ("kv_cache", "step", "ArrowRight"),
        ("parallelism_explorer", "TP", "ArrowLeft"),
        ("bits_explorer", "bits", "ArrowLeft"),
        ("first_words", "temperature", "ArrowLeft"),
        ("sampling_explorer", "temperature", "ArrowLeft"),
    ):
        widget = Widget(page.page, output(page, name))
        widget.reach_by_tab(control)
        widget.changes(lambda key=key: page.page.keyboard.press(key))
    places = Widget(page.page, output(page, "three_places"), ".workshop")
    places.reach_by_tab("model")
    # In JupyterLab's command mode arrows on a closed list go from cell to cell; an open list has them.
    places.changes(lambda: [page.page.keyboard.press(key) for key in (" ", "ArrowDown", "Enter")])
    loading(page, Widget(page.page, output(page, "loading_view"), ".workshop"))
    reconcile(Widget(page.page, output(page, "reconcile"), ".widget-html-content"))
    tokens(page, output(page, "logprobs_viewer"))


def loading(page, widget: Widget) -> None:
    widget.reach_by_tab("place in the log")
    widget.changes(lambda: page.page.keyboard.press("ArrowRight"))
    play = widget.root.locator(".widget-play button")
    seen = {widget.changes(lambda: play.first.click()), widget.changes(lambda: None)}
    assert len(seen) == 2, "it plays by itself"
    play.first.click()
    handle = widget.control("place in the log").locator(".noUi-handle")
    handle.press("End")
    widget.root.get_by_text("the engine is ready;").wait_for(timeout=60_000)
    assert "59 of 59 s" in widget.picture() and "1,229,264" in widget.picture()
    widget.choose("recorded start of", "405b-fp8")
    assert "95.54 GiB" in widget.picture()


def reconcile(widget: Widget) -> None:
    logs = json.loads((ROOT / "workshop/data/logs/index.json").read_text())["logs"]
    options = widget.control("log").locator("option").all_inner_texts()
    widget.choose("log", next(option for option in options if "405b" in option))
    assert "KV cache size" in widget.picture()
    widget.choose("log", "a file of yours …")
    widget.write("file", "/nowhere/log")
    assert "✗" in widget.picture(), "what is wrong is said"
    name = next(
        name
        for name, entry in logs.items()
        if entry["model"] == "llama-3.1-70b" and "fail" not in name
    )
    widget.write("file", str(ROOT / "workshop/data/logs" / name))
    assert "does not name its GPU" in widget.picture()
    widget.choose("GPU", "h200")
    assert "32.89" in widget.picture(), "GiB of weights on each of 4 GPUs, as vLLM printed"
    widget.write("model", "llama-3.1-8b")


def tokens(page, root) -> None:
    """Arrow keys go from token to token, and the panel below follows."""
    root.locator(".workshop label").first.click()
    page.page.keyboard.press("ArrowRight")
    assert "prompt, token 1" in root.inner_text()
