"""A tokenizer and image sizes for a Qwen2.5-VL folder, so that vLLM can profile its encoder without a download."""

from __future__ import annotations

import json
from pathlib import Path

# The ids that Qwen2.5-VL's config.json names; vLLM's profile looks for the placeholders of images and videos.
SPECIAL_TOKENS = {
    "<|endoftext|>": 151643,
    "<|im_start|>": 151644,
    "<|im_end|>": 151645,
    "<|vision_start|>": 151652,
    "<|vision_end|>": 151653,
    "<|vision_pad|>": 151654,
    "<|image_pad|>": 151655,
    "<|video_pad|>": 151656,
}
ORDINARY_TOKENS = 1000

# Qwen/Qwen2.5-VL-7B-Instruct's preprocessor_config.json: an image has 4 to 16,384 patches of 28 × 28 pixels.
IMAGE_SIZES = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_processor(folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the preprocessors' files into the model's folder."""
    vocabulary = {f"w{number}": number for number in range(ORDINARY_TOKENS)}
    added_tokens = []
    for content, number in SPECIAL_TOKENS.items():
        vocabulary[content] = number
        added_tokens.append(
            {
                "id": number,
                "content": content,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        )
    files = {
        "tokenizer.json": {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added_tokens,
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
        },
        "preprocessor_config.json": {
            **IMAGE_SIZES,
            "image_processor_type": "Qwen2VLImageProcessor",
            "processor_class": "Qwen2_5_VLProcessor",
        },
        "video_preprocessor_config.json": {
            **IMAGE_SIZES,
            "video_processor_type": "Qwen2VLVideoProcessor",
        },
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
