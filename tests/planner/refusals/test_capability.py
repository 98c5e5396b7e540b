"""A GPU without the dtype: refused, or float16 instead, as vLLM 0.25.1 itself decides (platforms/cuda.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from inference_planner.answer.command import ALLOWED
from inference_planner.answer.report import plan_text

from workshop.engine.planning import plan
from workshop.errors import BadInput


def test_a_bfloat16_model_runs_in_float16_on_a_t4_and_the_command_says_so():
    p = plan("mistral-7b-v0.3", "t4", gpus_per_node=2)
    assert p.fits and p.command.split()[-2:] == ["--dtype", "half"]
    assert any("no bfloat16" in reason for reason in p.reasons)


def test_asking_a_t4_for_bfloat16_is_refused_with_what_to_give_instead():
    with pytest.raises(BadInput, match=r"no bfloat16.*7\.5.*--dtype half"):
        plan("mistral-7b-v0.3", "t4", gpus_per_node=2, dtype="bfloat16")


def test_a_model_that_vllm_refuses_in_float16_is_refused_on_a_t4():
    for model in ["gemma-2-9b", "gemma-3-4b", "glm-4-9b-0414"]:
        with pytest.raises(BadInput, match=r"float16.*float32"):
            plan(model, "t4", gpus_per_node=4)
            pytest.fail(f"{model} was taken")


def test_newer_gpus_keep_the_models_own_dtype():
    for gpu in ["a10g", "a100", "h100", "mi300x"]:
        assert "--dtype" not in plan("llama-3-8b", gpu, gpus_per_node=2).command, gpu


def test_a_float16_model_needs_no_flag_on_a_t4():
    assert "--dtype" not in plan("phi-2", "t4").command


def test_weights_without_kernels_for_the_gpu_are_refused_with_both_numbers():
    for model, quantization in [("gpt-oss-20b", None), ("mistral-7b-v0.3", "fbgemm_fp8")]:
        # get_min_capability: mxfp4 80, fbgemm_fp8 80
        with pytest.raises(BadInput, match=r"7\.5.*8\.0"):
            plan(model, "t4", gpus_per_node=2, quantization=quantization)
            pytest.fail(f"{(model, quantization)} was taken")


def test_metas_fp8_checkpoint_which_vllm_loads_only_when_told_gets_the_flag_everywhere():
    assert plan("llama-3.1-405b-fp8", "h200").command.endswith(ALLOWED)  # fbgemm_fp8
    assert ALLOWED in (Path(__file__).parents[3] / "slurm/405b-fp8.sbatch").read_text()
    assert ALLOWED not in plan("llama-3.1-405b-fp8-dynamic", "h200").command


def test_weights_with_kernels_from_the_t4_on_pass():
    for quantization in ["awq", "gptq", "fp8"]:
        assert plan("llama-3-8b", "t4", gpus_per_node=2, quantization=quantization).fits, (
            quantization
        )


def test_weights_that_vllm_cannot_make_while_loading_leave_the_models_name_out_of_the_command():
    for method in ["awq", "gptq", "modelopt", "compressed-tensors"]:
        # vLLM 0.32.0: "Cannot find the config file for awq"
        p = plan("llama-3-8b", "h100", quantization=method)
        model = f"MODEL_QUANTIZED_WITH_{method.upper().replace('-', '_')}"
        assert (
            p.fits
            and p.command.split()[2] == model
            and any(model in reason for reason in p.reasons)
        ), method
        # made while loading
        assert "meta-llama" in plan("llama-3-8b", "h100", quantization="fp8").command, method


def test_the_checkpoints_own_quantization_may_be_said_and_another_not():
    for model, method in [("qwen2.5-7b-awq", "awq_marlin"), ("qwen3-32b-fp8", "fp8")]:
        assert "MODEL_" not in plan(model, "h100", quantization=method).command, (model, method)
        with pytest.raises(BadInput, match="vLLM refuses --quantization gptq"):
            plan(model, "h100", quantization="gptq")
            pytest.fail(f"{(model, method)} was taken")


def test_sparse_latents_are_for_hopper_and_newer():
    """vLLM 0.32.0, v1/attention/backends/mla/*_sparse*.py supports_compute_capability: 9, 10 or 12."""
    for model in ["deepseek-v3.2", "glm-5-fp8"]:
        with pytest.raises(
            BadInput, match=r"A100.* cannot keep .* KV cache.*Give a GPU from the H100 on"
        ):
            plan(model, "a100-80gb", gpus_per_node=8, nodes=4)
            pytest.fail(f"{model} was taken")
        assert plan(model, "h200", gpus_per_node=8, nodes=2).fits, model


# gpt-oss has sinks, DeepSeek a latent, Phi-3 mini heads of 96: Triton's kernels alone, which take fp8 from 8.9 on
def test_an_fp8_kv_cache_needs_a_kernel_for_the_models_attention():
    """vLLM 0.32.0: triton_attn.py and mla/triton_mla.py raise below 8.9; flashinfer.py supports_sink, its head sizes."""
    for model, gpu, runs in [
        ("llama-3.1-8b", "a100-80gb", True),
        ("gpt-oss-20b", "a100-80gb", False),
        ("gpt-oss-20b", "l4", True),
        ("deepseek-v2-lite", "a100-80gb", False),
        ("deepseek-v2-lite", "h100", True),
        ("phi-3-mini-4k", "a10g", False),
        ("phi-3-mini-4k", "l40s", True),
    ]:
        advised = [
            a for a in plan(model, gpu, max_model_len=4096).advice if "--kv-cache-dtype fp8" in a
        ]
        assert bool(advised) is runs, (model, gpu)
        if not runs:
            with pytest.raises(
                BadInput, match=r"cannot keep .* KV cache in fp8.* vLLM: .*from the L4 on"
            ):
                plan(model, gpu, kv_cache_dtype="fp8")
                pytest.fail(f"{(model, gpu)} was taken")


def test_a_kv_cache_that_a_t4_cannot_keep_is_refused_and_never_advised():
    for kv_cache_dtype in ["fp8", "bfloat16"]:
        with pytest.raises(BadInput, match="KV cache"):
            plan("llama-3-8b", "t4", gpus_per_node=2, kv_cache_dtype=kv_cache_dtype)
            pytest.fail(f"{kv_cache_dtype} was taken")
        for model in ("llama-3-8b", "llama-3-70b"):  # one that fits, one that does not
            assert not any(
                "--kv-cache-dtype" in line for line in plan(model, "t4", gpus_per_node=2).advice
            ), kv_cache_dtype


W8A8 = "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8"


def test_int8_products_end_before_blackwell():
    """vLLM: scaled_mm_helper.hpp, "Int8 not supported on SM… or run on older arch (SM < 100)"."""
    for gpu in ("rtx-5090", "b200", "rtx-pro-6000", "gb10", "v100-32gb"):
        with pytest.raises(BadInput, match=r"INT8 .*7\.5 up to below 10\.0.*in fp8"):
            plan(W8A8, gpu, max_model_len=4096)
            pytest.fail(f"{gpu} was taken")
    for gpu in ("t4", "a100-80gb", "l4", "h100"):
        p = plan(W8A8, gpu, max_model_len=4096)
        assert p.fits, gpu
        assert any("(INT8) with CUTLASS" in reason for reason in p.reasons), gpu
    fp8 = plan("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "h100", max_model_len=4096)
    assert any("(FP8) with CUTLASS" in reason for reason in fp8.reasons)
    assert fp8.weights_gib_per_gpu == pytest.approx(p.weights_gib_per_gpu, rel=0.01)


# vLLM 0.32.0: supported_quantization of platforms/xpu.py and rocm.py, is_supported of kernels/linear
def test_other_vendors_refuse_the_formats_that_their_platform_does_not_list():
    for model, gpu, why in [
        ("qwen3-235b-a22b-nvfp4", "arc-pro-b60", "modelopt_fp4 quantization is currently not"),
        ("llama-3.1-405b-fp8", "arc-pro-b70", "fbgemm_fp8 quantization is currently not"),
        ("llama-3.1-70b-fp8", "mi210", "no FP8 kernel of vLLM runs on gfx90a"),
        ("llama-3.1-70b-fp8", "rx-7900-xtx", "no FP8 kernel of vLLM runs on gfx1100"),
        ("llama-3.1-70b-fp8", "strix-halo", "no FP8 kernel of vLLM runs on gfx1151"),
        ("qwen3-30b-a3b-fp8", "rx-7900-xtx", "for experts runs on gfx1100"),
        ("deepseek-v3.2", "mi210", "sparse attention"),
    ]:
        with pytest.raises(BadInput, match=why):
            plan(model, gpu, gpus_per_node=16)
            pytest.fail(f"{(model, gpu)} was taken")
    for model, gpu in [
        ("llama-3.1-70b-fp8", "mi300x"),
        ("llama-3.1-70b-fp8", "rx-9070-xt"),
        ("qwen2.5-7b-awq", "arc-pro-b60"),
        ("gpt-oss-20b", "arc-pro-b60"),
    ]:
        assert plan(model, gpu, gpus_per_node=8, max_model_len=4096).fits, (model, gpu)


def test_fp8_weights_are_advised_on_no_gpu_that_refuses_them():
    for gpu in ("mi210", "rx-7900-xtx", "strix-halo"):
        refused = plan("llama-3.1-70b", gpu, tensor_parallel_size=1, gpus_per_node=1)
        assert not refused.fits and "--quantization fp8" not in " ".join(refused.advice), gpu


def test_a_gaudi_needs_a_plugin_that_was_not_asked():
    for model in ("llama-3.1-8b", "deepseek-v3.2"):
        p = plan(model, "gaudi-3", gpus_per_node=16)
        text = plan_text(p)
        assert not p.starts and "✓" not in text and "vllm-gaudi" in text, model
        assert "hipBLASLt" not in text, model
    text = plan_text(plan("llama-3.1-8b", "arc-pro-b60"))
    assert "oneDNN" in text and "hipBLASLt" not in text
