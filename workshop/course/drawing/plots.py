"""Draw numbers with `figure`, and schematic pictures, for notebooks.

Some tables come from the recorded runs.

>>> from workshop import plots
>>> sizes = {"8B": 16, "405B": 810}
>>> made = plots.figure(sizes, "barh", xlabel="GB in float16", title="Two bytes a parameter")
>>> "405B" in made.words                    # what a screen reader says of it
True
"""

import re
from functools import partial
from importlib.resources import files

from workshop.course.drawing.chart import Picture
from workshop.course.drawing.figure import course_style, figure
from workshop.course.topics import roofline
from workshop.course.widgets import style
from workshop.engine import measured_runs as recorded

__all__ = [
    "STEP_COLOURS",
    "course_style",
    "figure",
    "kinds",
    "kv_caching",
    "links",
    "megatron",
    "roofline",
    "step_parts",
    "step_table",
]

READING, REST, WAITS = (
    "reading the weights, at full bandwidth",
    "matrix products, the rest",
    "the GPU waits",
)
# Part of a step → the kinds of kernels in it, as benchmarks/gpu/kernels.py names them.
KERNELS = {
    READING: (),
    REST: ("matrix products",),
    "all-reduce": ("all-reduce",),
    "attention, KV cache write": ("attention", "KV cache write"),
    "norms, rope, activation": ("norms, rope, activation",),
    "sampling and the rest": ("sampling", "other", "copies", "quantise"),
    WAITS: (),
}  # fmt: skip
SHADES = (style.BLUE, style.SKY, style.ORANGE, style.GREEN, style.PURPLE, style.YELLOW, style.GREY)
STEP_COLOURS = dict(zip(KERNELS, SHADES, strict=True))
FILE = r'<svg [^>]*viewBox="0 0 (\d+) (\d+)">\s*<desc>(.*?)</desc>\s*(.*)</svg>\s*'
COLOUR = re.compile(r"var\(--(\w+)\)")
STEPS = {"as vLLM starts it": "70b-tp4-unfused", "tuned": "70b-tp4-best"}


def drawing(name: str) -> Picture:
    """Return the picture pictures/NAME.svg.

    Its colours stand there by their names in widgets/style.py, such as var(--kv). Its <desc> is the
    description for screen readers.
    """
    text = (files("workshop.course.drawing") / "pictures" / f"{name}.svg").read_text(
        encoding="utf-8"
    )
    parts = re.fullmatch(FILE, text, re.DOTALL)
    if parts is None:
        raise ValueError(f"{name}.svg is not laid out as FILE says.")
    width, height, description, body = parts.groups()
    body = COLOUR.sub(lambda match: style.NAMES[match[1]], body)
    return Picture(body, int(width), int(height), description)


kinds = partial(drawing, "kinds")
kv_caching = partial(drawing, "kv_caching")
links = partial(drawing, "links")
megatron = partial(drawing, "megatron")


def step_parts(name: str) -> dict[str, float]:
    """Return ms of one decoding step of a recorded run, part by part.

    They add up to 1000 / its tokens a second.
    """
    run = recorded.tuned(name)
    by_kind = run["kernels"]["by_kind"]
    limit = 1e3 / recorded.limit_tokens_per_s(run)
    parts: dict[str, float] = {}
    for part, kinds_of in KERNELS.items():
        parts[part] = 0
        for kind in kinds_of:
            parts[part] += by_kind.get(kind, [0])[0]
    parts[READING] = limit
    parts[REST] -= limit
    parts[WAITS] = max(0.0, 1e3 / run["single_tok_s"] - sum(parts.values()))
    return parts


def step_table() -> dict[str, dict[str, float]]:
    """Return part → ms of one token of 70B on 4 H200, as rows for a DataFrame.

    Its columns: the limit, as vLLM starts it, and tuned.
    """
    steps = {label: step_parts(name) for label, name in STEPS.items()}
    limit = {READING: steps["tuned"][READING]}
    table = {}
    for part in KERNELS:
        table[part] = {"the limit": limit.get(part, 0.0)}
        for label, parts in steps.items():
            table[part][label] = parts.get(part, 0.0)
    return table
