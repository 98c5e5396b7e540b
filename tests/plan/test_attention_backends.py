"""What vLLM's attention selector answered, and what a plan makes of it."""

from __future__ import annotations

import pytest
from inference_planner import plan
from inference_planner.answer.advise import advise
from inference_planner.errors import BadInput
from inference_planner.releases.attention_backends import recorded


# Ampere has no FP8 units, and no backend but Triton's lets image tokens see each other there:
# vLLM raises ValueError in each of these (pull requests 43914, 49077).
@pytest.mark.parametrize("card", ["a100-80gb", "rtx-3090"])
@pytest.mark.parametrize("name", ["gemma-4-31b-nvfp4", "gemma-4-26b-a4b", "gemma-3-4b"])
def test_an_fp8_cache_for_gemma_with_images_is_refused_on_ampere(name, card):
    with pytest.raises(BadInput, match="FP8 KV cache is not supported by the Triton"):
        plan(name, card, kv_cache_dtype="fp8", max_model_len=2048)


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


def test_the_table_says_which_wheels_were_asked():
    assert "vllm" in recorded()["source"] and "flashinfer" in recorded()["source"]
