"""`workshop bench` prints and draws each measured figure with the simulated one beside it."""

from __future__ import annotations

import re

from workshop.cli.use import bench_table
from workshop.course.drawing import bench_points
from workshop.measure.points import Load, Point

RATES = (1.0, 4.0, 16.0)


def figures(scale: float, tpot_ms: float | None) -> dict[str, dict[str, float | None]]:
    """Return the percentiles of ttft, tpot and e2el."""
    p50 = {"ttft": 100 * scale, "tpot": tpot_ms, "e2el": 400 * scale}
    result = {}
    for name, value in p50.items():
        worse = None if value is None else 2 * value
        result[name] = {"p50": value, "p95": worse, "p99": worse, "mean": value}
    return result


def point(rate: float, goodput: float | None = 0.9, tpot_ms: float | None = 8.0) -> Point:
    load = Load(requests=100, prompt_tokens=256, output_tokens=64, rate=rate)
    simulated = {f"{name}_ms": times for name, times in figures(1.1 * rate, tpot_ms).items()}
    return Point(
        load=load,
        seed=1,
        seconds=10.0,
        tokens_per_s=64 * rate,
        requests_per_s=rate,
        goodput_per_s=None if goodput is None else goodput * rate,
        figures=figures(rate, tpot_ms),
        prefix_hit_share=0.0,
        client_cpu_share=0.2,
        predicted={
            "tokens_per_s": 60 * rate,
            "goodput_per_s": None if goodput is None else 0.75 * rate,
            **simulated,
        },
    )


def test_the_simulated_line_ends_with_the_simulated_goodput():
    text = bench_table.as_text("m", [point(4.0)], predicts=True)
    header, measured, simulated = text.splitlines()[1:4]
    assert header.endswith("goodput/s")
    assert measured.startswith("4 a second") and measured.endswith(" 3.60")
    assert simulated.startswith("  simulated") and simulated.endswith(" 3.00")
    without = bench_table.as_text("m", [point(4.0, goodput=None)], predicts=True)
    assert without.splitlines()[3].endswith(" –")


def titles(picture: str) -> set[str]:
    """Return the texts of a picture that name a panel."""
    texts = set(re.findall(r">([^<>]+)</text>", picture))
    return texts & {"tokens/s", *bench_points.PANELS.values(), bench_points.GOODPUT}


def test_the_picture_has_a_panel_for_each_figure():
    picture = bench_points.drawing([point(rate) for rate in RATES])
    assert titles(picture) == {"tokens/s", "TTFT p95, ms", "TPOT p95, ms", bench_points.GOODPUT}
    assert picture.count(">measured</text>") == picture.count(">simulated</text>") == 4
    assert picture.count(">requests per second</text>") == 4


def test_a_panel_without_values_is_left_out():
    without_slo = bench_points.drawing([point(rate, goodput=None) for rate in RATES])
    assert titles(without_slo) == {"tokens/s", "TTFT p95, ms", "TPOT p95, ms"}
    one_token = bench_points.drawing([point(rate, goodput=None, tpot_ms=None) for rate in RATES])
    assert titles(one_token) == {"tokens/s", "TTFT p95, ms"}
