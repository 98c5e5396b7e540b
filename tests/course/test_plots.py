"""The charts of the course draw what was measured: latency against throughput, the parts of a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workshop.course.drawing import plots
from workshop.course.drawing.figure import to_html

SWEEP = {1: (160.0, 0.2), 4: (480.0, 0.27), 16: (800.0, 0.64)}


def test_every_number_at_once_is_a_named_point_right_and_up_as_measured():
    curve = {seconds: rate for rate, seconds in SWEEP.values()}
    made = plots.figure(
        curve, names=[f"{n} at once" for n in SWEEP], xlabel="seconds a request", ylabel="tokens/s"
    )
    axes = made.axes[0]
    assert [text.get_text() for text in axes.texts] == ["1 at once", "4 at once", "16 at once"]
    assert [tuple(text.xy) for text in axes.texts] == [(0.2, 160.0), (0.27, 480.0), (0.64, 800.0)]
    assert axes.get_xscale() == axes.get_yscale() == "linear" and axes.get_ylim()[0] == 0
    assert made.words == "tokens/s against seconds a request. 0.2: 160, 0.27: 480, 0.64: 800."
    assert "16 at once" in to_html(made)


def test_the_table_of_a_step_has_the_limit_and_both_measurements():
    table = plots.step_table()
    sums = {
        row: sum(ms[row] for ms in table.values())
        for row in ("the limit", "as vLLM starts it", "tuned")
    }
    assert list(table) == list(plots.STEP_COLOURS)
    # docs/gpu.md: 7.3 ms by bandwidth (141.1 GB at 4 × 4.8 TB/s); measured 82 and 92 tokens/s
    assert sums["the limit"] == pytest.approx(141.107 / 19.2, rel=0.001)
    assert 1e3 / sums["as vLLM starts it"] == pytest.approx(82, abs=0.6)
    assert 1e3 / sums["tuned"] == pytest.approx(92, abs=0.6)


def test_most_of_what_tuning_gains_comes_from_kernels_for_one_token():
    """What notebook 2 says beside the picture, whose first bar is of vLLM without FlashInfer's fused kernel."""
    data = Path(plots.__file__).parents[2] / "data" / "tuning" / "h200_vllm_0.25.1.json"
    runs = {run["name"]: run for run in json.loads(data.read_text())["runs"]}
    assert not runs["70b-tp4-unfused"]["compilation_config"]["pass_config"]["fuse_allreduce_rms"]
    base, sizes, both = (
        runs[f"bf16-{name}"]["single_tok_s"] for name in ("base", "sizes", "fused-sizes")
    )
    assert 0.6 < (sizes - base) / (both - base) < 0.8
