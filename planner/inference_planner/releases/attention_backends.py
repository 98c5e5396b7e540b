"""The attention backends that vLLM's selector takes, as benchmarks/attention_selector recorded them.

The answers are vLLM's own: its selector was asked for each kind of attention, size of heads, dtype
of the KV cache and compute capability, and the class that computes was built. A class that chooses
its backend itself (DeepSeek V4) was asked for its own choice.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
# Names of kinds of attention in the table that others than `attention/` ask for.
SPARSE_LATENT = "sparse latent"
IMAGE_PREFIX = "image prefix"
# Of a sparse latent in FP8: without scales. vLLM 0.32.0, layers/attention/mla_attention.py
# _canonicalize_sparse_mla_kv_cache_dtype packs those of FLASHMLA_SPARSE and of the SM120 alone.
PLAIN_FP8 = ("FLASHINFER_MLA_SPARSE",)
GATES = (7.5, 8.0, 8.9, 9.0, 10.0, 11.0, 12.0)  # where vLLM's backends begin or end


@dataclass(frozen=True)
class SelectorAnswer:
    """The answer of vLLM's selector to one question.

    Attributes:
        backends: those that may serve, in vLLM's order; it takes the first.
        refusal: why vLLM does not start with the first; "" if it does, or was not asked.
    """

    backends: tuple[str, ...]
    refusal: str


@lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    """Return the recorded table as data."""
    return json.loads(FILE.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _answers() -> dict[tuple[str, str, int, str], SelectorAnswer]:
    answers: dict[tuple[str, str, int, str], SelectorAnswer] = {}
    for row in recorded()["rows"]:
        answer = SelectorAnswer(tuple(row["backends"]), row["refusal"])
        for size in row["head_sizes"]:
            for capability in row["capabilities"]:
                answers[row["kind"], row["kv_cache_dtype"], size, capability] = answer
    return answers


def answer(
    kind: str, head_size: int, kv_cache_dtype: str, capability: float
) -> SelectorAnswer | None:
    """Return what vLLM's selector answers, or None where it was not asked.

    Args:
        kind: a kind of attention of the table, such as "heads", "window" or "image prefix".
        capability: the CUDA compute capability. The nearest lower one that was asked counts, if
            vLLM's classes begin nothing new between the two.
    """
    if math.isinf(capability):
        return None
    lower = [c for c in recorded()["capabilities"] if float(c) <= capability]
    if not lower:
        return None
    nearest = max(lower, key=float)
    if any(float(nearest) < gate <= capability for gate in GATES):
        return None
    return _answers().get((kind, kv_cache_dtype, head_size, nearest))


def kind_of_class(architecture: str) -> tuple[str, int] | None:
    """Return the kind and head size of a class that chooses its backend without the selector."""
    own = recorded()["classes"].get(architecture)
    return (own[0], own[1]) if own else None


def has_full_graphs(kind: str) -> bool:
    """Return False for a kind of attention that vLLM captures in no full CUDA graph.

    Its builder answers AttentionCGSupport.NEVER; vLLM then captures the pieces between attention.
    """
    return recorded()["graphs"].get(kind) != "NEVER"


def sees_images_both_ways(config: Mapping[str, Any], model_type: str) -> bool:
    """Return True if vLLM lets an image's tokens see each other in both directions.

    Few backends do (`use_mm_prefix`). vLLM decides by the model's type or a field of its config.

    Args:
        config: the fields of config.json.
        model_type: that of the multimodal model, where the config is of its text model.
    """
    if "is_mm_prefix_lm" in config:
        return bool(config["is_mm_prefix_lm"])
    text: Mapping[str, Any] = config.get("text_config") or config
    needed = recorded()["image_prefix"].get(model_type)
    if needed is None:
        return False
    return all(text.get(name) == value for name, value in needed.items())
