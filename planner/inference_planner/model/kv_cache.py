"""Compute the KV cache as vLLM lays it out: pages, groups, blocks, tokens and concurrency.

Source: vLLM 0.25.1, v1/kv_cache_interface.py and v1/core/kv_cache_utils.py (unchanged in the parts
used up to 0.32.0).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from inference_planner.catalog.architectures import OWN_CACHE_DTYPES
from inference_planner.catalog.config import DTYPE_BYTES, KV_CACHE_DTYPES, Built, Group, ModelConfig
from inference_planner.errors import BadInput
from inference_planner.model.attention import (
    Attention,
    ceil_div,
    grouped,
    has_states,
    kind_of_spec,
    main_kind,
)

# vllm/config/cache.py, DEFAULT_BLOCK_SIZE; FlashAttention and its MLA variant keep it
BLOCK_SIZE = 16


def kv_dtype_bytes(model: ModelConfig, kv_cache_dtype: str = "auto") -> int:
    """Return the bytes of one cached element.

    Raises BadInput for a dtype that is not one of KV_CACHE_DTYPES.
    """
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        remedy = f"Choose from: {', '.join(KV_CACHE_DTYPES)}."
        raise BadInput(f"kv_cache_dtype {kv_cache_dtype!r} is not known.", remedy)
    stored = stored_cache_dtype(model, kv_cache_dtype)
    return KV_CACHE_DTYPES[stored] or DTYPE_BYTES[model.dtype]


def stored_cache_dtype(model: ModelConfig, kv_cache_dtype: str) -> str:
    """Return the dtype of the KV cache as vLLM's selector sees it.

    A class may have one of its own, and a checkpoint may ask for one.
    """
    if kv_cache_dtype == "auto" and model.architecture in OWN_CACHE_DTYPES:
        return OWN_CACHE_DTYPES[model.architecture]
    if kv_cache_dtype == "auto" and model.quantization:
        kv_cache_dtype = model.quantization.kv_cache_dtype
    return kv_cache_dtype


def kv_cache_bytes_per_token(model: ModelConfig, kv_cache_dtype: str = "auto") -> int:
    """Return the KV-cache bytes that one token needs, summed over all layers.

    2 × layers × KV heads × head_dim × bytes of an element: each layer stores K and V of shape
    [num_key_value_heads, head_dim]. A kind of attention says what it stores instead: MLA one latent
    of kv_lora_rank + qk_rope_head_dim, Mamba nothing a token. Whole model: not divided by
    tensor_parallel_size, and sliding-window layers count as long as the token is inside their
    window.

    Raises BadInput (a ValueError): kv_cache_dtype is not one of KV_CACHE_DTYPES.
    Source: PagedAttention (arXiv 2309.06180); vLLM 0.25.1 v1/kv_cache_interface.py.
    """
    element_bytes = kv_dtype_bytes(model, kv_cache_dtype)
    if model.exact and model.exact.builds:
        built = model.exact.builds[0]
        layer_bytes = main_kind(model).token_bytes(model, 1, element_bytes)
        return built.bytes_per_token * layer_bytes // _built_token_bytes(model, built)
    total = 0
    for kind, _, layers in grouped(model):
        total += len(layers) * kind.token_bytes(model, 1, element_bytes)
    return total


def _built_token_bytes(model: ModelConfig, built: Built) -> int:
    """Return the bytes of a layer's token as the class that was built keeps it: latents packed."""
    as_built = model.with_packed_latents(True)
    return main_kind(as_built).token_bytes(as_built, 1, built.kv_bytes_each)


def kv_bytes_for_context(
    model: ModelConfig, tokens: int, kv_cache_dtype: str = "auto"
) -> tuple[int, int]:
    """Return (least, most) bytes that `tokens` of context need, over all layers.

    Least: every sliding-window layer keeps only its window. Most: the whole context in every layer,
    which is what an engine without a hybrid KV-cache manager keeps. Equal for models without
    sliding windows.
    """
    element_bytes = kv_dtype_bytes(model, kv_cache_dtype)
    least = 0
    for kind, size, layers in grouped(model):
        token_bytes = len(layers) * kind.token_bytes(model, 1, element_bytes)
        least += token_bytes * kind.cached_tokens(tokens, size)
    most = tokens * kv_cache_bytes_per_token(model, kv_cache_dtype)
    return least, most


@dataclass(frozen=True)
class DraftLayers:
    """The layers that a draft adds to the KV cache: `count` of them on the last pipeline stage.

    token_bytes: what one token leaves in one of them on a rank. tokens: draft tokens of a step, for
    each of which a layer with states keeps one more state.
    """

    count: int = 0
    token_bytes: int = 0
    tokens: int = 0


@dataclass(frozen=True)
class Layout:
    """The groups of layers that share the pool of blocks.

    Source: kv_cache_utils.get_kv_cache_groups.
    """

    groups: tuple[Group, ...]
    block_size: int
    # known from a build by vLLM: (a stage's first layer, bytes of a block there)
    pools: tuple[tuple[int, int], ...] = ()
    # a draft's layers, numbered after those of the model, which are in one of the groups
    draft_layers: tuple[int, ...] = ()
    # of a draft whose pages have another size, in each block
    draft_block_bytes: int = 0
    last_layer: int = -1  # of the model: the draft is on the rank that has it


NO_DRAFT = DraftLayers()


@lru_cache(maxsize=512)
def layout(
    model: ModelConfig,
    tp: int,
    kv_cache_dtype: str,
    max_model_len: int,
    in_flight: int,
    *,
    starts: tuple[int, ...] = (0,),
    cached_states: bool = True,
    draft: DraftLayers = NO_DRAFT,
) -> Layout:
    """Return the groups of layers that vLLM makes for the whole model at this tensor parallel size.

    starts: the first layer of each pipeline stage. cached_states: requests keep a further state for
    others with the same prefix, as 0.32.0 does and 0.25.1 does not. draft: what speculative
    decoding adds.
    """
    element_bytes = kv_dtype_bytes(model, kv_cache_dtype)
    built = model.exact.of(tp, len(starts)) if model.exact else None
    if built and draft.tokens and len(built.groups) > 1:
        built = None  # a draft's layers change how the others are grouped
    if built:
        sizes = (
            _built_token_bytes(model, built),
            main_kind(model).token_bytes(model, 1, element_bytes),
        )
        is_same_dtype = built.kv_bytes_each == element_bytes
        lay = _built_layout(
            built, sizes, max_model_len, in_flight, starts, cached_states, is_same_dtype
        )
        return _with_draft(lay, model, draft)
    token_bytes = main_kind(model).token_bytes(model, tp, element_bytes)
    draft_layers = _layers_of_draft(model, draft, token_bytes)
    members = _members(model, draft_layers)
    block = _block_size(model, tp, token_bytes, draft.tokens)
    page = block * max(
        token_bytes, *(kind.token_bytes(model, tp, element_bytes) for kind, _, _ in members)
    )
    group_size = _group_size([len(layers) for _, _, layers in members])
    groups: list[Group] = []
    for kind, size, layers in members:
        kind_token_bytes = kind.token_bytes(model, tp, element_bytes) or token_bytes
        # all pages have one size: a page of smaller tokens holds more of them
        tokens = page // (block * kind_token_bytes) * block
        blocks = kind.blocks(size, tokens, max_model_len, in_flight)
        states = kind.states(model, tp, draft.tokens)
        if states and cached_states:
            blocks = states.blocks
        elif states:
            blocks += draft.tokens
        parts = ceil_div(len(layers), group_size)
        for part in range(parts):
            layers_of_group = layers[part::parts]
            groups.append(
                Group(kind.key, layers_of_group, tokens, page, blocks, size, kind.keeps_states)
            )
    lay = Layout(tuple(groups), block)
    if draft_layers:
        return replace(lay, draft_layers=draft_layers, last_layer=model.num_hidden_layers - 1)
    return _with_draft(lay, model, draft)


def _layers_of_draft(model: ModelConfig, draft: DraftLayers, token_bytes: int) -> tuple[int, ...]:
    """Return a draft's layers if they join those with the whole context, of equal tokens; or ()."""
    sees_all = any(kind is main_kind(model) and size == 0 for kind, size, _ in grouped(model))
    if draft.token_bytes != token_bytes or not sees_all:
        return ()
    return tuple(range(model.num_hidden_layers, model.num_hidden_layers + draft.count))


def _members(
    model: ModelConfig, draft_layers: tuple[int, ...]
) -> list[tuple[Attention, int, tuple[int, ...]]]:
    """Return (kind, window, its layers) of all layers with a cache, those of a draft among them."""
    members: list[tuple[Attention, int, tuple[int, ...]]] = []
    for kind, size, layers in grouped(model):
        if kind is main_kind(model) and size == 0:
            layers = (*layers, *draft_layers)
        members.append((kind, size, layers))
    return members


def _group_size(counts: Sequence[int]) -> int:
    """Return the layers of a group: the rarest kind's, unless the kinds are about equally many."""
    if max(counts) < min(counts) * 1.5:
        return max(counts)
    return min(counts)


def _with_draft(lay: Layout, model: ModelConfig, draft: DraftLayers) -> Layout:
    """Return a layout with the draft's pages added to each block."""
    if not draft.count:
        return lay
    size = draft.count * draft.token_bytes * lay.block_size
    return replace(lay, draft_block_bytes=size, last_layer=model.num_hidden_layers - 1)


def _block_size(model: ModelConfig, tp: int, token_bytes: int, draft_tokens: int) -> int:
    """Return the tokens of a block, whose page must hold a state where there are any.

    Source: platforms/interface.py, _align_hybrid_block_size.
    """
    if not has_states(model):
        return BLOCK_SIZE
    step = main_kind(model).block_step
    largest = 0
    for kind, _, _ in grouped(model):
        states = kind.states(model, tp, draft_tokens)
        if states:
            largest = max(largest, states.bytes)
    return step * max(1, ceil_div(largest, step * token_bytes))


def _built_layout(
    built: Built,
    sizes: Sequence[int],
    max_model_len: int,
    in_flight: int,
    starts: tuple[int, ...],
    cached_states: bool,
    is_same_dtype: bool,
) -> Layout:
    """Return the groups as vLLM made them.

    With a KV cache of another dtype than was built, a page of the same bytes holds more or fewer
    tokens; in the same dtype, another layout has pages of other bytes. sizes: bytes of a token as
    it was built, and in the plan.
    """
    built_token_bytes, token_bytes = sizes
    pool_bytes = built.pool_bytes_per_block
    if is_same_dtype:  # the same tokens a block, each without its scales
        pool_bytes = tuple(size * token_bytes // built_token_bytes for size in pool_bytes)
        built_token_bytes = token_bytes
    groups: list[Group] = []
    for group in built.groups:
        block = group.block_size * built_token_bytes // token_bytes
        group = replace(group, block_size=block)
        kind = kind_of_spec(group.kind)
        if kind:
            group = replace(group, kind=kind.key, keeps_states=kind.keeps_states)
        if kind and not (kind.keeps_states and cached_states):
            blocks = kind.blocks(group.size, block, max_model_len, in_flight)
            group = replace(group, blocks_per_request=blocks)
        groups.append(group)
    pools = tuple(zip(starts, pool_bytes, strict=True))
    smallest_block = min(group.block_size for group in groups)
    return Layout(tuple(groups), smallest_block, pools)


def shared_out(lay: Layout, dcp: int) -> Layout:
    """Return a layout of which each of dcp ranks keeps every dcp-th token, in fewer blocks.

    Source: vLLM 0.32.0, v1/kv_cache_interface.py FullAttentionSpec.max_memory_usage_bytes; states
    are not shared out.
    """
    groups: list[Group] = []
    for group in lay.groups:
        if not group.keeps_states:
            blocks = ceil_div(group.blocks_per_request, dcp)
            group = replace(group, blocks_per_request=blocks)
        groups.append(group)
    return replace(lay, groups=tuple(groups))


def pool_bytes_per_block(lay: Layout, layers: Sequence[int]) -> int:
    """Return a block's bytes on a rank: a tensor for each layer there of the longest group."""
    has_draft = lay.last_layer in layers
    beside = lay.draft_block_bytes if has_draft else 0
    if lay.pools:
        return dict(lay.pools)[layers[0]] + beside
    layers_of_rank = set(layers)
    if has_draft:
        layers_of_rank.update(lay.draft_layers)
    tensors = max(len(layers_of_rank.intersection(group.layers)) for group in lay.groups)
    return tensors * lay.groups[0].page_bytes + beside


def blocks_per_request(lay: Layout) -> int:
    """Return the blocks that one request of max_model_len can hold at most, over all groups."""
    return sum(group.blocks_per_request for group in lay.groups)


@dataclass(frozen=True)
class Capacity:
    """The capacity that vLLM prints: blocks, "GPU KV cache size" in tokens, "Maximum concurrency"."""

    blocks: int
    tokens: int
    max_concurrency: float


def capacity(
    lay: Layout,
    layers_of_ranks: Sequence[Sequence[int]],
    available_bytes: Sequence[int],
    max_model_len: int,
) -> Capacity:
    """Return the capacity of pipeline ranks, of which the one with fewest blocks decides.

    tokens = concurrency × max_model_len, cut to a whole number, as
    v1/core/kv_cache_utils.get_kv_cache_capacity does.
    """
    blocks_of_ranks: list[int] = []
    for layers, available in zip(layers_of_ranks, available_bytes, strict=True):
        block_bytes = pool_bytes_per_block(lay, layers)
        if block_bytes:
            blocks_of_ranks.append(max(0, available) // block_bytes)
    blocks = min(blocks_of_ranks)
    concurrency = blocks / blocks_per_request(lay)
    return Capacity(blocks, int(concurrency * max_model_len), concurrency)
