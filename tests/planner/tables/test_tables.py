"""The published rule of thumb and tables, digit by digit."""

from __future__ import annotations

import pytest
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.read import from_dict
from inference_planner.model.kv_cache import kv_cache_bytes_per_token
from inference_planner.tables import calculators, rules

from workshop.engine.planning import plan
from workshop.errors import BadInput


def test_the_rule_of_thumb_gives_168_gb_for_70b_in_16_bit():
    assert rules.rule_of_thumb_gb(70, 16) == pytest.approx(168)


def test_the_table_of_weights():
    assert rules.weights_table() == {
        "8B": {"Float16": "16 GB", "Float8": "8 GB", "INT4": "4 GB"},
        "70B": {"Float16": "140 GB", "Float8": "70 GB", "INT4": "35 GB"},
        "405B": {"Float16": "810 GB", "Float8": "405 GB", "INT4": "203 GB"},
    }


def test_the_table_of_kv_caches_and_h100s():
    assert rules.kv_table() == {"8B": "15.62", "70B": "39.06", "405B": "123.05"}
    assert rules.h100_table() == {"8B": "1", "70B": "2.24", "405B": "11.66"}


def test_at_least_2_and_3_h100_for_70b_and_11_and_12_for_405b():
    assert rules.h100s_needed("70B") == (2, 3)
    assert rules.h100s_needed("405B") == (11, 12)


def test_the_tables_differ_from_todays_configs_where_we_say_so():
    assert rules.kv_request_gib(load_model("llama-3.1-405b")) == pytest.approx(61.52, abs=0.01)
    assert {d.what for d in rules.differences()} >= {"weights, 405B", "memory of one H100"}


def test_impossible_numbers_are_refused():
    for billions, bits in [(0, 16), (-7, 16), (7, 0), (7, -4), (7, 128)]:
        with pytest.raises(BadInput):
            rules.rule_of_thumb_gb(billions, bits)
            pytest.fail(f"{(billions, bits)} was taken")


def test_kv_bytes_per_token_of_known_models():
    for name, kib in [
        ("llama-3.1-8b", 128),
        ("llama-3.1-70b", 320),
        ("llama-3.1-405b", 504),  # 2 · layers · KV heads · 128 · 2 bytes
        ("llama-2-7b", 512),
        ("falcon-7b", 8),
        ("gpt2", 36),
    ]:
        assert kv_cache_bytes_per_token(load_model(name)) == kib * 1024, name


def test_a_kv_cache_dtype_that_is_asked_for_goes_before_the_checkpoint_s():
    """Llama 3.1 8B keeps 2 · 32 layers · 8 heads · 128 elements a token, of two bytes or one."""
    fp8 = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    m = from_dict({**load_model("llama-3.1-8b").raw, "quantization_config": fp8}, name="fp8")
    for dtype, element_bytes in {
        "auto": 1,
        "bfloat16": 2,
        "float16": 2,
        "fp8": 1,
        "fp8_e4m3": 1,
        "fp8_e5m2": 1,
    }.items():
        assert kv_cache_bytes_per_token(m, dtype) == 65536 * element_bytes


def test_mla_keeps_one_latent_of_512_plus_64():
    assert kv_cache_bytes_per_token(load_model("deepseek-v3")) == 61 * 576 * 2


def test_the_calculators_disagree_where_expected():
    rows = {
        e.calculator: e for e in calculators.compare(("llama-3-8b",), context=8192)["llama-3-8b"]
    }
    # no GQA: 32 of 8
    assert rows["gpu_poor"].kv_cache_gib == pytest.approx(4 * rows["workshop plan"].kv_cache_gib)
    assert rows["LLM Model VRAM Calculator"].kv_cache_gib == pytest.approx(
        rows["workshop plan"].kv_cache_gib
    )
    assert rows["HF model-memory-usage"].total_gib == pytest.approx(1.2 * 14.9575, rel=1e-3)
    assert rows["LLM Explorer"].kv_cache_gib is None
    assert all(e.source and e.why_different for e in rows.values())


def test_a_gpus_name_counts_gib_and_what_vllm_takes_is_about_as_many_gb():
    for name in ["h100", "a100-40gb"]:
        gpu = load_gpu(name)
        assert gpu.driver_mib / 1024 == pytest.approx(gpu.marketing_gb, rel=0.01), name
        assert 0.92 * gpu.engine_bytes / 1e9 == pytest.approx(gpu.marketing_gb, rel=0.04), name


def test_metas_405b_in_fp8_takes_more_than_the_recorded_one():
    """What notebook 3 says beside the recorded start, in which attention is in FP8, too."""
    meta = plan("llama-3.1-405b-fp8", "h200", tensor_parallel_size=4, max_model_len=16384)
    assert meta.weights_gib_per_gpu == pytest.approx(113.5, abs=0.05)
    # the recorded tokens: check server.kv_tokens names them
    assert 0.3 < meta.kv_cache_tokens / 243_696 < 0.4
