"""The shared parts: they escape, every output brings its look, and the look is in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from workshop.course.drawing import chart, html
from workshop.course.drawing.html import Html, div, tag
from workshop.course.widgets import style
from workshop.course.widgets.logprobs.view import MOST_BITS, surprise_colour
from workshop.errors import BadInput

LEARN = Path(html.__file__).parents[1]
SOURCE = "\n".join(
    path.read_text().replace("from __future__ import annotations", "")
    for path in sorted(LEARN.rglob("*.py"))
)
CSS = (LEARN / "widgets" / "style.css").read_text()
MOST_INLINE_STYLES = 40


def test_text_is_escaped_once_and_markup_is_not():
    inner = tag("b", "<a> & 'b'")
    assert (
        div(inner, "<i>", title='"x"')
        == "<div title=\"&quot;x&quot;\"><b>&lt;a&gt; &amp; 'b'</b>&lt;i&gt;</div>"
    )
    assert "&amp;lt;" not in html.panel(inner, label="<b>")
    assert "<script>" not in html.alert(BadInput("<script>", "<script>"))


def test_empty_attributes_are_left_out_and_words_make_one_picture():
    assert tag("i", title="", style=None) == "<i></i>"
    assert 'role="img" aria-label="two bars"' in html.panel(
        "x", label="two bars"
    ) and "role" not in html.panel("x")


def test_an_output_brings_the_rules_that_it_needs_and_no_others():
    alone = html.alone(html.panel(html.verdict("✓", "good", "It fits.")))
    assert (
        ".workshop .verdict.good{" in alone
        and ".workshop .sign{" in alone
        and ".workshop{" in alone
    )
    assert ".verdict.bad" not in alone and ".surprise" not in alone
    assert len(alone) < len(html.SHEET) / 3


def test_motion_comes_with_what_moves_and_its_rule_for_who_wants_none():
    moving = html.alone(html.panel(div("x", cls="drops")))
    assert "@keyframes drops{from{" in moving and moving.count("{") == moving.count("}")
    assert "@media (prefers-reduced-motion:reduce){" in moving
    assert "@keyframes recut" not in moving
    assert "@" not in html.alone(html.panel("x"))


def test_colours_are_those_of_the_course_or_the_themes():
    written = set(re.findall(r"#\w{3,6}\b", re.sub(r"/\*.*?\*/", "", CSS, flags=re.DOTALL)))
    assert written <= {"#fff", "#000"}, "all else by its name in style.py"
    assert {style.TEXT, style.PANEL} <= set(style.NAMES.values()) and all(
        "var(--jp" in style.NAMES[n] for n in ("text", "line")
    )


def contrast(*pair: list[float]) -> float:
    """The contrast of two colours by WCAG 2.2: 1.4.3 asks for 4.5 to 1."""
    linear = [
        [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels]
        for channels in pair
    ]
    dark, light = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in linear)
    return (light + 0.05) / (dark + 0.05)


def test_words_in_a_colour_and_on_one_read_in_either_theme():
    """JupyterLab's text and page are #212121 on white, and white on #111 in the dark theme."""

    def rgb(written: str) -> list[float]:
        digits = (
            written.strip("#") if len(written) > 4 else "".join(2 * c for c in written.strip("#"))
        )
        return [int(digits[i : i + 2], 16) for i in (0, 2, 4)]

    mixed = re.findall(
        r"color: ?color-mix\(in srgb, ?var\(--(\w+)\) (\d+)%, ?var\(--text\)\)", html.SHEET
    )
    assert {"good", "bad", "orange", "mark", "c"} <= {name for name, _ in mixed}
    # no words are yellow
    colours = {style.NAMES[name] for name, _ in mixed if name in style.NAMES} - {style.YELLOW}
    for colour, share in ((rgb(c), int(p) / 100) for c in colours if c[0] == "#" for _, p in mixed):
        for text, page in (("#212121", "#fff"), ("#fff", "#111")):
            shown = [share * a + (1 - share) * b for a, b in zip(colour, rgb(text), strict=True)]
            assert contrast(shown, rgb(page)) >= 4.5, (colour, page)
    xray = (LEARN / "widgets" / "xray" / "page.css").read_text()
    filled = re.findall(r"--c: var\(--(\w+)\); --ink: (#\w+);", CSS + xray)
    filled += re.findall(r"background: var\(--(\w+)\); color: (#\w+);", CSS)
    assert len(filled) >= 16 and all(
        contrast(rgb(style.NAMES[c]), rgb(ink)) >= 4.5 for c, ink in filled
    ), filled


def test_a_token_on_the_strongest_shade_reads_in_the_dark_theme():
    # JupyterLab's dark text is white of 87 % on #111, here with the shade between them.
    written = surprise_colour(MOST_BITS)
    red, green, blue, alpha = (int(written[i : i + 2], 16) for i in (1, 3, 5, 7))
    ground = [17 + (channel - 17) * alpha / 255 for channel in (red, green, blue)]
    assert contrast(ground, [0.87 * 255 + 0.13 * channel for channel in ground]) >= 4.5


def test_every_rule_is_used():
    literals = [
        node.value for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.Constant)
    ]
    short = [
        text
        for text in literals
        if (isinstance(text, str) and len(text.split()) <= 4) or "class=" in str(text)
    ]
    literal_words = {word for text in short for word in re.findall(r"[a-z][\w-]*", text)}
    made = {f"{kind}{name}" for kind in ("bg-", "ink-") for name in style.NAMES}
    made |= (
        {f"of-{name}" for name in style.NAMES}
        | {f"of{n}" for n in (2, 3, 5)}
        | {f"c{n}" for n in range(6)}
    )
    classes = set(
        re.findall(r"\.([a-z][\w-]*)", re.sub(r"{[^}]*}|/\*.*?\*/", "", CSS, flags=re.DOTALL))
    )
    assert classes - literal_words - made == {
        "widget-readout",  # of ipywidgets
        "jp-RenderedMarkdown",  # of JupyterLab
        "jp-OutputArea-output",
    }


def test_looks_are_classes_and_inline_styles_are_computed():
    inline = re.findall(r"""\bstyle=(?:f?"|f?'|\w+\b(?!\())[^,)]*""", SOURCE)
    looks = [attribute for attribute in inline if not re.search(r"AUTO|[{]|place|share", attribute)]
    assert len(inline) < MOST_INLINE_STYLES and looks == []


def test_numbers_stand_where_the_axes_say():
    axes = chart.Axes(10, 20, 110, 220, x_end=50, y_end=4)
    assert axes.points([0, 25, 50], [0, 1, 4]) == [(10, 220), (60, 170), (110, 20)]
    drawn = axes.x_ticks() + axes.y_ticks()
    assert [drawn.count(f">{label}</text>") for label in ("0", "25", "50", "2", "4")] == [
        2,
        1,
        1,
        1,
        1,
    ]


def test_axes_end_at_a_round_number(subtests):
    for value, end in [(0, 10), (3, 5), (0.3, 0.5), (160, 200), (640, 1000), (0.02, 0.02)]:
        with subtests.test(str(value)):
            assert chart.round_up(value) == pytest.approx(end)


def test_a_picture_says_its_words_and_escapes_them():
    drawn = chart.Picture(chart.text(1, 2, "<b>"), 300, 100, 'words "here"')
    assert repr(drawn) == 'words "here"' and "&lt;b&gt;" in drawn.svg
    assert 'aria-label="words &quot;here&quot;"' in drawn._repr_html_() and isinstance(
        drawn.drawn, Html
    )
