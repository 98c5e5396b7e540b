"""Speculative decoding: what a draft adds to weights, KV cache and states of requests.

A draft proposes num_speculative_tokens tokens, and the model checks them all in one step. MTP
layers are in the model's own checkpoint; an EAGLE head is a layer of its own beside the model; a
draft model is a whole small model; n-grams come from the text so far and take nothing. Source: vLLM
0.32.0, config/speculative.py, models/llama_eagle3.py, models/qwen3_5_mtp.py,
models/deepseek_mtp.py, v1/worker/gpu/spec_decode.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

from inference_planner.catalog import load_model
from inference_planner.catalog.architectures import PUBLISHED_MTP_LAYERS
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig, present
from inference_planner.catalog.fields import json_object
from inference_planner.catalog.read import DRAFT_LAYER_COUNTS, LARGEST_FILE_BYTES, existing
from inference_planner.catalog.weight import ExpertSplit, Weight
from inference_planner.errors import BadInput
from inference_planner.files import json_setting
from inference_planner.model.attention import kind_of, main_kind
from inference_planner.model.weights import layer_parts, tensor_bytes, text_bytes
from inference_planner.request import PlanRequest, whole

OWN_LAYERS = "mtp"
EAGLE3 = "eagle3"
HEADS = ("eagle", EAGLE3)
DRAFT_MODEL = "draft_model"
WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")
METHODS = (OWN_LAYERS, *HEADS, DRAFT_MODEL, *WITHOUT_WEIGHTS)
MOST_TOKENS = 64
SUFFIX_TOKENS = 24  # suffix_decoding_max_tree_depth, the default of num_speculative_tokens there
AUXILIARY_LAYERS = 3  # hidden states of so many layers of the model go into an EAGLE-3 head
DRAFT_VOCABULARY = 32000  # of published EAGLE-3 heads
MLP_OF_EXPERTS = 4  # hidden sizes: width of a head's MLP where the model's own is not dense
SAMPLED = "probabilistic"  # draft_sample_method with which logits of the draft are kept


@dataclass(frozen=True)
class Head:
    """The sizes of an EAGLE head; `vocab` is 0 if it shares the model's lm_head."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int
    target_hidden: int


@dataclass(frozen=True)
class Draft:
    """The way in which draft tokens are made.

    Attributes:
        method: one of METHODS.
        tokens: num_speculative_tokens.
        config: --speculative-config as it stands in the command, in JSON.
        layers: layers of the draft that keep a KV cache.
        model: a draft model.
        head: an EAGLE head.
        is_assumed: the head's config.json was not at hand, and its sizes are the model's own.
        keeps_logits: logits of the draft are kept for each request (draft_sample_method
            "probabilistic").
    """

    method: str
    tokens: int
    config: str
    layers: int = 0
    model: ModelConfig | None = None
    head: Head | None = None
    is_assumed: bool = False
    keeps_logits: bool = False


def read(target: ModelConfig, request: PlanRequest) -> Draft | None:
    """Return how draft tokens are made for a model, or None without speculative decoding.

    Raises BadInput: no JSON object, a method that vLLM does not have or that the model has no
    layers for, or a number of tokens that is missing or impossible.
    """
    fields = _fields(request.speculative_config)
    short = {
        "method": request.spec_method,
        "model": request.spec_model,
        "num_speculative_tokens": request.spec_tokens,
    }
    for name, value in short.items():
        if value is None:
            continue
        if fields.get(name) is not None:
            raise BadInput(
                f"{name} is given twice: by its short flag, and in speculative_config.",
                "Leave one of them out.",
            )
        fields[name] = value
    if not fields:
        return None
    method = _method(fields)
    tokens = _tokens(target, method, fields)
    command = json.dumps({**fields, "method": method, "num_speculative_tokens": tokens})
    draft = Draft(method, tokens, command)
    draft = replace(draft, keeps_logits=fields.get("draft_sample_method") == SAMPLED)
    if method == OWN_LAYERS:
        return replace(draft, layers=min(mtp_layers(target), tokens))
    if method in WITHOUT_WEIGHTS:
        return draft
    name = fields.get("model")
    if not isinstance(name, str) or not name:
        raise BadInput(
            f"The speculative method {method} needs a draft, and none is given.",
            'Name it: "model" in --speculative-config, or --spec-model.',
        )
    if method == DRAFT_MODEL:
        model = load_model(name)
        if model.vocab_size != target.vocab_size and not fields.get("use_heterogeneous_vocab"):
            raise BadInput(
                f"{model.name} has {model.vocab_size:,} tokens in its vocabulary, and {target.name} has "
                f"{target.vocab_size:,}: a draft model must have the same.",
                "Give a smaller model of the same family.",
            )
        return replace(draft, model=model, layers=model.num_hidden_layers)
    head = _read_head(name, target, method)
    if head is None:
        head = _assumed_head(target, method)
        return replace(draft, head=head, layers=head.layers, is_assumed=True)
    return replace(draft, head=head, layers=head.layers)


def _fields(speculative_config: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of --speculative-config, with underscores in their names."""
    if speculative_config is None:
        return {}
    example = """Give it as vLLM takes it: '{"method": "mtp", "num_speculative_tokens": 2}'."""
    fields = json_setting("speculative_config", speculative_config, example)
    if not fields:
        raise BadInput("speculative_config is no JSON object with fields.", example)
    return {str(name).replace("-", "_"): fields[name] for name in fields}


def _method(fields: Mapping[str, Any]) -> str:
    method = fields.get("method")
    if method is None:
        method = "ngram" if fields.get("model") in ("ngram", "[ngram]") else DRAFT_MODEL
    if isinstance(method, str):
        method = method.strip("[]")
        if method.endswith("_mtp"):  # vLLM's older names, one for each family
            method = OWN_LAYERS
        if method in METHODS:
            return method
    raise BadInput(
        f"The plan has no formulas for the speculative method {str(method)[:40]!r}.",
        f"Choose from: {', '.join(METHODS)}.",
    )


def _tokens(model: ModelConfig, method: str, fields: Mapping[str, Any]) -> int:
    tokens = fields.get("num_speculative_tokens")
    if tokens is None and method == OWN_LAYERS:
        tokens = mtp_layers(model)
    if tokens is None and method == "suffix":
        tokens = SUFFIX_TOKENS
    if tokens is None:
        raise BadInput(
            f"num_speculative_tokens is missing, and {method} has no default.",
            'Name it in --speculative-config, for example "num_speculative_tokens": 3, '
            "or by --spec-tokens 3.",
        )
    remedy = "It is the number of draft tokens in a step; 1 to 5 are usual."
    whole("num_speculative_tokens", tokens, MOST_TOKENS, remedy)
    if method == OWN_LAYERS:
        layers = mtp_layers(model)
        if tokens > layers and tokens % layers:
            raise BadInput(
                f"num_speculative_tokens {tokens} is no multiple of the "
                f"{layers} MTP layers of {model.name}.",
                f"vLLM refuses it: give up to {layers}, or a multiple.",
            )
    return tokens


def mtp_layers(model: ModelConfig) -> int:
    """Return the layers for multi-token prediction in the model's checkpoint.

    Raises BadInput: it has none, or there are no formulas for such a layer (DeepSeek V4, whose
    sizes are recorded from vLLM's classes).
    """
    if not any(
        kind_of(model, layer) is main_kind(model) for layer in range(model.num_hidden_layers)
    ):
        raise BadInput(
            f"There are no formulas for the layers of {model.name} that predict several tokens.",
            "Plan it without speculative decoding, and leave some GiB of each GPU for them.",
        )
    places: list[Mapping[str, Any]] = [model.raw]
    inner = model.raw.get("text_config")
    if isinstance(inner, Mapping):
        places.append(cast(Mapping[str, Any], inner))
    for place in places:
        for name in DRAFT_LAYER_COUNTS:
            count = place.get(name)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
            if count == 0:
                raise BadInput(*_without_mtp(model))
    if model.model_type in PUBLISHED_MTP_LAYERS:
        return PUBLISHED_MTP_LAYERS[model.model_type]
    raise BadInput(*_without_mtp(model))


def _without_mtp(model: ModelConfig) -> tuple[str, str]:
    return (
        f"{model.name} has no layers for multi-token prediction: its config.json names none.",
        "Choose another method: eagle3 or draft_model with a draft, or ngram.",
    )


def _read_head(name: str, model: ModelConfig, method: str) -> Head | None:
    """Return the sizes in an EAGLE head's config.json; None if it is not on this machine."""
    path = existing(name)
    if path is None:
        return None
    file = path / "config.json" if path.is_dir() else path
    raw: Mapping[str, Any] = json_object(file, LARGEST_FILE_BYTES)
    layer = raw.get("transformer_layer_config")  # the format of `speculators`
    if isinstance(layer, Mapping):
        raw = {**raw, **cast(Mapping[str, Any], layer)}
    assumed = _assumed_head(model, method)

    def size(field: str, default: int) -> int:
        value = raw.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 24:
            raise BadInput(
                f"{file}: {field} is {value!r}, and must be a whole number above 0.",
                "Give the config.json as the draft's authors published it.",
            )
        return value

    hidden = size("hidden_size", assumed.hidden)
    heads = size("num_attention_heads", assumed.heads)
    vocab = 0
    if method == "eagle3":
        vocab = size("draft_vocab_size", size("vocab_size", model.vocab_size))
    return Head(
        hidden=hidden,
        intermediate=size("intermediate_size", assumed.intermediate),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", hidden // heads),
        layers=size("num_hidden_layers", 1),
        vocab=vocab,
        target_hidden=size("target_hidden_size", model.hidden_size),
    )


def _assumed_head(model: ModelConfig, method: str) -> Head:
    """Return an EAGLE head of one layer with the model's own sizes."""
    intermediate = model.intermediate_size
    if model.moe:
        intermediate = MLP_OF_EXPERTS * model.hidden_size
    vocab = 0
    if method == "eagle3":
        vocab = DRAFT_VOCABULARY
    return Head(
        hidden=model.hidden_size,
        intermediate=intermediate,
        heads=model.num_attention_heads,
        kv_heads=model.num_key_value_heads,
        head_dim=main_kind(model).draft_head_dim(model),
        layers=1,
        vocab=vocab,
        target_hidden=model.hidden_size,
    )


def token_bytes(model: ModelConfig, draft: Draft, tp: int, element_bytes: int) -> int:
    """Return the bytes that one token leaves in one layer of the draft's cache, on one rank."""
    if draft.head:
        heads = max(1, draft.head.kv_heads // tp)
        return 2 * heads * draft.head.head_dim * element_bytes
    drafting = draft.model or model
    return main_kind(drafting).token_bytes(drafting, tp, element_bytes)


def cache_bytes_per_token(model: ModelConfig, draft: Draft | None, element_bytes: int) -> int:
    """Return a token's bytes in all layers of the draft, before tensor parallelism."""
    if draft is None or not draft.layers:
        return 0
    return draft.layers * token_bytes(model, draft, 1, element_bytes)


@lru_cache(maxsize=256)
def weight_bytes(
    model: ModelConfig, draft: Draft, tp: int, experts: ExpertSplit | None = None
) -> int:
    """Return the draft's weights on one rank of the last pipeline stage, in bytes."""
    if draft.method == OWN_LAYERS:
        return draft.layers * _mtp_layer_bytes(model, tp, experts)
    if draft.head:
        total = 0
        for w in head_parts(draft.head, draft.method):
            rows, columns = w.shape_on_rank(tp)
            total += rows * columns * (w.bytes_each or DTYPE_BYTES[model.dtype])
        return total
    if draft.model:
        return text_bytes(draft.model, tp)
    return 0


def _mtp_layer_bytes(model: ModelConfig, tp: int, experts: ExpertSplit | None) -> int:
    """Return the bytes of an MTP layer: a decoder layer, and the product of its two inputs.

    It shares the embedding and lm_head with the model. Which of its weights are quantized is taken
    from the last layer.
    """
    kind = main_kind(model)
    layer = max(i for i in range(model.num_hidden_layers) if kind_of(model, i) is kind)
    product = Weight("mtp.fc", model.hidden_size, 2 * model.hidden_size)
    total = sum(tensor_bytes(model, product, layer, tp))
    return total + sum(part.bytes for part in layer_parts(model, layer, tp, experts))


def head_parts(head: Head, method: str) -> Iterator[Weight]:
    """Yield the weights of an EAGLE head but the embedding and, in EAGLE-1, lm_head."""
    query_rows = head.heads * head.head_dim
    kv_rows = 2 * head.kv_heads * head.head_dim
    inputs = 2 * head.hidden
    if method == "eagle3":
        inputs = AUXILIARY_LAYERS * head.target_hidden
    yield Weight("fc", head.hidden, inputs)
    for layer in range(head.layers):
        width = head.hidden
        if method == "eagle3" and layer == 0:
            width = 2 * head.hidden  # the embedding and the hidden state, side by side
        yield Weight(
            "qkv_proj", query_rows + kv_rows, width, "qkv", kv_heads=head.kv_heads, kv_rows=kv_rows
        )
        yield Weight("o_proj", head.hidden, query_rows, "row")
        yield Weight("gate_up_proj", 2 * head.intermediate, head.hidden, "column")
        yield Weight("down_proj", head.hidden, head.intermediate, "row")
    if head.vocab:
        yield Weight("lm_head", head.vocab, head.hidden, "vocab")
        yield Weight("d2t", head.vocab, bytes_each=8)


def width(model: ModelConfig, draft: Draft) -> tuple[int, int, int]:
    """Return the draft's hidden size, the width of its MLP, and its vocabulary."""
    if draft.head:
        return draft.head.hidden, draft.head.intermediate, draft.head.vocab or model.vocab_size
    drafting = draft.model or model
    intermediate = drafting.intermediate_size
    if drafting.moe:
        intermediate = present(drafting.moe).intermediate_size
    return drafting.hidden_size, intermediate, drafting.vocab_size


def explain(model: ModelConfig, draft: Draft, tp: int) -> Iterator[str]:
    """Yield sentences on what a draft takes and what is not known of it."""
    tokens = "1 draft token a step"
    if draft.tokens > 1:
        tokens = f"{draft.tokens} draft tokens a step"
    if draft.method in WITHOUT_WEIGHTS:
        yield (
            f"Speculative decoding by {draft.method}, {tokens}: it has "
            "no weights and no KV cache of its own."
        )
    else:
        size = weight_bytes(model, draft, tp) / (1 << 30)
        layers = f"{draft.layers} layer"
        if draft.layers > 1:
            layers += "s"
        yield (
            f"Speculative decoding by {draft.method}, {tokens}: the draft has {layers} in the KV "
            f"cache, and {size:.2f} GiB of weights on each GPU of the last stage."
        )
    if draft.is_assumed:
        yield (
            "The draft's config.json is not on this machine: its sizes are taken as the model's "
            "own, in one layer. Give its folder for exact sizes."
        )
    yield (
        "tokens/s are those without draft tokens: how many of them the model accepts is not "
        "known. A step with them takes longer, and gives more tokens."
    )
