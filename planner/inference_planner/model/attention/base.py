"""Define what a kind of attention says of itself.

It knows its cache, states, weights, split over ranks, memory peak, blocks and time.

All sizes are of one layer. A new kind is a module with a subclass of `Attention`, and a line in
attention/__init__.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.weight import Weight


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


@dataclass(frozen=True)
class Widths:
    """Elements that one token takes on one rank in vLLM's profile run."""

    attn: int  # output of attention: heads × head dim of V
    q: int  # queries
    kv: int  # keys (and as many values)


@dataclass(frozen=True)
class ProfileRun:
    """vLLM's run on dummy tokens, in which it measures its peak of memory, as one rank sees it."""

    tp: int  # tensor_parallel_size
    tokens: int  # max_num_batched_tokens
    max_num_seqs: int
    max_model_len: int
    workspace_bytes: int  # scratch space that the kernels of experts and of matrix products keep


@dataclass(frozen=True)
class Peak:
    """One candidate for the peak of the profile run, in bytes, with what it is made of."""

    name: str
    bytes: int
    parts: str


@dataclass(frozen=True)
class States:
    """The states of fixed size that one layer keeps for one request."""

    bytes: int  # of one state on one rank
    blocks: int  # states of a request where prefixes are cached; 1 elsewhere
    recurrence_elements: int  # of the recurrence's part, over all ranks
    has_delta_rule: bool  # the state is updated by a gated delta rule, not by a Mamba scan


@dataclass(frozen=True)
class Uncertainty:
    """The doubt that such layers add to intervals.py, unless the same was measured."""

    name: str
    gib: float = 0.0  # of the overheads of a GPU
    time_share: float = 0.0  # of the time of a decoding step


@dataclass(frozen=True)
class CacheSpec:
    """vLLM's description of a group of layers, for the simulator: class and arguments."""

    name: str
    arguments: dict[str, int | str] = field(default_factory=dict[str, "int | str"])


class Attention:
    """One kind of layer. `size` is its window or chunk in tokens; 0: the whole context."""

    key = ""  # its name in a layout, and in the simulator
    spec_names: tuple[str, ...] = ()  # vLLM's classes of KV-cache specs that describe such layers
    keeps_states = False  # it keeps a state of fixed size a request, not a cache that grows
    deep_gemm = False  # its kernels load DeepGEMM on Hopper, whatever the dtype
    block_step = 16  # tokens; beside layers with states a block is a multiple of it
    # ranks share out its heads of K and V; False: each rank keeps the whole cache
    splits_kv_heads = True
    uncertainty: Uncertainty | None = None  # of figures with such layers; None: not larger
    # bytes of the pieces of a layer's CUDA graphs in 51 sizes, beyond those of other kinds, where
    # shared experts run on a stream of their own (graphs.py)
    shared_stream_graph_bytes = 0
    # a full CUDA graph keeps more of it beside the partial sums, so that a second graph takes them
    # twice (graphs.py)
    graphs_keep_more = False
    # FlashAttention 3 serves it, with which vLLM captures a step that prefills as a whole (graphs.py)
    captures_mixed_steps = False

    def is_main(self, model: ModelConfig) -> bool:
        """Return True if the layers of the model that see the whole context are of this kind."""
        return False

    def layer_size(self, model: ModelConfig, layer: int) -> int | None:
        """Return the tokens that a layer sees (0: all); None if it is of another kind."""
        return 0 if self.is_main(model) else None

    def label(self, model: ModelConfig) -> str:
        """Return its name in the field's words, such as GQA or MLA."""
        return self.key

    def describe(self, model: ModelConfig) -> str:
        """Describe it in a few words with its sizes, such as "GQA 64/8" (query heads, KV heads)."""
        return self.label(model)

    def describe_layers(self, sizes: Sequence[int], of_layers: int) -> str:
        """Describe such layers of a model that has others besides; "" where there is nothing to say.

        Args:
            sizes: the window or chunk of each such layer, in tokens.
            of_layers: all layers of the model.
        """
        return ""

    def describe_token(self, model: ModelConfig) -> str:
        """Describe what one token leaves in the cache of one layer, such as "2 × 8 KV heads × 128"."""
        return f"{self.token_elements(model)} elements"

    def describe_cache(self, model: ModelConfig) -> str:
        """Describe what the whole cache of a layer is made of, such as "8 KV heads"."""
        return f"{self.kv_heads(model, 1)} KV heads"

    def token_elements(self, model: ModelConfig, tp: int = 1) -> int:
        """Return the elements that one token leaves in the cache of one of `tp` ranks."""
        raise NotImplementedError

    def token_bytes(self, model: ModelConfig, tp: int, element_bytes: int) -> int:
        """Return the bytes that one token leaves there, if an element takes `element_bytes`."""
        return self.token_elements(model, tp) * element_bytes

    def read_bytes(self, model: ModelConfig, tp: int, element_bytes: int) -> int:
        """Return the bytes that a decoding step reads there for each token of the context."""
        return self.token_bytes(model, tp, element_bytes)

    def states(self, model: ModelConfig, tp: int, draft_tokens: int = 0) -> States | None:
        """Return the states that a request keeps; None for kinds with a cache.

        Args:
            draft_tokens: tokens that may be rejected; each has a state more.
        """
        return None

    def weights(self, model: ModelConfig) -> Iterator[Weight]:
        """Yield the layer's weights of attention, as vLLM builds them and in that order."""
        raise NotImplementedError

    def kv_heads(self, model: ModelConfig, tp: int) -> int:
        """Return the heads of K and V that each of `tp` ranks keeps."""
        raise NotImplementedError

    def draft_head_dim(self, model: ModelConfig) -> int:
        """Return the assumed head dim of an EAGLE draft for the model, whose K and V have heads."""
        return model.head_dim

    def split_problem(self, model: ModelConfig, tp: int) -> str:
        """Return why `tp` ranks cannot share it beyond the attention heads, or an empty string."""
        return ""

    def copies(self, model: ModelConfig, tp: int) -> int:
        """Return how many of `tp` ranks keep the same K and V."""
        return max(1, tp * self.token_elements(model, tp) // self.token_elements(model))

    def context_sizes(self, model: ModelConfig, tp: int) -> list[int]:
        """Return the decode context parallel sizes that can share out these copies' tokens."""
        return []

    def describe_share(self, model: ModelConfig, tp: int) -> str:
        """Describe what each of `tp` ranks keeps of the cache, such as "2 of 8 KV heads"."""
        raise NotImplementedError

    def selected_by(self, model: ModelConfig, size: int) -> tuple[str, int] | None:
        """Return its kind and head size in vLLM's attention selector (attention_backends.json).

        None: it has no backend there, or one of its own that was not recorded.

        Args:
            size: the tokens of its window or chunk; 0 without.
        """
        return None

    def widths(self, model: ModelConfig, tp: int) -> Widths:
        """Return what the profile run holds of it."""
        raise NotImplementedError

    def summed_width(self, model: ModelConfig) -> int:
        """Return the elements of a head's output, of which FlashAttention 3 keeps partial sums."""
        return model.head_dim

    def peak(self, model: ModelConfig, run: ProfileRun) -> Peak | None:
        """Return the peak of the profile run that only this kind has, or None."""
        return None

    def workspace_bytes(self, model: ModelConfig, rows: int) -> int:
        """Return the scratch space of `rows` tokens of context; it is shared with that of experts."""
        return 0

    def graph_row_bytes(self, model: ModelConfig, max_model_len: int) -> int:
        """Return what a full CUDA graph holds for each request, beside partial sums."""
        return 0

    def kernels_us(self, model: ModelConfig) -> float:
        """Return the µs of this kind's own small kernels in a layer, beside those of all."""
        return 0.0

    def cached_tokens(self, tokens: int, size: int) -> int:
        """Return how many of `tokens` of context stay in the cache at least."""
        return tokens

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        """Return the blocks of `block` tokens that one request of max_model_len may hold.

        Args:
            in_flight: tokens of the batches that are computed at the same time.
        """
        return ceil_div(max_model_len, block)

    def simulator_spec(
        self, size: int, block_size: int, max_model_len: int, state_blocks: int
    ) -> CacheSpec:
        """Return how vLLM's cache manager describes such layers to its scheduler.

        Args:
            state_blocks: states of a request where prefixes are cached; 0 where states are not
                cached.
        """
        return CacheSpec("FullAttentionSpec", {"block_size": block_size})
