"""Names of checkpoints: which model they mean, how it is quantized, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from inference_planner import errors, plan
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.gpus import split_count
from inference_planner.catalog.names import read_name
from inference_planner.model.weights import parameters

# Hub ids of public recipes for vLLM, each with the model of the catalog that it means; "" for those
# whose shapes the catalog does not have
SETS = json.loads((Path(__file__).parents[2] / "data" / "model_ids.json").read_text())
IDS = SETS["ids"]
ASKED = SETS["asked"]["ids"]  # ids that people ask about, in the same way
DECEMBER = SETS["december"]["ids"]  # and further ones
DENSE = "meta-llama/Llama-3.1-70B-Instruct"
EXPERTS = "Qwen/Qwen3-30B-A3B"
# bits of a weight with its scales, by the end of the name
FORMATS = {
    "FP8": 8,
    "FP8-dynamic": 8,
    "FP8-KV": 8,
    "FP8-Static-PerTensor": 8,
    "quantized.w8a8": 8,
    "AWQ": 4.25,
    "Int4-AWQ": 4.25,
    "AWQ-W4A16": 4.25,
    "GPTQ-Int4": 4.125,
    "GPTQ-W4A16": 4.125,
    "quantized.w4a16": 4.125,
    "NVFP4": 4.5,
    "NVFP4-W4A4": 4.5,
    "FP4": 4.5,
    "MXFP4": 4.25,
    "w-mxfp4-a-fp8": 4.25,
    "bnb-4bit": 4.5,
}
# 16-bit weights: embeddings and lm_head, and of experts often the attention
LEFT_IN_16_BIT = 0.06
# Names that round by more than 3 %, or count an encoder too: billions of parameters of the text
# model as others publish them. llama-bench prints the count that a GGUF file holds, the Hub that of
# the safetensors.
PUBLISHED = {
    "codellama-7b": 6.74,  # the Hub
    "ernie-4.5-0.3b": 0.36,  # its card
    "ernie-4.5-21b-a3b": 21.83,  # llama-bench
    "falcon3-10b": 10.31,  # the Hub
    "gemma-2b": 2.51,  # table 2 of its report (arXiv 2403.08295)
    "glm-4-9b": 9.40,  # the Hub
    "glm-4-9b-chat": 9.40,  # the Hub
    "glm-4-9b-0414": 9.40,  # the Hub
    "glm-4.1v-9b": 9.40,  # its text model is GLM-4-9B-0414
    "glm-z1-9b-0414": 9.40,  # the Hub, of GLM-4-9B-0414
    "granite-4.0-1b": 1.63,  # its model card
    "internvl3-8b": 7.62,  # its text model is Qwen2.5-7B
    "llava-v1.6-mistral-7b": 7.24,  # its text model is Mistral 7B
    "nemotron-cascade-14b": 14.77,  # Qwen3-14B
    "nemotron-cascade-2-30b-a3b": 31.58,  # Nemotron 3 Nano
    "nanonets-ocr2-3b": 3.09,  # its text model is Qwen2.5-3B
    "qwen1.5-7b": 7.72,  # the Hub
    "granite-3.2-2b": 2.53,  # a public table of parameters, of Granite 3.1 2B
    "lfm2.5-8b-a1b": 8.30,  # its model card
    "lfm2.5-vl-1.6b": 1.17,  # LFM2.5-1.2B's model card; its text model
    "lfm2.5-vl-450m": 0.35,  # its model card: LFM2.5-350M is its text model
    "lfm2-8b-a1b": 8.34,  # its model card
    "llama-3.1-minitron-4b-width": 4.51,  # the Hub
    "ministral-3-14b": 13.51,  # llama-bench
    "ministral-3-14b-fp8": 13.51,  # the same in FP8
    "ministral-3-3b": 3.43,  # llama-bench
    "ministral-3-3b-fp8": 3.43,  # the same in FP8
    "ministral-3-8b": 8.49,  # llama-bench
    "ministral-3-8b-fp8": 8.49,  # the same in FP8
    "muse-glimmer-30b": 27.85,  # llama-bench
    "nemotron-3-nano-30b-a3b": 31.58,  # llama-bench
    "nemotron-3-nano-30b-a3b-nvfp4": 31.58,  # llama-bench, of the model before quantization
    "nemotron-3-nano-omni-30b-a3b": 31.58,  # its text model is Nemotron 3 Nano 30B-A3B
    "olmo-3-7b": 7.30,  # the Hub
    "olmoe-1b-7b": 6.92,  # llama-bench
    "olmocr-2-7b": 7.62,  # its text model is Qwen2.5-7B
    "qwen2.5-7b-awq": 7.62,  # the Hub
    "qwen2.5-7b-gptq-int4": 7.62,  # the Hub
    "qwen2.5-vl-7b": 7.62,  # its text model is Qwen2.5-7B
    "qwen3-embedding-8b": 7.57,  # the Hub
    "qwen3-reranker-8b": 7.57,  # as Qwen3-Embedding-8B
    "qwen3-vl-2b": 1.72,  # llama-bench, of Qwen3-1.7B: its text model
    "qwen3-vl-embedding-2b": 1.72,  # as Qwen3-VL-2B
    "qwen3.5-0.8b": 0.75239,  # llama-bench
    "qwen3.5-2b": 1.88,  # llama-bench
    "qwen3.5-4b": 4.21,  # llama-bench
    "skywork-reward-v2-llama-3.1-8b": 7.50,  # the Hub
    "voxtral-mini-3b": 4.02,  # the Hub's 4.68 less the encoder of Whisper large v3
}
# Their names round by more than 3 %, and no count of the text model alone is published
UNPUBLISHED = {"granite-3.1-3b-a800m", "mimo-7b-base", "nemotron-3.5-lightning-30b-a3b"}
SIZE = re.compile(r"-(\d+(?:\.\d+)?)([mbt])(?=-|$)")
UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}


def test_an_id_is_read_or_refused_with_the_command_for_its_config():
    for model_id, name in (IDS | ASKED | DECEMBER).items():
        if name:
            model = load_model(model_id)
            assert (model.derived_from or model.name) == name, model_id
            assert model.hub_ids[0].lower() == model_id.lower()
            continue
        with pytest.raises(errors.BadInput) as caught:
            load_model(model_id)
            pytest.fail(f"{model_id} was read")
        folder = model_id.rpartition("/")[2]
        download = f"hf download {model_id} config.json --local-dir {folder}"
        assert download in caught.value.remedy, model_id
        assert f"workshop plan ./{folder}" in caught.value.remedy, model_id


def test_an_id_is_planned():
    planned = [model_id for model_id, name in (IDS | ASKED | DECEMBER).items() if name]
    for model_id in planned[::10]:
        assert plan(model_id, "b300").model, model_id


def test_three_of_four_ids_are_planned():
    assert len(IDS) == 308 and sum(map(bool, IDS.values())) >= 0.75 * len(IDS)
    assert len(ASKED) == 270 and sum(map(bool, ASKED.values())) >= 0.8 * len(ASKED)
    assert len(DECEMBER) == 61 and sum(map(bool, DECEMBER.values())) >= 0.5 * len(DECEMBER)


def test_awq_of_a_maker_who_uses_another_format_weighs_what_logs_say():
    # GiB of "Model loading took" (files 63574967224 and 54355267735 of an index of public GitHub
    # files) and of the files of MiniMax M2.7 (62107301765)
    for model_id, gib in (
        ("cyankiwi/Qwen3.5-35B-A3B-AWQ-4bit", 22.05),
        ("cyankiwi/MiniMax-M2.7-AWQ-4bit", 121.53),
    ):
        weights = plan(model_id, "b300", tensor_parallel_size=1, max_model_len=4096)
        assert weights.weights_gib_per_gpu == pytest.approx(gib, rel=0.01), model_id


def test_a_quantized_sibling_shrinks_by_its_bits_and_keeps_the_cache():
    for weights in FORMATS:
        for base in [DENSE, EXPERTS]:
            settings = {
                "tensor_parallel_size": 1,
                "max_model_len": 4096,
                "kv_cache_dtype": "bfloat16",
                "gpu_memory_gib": 300,
            }
            whole = plan(base, "h200", **settings)
            sibling = plan(f"maker/{base.rpartition('/')[2]}-{weights}", "h200", **settings)
            ratio = sibling.weights_gib_per_gpu / whole.weights_gib_per_gpu
            assert (
                FORMATS[weights] / 16 <= ratio * 1.005 <= FORMATS[weights] / 16 + LEFT_IN_16_BIT
            ), (weights, base)
            tokens_per_gib = [
                p.kv_cache_tokens / p.available_kv_gib_per_gpu for p in (whole, sibling)
            ]
            assert tokens_per_gib[0] == pytest.approx(tokens_per_gib[1], rel=1e-3), (weights, base)
            assert f"derived from {whole.deployment.model.name}" in sibling.basis, (weights, base)
            assert any(
                whole.deployment.model.name in doubt for doubt in sibling.to_dict()["doubts"]
            ), (weights, base)


def test_a_sibling_of_a_recorded_model_keeps_its_encoder_in_16_bits():
    """The record of Qwen2.5-VL 7B has 1.26 GiB of encoder; 4 bits with their scales are 4.25 of 16."""
    whole = plan("Qwen/Qwen2.5-VL-7B-Instruct", "l40s", tensor_parallel_size=1)
    sibling = plan("Qwen/Qwen2.5-VL-7B-Instruct-AWQ", "l40s", tensor_parallel_size=1)
    build = whole.deployment.model.exact.of(1, 1)
    encoder_gib = build.encoder_bytes[0] / 2**30
    text_gib = whole.weights_gib_per_gpu - encoder_gib
    assert sibling.weights_gib_per_gpu > encoder_gib + text_gib * 4.25 / 16
    assert sibling.weights_gib_per_gpu < encoder_gib + text_gib * (4.25 / 16 + 0.12)
    assert sibling.sizes_from == "derived from qwen2.5-vl-7b"


def test_what_may_change_the_shape_is_not_guessed():
    for name in [
        "Qwen/Qwen3-4B-2601",  # a date that the catalog does not have
        "meta-llama/Llama-3.1-9B-Instruct",  # a size
        "Qwen/Qwen3-30B-A9B",
        "somebody/Qwen3-8B-merged",
        "google/gemma-4-E2B-it-qat-mobile-ct",  # a format whose layout is not known
        "deepseek-ai/DeepSeek-V9",
    ]:
        with pytest.raises(errors.BadInput, match="no model of the shapes"):
            load_model(name)
            pytest.fail(f"{name} was taken")


def test_a_name_that_looks_like_one_of_the_catalog_is_not_that_model():
    """Other sizes, versions, dates and lengths than those of models that it has."""
    for name in [
        "Qwen/Qwen2.5-Coder-13B-Instruct",
        "Qwen/Qwen2.5-32B-Instruct-1M",
        "Qwen/Qwen2.5-Math-14B",
        "Qwen/Qwen3-Embedding-1.7B",
        "Qwen/Qwen3-Reranker-2B",
        "Qwen/QwQ-72B",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-3B",
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-14B",
        "deepseek-ai/DeepSeek-V2.5-Lite",
        "NousResearch/Hermes-4-405B",
        "NousResearch/Hermes-3-Llama-3.1-70B",
        "openai/gpt-oss-safeguard-7b",
        "XiaomiMiMo/MiMo-7B-RL-0530",  # 65,536 positions
        "mistralai/Mistral-Small-3.1-12B-Instruct-2503",
        "mistralai/Mistral-Large-Instruct-2607",
        "mistralai/Devstral-Small-2608",
        "mistralai/Devstral-2-24B-Instruct-2512",
        "microsoft/Phi-3-medium-8k-instruct",
        "nvidia/Llama-3_3-Nemotron-Super-49B-v2",
        "nvidia/OpenReasoning-Nemotron-70B",
        "allenai/OLMo-2-0325-13B",
        "tiiuae/Falcon3-40B-Instruct",
        "swiss-ai/Apertus-1.5-8B-Instruct",
        "ibm-granite/granite-4.0-h-medium",
        "google/gemma-3-270b-it",
        "google/medgemma-12b-it",
        "inclusionAI/Ling-mini-2.5",
        "moonshotai/Kimi-Dev-7B",
        "01-ai/Yi-1.5-12B-Chat",
        "BAAI/bge-m4",
        "intfloat/multilingual-e5-base",
        "someone/Qwen3-8B-Pruned-6B",
        "acme/Llama-3.1-8B-MoE-4x",
        "someone/Llama-3.1-8B-reranker",
    ]:
        with pytest.raises(errors.BadInput, match="no model of the shapes"):
            load_model(name)
            pytest.fail(f"{name} was taken")


def test_gguf_files_need_the_config_of_their_base_model():
    for model_id in SETS["asked"]["gguf"]:
        with pytest.raises(errors.BadInput, match="GGUF files of several sizes"):
            load_model(model_id)
            pytest.fail(f"{model_id} was read")
    for model_id, remedy in [
        ("unsloth/Qwen3-30B-A3B-GGUF", "workshop plan qwen3-30b-a3b."),
        ("somebody/New-9B-GGUF", "hf download BASE config.json --local-dir New-9B"),
    ]:
        with pytest.raises(errors.BadInput) as caught:
            load_model(model_id)
        assert remedy in caught.value.remedy, model_id


def test_a_title_that_the_catalog_has_is_that_model_though_its_words_are_of_tuning():
    """Phi-4-reasoning reads 32,768 tokens (its config.json), Phi-4 16,384."""
    assert load_model("RedHatAI/Phi-4-reasoning-FP8-dynamic").max_position_embeddings == 32768
    assert load_model("RedHatAI/phi-4-FP8-dynamic").max_position_embeddings == 16384
    assert load_model("THUDM/glm-4-9b-chat").max_position_embeddings == 131072


def test_dbrx_has_its_experts_though_they_are_nested_in_a_config_of_their_own():
    """132 B parameters, 16 experts, 4 of them for a token (its model card)."""
    dbrx = load_model("databricks/dbrx-instruct")
    assert parameters(dbrx) == pytest.approx(132e9, rel=0.01)
    assert (dbrx.moe.num_experts, dbrx.moe.experts_per_token) == (16, 4)


def test_a_variant_for_other_inputs_tasks_or_languages_is_not_the_plain_model():
    for name in [
        "Qwen/Qwen3-VL-14B-Instruct",
        "Qwen/Qwen3-Omni-4B",
        "Qwen/Qwen3-8B-TTS",
        "Qwen/Qwen3-ASR-0.6B",
        "Qwen/Qwen3-ForcedAligner-0.6B",
        "somebody/Llama-3.1-8B-OCR",
        "mistralai/Voxtral-Small-12B-2507",
        "microsoft/Phi-4-reasoning-vision-15B",
        "Qwen/Qwen3-VL-Reranker-8B",
        "elyza/Llama-3-ELYZA-JP-8B",
        "somebody/Qwen3-8B-Japanese",  # may have words of its own, and other positions
        "RedHatAI/Qwen3-8B-speculator.eagle3",
        "deepseek-ai/DeepSeek-V3-FP3",
    ]:
        with pytest.raises(errors.BadInput, match="no model of the shapes"):
            load_model(name)
            pytest.fail(f"{name} was taken")


def test_four_bits_in_the_names_of_each_maker_are_those_of_its_hardware():
    """FP4 was NVIDIA's name for NVFP4; w-mxfp4-a-fp8 is AMD's for inputs in FP8."""
    for name, method, activation_bits in [
        ("nvidia/DeepSeek-R1-FP4", "modelopt_fp4", 16),
        ("nvidia/Llama-3.1-405B-Instruct-FP4", "modelopt_fp4", 16),
        ("amd/gpt-oss-20b-w-mxfp4-a-fp8", "quark", 8),
        ("amd/Llama-3.3-70B-Instruct-MXFP4", "quark", 4),
    ]:
        quantization = load_model(name).quantization
        read = (quantization.method, quantization.weight_bits, quantization.activation_bits)
        assert read == (method, 4, activation_bits), name


def test_a_checkpoint_with_scales_of_kv_wants_an_8_bit_cache():
    for name in [
        "neuralmagic/Meta-Llama-3-8B-Instruct-FP8-KV",
        "amd/Llama-3.1-70B-Instruct-FP8-KV",
        # the recipes of Laguna: "weights + FP8 KV cache", in each format
        "poolside/Laguna-S-2.1-FP8",
        "poolside/Laguna-S-2.1-NVFP4",
        "poolside/Laguna-S-2.1-INT4",
    ]:
        assert load_model(name).quantization.kv_cache_dtype == "fp8", name


def test_a_date_that_changes_the_positions_is_a_model_of_its_own():
    """Qwen3-4B-Instruct-2507 reads 262,144 tokens (its config.json), Qwen3-4B 40,960."""
    assert load_model("Qwen/Qwen3-4B-Instruct-2507-FP8").max_position_embeddings == 262144
    assert load_model("Qwen/Qwen3-4B-FP8").max_position_embeddings == 40960


def test_a_size_alone_is_one_of_llama():
    for name, model in [
        ("70b", "llama-3.1-70b"),
        ("70B", "llama-3.1-70b"),
        ("405b", "llama-3.1-405b"),
        ("405B-FP8", "llama-3.1-405b-fp8"),
        ("qwen3-8b-base", "qwen3-8b"),
    ]:
        assert load_model(name).name == model, name


def test_a_checkpoint_without_weights_in_16_bits_loses_its_quantization():
    """gpt-oss is published with experts in MXFP4; unsloth has it in bfloat16."""
    assert load_model("openai/gpt-oss-20b").quantization is not None
    assert load_model("unsloth/gpt-oss-20b-BF16").quantization is None


def test_a_name_is_read_in_parts():
    for name, parts in [
        ("nvidia/GLM-4.7-NVFP4", ("nvidia", "glm-4.7", "nvfp4")),
        ("RedHatAI/gemma-4-E4B-it-FP8-dynamic", ("redhatai", "gemma-4-e4b", "fp8-dynamic")),
        ("Qwen/Qwen3.5-27B-GPTQ-Int4", ("qwen", "qwen3.5-27b", "gptq-int4")),
        ("nvidia/DeepSeek-R1-0528-NVFP4-v2", ("nvidia", "deepseek-r1-0528", "nvfp4")),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", ("unsloth", "qwen3-8b", "unsloth-bnb-4bit")),
        ("mistralai/Ministral-3-3B-Reasoning-2512", ("mistralai", "ministral-3-3b-2512", "")),
        ("somebody/Llama-3_1-8B-Instruct-FP8", ("somebody", "llama-3.1-8b", "fp8")),
        ("huihui-ai/Qwen3-8B-abliterated", ("huihui-ai", "qwen3-8b", "")),
        ("nvidia/DeepSeek-R1-0528-FP4-v2", ("nvidia", "deepseek-r1-0528", "fp4")),
    ]:
        read = read_name(name)
        assert (read.maker, read.model, read.weights) == parts, name


def test_the_parameters_are_those_of_the_size_in_the_name():
    """Names round. A published count stands where they round by more than 3 %."""
    for name in [name for name in list_models() if SIZE.search(name) and name not in UNPUBLISHED]:
        model = load_model(name)
        number, unit = SIZE.search(name).groups()
        expected = float(number) * UNITS[unit]
        if name in PUBLISHED:
            expected = PUBLISHED[name] * 1e9
        if model.published_parameters:
            expected = model.published_parameters
        assert parameters(model) == pytest.approx(expected, rel=0.03), name


def test_a_name_may_bring_the_gpus_of_a_node():
    assert split_count("h100:4") == ("h100", 4)
    assert split_count("h100") == ("h100", None)
    for wrong in ("h100:", "h100:0", "h100:four", "h100:-1", "h100:4:2"):
        with pytest.raises(errors.BadInput, match="no number of GPUs"):
            split_count(wrong)
