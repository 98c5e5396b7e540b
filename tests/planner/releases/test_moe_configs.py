"""Experts with and without a tuned file: the names in vLLM's wheel, and what its logs say."""

from __future__ import annotations

from typing import Any

from inference_planner import plan
from inference_planner.releases.moe_configs import is_tuned

DEFAULT = "no tuned file"


def test_no_file_is_recorded_where_a_log_says_default_moe_config():
    for gpu, experts, width in [
        ("h100", 16, 2048),  # Llama 4 Scout on four H100, vLLM 0.33.0
        ("h200", 64, 1408),  # DeepSeek V2 Lite on an H200, 0.25.1
        ("l40s", 40, 512),  # a public log
    ]:
        assert is_tuned(gpu, experts, width, "16 bit") is False, (gpu, experts)


def test_a_file_of_the_wheel_is_recorded():
    """E=128,N=768,device_name=NVIDIA_H200.json and E=256,N=384,…H100_80GB_HBM3,dtype=fp8_w8a8,block…"""
    assert is_tuned("h200", 128, 768, "16 bit")
    assert is_tuned("h100", 256, 384, "FP8 blocks")
    assert not is_tuned("h200", 256, 384, "FP8 blocks")


def test_a_card_whose_name_is_unknown_says_nothing():
    assert is_tuned("mi300x", 8, 14336, "16 bit") is None


def test_a_plan_says_that_its_experts_have_no_tuned_file():
    """Qwen3 30B A3B has 128 experts of 768: there is a file for the H200 and none for the H100."""
    settings: dict[str, Any] = {"tensor_parallel_size": 1, "max_model_len": 4096}
    untuned = plan("qwen3-30b-a3b", "h100", vllm_version="0.33.0", **settings)
    tuned = plan("qwen3-30b-a3b", "h200", vllm_version="0.33.0", **settings)
    assert any(DEFAULT in reason for reason in untuned.reasons)
    assert not any(DEFAULT in reason for reason in tuned.reasons)
    assert "experts without tuned kernels" in untuned.to_dict()["doubts"]
    assert "experts without tuned kernels" not in tuned.to_dict()["doubts"]


def test_other_kernels_take_no_tuned_file():
    p = plan("gpt-oss-20b", "h100", tensor_parallel_size=1, max_model_len=4096)
    assert not any(DEFAULT in reason for reason in p.reasons)
