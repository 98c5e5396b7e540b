"""Settings of memory and links that vLLM takes as they are: KV-cache bytes, offload, all-reduce."""

from __future__ import annotations

import pytest
from inference_planner import plan
from inference_planner.answer.command import flags
from inference_planner.answer.report import plan_text
from inference_planner.arguments import tokens
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


def test_given_bytes_are_taken_as_they_are_and_only_the_start_is_in_doubt():
    """40,960 tokens × 2 × 64 layers × 8 heads × 128 × 2 bytes are 10 GiB to the byte (Qwen3 32B)."""
    settings = {"gpus_per_node": 1, "max_model_len": 40960, "tensor_parallel_size": 1}
    exact = plan("qwen3-32b-fp8", "rtx-pro-6000", kv_cache_memory_bytes=10 << 30, **settings)
    cache = exact.intervals["available_kv_gib_per_gpu"]
    assert cache.low == cache.high == 10.0 and not exact.may_not_start
    assert exact.intervals["kv_cache_tokens"].low == 40960
    weights = exact.intervals["weights_gib_per_gpu"]
    assert weights.low < weights.high
    almost_all = 59 << 30  # of 59.4 GiB that are left beside weights and overhead
    tight = plan("qwen3-32b-fp8", "rtx-pro-6000", kv_cache_memory_bytes=almost_all, **settings)
    assert tight.may_not_start
    assert "Fewer are safer" in plan_text(tight)


def test_too_few_bytes_are_not_the_cards_fault():
    settings = {"gpus_per_node": 1, "max_model_len": 40960, "tensor_parallel_size": 1}
    few = plan("qwen3-32b-fp8", "rtx-pro-6000", kv_cache_memory_bytes=1000, **settings)
    advice = " ".join(few.advice)
    assert "larger GPU" not in advice and f"--kv-cache-memory-bytes {10 << 30}" in advice
    assert plan(
        "qwen3-32b-fp8", "rtx-pro-6000", **settings | {"kv_cache_memory_bytes": 10 << 30}
    ).fits


def test_numbers_are_read_as_vllm_reads_them():
    """vLLM 0.32.0, utils/argparse_utils.py human_readable_int_or_auto."""
    for text, value in [
        ("4G", 4 << 30),
        ("4g", 4 * 10**9),
        ("1T", 1 << 40),
        ("25.6k", 25_600),
        ("1.5g", 1_500_000_000),
        ("128K", 131_072),
        ("-1", -1),
        ("auto", -1),
    ]:
        assert tokens(text) == value, text
    for text in ("4GiB", "1.5G", "1.5", "k"):
        with pytest.raises(ValueError, match="whole number"):
            tokens(text)


def test_the_longest_request_that_fits_is_found():
    """vLLM 0.32.0, v1/core/kv_cache_utils.py _auto_fit_max_model_len."""
    longest = plan("llama-3.1-8b", "l4", max_model_len=-1)
    length = longest.deployment.settings.max_model_len
    assert longest.fits and not longest.may_not_start and longest.gpus == 1
    assert 1 <= longest.max_concurrency < 1 + 16 / length
    assert "--max-model-len auto" in longest.command
    with_length = plan("llama-3.1-8b", "l4", max_model_len=length, tensor_parallel_size=1)
    assert with_length.fits
    longer = length + 16
    assert not plan("llama-3.1-8b", "l4", max_model_len=longer, tensor_parallel_size=1).fits
    enough = plan("llama-3.1-8b", "h100", max_model_len=-1)
    assert enough.deployment.settings.max_model_len == 131072  # its config.json


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


def test_embeddings_and_head_stay_on_the_gpu():
    """Llama 3.1 8B: 2 × 128,256 × 4,096 × 2 bytes are 1.96 GiB (config.json); make_layers wraps layers."""
    one_gpu = {"gpus_per_node": 1, "max_model_len": 4096}
    on_gpu = plan("llama-3.1-8b", "h100", cpu_offload_gb=20, **one_gpu)
    tables = 2 * 128256 * 4096 * 2 / GIB
    assert tables <= on_gpu.weights_gib_per_gpu < tables + 0.1  # with the positions' table
    weights = on_gpu.intervals["weights_gib_per_gpu"]
    assert weights.low < on_gpu.weights_gib_per_gpu < weights.high
    assert on_gpu.basis != "measured here"
    name = "weights in the host's memory, which were never measured"
    assert name in on_gpu.to_dict()["doubts"]
    layers = plan("llama-3.1-8b", "h100", **one_gpu).fit.weights[0] - on_gpu.fit.weights[0]
    terms = {term.name: term.ms for term in decode_terms(on_gpu.deployment)}
    assert terms["offloaded weights"] == pytest.approx(layers / 50e6)  # PCIe 5.0: 50 GB/s


def test_without_the_custom_all_reduce_small_messages_take_nccls_time():
    settings = {"gpus_per_node": 4, "tensor_parallel_size": 4, "max_model_len": 4096}
    fast = plan("llama-3.1-70b", "h100", **settings)
    slow = plan("llama-3.1-70b", "h100", disable_custom_all_reduce=True, **settings)
    assert slow.single_stream_tokens_per_s < fast.single_stream_tokens_per_s
    assert "--disable-custom-all-reduce" in flags(slow.deployment)


def test_the_largest_graph_is_given_by_either_of_vllms_flags():
    settings = {"gpus_per_node": 1, "max_model_len": 8192}
    short = plan("qwen3-8b", "l40s", max_cudagraph_capture_size=8, **settings)
    in_json = '{"max_cudagraph_capture_size": 8}'
    assert (
        short.deployment
        == plan("qwen3-8b", "l40s", compilation_config=in_json, **settings).deployment
    )
    assert flags(short.deployment)["--compilation-config"] == in_json


def test_an_encoder_that_is_not_profiled_takes_nothing():
    settings = {"gpus_per_node": 1, "max_model_len": 8192}
    usual = plan("qwen3-vl-8b", "l40s", **settings)
    without = plan("qwen3-vl-8b", "l40s", skip_mm_profiling=True, **settings)
    assert without.kv_cache_tokens > usual.kv_cache_tokens
    assert without.fit.weights == usual.fit.weights
    assert "--skip-mm-profiling" in flags(without.deployment)


def test_yarn_keeps_the_sizes_of_a_model_that_only_vllms_class_has():
    """Qwen3.8 27B to 786,432 tokens on a GB10 (0.27): 51.35 GiB, and 51.1 without."""
    rope = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 262144}
    settings = {"gpus_per_node": 1, "max_model_len": 786432, "vllm_version": "0.27.1"}
    longer = {"text_config": {"rope_parameters": rope}}
    result = plan("qwen3.8-27b", "gb10", hf_overrides=longer, **settings)
    assert result.fit.weights[0] / GIB == pytest.approx(51.35, rel=0.01)
    other = {"text_config": {"rope_parameters": rope, "head_dim": 128}}
    with pytest.raises(BadInput, match="cannot estimate"):  # another field may change a size
        plan("qwen3.8-27b", "gb10", hf_overrides=other, **settings)
