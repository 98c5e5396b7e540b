"""The one visual language of widgets, plots and slides. Pure: strings and numbers only.

Colours are Okabe and Ito's (2008), which people with any common colour blindness can tell apart;
text and backgrounds are JupyterLab's own CSS variables, so that light and dark themes both read
well.
"""

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GREY = "#56B4E9", "#CC79A7", "#F0E442", "#8C8C8C"

# What a colour means, everywhere in the course.
WEIGHTS, KV_CACHE, OVERHEAD, FREE = BLUE, ORANGE, PURPLE, "var(--jp-layout-color3, #e0e0e0)"
GOOD, BAD, NOTE = GREEN, VERMILLION, SKY
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW, GREY)

# On a light page: text, quiet text, thin lines.
INK, SOFT, HAIR = "#1f2328", "#59636e", "#d0d7de"

TEXT = f"var(--jp-ui-font-color1, {INK})"
MUTED = f"var(--jp-ui-font-color2, {SOFT})"
PANEL = "var(--jp-layout-color1, #ffffff)"
EMPTY = "var(--jp-layout-color2, #eeeeee)"  # lighter than FREE: where many boxes stand side by side
LINE = f"var(--jp-border-color2, {HAIR})"

# The names that style.css and classes (bg-…, ink-…) know them by.
NAMES = {
    "blue": BLUE,
    "orange": ORANGE,
    "green": GREEN,
    "vermillion": VERMILLION,
    "sky": SKY,
    "purple": PURPLE,
    "yellow": YELLOW,
    "grey": GREY,
    "weights": WEIGHTS,
    "kv": KV_CACHE,
    "overhead": OVERHEAD,
    "free": FREE,
    "good": GOOD,
    "bad": BAD,
    "text": TEXT,
    "muted": MUTED,
    "panel": PANEL,
    "line": LINE,
    "empty": EMPTY,
}
