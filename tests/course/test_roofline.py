"""The roofline against hand arithmetic and recorded runs."""

from __future__ import annotations

import pytest
from inference_planner.split.deployment import prepare

from workshop.course.topics import roofline


def test_the_critical_batch_is_where_both_peaks_take_as_long():
    """H100: 989e12 FLOP/s over 3.35e12 B/s; bf16 has 2 bytes and 2 FLOP a parameter. FP8: twice the FLOP/s, half the bytes."""
    d = prepare("llama-3.1-70b", "h100", max_model_len=8192)
    assert roofline.critical_tokens(d) == pytest.approx(989e12 / 3.35e12, rel=0.02)
    fp8 = prepare("llama-3.1-70b", "h100", quantization="fp8", max_model_len=8192)
    assert roofline.critical_tokens(fp8) == pytest.approx(989e12 / 3.35e12, rel=0.05)


def test_one_request_does_one_flop_a_byte_and_its_cache_keeps_many_from_doing_more():
    """Llama 3.1 8B, bf16: 2 FLOP for the 2 bytes of a parameter; 131,072 bytes of KV cache a token."""
    d = prepare("llama-3.1-8b", "h100", max_model_len=131072)
    # the embedding is stored and not multiplied
    assert roofline.intensity(d, 1) == pytest.approx(1, rel=0.07)
    limit = roofline.flops(d, 1, 100_000) / (100_000 * 131072)
    assert roofline.intensity(d, 10_000, 100_000) == pytest.approx(limit, rel=0.01)


def test_experts_need_more_tokens():
    """Qwen3 30B A3B: 3.3 of 30.5 billion parameters work on a token (its model card), so 9 times as many tokens."""
    moe, dense = (
        prepare(name, "h200", max_model_len=8192) for name in ("qwen3-30b-a3b", "qwen3-32b")
    )
    assert roofline.critical_tokens(moe) / roofline.critical_tokens(dense) == pytest.approx(
        30.5 / 3.3, rel=0.05
    )


def test_no_recorded_run_is_above_its_roof_and_prompts_come_nearer_than_answers():
    h200 = prepare("llama-3.1-8b", "h200", max_model_len=8192).gpu
    points = roofline.points()
    for point in points:
        peak = h200.fp8_tflops if point.fp8 else h200.bf16_tflops
        assert (
            0.2 * peak * 0.1 < point.tflops < min(peak, h200.bandwidth_gb_s / 1e3 * point.intensity)
        )
    fastest = {
        kind: max(p.tflops for p in points if p.kind == kind and not p.fp8)
        for kind in ("decoding", "prefill")
    }
    assert fastest["prefill"] > 1.7 * fastest["decoding"]


def test_messages_cost_more_where_less_is_left_to_do():
    d = prepare("llama-3.1-70b", "h100", max_model_len=8192)
    shares = [roofline.messages(d.split(tp, 1), 64)["all-reduce"][1] for tp in (2, 4, 8)]
    assert shares == sorted(shares) and roofline.messages(d, 64) == {}


def test_the_picture_says_what_it_shows():
    assert "4,800 GB/s up to 989 TFLOP/s" in roofline.picture("h200").words
    assert (
        "0 of decoding" in roofline.picture("h100").words
        and "<circle" not in roofline.picture("h100").svg
    )
