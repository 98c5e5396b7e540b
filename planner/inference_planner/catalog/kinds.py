"""Tell what vLLM does with an architecture: generate text, or compute vectors or scores.

Source: vLLM 0.32.0, model_executor/models/registry.py (kinds.json), config/model.py
_get_default_runner_type.
"""

import json
import re
from functools import lru_cache
from pathlib import Path

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
