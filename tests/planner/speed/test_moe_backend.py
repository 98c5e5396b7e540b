"""`--moe-backend` decides how experts are laid out and how fast they are; `enable_prefix_caching` what a hybrid keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inference_planner import plan
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.read import from_dict
from inference_planner.errors import BadInput
from inference_planner.speed import kernels

ROOT = Path(__file__).parents[3]
MEASURED = {
    run["name"]: run["measured"]
    for run in json.loads((ROOT / "tests/data/gpu/records/two_h100_0.32.json").read_text())["runs"]
}
JOBS = {
    job["name"]: job
    for job in json.loads((ROOT / "benchmarks/gpu/jobs/truth_two_h100.json").read_text())
}


def marlin():
    return plan(
        "gpt-oss-20b",
        "h100",
        tensor_parallel_size=1,
        max_model_len=32768,
        usage="llm",
        moe_backend="marlin",
    )


def test_gpt_oss_with_marlin_is_as_an_h100_measured_it():
    """tests/data/gpu/records/two_h100_0.32.json: LLM(moe_backend="marlin")."""
    for figure, measured in [
        ("weights_gib_per_gpu", "weights_gib_per_gpu"),
        ("available_kv_gib_per_gpu", "available_kv_gib_per_gpu"),
        ("kv_cache_tokens", "kv_cache_tokens"),
        ("max_concurrency", "max_concurrency"),
        ("single_stream_tokens_per_s", "single_tok_s"),
    ]:
        data = marlin().to_dict()
        value = MEASURED["h100_gpt-oss-20b_marlin"][measured]
        assert data[f"{figure}_low"] <= value + 0.005 and value - 0.005 <= data[f"{figure}_high"], (
            figure
        )
        assert data[figure] == pytest.approx(value, rel=0.003), figure


def test_the_command_names_the_kernels():
    assert "--moe-backend marlin" in marlin().command
    assert "--moe-backend" not in plan("gpt-oss-20b", "h100", tensor_parallel_size=1).command


def test_kernels_that_were_asked_for_are_another_kind_than_those_that_were_measured():
    usual = plan("gpt-oss-20b", "h100", tensor_parallel_size=1, max_model_len=32768)
    assert usual.basis == "measured here"
    assert marlin().basis == "measured on this kind of GPU"


def test_kernels_that_vllm_does_not_have_are_refused():
    for model, gpu, backend, message in [
        ("gpt-oss-20b", "h100", "cutlass", "no CUTLASS kernels for experts in MXFP4"),
        ("qwen3-30b-a3b", "h100", "marlin", "no Marlin kernels for experts in 16 bit"),
        ("gpt-oss-20b", "h100", "flashinfer_trtllm", "does not run its kernels"),
        ("gpt-oss-20b", "h100", "Marlim", "is not known"),
        ("gpt-oss-20b", "h100", "aiter", "does not run its kernels"),
        ("gpt-oss-20b", "rtx-4090", "triton", "does not run its kernels"),
        ("gpt-oss-20b", "h100", "deep_gemm", "does not run its kernels"),
        ("gpt-oss-20b", "mi300x", "marlin", "does not run its kernels"),
    ]:
        with pytest.raises(BadInput, match=message):
            plan(model, gpu, moe_backend=backend)
            pytest.fail(f"{(model, backend)} was taken")


def test_a_model_without_experts_takes_any_backend():
    """As in vLLM, where only fused experts ask for it."""
    assert plan("llama-3.1-8b", "h100", moe_backend="Flashinfer-Cutlass").fits


def test_the_plan_multiplies_with_the_kernels_that_were_asked_for():
    for backend, kernel in [("marlin", "Marlin"), ("triton", "Triton"), ("deep_gemm", "DeepGEMM")]:
        model = load_model("deepseek-v3")
        assert kernels.experts_kernel(model, load_gpu("h200"), backend).name == kernel, backend


def hybrid(tensor_parallel_size=2, **settings):
    """Return the plan of Qwen3.5 27B on H100, as benchmarks/gpu/jobs/truth_two_h100.json starts it."""
    config = from_dict(JOBS["h100_qwen3.5-27b_tp2"]["config"], name="qwen3.5-27b-text")
    return plan(
        config,
        "h100",
        tensor_parallel_size=tensor_parallel_size,
        max_model_len=32768,
        usage="llm",
        **settings,
    )


def test_a_hybrid_without_prefix_caching_holds_what_two_h100_printed():
    """tests/data/gpu/records/two_h100_0.32.json: LLM(enable_prefix_caching=False), 1,338,390 tokens, 43.99 GiB."""
    measured = MEASURED["h100_qwen3.5-27b_tp2"]
    p = hybrid(enable_prefix_caching=False)
    token_bytes = p.available_kv_gib_per_gpu / p.kv_cache_tokens
    measured_bytes = measured["available_kv_gib_per_gpu"] / measured["kv_cache_tokens"]
    assert token_bytes == pytest.approx(measured_bytes, rel=0.0005)
    data = p.to_dict()
    assert data["kv_cache_tokens_low"] <= 1_338_390 <= data["kv_cache_tokens_high"]
    assert "--no-enable-prefix-caching" in p.command


def test_prefix_caching_is_the_default_of_a_hybrid_and_costs_it_tokens():
    assert hybrid().kv_cache_tokens == hybrid(enable_prefix_caching=True).kv_cache_tokens
    assert hybrid().kv_cache_tokens < hybrid(enable_prefix_caching=False).kv_cache_tokens


def test_prefix_caching_changes_nothing_for_a_model_without_states():
    tokens = {
        plan("llama-3.1-8b", "h100", enable_prefix_caching=value).kv_cache_tokens
        for value in (None, True, False)
    }
    assert len(tokens) == 1


def test_a_plan_that_lacks_little_names_smaller_steps_and_its_doubt():
    """DeepSeek V3.2 with DP 8 and EP crashed on 8 H200 for want of memory (LMCache, pull request 2521, 2026-02)."""
    settings = {
        "tensor_parallel_size": 1,
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "max_model_len": 16384,
    }
    p = plan("deepseek-v3", "h200", **settings)
    assert not p.fits
    smaller = next(line for line in p.advice if "--max-num-batched-tokens 2048" in line)
    assert "--max-num-seqs 256" in smaller and "same GPUs" in smaller
    assert any("may fit as it is" in line for line in p.advice)
    with_smaller_steps = {**settings, "max_num_batched_tokens": 2048, "max_num_seqs": 256}
    assert plan("deepseek-v3", "h200", **with_smaller_steps).fits


def test_a_dense_hybrid_has_the_graphs_that_two_starts_on_h100_estimated():
    """tests/data/gpu/records/two_h100_0.32.json and its second part: Qwen3.5 27B; −0.5 and −2.0 % before."""
    for tp, seqs, measured in [(2, 1024, 43.99), (1, 1024, 17.169)]:
        p = hybrid(tensor_parallel_size=tp, max_num_seqs=seqs, enable_prefix_caching=False)
        assert p.available_kv_gib_per_gpu == pytest.approx(measured, rel=0.003), (tp, seqs)
