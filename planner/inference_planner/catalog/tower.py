"""The weights of encoder and projector, where the text model has formulas.

Of all others, what vLLM's class or the checkpoint's size says includes them. Source: vLLM 0.32.0,
model_executor/models/siglip.py, pixtral.py, mistral3.py, gemma3_mm.py, mllama4.py, molmo.py,
phi4mm.py.
"""

from collections.abc import Callable, Iterator

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.fields import Fields
from inference_planner.catalog.weight import Weight


def tower_weights(model: ModelConfig) -> Iterator[Weight]:
    """Yield the weights of the encoder and its projector; a text model has none."""
    formula = FORMULAS.get(model.architecture)
    if formula and not model.text_only:
        yield from formula(model, Fields(model.raw, model.location or model.name))


def _layers(layers: int, hidden: int, width: int, gated: bool, bias: bool) -> Iterator[Weight]:
    """Yield the layers of a vision transformer: attention of all heads, an MLP, two norms."""
    qkv = 3 * hidden
    up = 2 * width if gated else width
    for layer in range(layers):
        name = f"tower.{layer}"
        yield Weight(f"{name}.qkv_proj", qkv, hidden, "column", bias=bias)
        yield Weight(f"{name}.out_proj", hidden, hidden, "row", bias=bias)
        yield Weight(f"{name}.fc1", up, hidden, "column", bias=bias)
        yield Weight(f"{name}.fc2", hidden, width, "row", bias=bias)
        yield Weight(f"{name}.norms", 2 * hidden, bias=bias)


def _siglip(vision: Fields, size: int, layers: int) -> Iterator[Weight]:
    hidden = vision.int("hidden_size", 1152)
    patch = vision.int("patch_size", 14)
    positions = (vision.int("image_size", size) // patch) ** 2
    yield Weight("tower.patch_embedding", hidden, 3 * patch**2, bias=True)
    yield Weight("tower.position_embedding", positions, hidden)
    count = vision.int("num_hidden_layers", layers)
    width = vision.int("intermediate_size", 4304)
    yield from _layers(count, hidden, width, gated=False, bias=True)
    yield Weight("tower.post_layernorm", hidden, bias=True)


def _gemma3(model: ModelConfig, fields: Fields) -> Iterator[Weight]:
    vision = fields.object("vision_config")
    yield from _siglip(vision, 896, 27)
    hidden = vision.int("hidden_size", 1152)
    yield Weight("projector.mm_input_projection", hidden, model.hidden_size)
    yield Weight("projector.mm_soft_emb_norm", hidden)


def _mistral3(model: ModelConfig, fields: Fields) -> Iterator[Weight]:
    vision = fields.object("vision_config")
    hidden = vision.int("hidden_size", 1024)
    patch = vision.int("patch_size", 14)
    yield Weight("tower.patch_conv", hidden, 3 * patch**2)
    yield Weight("tower.ln_pre", hidden)
    count = vision.int("num_hidden_layers", 24)
    width = vision.int("intermediate_size", 4096)
    yield from _layers(count, hidden, width, gated=True, bias=False)
    merged = fields.int("spatial_merge_size", 2) ** 2
    bias = fields.flag("multimodal_projector_bias")
    yield Weight("projector.norm", hidden)
    yield Weight("projector.patch_merger", hidden, merged * hidden)
    yield Weight("projector.linear_1", model.hidden_size, hidden, "column", bias=bias)
    yield Weight("projector.linear_2", model.hidden_size, model.hidden_size, "row", bias=bias)


def _llama4(model: ModelConfig, fields: Fields) -> Iterator[Weight]:
    vision = fields.object("vision_config")
    hidden = vision.int("hidden_size", 768)  # Transformers' defaults, as vLLM takes them
    patch = vision.int("patch_size", 14)
    positions = (vision.int("image_size", 448) // patch) ** 2 + 1
    width = vision.int("intermediate_size", 5632)
    yield Weight("tower.patch_embedding", hidden, 3 * patch**2, "column")
    yield Weight("tower.class_embedding", hidden)
    yield Weight("tower.positional_embedding", positions, hidden)
    count = vision.int("num_hidden_layers", 34)
    yield from _layers(count, hidden, width, gated=False, bias=True)
    yield Weight("tower.layernorms", 2 * hidden, bias=True)
    middle = vision.int("projector_input_dim", 4096)
    out = vision.int("projector_output_dim", 4096)
    shuffled = round(hidden / vision.number("pixel_shuffle_ratio", 0.5, 1) ** 2)
    yield Weight("tower.vision_adapter.fc1", middle, min(shuffled, width), "column")
    yield Weight("tower.vision_adapter.fc2", out, middle, "row")
    wide = vision.int("vision_output_dim", 7680)
    yield Weight("projector.linear_1", model.hidden_size, wide, "column")


def _molmo(model: ModelConfig, fields: Fields) -> Iterator[Weight]:
    """Yield CLIP's large encoder with 23 layers, fixed in the code, two of them pooled."""
    hidden, width = 1024, 4096
    yield Weight("tower.patch_embedding", hidden, 588)
    yield Weight("tower.positional_embedding", 577, hidden)
    yield Weight("tower.pre_ln", hidden, bias=True)
    yield from _layers(23, hidden, width, gated=False, bias=True)
    yield Weight("tower.image_pooling_2d.qkv", 3 * hidden, 2 * hidden, "column", bias=True)
    yield Weight("tower.image_pooling_2d.wo", hidden, hidden, "row", bias=True)
    yield Weight("projector.gate_up", 2 * model.intermediate_size, hidden, "column")
    yield Weight("projector.down", model.hidden_size, model.intermediate_size, "row")
    yield Weight("new_embedding", 128, model.hidden_size)


def _phi4mm(model: ModelConfig, fields: Fields) -> Iterator[Weight]:
    """Yield SigLIP with 448 pixels, and a conformer for sound, which is not split."""
    yield from _siglip(Fields({"image_size": 448}, fields.where), 448, 27)
    hidden = model.hidden_size
    yield Weight("projector.image", hidden, 1152 + hidden)
    conformer = fields.object("audio_processor").object("config")
    dim = conformer.int("attention_dim", 1024)
    width = conformer.int("linear_units", 1536)
    feed_forwards = 2 * (2 * width + width)  # two of them, each with a gate
    of_layer = dim * (feed_forwards + 4 * dim + 3 * dim)  # attention, the convolution's products
    yield Weight("audio.conformer", conformer.int("num_blocks", 24), of_layer)
    yield Weight("audio.subsampling", dim, 12 * dim)
    yield Weight("projector.audio", hidden, 2 * (dim + hidden))


# By architecture.
FORMULAS: dict[str, Callable[[ModelConfig, Fields], Iterator[Weight]]] = {
    "Gemma3ForConditionalGeneration": _gemma3,
    "Mistral3ForConditionalGeneration": _mistral3,
    "Llama4ForConditionalGeneration": _llama4,
    "MolmoForCausalLM": _molmo,
    "Phi4MMForCausalLM": _phi4mm,
}
