"""The encoder of a multimodal model: what its part of vLLM's profile run takes from the KV cache.

Before the text model, the profile run encodes the largest image, video or sound that a prompt may
hold, as many of them as max_num_batched_tokens has room for (at least one), and keeps their
embeddings while the text model runs. The modality with the most tokens an item is taken. The
encoder's weights and heads are split by tensor parallelism, its hidden states are not. Source: vLLM
0.32.0, multimodal/encoder_budget.py, v1/worker/gpu/mm/encoder_runner.py.

One run was measured: Qwen2.5-VL 7B on an H100 peaked 4.284 GiB above what stood before; counted are
4.291.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from inference_planner.catalog.architectures import is_multimodal
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.catalog.encoder_sizes import FORMULAS, Encoder, Item, guessed
from inference_planner.catalog.fields import Fields
from inference_planner.errors import BadInput
from inference_planner.files import json_setting
from inference_planner.split.settings import Settings

MODALITIES = ("image", "video", "audio", "vision_chunk")
ITEMS_PER_PROMPT = 999  # vLLM's default of --limit-mm-per-prompt, config/multimodal.py
# What the first run of the encoder leaves beside its tensors (kernels, blocks): one run on an H100.
LEFT_BY_ENCODER = 87 << 20


@dataclass(frozen=True)
class EncoderRun:
    """The encoder's bytes in the profile run, on a rank of the first pipeline stage."""

    modality: str
    items: int
    tokens: int  # of one item
    peak_bytes: int
    output_bytes: int  # embeddings, kept while the text model runs
    buffer_bytes: int  # embeddings of a step's inputs, kept for good
    source: str
    guessed: bool


def limits(text: str | Mapping[str, Any] | None) -> tuple[tuple[str, int], ...]:
    """Return --limit-mm-per-prompt as (modality, count) pairs.

    Args:
        text: JSON as vLLM takes it ({"image": 4, "video": {"count": 1}}), `image=4,video=0`, or an
            object.

    Raises BadInput: it is neither, a modality is unknown, or a count is no whole number from 0 on.
    """
    if text is None or text == "":
        return ()
    remedy = """Give counts as JSON, such as '{"image": 4, "video": 0}', or as image=4,video=0."""
    counts = _key_values(text) if isinstance(text, str) else None
    if counts is None:
        counts = json_setting("limit_mm_per_prompt", text, remedy)
    pairs: list[tuple[str, int]] = []
    for modality, value in counts.items():
        if modality not in MODALITIES:
            problem = f"limit_mm_per_prompt has no modality {modality[:40]!r}."
            raise BadInput(problem, f"vLLM's are: {', '.join(MODALITIES)}. {remedy}")
        count = value
        if isinstance(value, Mapping):
            settings = cast("Mapping[str, object]", value)
            count = settings.get("count", ITEMS_PER_PROMPT)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 1 << 20:
            raise BadInput(f"limit_mm_per_prompt says {modality}: {count!r}.", remedy)
        pairs.append((modality, count))
    return tuple(sorted(pairs))


def _key_values(text: str) -> dict[str, int] | None:
    """Return the counts of image=4,video=0; None for another text."""
    counts: dict[str, int] = {}
    for pair in text.replace(",", " ").split():
        name, separator, count = pair.partition("=")
        if not separator or not count.isdecimal() or len(count) > 9:
            return None
        counts[name] = int(count)
    return counts


def encoder(model: ModelConfig, max_model_len: int) -> Encoder | None:
    """Return a multimodal model's encoder; None for a text model, or without its sizes."""
    if not is_multimodal(model.architecture):
        return None
    return _encoder(model, max_model_len)


@lru_cache(maxsize=1024)
def _encoder(model: ModelConfig, max_model_len: int) -> Encoder | None:
    build_encoder = FORMULAS.get(model.architecture, guessed)
    where = model.location or model.name
    return build_encoder(model, Fields(model.raw, where), max_model_len)


def allowed_modalities(settings: Settings, model_encoder: Encoder) -> list[str]:
    """Return the modalities of an encoder that a prompt may hold."""
    if settings.language_model_only:
        return []
    counts = dict(settings.limit_mm_per_prompt)
    return [name for name in model_encoder.items if counts.get(name, ITEMS_PER_PROMPT) > 0]


def skips_tower(model: ModelConfig, settings: Settings) -> bool:
    """Return True if no image, video or sound is allowed: vLLM loads no encoder then.

    Source: vLLM 0.32.0, model_executor/models/interfaces.py _mark_tower_model.
    """
    if not is_multimodal(model.architecture):
        return False
    if settings.language_model_only:
        return True
    model_encoder = encoder(model, settings.max_model_len)
    if model_encoder:
        return not allowed_modalities(settings, model_encoder)
    counts = dict(settings.limit_mm_per_prompt)
    return "image" in counts and not any(counts.values())


def check_inputs(model: ModelConfig, settings: Settings) -> None:
    """Raise BadInput if settings for images, videos or sound are given to a text model."""
    if is_multimodal(model.architecture) or (model.text_of and not settings.limit_mm_per_prompt):
        return
    if settings.limit_mm_per_prompt or settings.language_model_only:
        flag = "--language-model-only" if settings.language_model_only else "--limit-mm-per-prompt"
        if model.text_of:
            _refuse_text_part(model, flag)
        problem = f"{model.name} reads text alone, and {flag} is for models with an encoder."
        raise BadInput(problem, f"Leave {flag} out.")


def _refuse_text_part(model: ModelConfig, flag: str) -> None:
    """Raise BadInput for images to a model of which the catalog has the text model alone."""
    published = model.hub_ids[0] if model.hub_ids else model.name
    folder = published.rpartition("/")[2]
    raise BadInput(
        f"{flag} is for {published} with its encoder, and the catalog has the sizes of "
        f"{model.name}'s text model alone.",
        f"Get its config.json: hf download {published} config.json --local-dir {folder}, and plan "
        f"that folder; or leave {flag} out.",
    )


@lru_cache(maxsize=4096)
def encoder_run(model: ModelConfig, settings: Settings, tp: int) -> EncoderRun | None:
    """Return the encoder's part of the profile run; None without one, its sizes or items."""
    model_encoder = encoder(model, settings.max_model_len)
    if model_encoder is None or model.text_only:
        return None
    version = settings.version
    if version.has_longest_videos and model_encoder.longest_video_tokens:
        video = Item(model_encoder.longest_video_tokens, model_encoder.items["video"].patches)
        model_encoder = replace(model_encoder, items={**model_encoder.items, "video": video})
    # the most tokens; of two that are equal, vLLM takes the last by name
    modalities = allowed_modalities(settings, model_encoder)
    modality = max(modalities, key=lambda name: (model_encoder.items[name].tokens, name))
    item = model_encoder.items[modality]
    count = _items_a_batch(settings, modality, item)
    dtype_bytes = DTYPE_BYTES[model.dtype]
    token_bytes = model.hidden_size * dtype_bytes * model_encoder.output_copies
    output_tokens = item.tokens
    if not version.fits_encoder_outputs:
        output_tokens = max(settings.max_num_batched_tokens, item.tokens)
    output_bytes = count * output_tokens * token_bytes
    peak_bytes = count * item.patches * model_encoder.elements(tp) * dtype_bytes
    return EncoderRun(
        modality=modality,
        items=count,
        tokens=item.tokens,
        peak_bytes=max(peak_bytes, output_bytes),
        output_bytes=output_bytes,
        buffer_bytes=settings.max_num_batched_tokens * token_bytes,
        source=model_encoder.source,
        guessed=model_encoder.guessed,
    )


def _items_a_batch(settings: Settings, modality: str, item: Item) -> int:
    """Return how many items are encoded at once. Source: MultiModalBudget._get_max_items."""
    budget = max(settings.max_num_batched_tokens, item.tokens)
    limit = dict(settings.limit_mm_per_prompt).get(modality, ITEMS_PER_PROMPT)
    per_prompt = max(1, min(limit, settings.max_model_len // item.tokens))
    return max(1, min(budget // item.tokens, settings.max_num_seqs * per_prompt))
