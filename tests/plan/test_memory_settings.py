"""Settings of memory and links that vLLM takes as they are: KV-cache bytes, offload, all-reduce."""

from __future__ import annotations

import pytest
from inference_planner import plan
from inference_planner.answer.command import flags
from inference_planner.errors import BadInput
from inference_planner.speed.roofline import decode_terms

GIB = 1 << 30


def test_kv_cache_bytes_are_the_cache_whatever_the_utilization():
    """Public log of 0.25.1, Qwen3-32B-FP8: 52,613,349,376 bytes are 49.0 GiB and 200,704 tokens."""
    for share in (0.5, 0.9):
        result = plan(
            "qwen3-32b",
            "h100-nvl",
            quantization="fp8",
            gpus_per_node=1,
            max_model_len=40960,
            vllm_version="0.25.1",
            gpu_memory_utilization=share,
            kv_cache_memory_bytes=52_613_349_376,
        )
        assert result.kv_cache_tokens == 200_704
    assert flags(result.deployment)["--kv-cache-memory-bytes"] == "52613349376"


def test_offloaded_weights_leave_the_gpu_and_slow_each_token():
    settings = {"gpus_per_node": 1, "max_model_len": 4096}
    whole = plan("llama-3.1-8b", "l4", **settings)
    part = plan("llama-3.1-8b", "l4", cpu_offload_gb=8, **settings)
    assert whole.fit.weights[0] - part.fit.weights[0] == 8 * GIB
    assert part.kv_cache_tokens > whole.kv_cache_tokens
    added = {term.name: term.ms for term in decode_terms(part.deployment)}["offloaded weights"]
    assert added == pytest.approx(8 * GIB / 25e6)  # PCIe 4.0: 25 GB/s
    with pytest.raises(BadInput, match="cpu_offload_gb"):
        plan("llama-3.1-8b", "l4", cpu_offload_gb=-1, **settings)


def test_without_the_custom_all_reduce_small_messages_take_nccls_time():
    settings = {"gpus_per_node": 4, "tensor_parallel_size": 4, "max_model_len": 4096}
    fast = plan("llama-3.1-70b", "h100", **settings)
    slow = plan("llama-3.1-70b", "h100", disable_custom_all_reduce=True, **settings)
    assert slow.single_stream_tokens_per_s < fast.single_stream_tokens_per_s
    assert "--disable-custom-all-reduce" in flags(slow.deployment)
