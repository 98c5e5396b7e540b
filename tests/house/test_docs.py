"""The pages of docs/: each is listed in the index, once."""

from __future__ import annotations

import re
from pathlib import Path

import tree

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"


def test_each_page_is_listed_once_in_the_index():
    linked = re.findall(r"^\| \[.+?\]\((.+?)\) \| .+ \|$", INDEX.read_text(), re.MULTILINE)
    pages = {path for path in tree.files("docs", ".md") if ROOT / "docs/site" not in path.parents}
    guides = pages - {INDEX} | {ROOT / "kubernetes" / "README.md"}
    assert sorted((INDEX.parent / link).resolve() for link in linked) == sorted(guides)
