"""Estimates: what is said of an architecture without formulas where no vLLM can be asked."""

from __future__ import annotations

import json

import pytest
from inference_planner.answer import builds
from inference_planner.catalog import load_model
from inference_planner.catalog.read import from_dict
from inference_planner.model import kv_cache
from inference_planner.model.weights import active_parameters
from inference_planner.split.ranks import stage_bytes
from inference_planner.split.settings import resolve
from published_configs import published
from supernova import NEW, folder

from workshop.engine.exact import ask
from workshop.engine.planning import plan
from workshop.errors import BadInput
from workshop.simulate.load import rules


@pytest.fixture(autouse=True)
def _no_vllm(monkeypatch):
    monkeypatch.setattr(ask, "python", lambda: "")


def test_an_unknown_architecture_gets_one_that_says_so(tmp_path):
    p = plan(folder(tmp_path), "h200")
    assert p.fits and p.sizes_from == "estimate" and not p.exact
    assert p.kv_bytes_per_token == 2 * 24 * 4 * 128 * 2
    assert any("An estimate" in reason and "SuperNovaForCausalLM" in reason for reason in p.reasons)


KEEPING_OTHERWISE = [
    "command-r7b", "glm-4.5-air-fp8", "minimax-m2.5",
    # states: Mamba 2 in 32 bit by default and by its config, beside an FP8 cache; gated delta nets
    "nemotron-h-56b-base-8k", "nemotron-3-nano-30b-a3b-nvfp4", "qwen3-next-80b-a3b-fp8",
    "qwen3.5-122b-a10b",
    "mimo-v2-flash", "gemma-4-26b-a4b",  # heads of other sizes where there is a window
    # layers without a cache of their own; keys of a sparse latent's indexer, in 16 bit and in FP8;
    # a latent beside states
    "gemma-3n-e4b", "llama-3.3-nemotron-super-49b", "deepseek-v3.2", "glm-5.2-nvfp4", "kimi-k3",
]  # fmt: skip


def request_bytes_of(m, *layout):
    lay = kv_cache.layout(m, *layout)
    pool = kv_cache.pool_bytes_per_block(lay, range(m.num_hidden_layers))
    return pool * kv_cache.blocks_per_request(lay)


def test_the_kv_cache_of_an_estimate_holds_what_that_of_the_class_does():
    for name in KEEPING_OTHERWISE:
        m = load_model(name)
        for build in builds.records()[builds.digest(m.raw)]["builds"]:
            tp, cache = build["tp"], build["kv_cache"]
            if tp not in (1, 2, 8) or build["pp"] > 1:
                continue
            ours = request_bytes_of(
                m, tp, "auto", cache["max_model_len"], cache["max_in_flight_tokens"]
            )
            theirs = cache["pool_bytes_per_block"][0] * cache["blocks_per_request"]
            assert ours == pytest.approx(theirs, rel=0.001), (name, tp)
            class_bytes = pytest.approx(cache["bytes_per_token"], rel=0.001)
            # beyond one rank copies count
            assert tp > 1 or kv_cache.kv_cache_bytes_per_token(m) == class_bytes, name


# What vLLM 0.32.0's class makes of them: bytes of weights, of a request of 8,192 tokens
UNUSUAL = [
    ("falcon-h1-7b", 15284000768, 635830272),
    ("lfm2-1.2b", 2357475328, 101449728),
    ("longcat-flash", 1121684537344, 528482304),
    ("granite-4.0-h-tiny", 13880134656, 157286400),
    ("apertus-8b", 16123600896, 1073741824),  # xIELU has no gate
    ("codestral-mamba-7b", 14643208192, 0),
]


def test_layers_that_are_made_otherwise_are_estimated_by_their_configs():
    for name, loaded, request_bytes in UNUSUAL:
        m = from_dict(published(name), name=name)
        assert stage_bytes(m, 1, 1, 0) == pytest.approx(loaded, rel=0.01), name
        ours = request_bytes_of(m, 1, "auto", 8192, 8192)
        assert not request_bytes or ours == pytest.approx(request_bytes, rel=0.001), name


# "A3B" and "A55B": what NVIDIA publishes as active, and 31.6 and 550 in all; in 10**9
def test_experts_in_layers_of_their_own_are_counted_once():
    for name, active in [("nemotron-3-nano-30b-a3b", 3.6), ("nemotron-3-ultra-550b-a55b", 55)]:
        assert active_parameters(load_model(name)) / 1e9 == pytest.approx(active, rel=0.06), name


def test_they_are_spread_evenly_over_pipeline_stages():
    p = plan("nemotron-3-ultra-550b-a55b", "b300", tensor_parallel_size=8, pipeline_parallel_size=2)
    assert len({r.weight_bytes for r in p.ranks}) == 2
    assert max(r.weight_bytes for r in p.ranks) < 1.05 * min(r.weight_bytes for r in p.ranks)


def test_the_index_of_the_checkpoint_says_what_the_weights_take(tmp_path):
    index = {"metadata": {"total_size": 5 * 2**30}, "weight_map": {}}
    (folder(tmp_path) / "model.safetensors.index.json").write_text(json.dumps(index))
    p = plan(tmp_path, "h200")
    assert p.sizes_from == "estimate" and p.weights_gib_per_gpu == pytest.approx(5, rel=0.01)


def test_so_do_the_sizes_of_its_files(tmp_path):
    with (folder(tmp_path) / "model.safetensors").open("wb") as file:
        file.truncate(2**31)
    assert plan(tmp_path, "h200").weights_gib_per_gpu == pytest.approx(2, rel=0.01)


def test_where_nothing_can_be_said_what_is_missing_is_named(tmp_path):
    for field in ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]:
        with pytest.raises(BadInput, match=f"{field} is missing"):
            plan(folder(tmp_path, {k: v for k, v in NEW.items() if k != field}), "h200")
            pytest.fail(f"{field} was taken")


def test_a_config_that_lies_is_one_sentence(tmp_path):
    for lie in [
        {"layer_types": ["full_attention"] * 5000},
        {"num_experts": 4, "num_experts_per_tok": 9},
        {"head_dim": -1},
    ]:
        with pytest.raises(BadInput):
            plan(folder(tmp_path, {**NEW, **lie}), "h200")
            pytest.fail(f"{lie} was taken")


def test_whisper_is_read_by_its_decoders_fields():
    """openai/whisper-tiny's config.json."""
    sizes = {
        "d_model": 384,
        "decoder_attention_heads": 6,
        "decoder_ffn_dim": 1536,
        "decoder_layers": 4,
    }
    model_fields = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "vocab_size": 51865,
    }
    m = from_dict(
        {**model_fields, **sizes, "max_target_positions": 448, "encoder_layers": 4},
        name="whisper-tiny",
    )
    assert (m.num_hidden_layers, m.num_attention_heads, m.intermediate_size) == (4, 6, 1536)
    assert m.max_position_embeddings == 448


def test_a_model_of_states_alone_is_not_advised_to_shrink_its_cache():
    """state-spaces/mamba-130m-hf's config.json: no layer of attention."""
    sizes = {
        "hidden_size": 768,
        "num_hidden_layers": 24,
        "state_size": 16,
        "conv_kernel": 4,
        "vocab_size": 50280,
    }
    m = from_dict(
        {"architectures": ["MambaForCausalLM"], "model_type": "mamba", **sizes}, name="mamba"
    )
    p = plan(m, "h200")
    assert (
        p.fits
        and p.kv_bytes_per_token == 0
        and not any("--kv-cache-dtype" in line for line in p.advice)
    )
    # is_prefix_caching_supported in vLLM 0.32.0's config/model.py: not without attention
    cached = plan(m, "h200", enable_prefix_caching=True)
    assert p.max_concurrency == pytest.approx(2 * cached.max_concurrency, rel=0.01)
    assert not rules(p).enable_prefix_caching and rules(cached).enable_prefix_caching


def test_a_quantization_without_formulas_is_named_with_those_that_have_some(tmp_path):
    config = {**NEW, "quantization_config": {"quant_method": "vptq", "nbits": 4}}
    with pytest.raises(BadInput, match=r"no formulas for .*quant_method 'vptq'") as refused:
        plan(folder(tmp_path, config), "h200")
    assert "awq" in refused.value.remedy and "authors" not in refused.value.remedy


def test_other_spellings_and_nested_configs_are_read():
    spelled = {
        "n_embd": 2048,
        "n_layer": 24,
        "n_head": 16,
        "n_head_kv": 4,
        "ffn_dim": 8192,
        "n_positions": 8192,
    }
    shared_fields = {k: NEW[k] for k in ("architectures", "torch_dtype", "vocab_size")}
    plain = from_dict(NEW, name="m")
    for config in (
        {**shared_fields, **spelled},
        {**shared_fields, "llm_config": {**shared_fields, **spelled}},
    ):
        m = from_dict(config, name="m")
        assert (m.hidden_size, m.num_hidden_layers, m.num_key_value_heads) == (2048, 24, 4)
        assert m.intermediate_size == plain.intermediate_size


def test_settings_are_those_of_any_model():
    assert (
        resolve(from_dict(NEW, name="m"), plan("gpt2", "h200").deployment.gpu).max_model_len == 8192
    )
