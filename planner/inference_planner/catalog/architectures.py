"""Facts of vLLM's classes that no config.json says, by architecture: encoders, adapters, drafts.

Names are those of `architectures` in config.json. What a family's config.json means is in
families.py. Other modules ask the functions below.
"""

# Which formula of encoders.py counts the activations of an architecture's encoder.
ENCODERS = {
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen3VLForConditionalGeneration": "qwen3_vl",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_vl",
    "Qwen3_5ForConditionalGeneration": "qwen3_vl",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_vl",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Mistral3ForConditionalGeneration": "mistral3",
    "Llama4ForConditionalGeneration": "llama4",
    "Glm4vForConditionalGeneration": "glm4v",
    "Glm4vMoeForConditionalGeneration": "glm4v",
    "KimiK25ForConditionalGeneration": "kimi",
    "MolmoForCausalLM": "molmo",
    "Phi4MMForCausalLM": "phi4mm",
}
# Which formula of tower.py counts the weights of an architecture's encoder and projector.
TOWERS = {
    "Gemma3ForConditionalGeneration": "gemma3",
    "Mistral3ForConditionalGeneration": "mistral3",
    "Llama4ForConditionalGeneration": "llama4",
    "MolmoForCausalLM": "molmo",
    "Phi4MMForCausalLM": "phi4mm",
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


def encoder_of(architecture: str) -> str:
    """Return the name of the formula for the activations of an encoder; "" where there is none."""
    return ENCODERS.get(architecture, "")


def tower_of(architecture: str) -> str:
    """Return the name of the formula for the weights of an encoder; "" where there is none."""
    return TOWERS.get(architecture, "")


def adapts_embeddings(architecture: str) -> bool:
    """Return True if LoRA adapters may change the embedding and lm_head of an architecture."""
    return architecture in ADAPTS_EMBEDDINGS


def sends_states_over_stages(architecture: str) -> bool:
    """Return True if EAGLE-3 gets its hidden states across pipeline stages."""
    return architecture in EAGLE3_OVER_STAGES


def published_mtp_layers(model_type: str) -> int:
    """Return the layers for multi-token prediction of a family's checkpoints; 0 if none is known."""
    return PUBLISHED_MTP_LAYERS.get(model_type, 0)


def overflows_in_float16(model_type: str) -> bool:
    """Return True for the families that vLLM refuses to run in float16."""
    return model_type in OVERFLOW_IN_FLOAT16
