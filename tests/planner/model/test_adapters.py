"""LoRA: the buffers that vLLM makes for adapters, against what loading took on an H100 and an RTX 4090."""

from __future__ import annotations

import pytest
from inference_planner import plan
from inference_planner.catalog import load_model
from inference_planner.catalog.gpus import GIB
from inference_planner.catalog.weight import ExpertSplit
from inference_planner.errors import BadInput
from inference_planner.model.adapters import Adapters, buffer_bytes

H100_8B = {"tensor_parallel_size": 1, "max_model_len": 16384}
LORA = {"enable_lora": True, "max_loras": 4, "max_lora_rank": 32}


def test_a_measured_start_with_four_adapters_of_rank_32_is_predicted():
    """One H100, vLLM 0.32.0, held out: 15.694 GiB of weights, 1.237 for graphs, 442,016 tokens."""
    p = plan("llama-3.1-8b", "h100", **H100_8B, **LORA)
    graphs = next(item.bytes for item in p.overheads if item.name == "CUDA graphs")
    assert p.weights_gib_per_gpu == pytest.approx(15.694, abs=0.005)
    assert graphs / GIB == pytest.approx(1.237, rel=0.02)
    assert p.kv_cache_tokens == pytest.approx(442_016, rel=0.005)


def test_buffers_of_a_layer_are_a_and_b_of_each_joined_product():
    """8B: A of 3 × 4096, 4096, 2 × 4096 and 14336 inputs, B of 6144, 4096, 28672 and 4096 outputs, twice the tables."""
    inputs = 3 * 4096 + 4096 + 2 * 4096 + 14336
    outputs = 6144 + 4096 + 28672 + 4096
    tables = 2 * (128256 + 4096)
    elements = 4 * 32 * (32 * (inputs + outputs) + tables)
    assert buffer_bytes(load_model("llama-3.1-8b"), Adapters(4, 32), 1, range(32)) == 2 * elements


def test_each_slot_of_qwen3_4b_takes_what_loading_64_instead_of_1_took():
    """A public log (RTX 4090, 0.27.1, rank 16): "Model loading took" 7.63 GiB with 1 slot, 12.49 with 64."""
    m = load_model("qwen3-4b")
    many = buffer_bytes(m, Adapters(64, 16), 1, range(36))
    single = buffer_bytes(m, Adapters(1, 16), 1, range(36))
    assert (many - single) / GIB == pytest.approx(12.49 - 7.63, rel=0.03)


def test_tensor_parallelism_splits_one_matrix_of_each_pair_and_both_if_fully_sharded():
    m = load_model("llama-3.1-8b")
    whole = buffer_bytes(m, Adapters(1, 16), 1, range(1, 31))
    half = buffer_bytes(m, Adapters(1, 16), 2, range(1, 31))
    both = buffer_bytes(m, Adapters(1, 16, fully_sharded=True), 2, range(1, 31))
    assert whole / 2 < half < whole
    assert both == whole // 2


def test_experts_have_a_pair_each():
    """Qwen3-30B-A3B: 128 experts of 2048 × 768, so most of an adapter is theirs; two ranks that share them have half."""
    m = load_model("qwen3-30b-a3b")
    layer = buffer_bytes(m, Adapters(1, 16), 1, range(1, 2))
    experts = 128 * 16 * (2 * 2048 + 2 * 768 + 768 + 2048) * 2
    assert experts < layer < experts * 1.1
    dealt = buffer_bytes(m, Adapters(1, 16), 2, range(1, 2), ExpertSplit(1, 2, 2))
    assert dealt == pytest.approx(experts / 2, rel=0.1)


def test_the_command_has_the_flags_that_differ_from_vllms_defaults():
    p = plan("llama-3.1-8b", "h100", **H100_8B, **LORA, max_cpu_loras=8)
    assert "--enable-lora --max-loras 4 --max-lora-rank 32 --max-cpu-loras 8" in p.command
    bare = plan("llama-3.1-8b", "h100", **H100_8B, enable_lora=True)
    assert "--enable-lora" in bare.command and "--max-lora" not in bare.command
    assert any("Buffers for 1 adapter of rank 16" in reason for reason in bare.reasons)


WRONG = [
    ({"max_loras": 4}, "not enabled"),
    ({"enable_lora": True, "max_lora_rank": 24}, "not known"),
    ({"enable_lora": True, "max_loras": 0}, "must be a whole number"),
    ({"enable_lora": True, "max_loras": 4, "max_cpu_loras": 2}, "less than max_loras"),
    ({"enable_lora": True, "lora_dtype": "float32"}, "not known"),
]


def test_settings_that_vllm_refuses_are_refused_in_a_sentence():
    for settings, message in WRONG:
        with pytest.raises(BadInput) as refused:
            plan("llama-3.1-8b", "h100", **H100_8B, **settings)
            pytest.fail(f"{settings} was taken")
        assert message in refused.value.message and refused.value.remedy, settings
