"""The schematic pictures of notebooks 01 and 02: the KV cache, kinds of parallelism, links, Megatron-LM's products.

Each is a file in drawings/: SVG in the course's colours (widgets/style.py), its words for screen readers in <desc>.
For charts of numbers: figure.py.
"""

import re
from functools import partial
from importlib.resources import files

from workshop.learn.chart import Picture

FILE = r'<svg [^>]*viewBox="0 0 (\d+) (\d+)">\s*<desc>(.*?)</desc>\s*(.*)</svg>\s*'


def drawing(name: str) -> Picture:
    """Return the picture drawings/NAME.svg."""
    text = (files("workshop.learn") / "drawings" / f"{name}.svg").read_text(encoding="utf-8")
    width, height, words, body = re.fullmatch(FILE, text, re.DOTALL).groups()
    return Picture(body, int(width), int(height), words)


kinds, kv_caching, links, megatron = (partial(drawing, name) for name in ("kinds", "kv_caching", "links", "megatron"))
