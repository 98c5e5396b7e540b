"""How the KV cache is grouped and how PyTorch's allocator hands out blocks, against what vLLM and CUDA did."""

from __future__ import annotations

import pytest
from inference_planner import plan
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.gpus import GIB
from inference_planner.catalog.read import from_dict
from inference_planner.model.kv_cache import capacity, layout, pool_bytes_per_block
from inference_planner.split.allocator import MIB, Allocator
from inference_planner.split.settings import Settings, resolve


def test_one_kind_of_layer_is_one_group():
    lay = layout(load_model("llama-3.1-8b"), 1, "auto", 131072, 16384)
    assert len(lay.groups) == 1 and lay.groups[0].blocks_per_request == 8192


def test_hybrid_models_are_cut_into_groups_of_equal_size():
    """v1/core/kv_cache_utils.py _get_kv_cache_groups_uniform_page_size: the rarest kind decides the size."""
    for name, groups, size in [
        ("gemma-2-9b", 2, 21),
        ("gemma-3-12b", 6, 8),
        ("gpt-oss-20b", 2, 12),
        ("gemma-3-27b", 7, 10),
        ("jamba-v0.1", 8, 4),
    ]:
        lay = layout(load_model(name), 1, "auto", 8192, 16384)
        assert len(lay.groups) == groups and max(len(g.layers) for g in lay.groups) == size, name


def test_kinds_that_are_about_equally_many_are_one_group_each():
    """The comments there: 12 sliding windows and 13 full are padded to 13; 2 full and 3 windows are 3 groups of 2."""
    for windows, full, groups, size in [(12, 13, 2, 13), (3, 2, 3, 2), (4, 3, 2, 4)]:
        kinds = ["sliding_attention"] * windows + ["full_attention"] * full
        m = from_dict(
            {
                **load_model("gpt-oss-20b").raw,
                "layer_types": kinds,
                "num_hidden_layers": len(kinds),
            },
            name="m",
        )
        lay = layout(m, 1, "auto", 8192, 16384)
        assert len(lay.groups) == groups and max(len(g.layers) for g in lay.groups) == size, (
            windows,
            full,
        )


def test_a_window_keeps_its_tokens_and_one_batch():
    """SlidingWindowSpec.max_admission_blocks_per_request: window - 1 + max_num_batched_tokens, and one block more."""
    lay = layout(load_model("mistral-7b-v0.1"), 1, "auto", 32768, 16384)
    assert lay.groups[0].blocks_per_request == -(-(4095 + 16384) // 16) + 1


def test_tokens_are_printed_as_concurrency_times_length():
    """Recorded run "mis": 113.12 GiB, 1,481,492 tokens, 45.21x for 32,768 tokens."""
    m = load_model("mistral-7b-v0.1")
    lay = layout(m, 1, "auto", 32768, 16384)
    c = capacity(lay, [range(32)], [int(113.12 * 2**30)], 32768)
    assert c.max_concurrency == pytest.approx(45.21, abs=0.005) and c.tokens == pytest.approx(
        1_481_492, rel=1e-4
    )


def test_the_fullest_pipeline_stage_decides():
    m = load_model("llama-3.1-8b")
    lay = layout(m, 1, "auto", 4096, 16384)
    block_bytes = pool_bytes_per_block(lay, range(20))
    available_bytes = [100 * block_bytes, 10**12]
    assert capacity(lay, [range(20), range(20, 32)], available_bytes, 4096).blocks == 100


def test_a_large_block_is_reused_whole_within_20_mib():
    """Seen while loading Llama 3.1 8B: a freed block of 64 MiB is handed out for a weight of 48 MiB."""
    memory = Allocator()
    memory.free(memory.alloc(64 * MIB))
    assert memory.alloc(48 * MIB) == 64 * MIB
    assert memory.alloc(40 * MIB) == 40 * MIB


def test_sizes_are_rounded_to_2_mib_from_20_mib_on():
    """Seen while loading Qwen2.5 7B: 31.5, 24.5 and 129.5 MiB take blocks of 32, 26 and 130 MiB."""
    memory = Allocator()
    assert [memory.alloc(int(x * MIB)) // MIB for x in (31.5, 24.5, 129.5)] == [32, 26, 130]


def test_small_requests_share_segments():
    memory = Allocator()
    for _ in range(10):
        memory.alloc(3 * MIB)
    assert memory.allocated == 30 * MIB


def test_cuda_graph_sizes():
    """The recorded logs name 51 sizes up to 512; half of max_num_seqs · 2 otherwise (config/vllm.py)."""
    for seqs, largest, count in [(1024, 512, 51), (256, 512, 51), (8, 16, 5), (1, 2, 2)]:
        s = Settings(max_num_seqs=seqs, max_num_batched_tokens=8192)
        assert s.graph_sizes[-1] == largest and len(s.graph_sizes) == count, seqs
        # 0.32.0's default_max_graph_size: 1,024 if is_device_capability_family(100)
        llama = load_model("llama-3.1-8b")
        tops = [
            resolve(llama, load_gpu(gpu)).graph_sizes[-1]
            for gpu in ("h100", "b200", "b300", "rtx-pro-6000", "mi300x")
        ]
        assert tops == [512, 1024, 1024, 512, 512], seqs


def test_eager_has_no_graphs():
    assert resolve(load_model("gpt2"), load_gpu("t4"), enforce_eager=True).graph_sizes == []


@pytest.mark.parametrize("name", ["deepseek-v3.2", "deepseek-v3.2-nvfp4"])
def test_a_sparse_latent_in_fp8_is_packed_where_the_backend_packs_it(name):
    """0.18.0 on eight B200: 110.97 GiB held 2,758,848 tokens, 708 bytes a layer; H200s pack them."""
    for card, latent in (("b200", 512 + 64), ("h200", 512 + 16 + 2 * 64)):
        planned = plan(name, card, tensor_parallel_size=8, kv_cache_dtype="fp8")
        page = planned.available_kv_gib_per_gpu * GIB / planned.kv_cache_tokens
        assert page / 61 == pytest.approx(latent + 132, rel=0.004), card  # 128 + 4 of the indexer
