"""The sizes of encoders, by family: their layers, and the largest image, video or sound.

Live tensors are counted in elements a patch: the layers of Qwen-VL, Gemma 3, Mistral 3, GLM and
Kimi were run on the meta device, and every storage followed. Each formula takes the model, the
fields of its whole config, and max_model_len. Source: the modules of vLLM 0.32.0 that they name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.fields import Fields


@dataclass(frozen=True)
class Item:
    """The largest item of a modality: tokens in the prompt, patches in the encoder."""

    tokens: int
    patches: int


@dataclass(frozen=True)
class Encoder:
    """The sizes of an encoder. Widths are elements; `items` are by modality, at max_model_len.

    Attributes:
        gated: the MLP has two up projections, whose product is kept beside both and the activated
            one.
        activation_copies: tensors of the MLP's width that an MLP without gate has at its peak.
        residuals: tensors of the hidden width beside those of the MLP. 2: the norm adds in place.
        rotary: queries and keys are copied and turned.
        input_width: elements of one patch's pixels, kept until the run ends.
        kept_width: elements a patch of earlier layers' outputs that are kept until the last layer.
        output_copies: embeddings of the text model's width that each token gets (deepstack adds
            some).
        longest_video_tokens: of the largest video where `Version.has_longest_videos`; 0: as
            elsewhere.
        source: the module of vLLM that was read, or how it was guessed.
        guessed: there is no formula for the family.
    """

    hidden: int
    intermediate: int
    items: Mapping[str, Item]
    gated: bool = False
    activation_copies: int = 2
    residuals: int = 3
    rotary: bool = False
    head_dim: int = 0
    input_width: int = 0
    kept_width: int = 0
    output_copies: int = 1
    longest_video_tokens: int = 0
    source: str = ""
    guessed: bool = False

    def elements(self, tp: int) -> int:
        """Return the elements of one patch at the encoder's peak, on one of `tp` ranks."""
        width = self.intermediate // tp
        if self.gated:
            # both halves of the gate, the activated one, and their product; then the product goes
            # down
            activated = self.residuals * self.hidden + 4 * width
            mlp = max(activated, (self.residuals + 1) * self.hidden + 3 * width)
        else:
            mlp = self.residuals * self.hidden + self.activation_copies * width
        # input, its norm and the product; qkv and the output; where they are turned, q and k are
        # copied, and turned
        heads = 4
        positions = 0
        if self.rotary:
            heads += 4
            positions = 4 * self.head_dim // 2  # cosines and sines, kept once more
        attention = 3 * self.hidden + heads * self.hidden // tp
        return max(mlp, attention) + self.input_width + self.kept_width + positions


def _factors(most: int) -> int:
    """Return the largest product up to `most` of two sides, one at most 200 times the other."""
    for tokens in range(most, 0, -1):
        for side in range(math.isqrt(tokens), 0, -1):
            if tokens % side == 0:
                if tokens // side / side <= 200:
                    return tokens
                break
    return 1


QWEN2_PIXELS = 12_845_056  # preprocessor_config.json of Qwen2-VL and 2.5-VL: max_pixels
QWEN3_PIXELS = 16_777_216  # of Qwen3-VL and 3.5: size.longest_edge
QWEN3_VIDEO_PIXELS = 25_165_824  # video_preprocessor_config.json
# tokens of the video that 0.11.0 said to be largest, in its log; later 12,288
QWEN3_LONGEST_VIDEO = 153_600
QWEN2_FRAMES = 14  # qwen2_vl.py, _MAX_FRAMES_PER_VIDEO


def _qwen_sizes(fields: Fields) -> dict[str, Any]:
    """Return what all encoders of the Qwen-VL family have."""
    vision = fields.object("vision_config")
    hidden = vision.first_int("embed_dim", "hidden_size", default=1280)
    heads = vision.int("num_heads", 16)
    patch = vision.int("patch_size", 14)
    frames = vision.int("temporal_patch_size", 2)
    return {
        "hidden": hidden,
        "rotary": True,
        "head_dim": hidden // heads,
        "input_width": vision.first_int("in_channels", "in_chans", default=3) * frames * patch**2,
    }


def _qwen2_items(fields: Fields, max_model_len: int) -> dict[str, Item]:
    """Return the largest image, and a video of as many as max_model_len has room for."""
    vision = fields.object("vision_config")
    merged = vision.int("spatial_merge_size", 2) ** 2
    unit = vision.int("patch_size", 14) ** 2 * merged
    image = _factors(QWEN2_PIXELS // unit)
    pairs = max(1, min(max_model_len // image, QWEN2_FRAMES // 2))
    return {
        "image": Item(image, image * merged),
        "video": Item(pairs * image, pairs * image * merged),
    }


def _qwen2_vl(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    sizes = _qwen_sizes(fields)
    ratio = fields.object("vision_config").int("mlp_ratio", 4)
    return Encoder(
        **sizes,
        intermediate=ratio * sizes["hidden"],
        activation_copies=3,  # QuickGELU
        items=_qwen2_items(fields, max_model_len),
        source="models/qwen2_vl.py",
    )


def _qwen2_5_vl(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    return Encoder(
        **_qwen_sizes(fields),
        intermediate=fields.object("vision_config").int("intermediate_size", 3420),
        gated=True,
        residuals=2,
        items=_qwen2_items(fields, max_model_len),
        source="models/qwen2_5_vl.py",
    )


def _qwen3_vl(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    vision = fields.object("vision_config")
    merged = vision.int("spatial_merge_size", 2) ** 2
    unit = vision.int("patch_size", 16) ** 2 * merged
    levels = len(vision.list("deepstack_visual_indexes", int))
    image = _factors(QWEN3_PIXELS // unit)
    video = _factors(QWEN3_VIDEO_PIXELS // 2 // unit)
    return Encoder(
        **_qwen_sizes(fields),
        intermediate=vision.int("intermediate_size", 4304),
        kept_width=levels * model.hidden_size // merged,
        output_copies=1 + levels,
        longest_video_tokens=QWEN3_LONGEST_VIDEO,
        items={"image": Item(image, image * merged), "video": Item(video, video * merged)},
        source="models/qwen3_vl.py",
    )


def _gemma3(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    vision = fields.object("vision_config")
    patch = vision.int("patch_size", 14)
    patches = (vision.int("image_size", 896) // patch) ** 2
    return Encoder(
        hidden=vision.int("hidden_size", 1152),
        intermediate=vision.int("intermediate_size", 4304),
        input_width=vision.int("num_channels", 3) * patch**2,
        items={"image": Item(fields.int("mm_tokens_per_image", 256), patches)},
        source="models/gemma3_mm.py",
    )


GEMMA4_FRAMES = 32  # gemma4_mm.py, _VIDEO_MAX_FRAMES
GEMMA4_FRAME_TOKENS = 70  # _VIDEO_MAX_SOFT_TOKENS; with 2 marks and 6 tokens of a time stamp


def _gemma4(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    vision = fields.object("vision_config")
    pooled = vision.int("pooling_kernel_size", 3) ** 2
    image = vision.int("default_output_length", 280)
    video = GEMMA4_FRAMES * (GEMMA4_FRAME_TOKENS + 2 + 6)
    items = {
        "image": Item(image, image * pooled),
        "video": Item(video, GEMMA4_FRAMES * GEMMA4_FRAME_TOKENS * pooled),
    }
    return Encoder(
        hidden=vision.int("hidden_size", 1152),
        intermediate=vision.int("intermediate_size", 4304),
        gated=True,
        rotary=True,
        head_dim=vision.int("head_dim", 72),
        input_width=3 * vision.int("patch_size", 16) ** 2,
        items=items,
        source="models/gemma4_mm.py",
    )


def _mistral3(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    vision = fields.object("vision_config")
    merge = fields.int("spatial_merge_size", 2)
    patch = vision.int("patch_size", 14)
    side = -(-vision.int("image_size", 1540) // (patch * merge))
    return Encoder(
        hidden=vision.int("hidden_size", 1024),
        intermediate=vision.int("intermediate_size", 4096),
        gated=True,
        residuals=4,
        rotary=True,
        head_dim=vision.int("head_dim", 64),
        input_width=2 * vision.int("num_channels", 3) * patch**2,  # and packed
        items={"image": Item(side**2, (side * merge) ** 2)},
        source="models/mistral3.py",
    )


LLAMA4_TILES = 16  # preprocessor_config.json, max_patches; with the whole image once more


def _llama4(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    vision = fields.object("vision_config")
    side = vision.int("image_size", 336) // vision.int("patch_size", 14)
    tiles = LLAMA4_TILES + 1
    merged = round(1 / vision.number("pixel_shuffle_ratio", 0.5, 1) ** 2)
    return Encoder(
        hidden=vision.int("hidden_size", 1408),
        intermediate=vision.int("intermediate_size", 5632),
        rotary=True,
        head_dim=vision.int("hidden_size", 1408) // vision.int("num_attention_heads", 16),
        input_width=3 * vision.int("patch_size", 14) ** 2,
        items={"image": Item(tiles * (side**2 // merged), tiles * (side**2 + 1))},
        source="models/mllama4.py",
    )


MOLMO_CROPS = 12  # preprocessor_config.json, max_crops; with the whole image once more
MOLMO_TOKENS = 1344  # molmo.py: 144 of the whole image, 12 × 100 of the crops side by side


def _molmo(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    """Return CLIP's large encoder, of whose 23 layers all outputs are kept."""
    return Encoder(
        hidden=1024,
        intermediate=4096,
        activation_copies=3,
        input_width=588,
        kept_width=23 * 1024,
        items={"image": Item(MOLMO_TOKENS, (MOLMO_CROPS + 1) * 577)},
        source="models/molmo.py",
    )


PHI4_CROPS = 36  # processor_config.json, dynamic_hd; with the whole image once more


def _phi4mm(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    """Return SigLIP of 448 pixels: 256 tokens a crop, and a separator a row."""
    rows = PHI4_CROPS * 16  # of tokens: the crops stand one above the other
    tokens = 256 + 16 + 1 + PHI4_CROPS * 256 + rows
    return Encoder(
        hidden=1152,
        intermediate=4304,
        input_width=588,
        items={"image": Item(tokens, (PHI4_CROPS + 1) * 1024)},
        source="models/phi4mm.py",
    )


KIMI_PATCHES = 16_384  # preprocessor_config.json of Kimi-K2.5: in_patch_limit


def _kimi(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    vision = fields.object("vision_config")
    hidden = vision.int("vt_hidden_size", 1152)
    return Encoder(
        hidden=hidden,
        intermediate=vision.int("vt_intermediate_size", 4304),
        rotary=True,
        head_dim=hidden // vision.int("vt_num_attention_heads", 16),
        input_width=3 * vision.int("patch_size", 14) ** 2,
        items={"vision_chunk": Item(KIMI_PATCHES // 4, KIMI_PATCHES)},
        source="models/kimi_k25.py",
    )


# preprocessor_config.json and video_preprocessor_config.json of GLM-4.1V and 4.5V: longest_edge,
# for two frames
GLM4_IMAGE_PIXELS = 9_633_792 // 2
GLM4_VIDEO_PIXELS = 47_040_000 // 2


def _glm4v(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder:
    """Return an encoder with a video as long as a prompt with one image."""
    vision = fields.object("vision_config")
    patch = vision.int("patch_size", 14)
    merged = vision.int("spatial_merge_size", 2) ** 2
    image = GLM4_IMAGE_PIXELS // (patch**2 * merged)
    longest = GLM4_VIDEO_PIXELS // (patch**2 * merged)
    video = max(image, min(longest, max_model_len - image))
    hidden = vision.int("hidden_size", 1536)
    return Encoder(
        hidden=hidden,
        intermediate=vision.int("out_hidden_size", 4096),
        gated=True,
        residuals=2,
        rotary=True,
        head_dim=hidden // vision.int("num_heads", 12),
        input_width=6 * patch**2,
        items={"image": Item(image, image * merged), "video": Item(video, video * merged)},
        source="models/glm4_1v.py",
    )


def guessed(model: ModelConfig, fields: Fields, max_model_len: int) -> Encoder | None:
    """Return one image of the vision_config's image_size, with four patches a token."""
    vision = fields.object("vision_config")
    hidden = vision.positive("embed_dim", "hidden_size", "vt_hidden_size", "width")
    if not hidden:
        return None
    intermediate = vision.positive("intermediate_size", "vt_intermediate_size", default=4 * hidden)
    patch = vision.positive("patch_size", default=14)
    size = vision.positive("image_size", default=896)
    patches = (size // patch) ** 2 or 1
    return Encoder(
        hidden=hidden,
        intermediate=intermediate,
        rotary=True,
        input_width=3 * patch**2,
        items={"image": Item(max(1, patches // 4), patches)},
        source="the sizes of its vision_config",
        guessed=True,
    )


# By architecture.
FORMULAS: dict[str, Callable[[ModelConfig, Fields, int], Encoder | None]] = {
    "Qwen2VLForConditionalGeneration": _qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": _qwen2_5_vl,
    "Qwen3VLForConditionalGeneration": _qwen3_vl,
    "Qwen3VLMoeForConditionalGeneration": _qwen3_vl,
    "Qwen3_5ForConditionalGeneration": _qwen3_vl,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_vl,
    "Gemma3ForConditionalGeneration": _gemma3,
    "Gemma4ForConditionalGeneration": _gemma4,
    "Mistral3ForConditionalGeneration": _mistral3,
    "Llama4ForConditionalGeneration": _llama4,
    "Glm4vForConditionalGeneration": _glm4v,
    "Glm4vMoeForConditionalGeneration": _glm4v,
    "KimiK25ForConditionalGeneration": _kimi,
    "MolmoForCausalLM": _molmo,
    "Phi4MMForCausalLM": _phi4mm,
}
