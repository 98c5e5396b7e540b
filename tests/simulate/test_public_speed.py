"""The closed loop without a scheduler (benchmarks/simulate) against vLLM's scheduler, and the public points."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from workshop import plan
from workshop.simulate.arrivals import drawn
from workshop.simulate.load import on_plan

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/simulate"))
import public_speed  # noqa: E402      of the folder above
from closed_loop import closed_loop  # noqa: E402

PROMPT, OUTPUT = 512, 64
SETTINGS: dict[str, Any] = {"tensor_parallel_size": 1, "max_model_len": 4096}
# An even sample: a point of every model, card, release and split.
EVERY = 40


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(("concurrency", "version"), [(4, "0.32.0"), (48, "0.12.0")])
def test_one_wave_takes_as_long_as_with_the_scheduler_of_vllm(concurrency, version):
    planned = plan("llama-3.1-8b", "h100", vllm_version=version, **SETTINGS)
    ours = closed_loop(planned, concurrency, PROMPT, OUTPUT, waves=1)
    load = drawn(burst=concurrency, prompt=(PROMPT, PROMPT), output=(OUTPUT, OUTPUT))
    result = on_plan(planned, load, enable_prefix_caching=False)
    assert ours.tpot_ms == pytest.approx(result.of("tpot")["p50"], rel=0.03)
    assert ours.ttft_ms == pytest.approx(result.of("ttft")["p50"], rel=0.1)


def test_a_row_of_shared_experts_has_as_many_gpus_as_its_id_says():
    """kimi_k2_5 … tp4_ep4: the columns say TP 4, DP 4 and experts over 16."""
    (row,) = [point for point in public_speed.points() if point.id.endswith("c4_tp4_ep4_1294")]
    assert (row.split, row.concurrency) == ("TP 4, EP", 4)


def test_a_server_has_the_flags_of_its_recipe():
    """MiniMax on B200 (InferenceX, minimaxm2.5_fp8_b200.sh): two prompts a step, an FP8 KV cache."""
    by_case = {(point.model, point.gpu): point for point in public_speed.points()}
    settings = public_speed.settings_of(by_case["MiniMaxAI/MiniMax-M2.5", "b200"])
    prompt = by_case["MiniMaxAI/MiniMax-M2.5", "b200"].prompt
    assert (settings["max_num_batched_tokens"], settings["kv_cache_dtype"]) == (2 * prompt, "fp8")
    assert public_speed.settings_of(by_case["nvidia/Llama-3.1-70B-Instruct-FP8", "h100"]) == {}


def test_a_left_out_case_has_the_width_of_the_others():
    """Of two cases of a kind, each is judged by the errors of the other."""
    rows = [row for row in public_speed.rows() if row.is_scored and row.kind == "dense"]
    near, far = rows[0], next(row for row in rows if row.case != rows[0].case)
    share, half = public_speed.left_out([near, far], "tpot")
    errors = sorted(abs(math.log1p(row.error("tpot"))) for row in (near, far))
    assert share == 0.5, "the smaller error lies within the larger, and not the other way round"
    assert half == pytest.approx(sum(math.expm1(error) for error in errors) / 2)


def test_the_record_is_what_the_simulation_gives_now():
    recorded = {score.id: score for score in public_speed.scores()}
    chosen = [point for point in public_speed.points()[::EVERY] if point.concurrency <= 64]
    assert len(chosen) > 10
    for point in chosen:
        score = public_speed.score(point)
        expected = recorded[point.id]
        assert score.tpot_ms == pytest.approx(expected.tpot_ms, rel=0.005), point.id
        assert score.ttft_ms == pytest.approx(expected.ttft_ms, rel=0.02), point.id
        assert score.tpot_share == pytest.approx(expected.tpot_share, abs=0.002), point.id


def test_the_page_is_what_the_record_says():
    page = public_speed.page(public_speed.rows())
    assert (ROOT / "docs/speed.md").read_text(encoding="utf-8") == page


def test_every_point_of_the_source_is_recorded_once():
    ids = [json.loads(line)["id"] for line in public_speed.RECORD.read_text().splitlines()]
    assert len(ids) == 719
    assert ids == [point.id for point in public_speed.points()]
