"""Parts 2 and 3: clients and servers, one token's probabilities, log probabilities, many prompts, batches."""

from __future__ import annotations

from drawings.canvas import (
    BLUE,
    FREE,
    GREEN,
    HAIR,
    INK,
    KV_CACHE,
    KV_CACHE_PALE,
    LARGE,
    NORMAL,
    ORANGE,
    PALE,
    PURPLE,
    SOFT,
    VERMILLION,
    WIDTH,
    Canvas,
)
from drawings.charts import Chart, chart
from drawings.recorded import answers
from workshop.course.drawing.figure import draw
from workshop.course.topics.timeline import Span, parts


def endpoint() -> Canvas:
    """Who talks to whom: notebook, head node, workers; one address."""
    c = Canvas(
        410,
        "A notebook without a GPU sends a request to the endpoint, an address on the head node. The "
        "server there answers; "
        "other nodes only compute.",
    )
    c.label(0, 96, 250, 150, "client", PALE, stroke=HAIR, size=LARGE, bold=True)
    c.text(125, 284, "a notebook, a script,", 20, anchor="middle", fill=SOFT).text(
        125, 312, "thirty learners: no GPU", 20, anchor="middle", fill=SOFT
    )
    c.box(480, 8, 656, 330, "none", stroke=HAIR, radius=16, line=3).text(
        500, 42, "GPU nodes of one job", 20, fill=SOFT
    )
    c.label(510, 96, 270, 150, "server\non the head node", BLUE, size=24, bold=True)
    c.label(880, 62, 226, 100, "workers", FREE, size=23)
    c.label(880, 186, 226, 100, "workers", FREE, size=23)
    c.arrow(782, 150, 874, 116).arrow(782, 190, 874, 232)
    c.line([(256, 150), (504, 150)], GREEN, 5, head=True).line(
        [(504, 196), (256, 196)], GREEN, 5, head=True
    )
    c.text(378, 132, "prompt", NORMAL, anchor="middle", bold=True).text(
        378, 226, "tokens", NORMAL, anchor="middle", bold=True
    )
    return c.label(
        160,
        358,
        816,
        50,
        "endpoint: http://HEAD:PORT/v1/completions",
        "#E4F3EE",
        size=23,
        mono=True,
    )


def record_flow() -> Canvas:
    """How connect() finds a server: by the record that the job wrote."""
    c = Canvas(
        300,
        "The job writes a record, one private file with address and key, into the home folder that all "
        "nodes see. "
        "connect() reads it in the notebook, and requests go straight to the server.",
    )
    c.label(0, 20, 300, 110, "SLURM job", BLUE, size=26, bold=True)
    c.label(
        418, 20, 300, 110, "record", KV_CACHE_PALE, size=26, bold=True, stroke=KV_CACHE, ink=INK
    )
    c.label(836, 20, 300, 110, "connect()", GREEN, size=26, bold=True, mono=True)
    c.arrow(308, 75, 410, 75, INK, 4).arrow(828, 75, 726, 75, INK, 4)
    c.text(359, 58, "writes", 20, anchor="middle").text(777, 58, "reads", 20, anchor="middle")
    for n, line in enumerate(("~/.workshop/servers/llama-3.1-8b.json", "address, model, key, log")):
        c.text(568, 164 + n * 28, line, 20, anchor="middle", mono=n == 0, fill=SOFT)
    c.line([(986, 136), (986, 256), (150, 256), (150, 138)], GREEN, 4, head=True)
    return c.text(568, 288, "requests, straight to the server", 20, anchor="middle")


def pool() -> Canvas:
    """A queue of prompts, four threads, one server that computes for all of them at once."""
    c = Canvas(
        330,
        "A queue of prompts feeds four threads; each sends a request, waits for the answer, and takes the "
        "next prompt. The "
        "server computes all four in the same step.",
    )
    c.text(0, 28, "queue", 23, bold=True).text(430, 28, "four threads", 23, bold=True)
    for n in range(5):
        c.label(n * 58, 122, 50, 84, str(9 - n), FREE, size=22, bold=True)
    c.arrow(296, 164, 410, 164, INK, 4)
    for n in range(4):
        y = 48 + n * 66
        c.label(430, y, 240, 54, f"prompt {4 - n}", (ORANGE, BLUE, GREEN, PURPLE)[n], bold=True)
        c.line([(676, y + 18), (836, 122 + n * 22)], SOFT, 3, head=True)
    c.label(846, 84, 290, 160, "server\none step for all", INK, size=25, bold=True)
    return c.text(430, 322, "an answer is there: its thread takes the next prompt", 20, fill=SOFT)


def timelines() -> Chart:
    """Twelve real requests, one after the other, and with four threads."""
    sides = {"one after the other": "one_by_one", "four threads": "four_threads"}
    sides = {title: [Span(**span) for span in answers()[key]] for title, key in sides.items()}
    ends = {title: max(span.ended for span in spans) for title, spans in sides.items()}
    description = ", ".join(f"{title} {end:.2f} seconds" for title, end in ends.items())
    with chart(
        430,
        f"Timeline of {len(answers()['one_by_one'])} requests of different length: {description}.",
        panels=2,
    ) as c:
        for axes, (title, spans) in zip(c.panels, sides.items(), strict=True):
            draw(axes, parts(spans), "stacked", legend=axes is c.axes)
            for label in list(axes.texts):
                label.remove()
            axes.set_title(f"{title}: {ends[title]:.2f} s")
            axes.set(xlim=(0, max(ends.values())), yticks=(), xlabel="seconds")
    return c


def batch() -> Canvas:
    """A batch that is killed and goes on: rows done stay done."""
    c = Canvas(
        300,
        "A file of rows. The first run is killed when some rows have their answer on disk; the second run "
        "asks only the "
        "rest. Every row is answered once.",
    )
    n_rows, done = 24, 15
    w = WIDTH / n_rows
    for y, name, start, stop, fill in (
        (40, "first run, killed", 0, done, BLUE),
        (150, "second run: only the rest", done, n_rows, GREEN),
    ):
        c.text(0, y - 12, name, 23, bold=True)
        for n in range(n_rows):
            inside = start <= n < stop
            c.box(
                n * w,
                y,
                w - 6,
                50,
                fill if inside else "none",
                stroke=fill if inside else HAIR,
                radius=5,
            )
    c.line([(done * w - 3, 22), (done * w - 3, 104)], VERMILLION, 5).text(
        done * w + 10, 28, "kill -9", 22, mono=True, fill=INK
    )
    c.text(0, 250, "answers on disk:", 22, fill=SOFT)
    for n in range(n_rows):
        c.box(n * w, 266, w - 6, 30, BLUE if n < done else GREEN, radius=5)
    return c


FIGURES = {
    "endpoint": endpoint,
    "record_flow": record_flow,
    "pool": pool,
    "timelines": timelines,
    "batch": batch,
}
