"""The picture of latency and throughput: what it draws is what was measured."""

from __future__ import annotations

import re

import pytest

from workshop.learn.plots_speed import _round_up, latency_throughput

SWEEP = {16: (800.0, 0.64), 1: (160.0, 0.2), 4: (480.0, 0.27)}


def test_every_number_at_once_is_a_named_point_right_and_up_as_measured():
    drawn = latency_throughput(SWEEP)
    places = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn.svg)]
    names = re.findall(r">(\d+) at once<", drawn.svg)
    assert names == ["1", "4", "16"], "from few to many"
    (x1, y1), (x4, y4), (x16, y16) = places
    assert (x16 - x1) / (x4 - x1) == pytest.approx(0.44 / 0.07, rel=0.01), "linear in seconds"
    assert (y1 - y16) / (y1 - y4) == pytest.approx(640 / 320, rel=0.01), "linear in tokens/s"


def test_its_words_say_the_numbers():
    assert repr(latency_throughput({2: (290.4, 0.216)})) == (
        "Throughput against latency: 2 at once 290 tokens/s and 0.22 s.")


@pytest.mark.parametrize(("value", "end"), [(0.64, 1), (0.2, 0.2), (160, 200), (801, 1000), (0, 10), (2.1, 5)])
def test_axes_end_at_round_numbers(value, end):
    assert _round_up(value) == pytest.approx(end)
