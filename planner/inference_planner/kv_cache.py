"""The KV cache as vLLM lays it out: bytes a token, pages, groups of layers, blocks, tokens and concurrency.

Source: vLLM 0.25.1, v1/kv_cache_interface.py and v1/core/kv_cache_utils.py (unchanged in the parts used up to 0.32.0).
"""

# m model, g group of layers, i layer
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from inference_planner.attention import ceil_div, grouped, has_states, kind_of_spec, main_kind
from inference_planner.catalog.config import DTYPE_BYTES, Built, Group, ModelConfig
from inference_planner.errors import BadInput

BLOCK_SIZE = (
    16  # vllm/config/cache.py, DEFAULT_BLOCK_SIZE; FlashAttention and its MLA variant keep it
)
KV_CACHE_DTYPES = {"auto": 0, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def kv_dtype_bytes(m: ModelConfig, kv_cache_dtype: str = "auto") -> int:
    """Return the bytes of one cached element. Raises BadInput for a dtype that is not one of KV_CACHE_DTYPES."""
    if kv_cache_dtype not in KV_CACHE_DTYPES:
        remedy = f"Choose from: {', '.join(KV_CACHE_DTYPES)}."
        raise BadInput(f"kv_cache_dtype {kv_cache_dtype!r} is not known.", remedy)
    if kv_cache_dtype == "auto" and m.quantization and m.quantization.kv_cache_dtype != "auto":
        return KV_CACHE_DTYPES[m.quantization.kv_cache_dtype]
    return KV_CACHE_DTYPES[kv_cache_dtype] or DTYPE_BYTES[m.dtype]


def kv_cache_bytes_per_token(m: ModelConfig, kv_cache_dtype: str = "auto") -> int:
    """Return the KV-cache bytes that one token needs, summed over all layers.

    Each layer stores K and V of shape [num_key_value_heads, head_dim]; MLA stores one latent of kv_lora_rank +
    qk_rope_head_dim instead; Mamba layers store nothing a token. Whole model: not divided by tensor_parallel_size,
    and sliding-window layers count as long as the token is inside their window.

    Raises BadInput (a ValueError): kv_cache_dtype is not one of KV_CACHE_DTYPES.
    Source: PagedAttention (arXiv 2309.06180); vLLM 0.25.1 v1/kv_cache_interface.py.
    """
    each = kv_dtype_bytes(m, kv_cache_dtype)
    if m.exact and m.exact.builds:
        built, kind = m.exact.builds[0], main_kind(m)
        return (
            built.bytes_per_token
            * kind.token_bytes(m, 1, each)
            // kind.token_bytes(m, 1, built.kv_bytes_each)
        )
    return sum(len(mine) * kind.token_bytes(m, 1, each) for kind, _, mine in grouped(m))


def kv_bytes_for_context(
    m: ModelConfig, tokens: int, kv_cache_dtype: str = "auto"
) -> tuple[int, int]:
    """Return (least, most) bytes that `tokens` of context need, over all layers.

    Least: every sliding-window layer keeps only its window. Most: the whole context in every layer, which is what an
    engine without a hybrid KV-cache manager keeps. Equal for models without sliding windows.
    """
    each = kv_dtype_bytes(m, kv_cache_dtype)
    kept = sum(
        len(mine) * kind.token_bytes(m, 1, each) * kind.cached_tokens(tokens, size)
        for kind, size, mine in grouped(m)
    )
    return kept, tokens * kv_cache_bytes_per_token(m, kv_cache_dtype)


@dataclass(frozen=True)
class Layout:
    """How the layers share the pool. Source: kv_cache_utils.get_kv_cache_groups."""

    groups: tuple[Group, ...]
    block_size: int
    pools: tuple[
        tuple[int, int], ...
    ] = ()  # where vLLM said it: (a stage's first layer, bytes of a block there)


@lru_cache(maxsize=512)
def layout(
    m: ModelConfig,
    tp: int,
    kv_cache_dtype: str,
    max_model_len: int,
    in_flight: int,
    *,
    starts: tuple[int, ...] = (0,),
    cached_states: bool = True,
) -> Layout:
    """Return the groups of layers that vLLM makes for the whole model at this tensor parallel size.

    starts: the first layer of each pipeline stage. cached_states: requests keep a further state for others with the same
    prefix, as 0.32.0 does and 0.25.1 does not.
    """
    if m.exact and (built := m.exact.of(tp, len(starts))):
        sizes = [
            main_kind(m).token_bytes(m, 1, n)
            for n in (built.kv_bytes_each, kv_dtype_bytes(m, kv_cache_dtype))
        ]
        return _built_layout(built, sizes, max_model_len, in_flight, starts, cached_states)
    each = kv_dtype_bytes(m, kv_cache_dtype)
    token_bytes = main_kind(m).token_bytes(m, tp, each)
    block = _block_size(m, tp, token_bytes)
    counts = [len(mine) for _, _, mine in grouped(m)]
    # the rarest kind's count, unless the kinds are about equally many
    group_size = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    page = block * max(token_bytes, *(kind.token_bytes(m, tp, each) for kind, _, _ in grouped(m)))
    groups: list[Group] = []
    for kind, size, mine in grouped(m):
        parts = ceil_div(len(mine), group_size)
        mean = kind.token_bytes(m, tp, each) or token_bytes
        # pages of one size: of smaller tokens it holds more
        tokens = page // (block * mean) * block
        blocks = kind.blocks(size, tokens, max_model_len, in_flight)
        states = kind.states(m, tp)
        if states and cached_states:
            blocks = states.blocks
        groups += [
            Group(kind.key, mine[i::parts], tokens, page, blocks, size, kind.keeps_states)
            for i in range(parts)
        ]
    return Layout(tuple(groups), block)


def _block_size(m: ModelConfig, tp: int, token_bytes: int) -> int:
    """Return the tokens of a block. Beside layers with states, a page of attention must hold a state.

    Source: platforms/interface.py, _align_hybrid_block_size.
    """
    if not has_states(m):
        return BLOCK_SIZE
    step = main_kind(m).block_step
    every_state = (kind.states(m, tp) for kind, _, _ in grouped(m))
    largest = max((states.bytes for states in every_state if states), default=0)
    return step * max(1, ceil_div(largest, step * token_bytes))


def _built_layout(
    built: Built,
    sizes: Sequence[int],
    max_model_len: int,
    in_flight: int,
    starts: tuple[int, ...],
    cached_states: bool,
) -> Layout:
    """Return the groups as vLLM made them.

    With a KV cache of another dtype than was built, a page of the same bytes holds more or fewer tokens.
    sizes: bytes that a token has as built, and as asked for.
    """
    groups: list[Group] = []
    for g in built.groups:
        block = g.block_size * sizes[0] // sizes[1]
        g = replace(g, block_size=block)
        kind = kind_of_spec(g.kind)
        if kind:
            g = replace(g, kind=kind.key, keeps_states=kind.keeps_states)
        if kind and not (kind.keeps_states and cached_states):
            g = replace(g, blocks_per_request=kind.blocks(g.size, block, max_model_len, in_flight))
        groups.append(g)
    pools = tuple(zip(starts, built.pool_bytes_per_block, strict=True))
    return Layout(tuple(groups), min(g.block_size for g in groups), pools)


def shared_out(lay: Layout, dcp: int) -> Layout:
    """Return a layout of which each of dcp ranks keeps every dcp-th token: a request takes so many fewer of its blocks.

    Source: vLLM 0.32.0, v1/kv_cache_interface.py FullAttentionSpec.max_memory_usage_bytes; states are not shared out.
    """
    groups = (
        g if g.keeps_states else replace(g, blocks_per_request=ceil_div(g.blocks_per_request, dcp))
        for g in lay.groups
    )
    return replace(lay, groups=tuple(groups))


def pool_bytes_per_block(lay: Layout, layers: Sequence[int]) -> int:
    """Bytes of one block on a rank that holds `layers`: the longest group's layers share as many tensors."""
    if lay.pools:
        return dict(lay.pools)[layers[0]]
    mine = set(layers)
    return max(len(mine.intersection(g.layers)) for g in lay.groups) * lay.groups[0].page_bytes


def blocks_per_request(lay: Layout) -> int:
    """Blocks that one request of max_model_len can hold at most, over all groups."""
    return sum(g.blocks_per_request for g in lay.groups)


@dataclass(frozen=True)
class Capacity:
    """What vLLM prints: blocks in the pool, "GPU KV cache size" in tokens, and "Maximum concurrency"."""

    blocks: int
    tokens: int
    max_concurrency: float


def capacity(
    lay: Layout,
    layers_of_ranks: Sequence[Sequence[int]],
    available_bytes: Sequence[int],
    max_model_len: int,
) -> Capacity:
    """Return the capacity when each pipeline rank has `available_bytes`: the tightest rank decides the blocks.

    tokens = concurrency × max_model_len, cut to a whole number, as v1/core/kv_cache_utils.get_kv_cache_capacity does.
    """
    sizes = (pool_bytes_per_block(lay, layers) for layers in layers_of_ranks)
    blocks = min(
        max(0, avail) // size for size, avail in zip(sizes, available_bytes, strict=True) if size
    )
    concurrency = blocks / blocks_per_request(lay)
    return Capacity(blocks, int(concurrency * max_model_len), concurrency)
