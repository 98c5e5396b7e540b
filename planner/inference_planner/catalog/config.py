"""The facts of a model: config.json's, and what vLLM's classes or its checkpoint say beyond."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

from inference_planner.catalog.weight import ExpertSplit

DTYPE_BYTES = {
    "float64": 8,
    **dict.fromkeys(("float32", "float"), 4),
    **dict.fromkeys(("float16", "half", "bfloat16"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "int8", "uint8"), 1),
}
# bytes of an element of the KV cache; 0: those of the model's dtype
KV_CACHE_DTYPES = {"auto": 0, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

# Where the sizes of weights and KV cache come from: "formulas" agree with vLLM's classes, "exact"
# was asked of the installed class now, or earlier on this machine, "recorded" is kept in
# data/exact, "derived" is the record of the checkpoint that the model is derived from, with weights
# changed as the formulas say, and "estimate" rests on config.json and the checkpoint's size.
SizesFrom = Literal["formulas", "exact", "recorded", "derived", "estimate"]
Part = TypeVar("Part")


@dataclass(frozen=True)
class Moe:
    """Mixture of experts in the layers of these indices, with the sizes of one expert."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    layers: frozenset[int]
    shared_intermediate_size: int = 0  # 0: no shared expert
    shared_gate: bool = False  # Qwen2-MoE weighs its shared expert with a gate of its own
    router_bias: bool = False  # gpt-oss: Linear bias; DeepSeek V3: e_score_correction_bias

    @property
    def token_share(self) -> float:
        """Return the share of the experts that one token chooses."""
        return self.experts_per_token / self.num_experts


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: a latent of kv_lora_rank + qk_rope_head_dim a token."""

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_heads: int = 0  # sparse: of the indexer that chooses what is attended to
    index_head_dim: int = 0  # elements of its keys
    index_share: float = 1.0  # of the layers, which have one of their own
    packs_fp8: bool = True  # a sparse latent in FP8 has scales, and positions in 16 bit


@dataclass(frozen=True)
class Mamba:
    """State-space layers of a hybrid model, with a state of fixed size, not a KV cache."""

    layers: frozenset[int]
    d_state: int
    d_conv: int
    inner: int  # heads × head size
    dt_rank: int  # Mamba 2, delta nets: heads
    # of heads that share their B and C (a delta net: heads of keys); 0: Mamba 1, without heads
    groups: int = 0
    state_bytes_each: int = 2
    blocks: int = 2  # of states that a request holds where prefixes are cached
    delta: bool = False  # a gated delta net


@dataclass(frozen=True)
class Quantization:
    """The format in which the Linear weights are stored."""

    method: str  # vLLM's name: fp8, awq, gptq, compressed-tensors, mxfp4, …
    weight_bits: int  # of one stored weight
    # inputs that share one scale along a row; 0: one scale a row; -1: one a tensor
    group_size: int = -1
    # (rows, columns) that share one scale, of a block-wise FP8 checkpoint
    block: tuple[int, int] | None = None
    zero_points: bool = False  # a packed zero point beside every scale (AWQ)
    # names of modules that stay in 16 bit: in full, suffixes or `re:` patterns
    ignore: tuple[str, ...] = ()
    # of a checkpoint in 4 bits, those in FP8 (ModelOpt's MIXED_PRECISION); as in ignore
    eight: tuple[str, ...] = ()
    head: bool = False  # lm_head is quantized, too
    activation_bits: int = 16
    integers: bool = False  # weights and activations are INT8 (w8a8), not FP8
    scale_bytes: int = 0  # of one scale of a group; 0: as wide as the model's dtype
    experts_only: bool = False  # only expert weights are quantized (gpt-oss)
    # MXFP4 experts: what hidden size and an expert's width are rounded up to; the first is that of
    # Triton's on Hopper
    padding: tuple[int, int] = (1, 64)
    online: bool = False  # the checkpoint is 16 bit, and vLLM quantizes it while loading
    kv_cache_dtype: str = "auto"  # what the checkpoint wants for the KV cache
    from_flag: bool = False  # --quantization names it, and the checkpoint is not stored so


@dataclass(frozen=True)
class Traits:
    """The facts that the architecture fixes and config.json does not say: see families.py."""

    gated_mlp: bool = True  # SiLU/GELU gate: two up projections
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2  # norm vectors of hidden_size a layer
    norm_bias: bool = False  # LayerNorm has a bias, RMSNorm has none
    qk_norm: str = ""  # "": none; "head": one vector of head_dim each; "full": the whole width
    final_norm: bool = True
    learned_positions: int = 0  # rows of a learned position table
    lm_head_bias: bool = False
    parallel_block: bool = False  # attention and MLP read the same input (Falcon, Phi-2)
    rope: bool = True
    rope_float32: bool = False  # gpt-oss keeps its cos/sin table in 32 bit
    gated_attention: bool = False  # each query brings a gate of its size (Qwen3-Next, 3.5)
    sinks: bool = False  # one learned attention sink a head (gpt-oss)
    mxfp4_kernels: bool = False  # gpt-oss' kernels of 4-bit experts, without a workspace
    experts_in_runner_v2: bool = False  # vLLM 0.25.1 runs its experts by model runner V2
    cuts_shared_experts: bool = False  # over ranks, also where work is split by tokens (Qwen2-MoE)


@dataclass(frozen=True)
class FamilyFacts:
    """The facts that a family reads in a config.json; None: as the config itself has it, or a Llama."""

    traits: Traits = Traits()
    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    own_kv_heads: bool = False  # K and V of every head, whatever the config says
    head_dim: int | None = None
    v_head_dim: int = 0
    rotary_dim: int | None = None
    partial_rotary: float = 1.0  # share of a head's elements that positions turn
    rope_tables: int = 1
    intermediate: int | None = None
    vocab: int | None = None
    positions: int | None = None
    tie: bool = False
    window: int | None = None
    full_attention_every: int | None = None  # of a window; None: no layer sees everything
    chunks: tuple[int | None, ...] = ()
    window_heads: tuple[int, int, int] | None = None
    kv_shared: int = 0
    per_layer: tuple[int, int] | None = None
    moe: Moe | None = None
    mla: Mla | None = None
    latent_projections: Mla | None = None
    mamba: Mamba | None = None
    attention_sizes: tuple[object, ...] = ()


@dataclass(frozen=True)
class Group:
    """Layers that share one block table. Bytes are of one block of one layer."""

    kind: str  # the key of its kind of attention; as recorded, the class of its spec
    # their indices, or how many there are on each pipeline stage where vLLM said it
    layers: tuple[int, ...]
    block_size: int
    page_bytes: int
    blocks_per_request: int
    size: int  # tokens of a window or chunk; 0 without
    keeps_states: bool = False  # a state a request instead of a cache


@dataclass(frozen=True)
class Built:
    """One split of a model, built on the meta device. Bytes are of one rank, one entry a stage."""

    tp: int
    pp: int
    # parameters and buffers in the blocks that PyTorch's allocator hands out for them
    loaded_bytes: tuple[int, ...]
    pool_bytes_per_block: tuple[int, ...]  # a block of every layer of the longest group
    groups: tuple[Group, ...]
    bytes_per_token: int  # KV cache over all ranks, copies counted once
    kv_bytes_each: int  # of one cached element
    # how they were shared out beside tensor parallelism; None: not
    experts: ExpertSplit | None = None
    # of loaded_bytes, those of a multimodal model's encoder; () where there is none, or it was not
    # recorded
    encoder_bytes: tuple[int, ...] = ()

    def stage_bytes(self, stage: int, text_only: bool) -> int:
        """Return the loaded bytes of a stage, without the encoder where vLLM does not load it."""
        size = self.loaded_bytes[stage]
        if text_only and self.encoder_bytes:
            size -= self.encoder_bytes[stage]
        return size


@dataclass(frozen=True)
class Exact:
    """The sizes of a model that are known, and where they come from."""

    basis: SizesFrom
    source: str
    builds: tuple[Built, ...] = ()
    # of a split that was not built: weights of one rank over what the config alone makes of them
    scale: float = 1.0
    # (tp, pp, what vLLM said) of splits that it could not build
    refused: tuple[tuple[int, int, str], ...] = ()

    def of(self, tp: int, pp: int) -> Built | None:
        """Return what is known of a split. How experts are shared out changes no KV cache."""
        return next((b for b in self.builds if (b.tp, b.pp) == (tp, pp)), None)

    def weights_of(self, tp: int, pp: int, experts: ExpertSplit | None) -> Built | None:
        """Return what is known of the weights of a split."""
        return next((b for b in self.builds if (b.tp, b.pp, b.experts) == (tp, pp, experts)), None)


def present(part: Part | None) -> Part:
    """Return a part of a model that the caller knows to be there. Raises LookupError: it is not."""
    if part is None:
        raise LookupError("this model has no such part")
    return part


@dataclass(frozen=True)
class ModelConfig:
    """A model by the facts of its config.json (names as there). Sizes are counts of elements."""

    name: str
    architecture: str
    model_type: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    default_model_len: int = 0  # what vLLM takes without --max-model-len; 0: all positions
    dtype: str = "bfloat16"
    tie_word_embeddings: bool = False
    rope_tables: tuple[tuple[int, int], ...] = ()  # (positions, rotary_dim) of each cos/sin table
    layer_windows: tuple[int | None, ...] = ()  # sliding window of each layer; None: full attention
    layer_chunks: tuple[int | None, ...] = ()  # Llama 4: attention inside chunks of so many tokens
    traits: Traits = field(default_factory=Traits)
    moe: Moe | None = None
    mla: Mla | None = None
    v_head_dim: int = 0  # 0: head_dim
    # of layers with a window: KV heads, head_dim, v_head_dim; None: as the others
    window_heads: tuple[int, int, int] | None = None
    # MLA's matrices, but the engine keeps K and V whole (MiniCPM3)
    latent_projections: Mla | None = None
    mamba: Mamba | None = None
    attention_sizes: tuple[object, ...] = ()  # of any further kind: a dataclass of this module
    kv_shared_layers: int = 0  # the last so many read the cache of earlier ones (Gemma 3n, 4)
    # rows and columns a layer of a second input table (Gemma 3n, 4)
    per_layer_input: tuple[int, int] | None = None
    quantization: Quantization | None = None
    exact: Exact | None = None  # what vLLM's own class said of it; answer/builds.py
    # --language-model-only, or no image, video or sound in a prompt: the encoder is not loaded
    text_only: bool = False
    pooling: str = ""  # what a model computes that generates no text: vectors or scores
    # YaRN: the positions that the config says; vLLM multiplied them by the factor until 0.29
    unscaled_positions: int = 0
    overrides: str = ""  # --hf-overrides, as JSON
    # of the catalog's text models: the multimodal architecture that is published under their Hub
    # ids
    text_of: str = ""
    published_parameters: int | None = None
    hub_ids: tuple[str, ...] = ()
    source: str = ""
    # of a checkpoint of which the catalog has another format: the catalog name of that one
    derived_from: str = ""
    assumed: str = ""  # what was taken for granted of it
    location: str = ""  # the folder or file that it was read from
    raw: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    def __hash__(self) -> int:
        """Computed once: models are the keys of every cache of the planner."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, f.name) for f in fields(self) if f.compare))

    @property
    def experts(self) -> Moe:
        """The experts of a model that has some; `moe` is None if it has none."""
        return present(self.moe)

    @property
    def latent(self) -> Mla:
        """The sizes of MLA of a model that has it; `mla` is None if it has not."""
        return present(self.mla)

    @property
    def state_space(self) -> Mamba:
        """The sizes of the state-space layers of a model that has some."""
        return present(self.mamba)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers that keep a KV cache."""
        skip: frozenset[int] = self.mamba.layers if self.mamba else frozenset()
        return tuple(i for i in range(self.num_hidden_layers) if i not in skip)

    def with_quantization(self, quantization: Quantization | None) -> ModelConfig:
        # the number of weights stays
        exact = self.exact and replace(self.exact, basis="estimate", builds=())
        return replace(self, quantization=quantization, exact=exact)

    def with_packed_latents(self, packs_fp8: bool) -> ModelConfig:
        """Return the model with sparse latents that are packed in FP8, or not."""
        return replace(self, mla=replace(self.mla, packs_fp8=packs_fp8)) if self.mla else self
