"""docs/cards.md is what its script makes of the public figures, and they lie where the plan says."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cards():
    spec = importlib.util.spec_from_file_location("cards", ROOT / "docs/cards.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["cards"] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tables(cards):
    return cards.tables()


def test_the_page_is_what_the_script_makes(cards, tables):
    assert (ROOT / "docs/cards.md").read_text(encoding="utf-8") == cards.page(tables)


def test_nine_of_ten_public_figures_lie_within_their_interval(cards, tables):
    rows = [row for _, part in tables for row in part]
    for part in (rows, [row for row in rows if row.judges]):
        assert len(part) > 30
        assert sum(row.holds for row in part) / len(part) >= 0.9


def test_the_intervals_are_narrow_enough_to_use(tables):
    halves = [
        row.half_percent for _, part in tables for row in part if row.figure == "KV cache, tokens"
    ]
    assert statistics.median(halves) < 10


def test_every_point_has_a_source_and_a_reason_where_it_is_not_scored(cards, tables):
    for point, part in tables:
        assert point["source"]
        assert part or point["note"]
