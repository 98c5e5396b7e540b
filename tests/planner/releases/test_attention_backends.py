"""The answers of vLLM's attention selector are recorded, and a plan follows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from inference_planner import plan
from inference_planner.answer.advise import advise
from inference_planner.catalog import load_gpu, load_model
from inference_planner.errors import BadInput
from inference_planner.releases.attention_backends import answer, recorded
from inference_planner.speed.roofline import decode_terms

from workshop.engine import log

LOGS = Path(__file__).parents[3]
LINE = re.compile(r"Using (\w+) attention backend out of potential backends: \[([^\]]*)\]")
FOLDERS = ("workshop/data/logs", "tests/engine/data")


def gpu_logs() -> list[Path]:
    """Return the logs of the repository in which vLLM names its attention backends."""
    files = (file for folder in FOLDERS for file in (LOGS / folder).rglob("*.log"))
    return [file for file in files if LINE.search(file.read_text(errors="replace"))]


def test_the_table_agrees_with_every_log_of_a_gpu():
    """The hosts had no FlashInfer; each log names the backends that vLLM's selector allowed."""
    compared = 0
    for file in gpu_logs():
        text = file.read_text(errors="replace")
        used, allowed = LINE.search(text).groups()
        allowed = re.findall(r"\w+", allowed)
        dtype = (log.parse(text).args or {}).get("kv_cache_dtype", "auto")
        latent = "MLA" in used
        kinds = ("latent",) if latent else ("heads", "window", "sinks")
        sizes = (576,) if latent else (64, 80, 96, 128, 256)
        answers = [answer(kind, size, dtype, 9.0) for kind in kinds for size in sizes]
        without = [[name for name in a.backends if "FLASHINFER" not in name] for a in answers if a]
        assert allowed in without, (file.name, allowed)
        compared += 1
    assert compared >= 20


# Ampere has no FP8 units, and no backend but Triton's lets image tokens see each other there:
# vLLM raises ValueError in each of these (pull requests 43914, 49077).
def test_an_fp8_cache_for_gemma_with_images_is_refused_on_ampere():
    for name in ["gemma-4-31b-nvfp4", "gemma-4-26b-a4b", "gemma-3-4b"]:
        for card in ["a100-80gb", "rtx-3090"]:
            with pytest.raises(BadInput, match="FP8 KV cache is not supported by the Triton"):
                plan(name, card, kv_cache_dtype="fp8", max_model_len=2048)
                pytest.fail(f"{(name, card)} was taken")


def test_the_cache_that_a_checkpoint_asks_for_is_refused_as_well():
    with pytest.raises(BadInput, match="which its checkpoint asks for") as refused:
        plan("gemma-4-31b-nvfp4", "a100-80gb", gpus_per_node=1)
    assert "--kv-cache-dtype bfloat16" in refused.value.remedy
    assert plan("gemma-4-31b-nvfp4", "a100-80gb", gpus_per_node=1, kv_cache_dtype="bfloat16").fits


def test_no_fp8_cache_is_advised_where_vllm_refuses_it():
    result = plan("gemma-3-4b", "rtx-3090", gpus_per_node=1, max_model_len=8192)
    assert not any("kv-cache-dtype fp8" in line for line in advise(result))
    text = plan(
        "gemma-3-4b", "rtx-3090", gpus_per_node=1, max_model_len=8192, language_model_only=True
    )
    assert any("kv-cache-dtype fp8" in line for line in advise(text))


def test_from_ada_on_triton_takes_an_fp8_cache():
    for card in ["l4", "rtx-4090", "h100", "rtx-5090"]:
        capability = load_gpu(card).capability
        assert answer("image prefix", 256, "fp8", capability).refusal == "", card


def test_every_head_size_of_the_catalog_was_asked():
    from inference_planner import list_models
    from inference_planner.model.attention import grouped

    for name in list_models():
        model = load_model(name)
        for kind, size, _ in grouped(model):
            selected = kind.selected_by(model, size)
            if selected:
                assert answer(*selected, "auto", 9.0) is not None, (name, selected)


def test_the_table_says_which_wheels_were_asked():
    assert "vllm" in recorded()["source"] and "flashinfer" in recorded()["source"]


def test_chunked_attention_has_no_full_cuda_graphs():
    """Llama 4 Scout on four H100, vLLM 0.33.0: 51.6 tokens/s measured, and 165 predicted before.

    Its log: "CUDAGraphMode.FULL_AND_PIECEWISE is not supported with ChunkedLocalAttention_8192…
    (support: AttentionCGSupport.NEVER)".
    """
    scout = plan(
        "llama-4-scout", "h100", gpus_per_node=4, tensor_parallel_size=4, max_model_len=32768
    )
    assert scout.single_stream_tokens_per_s == pytest.approx(51.6, rel=0.15)
    assert "CUDA graphs in pieces" in [term.name for term in decode_terms(scout.deployment)]
    other = plan("llama-3.1-8b", "h100", max_model_len=32768)
    assert "CUDA graphs in pieces" not in [term.name for term in decode_terms(other.deployment)]


def test_deepseek_v4_has_one_layout_of_its_cache_on_hopper_and_newer():
    """vLLM 0.32.0, models/deepseek_v4: sparse_mla.py [9, 10], flashinfer_sparse.py [10, 12], attention.py."""
    for model in ("deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4-flash-nvfp4"):
        for gpu in ("a100-80gb", "l40s", "rtx-3090"):
            with pytest.raises(BadInput, match=r"compute capability not supported.*from the H100"):
                plan(model, gpu, gpus_per_node=8, nodes=4)
                pytest.fail(f"{(model, gpu)} was taken")
    for dtype in ("bfloat16", "float16"):
        with pytest.raises(BadInput, match=f"only supports fp8 kv-cache, got {dtype}"):
            plan("deepseek-v4-flash", "h200", tensor_parallel_size=4, kv_cache_dtype=dtype)
            pytest.fail(f"{dtype} was taken")
    usual = plan("deepseek-v4-flash", "h200", tensor_parallel_size=4)
    fp8 = plan("deepseek-v4-flash", "h200", tensor_parallel_size=4, kv_cache_dtype="fp8")
    assert usual.fits and usual.kv_cache_tokens == fp8.kv_cache_tokens
    assert "--kv-cache-dtype" not in " ".join(usual.advice)
    assert plan("deepseek-v4-flash", "rtx-pro-6000", tensor_parallel_size=4).fits


def test_a_dtype_that_is_refused_as_well_is_never_a_remedy():
    for model in ("deepseek-v4-flash", "deepseek-v3.2"):
        with pytest.raises(BadInput) as refused:
            plan(model, "a100-80gb", gpus_per_node=8)
        assert "--kv-cache-dtype" not in str(refused.value), model
