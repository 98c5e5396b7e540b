"""docs/cards.md is what its script makes of the public figures, and they lie where the plan says."""

from __future__ import annotations

import importlib.util
import re
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/cards.md").read_text(encoding="utf-8")
COUNTED = (
    "| speed,",
    "| tokens/s and TPOT,",
    "| first token,",
    "| together,",
    "Their intervals are",
)


@pytest.fixture(scope="module")
def cards():
    spec = importlib.util.spec_from_file_location("cards", ROOT / "docs/cards.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cards"] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(cards):
    """Each point with its rows; a simulation takes seconds, so every third point alone has those of one."""
    return [
        (point, cards.rows_of(point, simulated=number % 3 == 1))
        for number, point in enumerate(cards.points())
    ]


def test_the_page_is_what_the_script_makes(cards, tables):
    """But for what is counted over all rows of speed; `make docs` writes it anew."""
    has_all = [(point, rows) for point, rows in tables if rows or not point["plan"]]
    different = set(cards.page(has_all).splitlines()) - set(PAGE.splitlines())
    assert not [line for line in different if not line.startswith(COUNTED)]
    assert sum(not cards.is_memory(row) for _, rows in tables for row in rows) > 10


def test_nine_of_ten_public_figures_lie_within_their_interval(cards, tables):
    sections = dict(re.findall(r"^\*\*(\S+)\*\*:(.*?)(?=^\*\*|\Z)", PAGE, re.MULTILINE | re.DOTALL))
    marks = {name: re.findall(r"([✓✗]) \|$", text, re.MULTILINE) for name, text in sections.items()}
    judging = [point["id"] for point, _ in tables if point["plan"] and cards.judges(point)]
    for names in (marks, judging):
        part = [mark for name in names for mark in marks[name]]
        inside = part.count("✓")
        assert len(part) > 30 and inside / len(part) >= 0.9
        assert f"| {inside} of {len(part)} (" in PAGE


def test_the_intervals_are_narrow_enough_to_use(tables):
    halves = [
        row.half_percent for _, part in tables for row in part if row.figure == "KV cache, tokens"
    ]
    assert statistics.median(halves) < 10


def test_every_point_has_a_source_and_a_reason_where_it_is_not_scored(cards, tables):
    for point, part in tables:
        assert point["source"]
        assert part or point["plan"] or point["note"]
