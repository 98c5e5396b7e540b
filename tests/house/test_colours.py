"""The colours of the course are those of `style`: in the slides' theme, and by name in the pages' style sheets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workshop.course.widgets import style

ROOT = Path(__file__).parents[2]


def test_the_theme_of_the_slides_has_the_colours_of_the_widgets():
    theme = (ROOT / "slides" / "theme.css").read_text()
    (root,) = re.findall(r":root \{(.+?)\}", theme, re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", root))
    assert colours.pop("pale")  # a ground of code, in the slides alone
    assert colours == {name: getattr(style, name.upper()) for name in colours}
    assert {"ink", "soft", "hair", "blue", "orange"} <= set(colours)


@pytest.mark.parametrize("name", ["plan.css", "first_words.css"])
def test_a_page_names_its_colours(name):
    sheet = (ROOT / "docs" / "site" / "live" / name).read_text()
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", sheet)
    named = re.findall(r"var\(--(?!jp-)(\w+)\)", sheet)
    assert set(named) <= {*style.NAMES, "mark", "code"}  # the page's own two
