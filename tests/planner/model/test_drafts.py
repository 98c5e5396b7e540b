"""Speculative decoding: the draft's layers, weights and states; vLLM 0.28.0's log of Qwen3.8-27B with MTP on an L20."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from inference_planner import plan
from inference_planner.answer.plan_result import Plan
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.gpus import GIB
from inference_planner.catalog.read import from_dict
from inference_planner.errors import BadInput
from inference_planner.memory.fit import kv_capacity
from inference_planner.model.drafts import METHODS, mtp_layers, read, weight_bytes
from inference_planner.request import PlanRequest

# vLLM 0.28.0, Qwen3.8-27B (the sizes of qwen3.5-27b) on one L20: FP8 weights and KV cache, 9.28 GiB for the cache.
# Source: a public experiment log (l20-qwen3.8-27b-fp8-mtp of benchmarks/accuracy/public_points.json), which has 0 to 2 draft tokens.
AVAILABLE = round(9.28 * GIB)
HYBRID = {
    "gpus_per_node": 1,
    "tensor_parallel_size": 1,
    "quantization": "fp8",
    "kv_cache_dtype": "fp8",
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 128,
    "vllm_version": "0.28.0",
}
MTP = PlanRequest(spec_method="mtp", spec_tokens=1)
EAGLE3 = {"method": "eagle3", "model": "no/such-head", "num_speculative_tokens": 3}


def hybrid(length: int, draft_tokens: int) -> Plan:
    draft = {"spec_method": "mtp", "spec_tokens": draft_tokens} if draft_tokens else {}
    return plan("qwen3.5-27b", "l20", max_model_len=length, **HYBRID, **draft)


def tokens_in(p: Plan, available: int) -> int:
    d = p.deployment
    return kv_capacity(d.model, d.settings, 1, 1, [available]).tokens


def test_9_28_gib_hold_the_tokens_that_the_log_of_two_draft_tokens_says():
    """Its block of attention has 1,600 tokens, and each request keeps 2 + 2 states in each of three groups."""
    for length, logged in [(8192, 81_009), (4096, 48_605)]:
        p = hybrid(length, 2)
        assert p.fit.layout.block_size == 1600, length
        assert tokens_in(p, AVAILABLE) == logged, length


def test_the_whole_plan_is_near_the_log():
    for draft_tokens, logged, within in [(0, 136_533, 0.06), (1, 97_757, 0.06), (2, 81_009, 0.06)]:
        assert hybrid(8192, draft_tokens).kv_cache_tokens == pytest.approx(logged, rel=within), (
            draft_tokens
        )


def test_without_draft_tokens_a_block_of_the_same_model_is_smaller():
    assert hybrid(8192, 0).fit.layout.block_size == 1568


def test_the_plan_says_how_many_requests_of_a_hybrid_run_at_once():
    """The log of two draft tokens had 16 to 17 of 48 requests running, without draft tokens all of them."""
    sentences = [reason for reason in hybrid(8192, 2).reasons if "run at once" in reason]
    assert len(sentences) == 1
    running = re.search(r"at most (\d+) of its 128 requests", sentences[0])
    assert running and int(running[1]) in (16, 17)
    assert not any("run at once" in reason for reason in hybrid(8192, 0).reasons)


def test_mtp_adds_a_decoder_layer_and_the_product_of_its_two_inputs():
    """Qwen3.5-27B: qkv 14336 × 5120, o 5120 × 6144, gate and up 34816 × 5120, down 5120 × 17408, fc 5120 × 10240."""
    m = load_model("qwen3.5-27b")
    draft = read(m, MTP)
    assert draft and mtp_layers(m) == 1
    elements = 14336 * 5120 + 5120 * 6144 + 34816 * 5120 + 5120 * 17408 + 5120 * 10240
    assert weight_bytes(m, draft, 1) == pytest.approx(2 * elements, rel=0.001)


def test_an_eagle3_head_is_one_layer_of_the_cache_and_has_the_published_parameters(tmp_path):
    """yuhuili/EAGLE3-LLaMA3.1-Instruct-8B: its config.json; its weights are 0.85 GB in 16 bit on the Hub."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "max_position_embeddings": 2048,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    speculative_config = {"method": "eagle3", "model": str(tmp_path), "num_speculative_tokens": 3}
    without = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, max_model_len=16384)
    p = plan(
        "llama-3.1-8b",
        "h100",
        tensor_parallel_size=1,
        max_model_len=16384,
        speculative_config=json.dumps(speculative_config),
    )
    assert p.kv_bytes_per_token == without.kv_bytes_per_token * 33 / 32
    added = (p.weights_gib_per_gpu - without.weights_gib_per_gpu) * GIB
    assert added == pytest.approx(0.85e9, rel=0.02)
    assert not any("not on this machine" in reason for reason in p.reasons)


def test_a_draft_model_brings_its_own_layers_and_weights():
    """Llama 3.2 1B: 2.47 GB of weights, and 16 layers of 8 heads of 64: 32 KiB a token beside 8B's 128."""
    target = load_model("llama-3.1-8b")
    request = PlanRequest(spec_method="draft_model", spec_model="llama-3.2-1b", spec_tokens=4)
    draft = read(target, request)
    assert draft and draft.layers == 16
    assert weight_bytes(target, draft, 1) == pytest.approx(2.47e9, rel=0.005)
    p = plan(
        "llama-3.1-8b",
        "h100",
        tensor_parallel_size=1,
        max_model_len=8192,
        spec_method="draft_model",
        spec_model="llama-3.2-1b",
        spec_tokens=4,
    )
    assert p.kv_bytes_per_token == (128 + 32) * 1024
    room = p.available_kv_gib_per_gpu * GIB
    assert p.kv_cache_tokens == pytest.approx(room / (160 * 1024), rel=0.001)


def test_ngram_takes_no_memory_but_that_of_wider_steps():
    p = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, spec_method="ngram", spec_tokens=3)
    without = plan("llama-3.1-8b", "h100", tensor_parallel_size=1)
    assert p.weights_gib_per_gpu == without.weights_gib_per_gpu
    assert p.kv_bytes_per_token == without.kv_bytes_per_token


def test_the_draft_is_on_the_last_pipeline_stage_alone():
    p = plan(
        "llama-3.1-8b",
        "h100",
        gpus_per_node=2,
        tensor_parallel_size=1,
        pipeline_parallel_size=2,
        speculative_config=EAGLE3,
    )
    without = plan(
        "llama-3.1-8b", "h100", gpus_per_node=2, tensor_parallel_size=1, pipeline_parallel_size=2
    )
    assert p.fit.weights[0] == without.fit.weights[0]
    assert p.fit.weights[1] > without.fit.weights[1] + GIB // 2


def test_a_step_of_decoding_has_a_graph_for_whole_requests():
    """config/vllm.py: 8, 16, … requests of 4 tokens each, up to the same 512 tokens."""
    p = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, spec_method="ngram", spec_tokens=3)
    sizes = p.deployment.settings.decode_graph_sizes
    assert sizes[-1] == 512 and all(size % 4 == 0 for size in sizes)
    assert {4, 8, 16, 32, 64} <= set(sizes)


def test_the_command_has_the_config_as_vllm_takes_it():
    p = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, speculative_config=EAGLE3)
    arguments = shlex.split(p.command)
    config = json.loads(arguments[arguments.index("--speculative-config") + 1])
    assert config == EAGLE3
    assert json.loads(json.dumps(p.to_dict()))["settings"]["speculative_config"] == EAGLE3


def test_the_plan_says_that_no_acceptance_is_known():
    p = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, speculative_config=EAGLE3)
    without = plan("llama-3.1-8b", "h100", tensor_parallel_size=1)
    assert p.single_stream_tokens_per_s == without.single_stream_tokens_per_s
    assert any("how many of them the model accepts is not known" in why for why in p.reasons)
    assert any("not on this machine" in why for why in p.reasons)


WRONG = [
    ("{", "no JSON"),
    ("[]", "no JSON object"),
    ({"method": "medusa", "num_speculative_tokens": 2}, "no formulas for the speculative method"),
    ({"method": "mtp", "num_speculative_tokens": 2}, "no layers for multi-token prediction"),
    ({"method": "eagle3", "num_speculative_tokens": 2}, "needs a draft"),
    ({"method": "ngram"}, "num_speculative_tokens is missing"),
    ({"method": "ngram", "num_speculative_tokens": 0}, "must be a whole number"),
    ({"method": "ngram", "num_speculative_tokens": True}, "must be a whole number"),
    (
        {"method": "draft_model", "model": "qwen3-8b", "num_speculative_tokens": 2},
        "must have the same",
    ),
]


def test_a_draft_that_vllm_refuses_is_refused_in_a_sentence():
    for draft_config, message in WRONG:
        with pytest.raises(BadInput) as refused:
            plan("llama-3.1-8b", "h100", tensor_parallel_size=1, speculative_config=draft_config)
            pytest.fail(f"{draft_config} was taken")
        assert message in refused.value.message and refused.value.remedy, draft_config


def test_a_field_that_is_given_twice_is_refused():
    with pytest.raises(BadInput, match="given twice"):
        plan("llama-3.1-8b", "h100", speculative_config=EAGLE3, spec_tokens=2)


def test_mtp_of_any_model_is_planned_or_refused_in_a_sentence():
    for name in list_models():
        m = load_model(name)
        try:
            draft = read(m, MTP)
        except BadInput as error:
            assert error.remedy, name
        else:
            assert draft and weight_bytes(m, draft, 1) > 0, name


def test_vllms_older_names_of_mtp_are_read():
    m = load_model("deepseek-v3")
    draft = read(m, PlanRequest(spec_method="deepseek_mtp", spec_tokens=1))
    assert draft and draft.method == METHODS[0] == "mtp"


def test_the_profile_run_of_a_draft_is_counted():
    """tests/data/gpu/records/two_h100_0.32.json: Qwen3.5 27B, MTP, one draft token: 17.41 GiB are left; 18.25 were said."""
    gpu = Path(__file__).parents[3] / "benchmarks/gpu"
    jobs = {job["name"]: job for job in json.loads((gpu / "jobs/truth_two_h100.json").read_text())}
    p = plan(
        from_dict(jobs["h100_qwen3.5-27b_mtp1"]["config"], name="qwen3.5-27b-text"),
        "h100",
        tensor_parallel_size=1,
        max_model_len=32768,
        max_num_seqs=48,
        usage="llm",
        speculative_config={"method": "mtp", "num_speculative_tokens": 1},
    )
    assert p.available_kv_gib_per_gpu == pytest.approx(17.41, rel=0.015)
    names = {item.name for item in p.overheads if item.bytes}
    assert "draft" in names
