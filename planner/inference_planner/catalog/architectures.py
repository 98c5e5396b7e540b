"""Facts of vLLM's classes that no config.json says, by architecture: adapters, drafts, pooling.

Names are those of `architectures` in config.json. What a family's config.json means is in
families.py; the formulas of encoders are in encoder_sizes.py and tower.py. What vLLM does with an
architecture (generate text, or compute vectors or scores) is recorded in kinds.json. Source: vLLM
0.32.0, model_executor/models/registry.py, config/model.py _get_default_runner_type.
"""

import json
import re
from functools import lru_cache
from pathlib import Path

# What the small kernels of a layer take longer, in µs: projections into latents (MiniCPM 3), gates
# and norms of queries (Muse Glimmer, Laguna), Mamba 1 beside experts (Jamba), a router of many small
# steps (Phi 3.5 MoE). One run of each on an H200 (0.33.0, docs/gpu.md).
LAYER_US_OF_CLASS = {
    "MiniCPM3ForCausalLM": 35.0,
    "JambaForCausalLM": 31.0,
    "MuseGlimmerForCausalLM": 26.0,
    "LagunaForCausalLM": 18.5,
    "PhiMoEForCausalLM": 42.0,
}

# How often the second full graph of a class holds FlashAttention's partial sums: those that were
# captured in runs that are not in data/runs, one on an H200 each (0.33.0, docs/gpu.md).
GRAPH_SUMS = {
    "Phi3ForCausalLM": 2,
    "SeedOssForCausalLM": 2,
    "Starcoder2ForCausalLM": 2,
    "SmolLM3ForCausalLM": 2,
    "Ernie4_5_MoeForCausalLM": 1,
    "Mistral3ForConditionalGeneration": 1,
}

# Whose classes name embed_tokens and lm_head as embedding_modules, and so have buffers of LoRA
# adapters for them, too.
ADAPTS_EMBEDDINGS = frozenset(
    (
        "ApertusForCausalLM",
        "CohereForCausalLM",
        "Cohere2ForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneForCausalLM",
        "FalconH1ForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeSharedForCausalLM",
        "JambaForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "LlamaForCausalLM",
        "MiniCPMForCausalLM",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "NemotronForCausalLM",
        "NemotronHForCausalLM",
        "PhiMoEForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "SolarForCausalLM",
    )
)
# Classes whose decoder sends the hidden states that an EAGLE-3 head reads from one pipeline stage to
# the next: LlamaModel, Qwen2Model and a few others have supports_aux_hidden_states_over_pp, and so
# have those that are derived from them (vLLM 0.32.0).
EAGLE3_OVER_STAGES = frozenset(
    (
        "DeepseekV4ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "Ernie4_5ForCausalLM",
        "IQuestCoderForCausalLM",
        "InternLM3ForCausalLM",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "LLaMAForCausalLM",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "LlamaForCausalLM",
        "LlavaForConditionalGeneration",
        "MiniMaxM3SparseForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MistralForCausalLM",
        "Phi3ForCausalLM",
        "PixtralForConditionalGeneration",
        "Qwen2ForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "SarvamMLAForCausalLM",
        "TeleChat2ForCausalLM",
        "TeleChat3ForCausalLM",
        "TeleFLMForCausalLM",
    )
)
# Families whose checkpoints have MTP layers, where the config does not say how many; by model_type.
PUBLISHED_MTP_LAYERS: dict[str, int] = dict.fromkeys(
    ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "mimo", "qwen3_next"), 1
)

# Their numbers overflow in float16: _FLOAT16_NOT_SUPPORTED_MODELS in vllm/config/model.py, by
# model_type.
OVERFLOW_IN_FLOAT16 = frozenset(("gemma2", "gemma3", "gemma3_text", "glm4"))
# What --kv-cache-dtype auto means for classes that have one layout of their KV cache:
# _resolve_dsv4_kv_cache_dtype in models/deepseek_v4/attention.py.
DEEPSEEK_V4 = ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration")
OWN_CACHE_DTYPES = dict.fromkeys(DEEPSEEK_V4, "fp8")
KINDS = Path(__file__).with_name("kinds.json")
# try_match_architecture_defaults: the first suffix that matches decides
GENERATING = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
SCORING = ("ForSequenceClassification", "ForTokenClassification", "ClassificationModel")
EMBEDDING = ("ForTextEncoding", "EmbeddingModel", "ForRewardModeling", "RewardModel", "Model")
# Sentence Transformers' files beside a config.json, which make vLLM pool (get_pooling_config)
POOLING_FILES = ("modules.json", "1_Pooling/config.json", "config_sentence_transformers.json")
# in the names of models with a *ForCausalLM class that are made for pooling, such as
# Qwen3-Embedding-8B
EMBEDDING_NAME = re.compile(r"(?i)(?<![a-z])(embed(ding)?s?|e5|gte|bge)(?![a-z])")
SCORING_NAME = re.compile(r"(?i)(?<![a-z])(rerank(er)?|reward)(?![a-z])")


@lru_cache(maxsize=1)
def _kinds() -> dict[str, frozenset[str]]:
    kinds = json.loads(KINDS.read_text(encoding="utf-8"))
    return {name: frozenset(kinds[name]) for name in ("multimodal", "pooling", "no_cache")}


def is_multimodal(architecture: str) -> bool:
    """Return True if vLLM runs the architecture with an encoder of images, videos or sound."""
    return architecture in _kinds()["multimodal"]


def keeps_no_cache(architecture: str) -> bool:
    """Return True for an encoder, whose attention looks both ways: vLLM gives it no KV cache."""
    return architecture in _kinds()["no_cache"]


def pooling_of(architecture: str, name: str = "", folder: Path | None = None) -> str:
    """Return what a pooling model computes ("vectors" or "scores"); "" for one that generates text.

    Args:
        name: the model's name, or the folder's.
        folder: where its files lie; Sentence Transformers' files there decide, as in vLLM.
    """
    scores = architecture.endswith(SCORING) or bool(SCORING_NAME.search(name))
    what = "scores" if scores else "vectors"
    if folder and any((folder / file).exists() for file in POOLING_FILES):
        return what
    if architecture in _kinds()["pooling"] or architecture.endswith(SCORING):
        return what
    if architecture.endswith(GENERATING) or is_multimodal(architecture):
        named = EMBEDDING_NAME.search(name) or SCORING_NAME.search(name)
        return what if named else ""
    if architecture.endswith(EMBEDDING):
        return what
    return ""
