"""X-rays of a recorded run of the teaching model: drawn by the X-ray's own code (Node runs it), in the size of a slide."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache
from importlib.resources import files
from pathlib import Path

from drawings.canvas import SMALL, SOFT, VERMILLION, Canvas
from workshop.course.widgets import style
from workshop.course.widgets.xray.case import RECORDED, Replay
from workshop.engine.trace import Trace

ROOM = files("workshop.course.widgets.xray")
SCALE = 1.8  # pixels of a slide for one of the page
LEAST_PX = 10.5  # of the page: 14 points on the slide
# name → the steps from … to, the step with a frame, pixels that the page would have for it
VIEWS = {
    "run": (0, 24, 19, 630),
    **{f"chunk_{step}": (0, 7, step, 300) for step in (1, 2, 3, 4)},
    "prefix": (0, 7, 3, 300),
    "preempt": (3, 20, 7, 400),
}
KEY = "high: prefill, its tokens · hatched: found in the prefix cache · flat: a token · dotted: waits · ✕: preempted · a bar: ended"
RULES = re.compile(r"[^{}\n]+\{[^{}]*\}\n?")
# Those of the page's style sheet that a drawing needs.
NEEDED = re.compile(
    r" *(\.c\d|\.fill|\.edge|\.thread|svg [.t]|\.hit|\.over|\.waits|\.frame|#budget|#pool|#hatch|:root \{ --hatch)"
)
# In a deck there are several of them, and .small is a class of the slides.
RENAMED = {":root {": "& {", "#pool": ".pool", "#budget": ".budget", ".small": ".long"}


@cache
def drawn() -> dict[str, dict[str, str]]:
    """Return name of a view → what the X-ray draws of it: SVG of the steps, HTML of budget and pool, words of each."""
    replay = Replay(RECORDED.name)
    replay.extend(Trace(RECORDED).more())
    request = {
        "scripts": "".join(
            (ROOM / name).read_text(encoding="utf-8") for name in ("trace.js", "picture.js")
        ),
        "trace": replay.data(),
        "views": [
            dict(zip(("from", "to", "cursor", "width"), view, strict=True))
            for view in VIEWS.values()
        ],
    }
    node = (shutil.which("node") or "node", Path(__file__).parents[1] / "xray.mjs")
    done = subprocess.run(
        node, input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True
    )
    return dict(zip(VIEWS, json.loads(done.stdout), strict=True))


def look(name: str) -> str:
    """Return the page's style for one figure, and its pattern: a name of its own, as several figures stand in one deck."""
    rules = "".join(
        rule
        for rule in RULES.findall((ROOM / "page.css").read_text(encoding="utf-8"))
        if NEEDED.match(rule)
    )
    for theirs, ours in {**RENAMED, "#hatch": f"#hatch-{name}"}.items():
        rules = rules.replace(theirs, ours)
    colours = "".join(f"--{key}:{value};" for key, value in style.NAMES.items())
    pattern = re.search(r"<pattern.*?</pattern>", (ROOM / "page.html").read_text(encoding="utf-8"))[
        0
    ]
    sizes = (
        f"svg .inside, svg .inside.long, svg .quiet, .pool i small {{ font-size: {LEAST_PX}px }}"
    )
    return (f"<style>.xray-{name} {{ {colours} {rules} {sizes} }}</style>"
            f'<defs>{pattern.replace("hatch", f"hatch-{name}")}</defs>')  # fmt: skip


def steps(view: str, x: float, y: float) -> str:
    """Return requests over steps, at a place of a figure."""
    _, _, width, height = map(
        float, re.search(r'viewBox="([^"]+)"', drawn()[view]["steps"])[1].split()
    )
    size = f'x="{x:g}" y="{y:g}" width="{width * SCALE:g}" height="{height * SCALE:g}"'
    svg = drawn()[view]["steps"].replace(f' height="{height:g}"', f" {size}", 1)
    return svg.replace("inside small", "inside long")


def page(kind: str, view: str, x: float, y: float, width: float, height: float) -> str:
    """Return `budget` or `pool` of a view, which are HTML, at a place of a figure."""
    # words that the page does not show
    html = re.sub(r'(<span class="c\d decode[^>]*>)[^<]*', r"\1", drawn()[view][kind])
    inside = f'<div xmlns="http://www.w3.org/1999/xhtml" class="{kind}">{html}</div>'
    return (f'<g transform="translate({x:g} {y:g}) scale({SCALE})">'
            f'<foreignObject style="overflow:visible" width="{width / SCALE:.1f}" height="{height / SCALE:.1f}">{inside}</foreignObject></g>')  # fmt: skip


def figure(name: str, height: float, *parts: str) -> Canvas:
    """Return a canvas with X-rays of one look."""
    return Canvas(height).raw(f'<g class="xray-{name}">{look(name)}{"".join(parts)}</g>')


def xray_run() -> Canvas:
    """The first 24 steps: requests join and leave."""
    c = figure("run", 490, steps("run", 0, 0))
    c.words = f"X-ray of a recorded run, a row for each of six requests, a column for each step. {drawn()['run']['words']}"
    return c.text(0, 482, KEY, SMALL, fill=SOFT)


def xray_chunks() -> Canvas:
    """A prompt of 300 tokens in three steps, and what each step had room for."""
    bars = [page("budget", f"chunk_{n}", 590, 36 + 112 * (n - 1), 546, 50) for n in (1, 2, 3, 4)]
    c = figure("chunks", 450, steps("chunk_2", 0, 0), *bars)
    for n in (1, 2, 3, 4):
        c.text(
            590,
            24 + 112 * (n - 1),
            f"step {n}: {drawn()[f'chunk_{n}']['budgetSays'].replace(' (max_num_batched_tokens)', '')}",
            20,
        )
    c.words = (
        f"X-ray of steps 0 to 6, and the budget of steps 1 to 4. {drawn()['chunk_2']['words']}"
    )
    return c


def beside_pool(
    view: str, shown: str, step: int, x: float, width: float, height: float, of: str
) -> Canvas:
    """Return the steps of a view, and on their right the pool of blocks after one of them."""
    c = figure(view, 450, steps(view, 0, 0), page("pool", view, x, 90, width, height))
    c.text(x, 24, f"the pool{of} after step {step}", 23, bold=True)
    pool = drawn()[view]["poolSays"]
    c.words = (
        f"X-ray of steps {shown}, and the pool after step {step}: {pool}. {drawn()[view]['words']}"
    )
    return c


def xray_prefix() -> Canvas:
    """Three requests that begin alike hold the same two blocks."""
    c = beside_pool("prefix", "0 to 6", 3, 590, 546, 180, " of KV blocks")
    c.text(590, 60, drawn()["prefix"]["poolSays"].split(";")[0], 20, fill=SOFT)
    for n, line in enumerate(
        (
            "three colours: A, B and E share the block",
            "partly filled: it has room for more tokens",
            "dark edge: taken in this step",
        )
    ):
        c.text(590, 330 + n * 36, line, 20, fill=SOFT)
    return c


def xray_preempt() -> Canvas:
    """No block is free: who came last loses its blocks."""
    c = beside_pool("preempt", "3 to 19", 7, 768, 368, 290, "")
    c.text(768, 60, drawn()["preempt"]["poolSays"].split(",")[0], 20, fill=SOFT)
    c.text(768, 402, "✕ in the row of E: preempted", 20, fill=VERMILLION, bold=True)
    c.text(768, 436, "18 went to A; 17 is free, still cached", 20, fill=SOFT)
    return c


FIGURES = {
    "xray_run": xray_run,
    "xray_chunks": xray_chunks,
    "xray_prefix": xray_prefix,
    "xray_preempt": xray_preempt,
}
