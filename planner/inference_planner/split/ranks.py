"""The share of each rank: its layers, heads and KV heads, and the bytes of its weights.

Source: vLLM 0.25.1, model_executor/layers/linear.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig, present
from inference_planner.catalog.gpus import MIB
from inference_planner.catalog.tower import tower_weights
from inference_planner.catalog.weight import ExpertSplit
from inference_planner.errors import BadInput
from inference_planner.model.attention import has_states, main_kind
from inference_planner.model.kv_cache import kv_dtype_bytes
from inference_planner.model.weights import (
    Weight,
    embedding_weights,
    head_weights,
    layer_parts,
    parts,
    stand_ins,
    tensor_bytes,
)
from inference_planner.releases.registries import registries
from inference_planner.split.allocator import (
    MAX_SPLIT_WHILE_LOADING,
    Allocator,
)
from inference_planner.split.deployment import Deployment, partition_layers

# Integer formats with one scale for a group of inputs. Dense kernels cannot split such a group over
# ranks; kernels of experts can (moe_wna16.py), and 4-bit floats are padded.
# Source: vLLM 0.32.0, quantization/auto_awq.py and utils/marlin_utils.py.
GROUPED = {"awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "auto-round"}
DEEP_GEMM_WORKSPACE = 32 * MIB  # PyTorch's cuBLAS workspace on Hopper


@dataclass(frozen=True)
class Rank:
    """One GPU of the plan: bytes of weights alone, `layers` as a half-open range."""

    rank: int
    node: int
    tp_rank: int
    layers: range
    heads: int
    kv_heads: int
    weight_bytes: int
    dp_rank: int = 0


@lru_cache(maxsize=4096)
def tp_problem(model: ModelConfig, tp: int, expert_ranks: int | None = None) -> str:
    """Return why a tensor parallel size, with so many ranks an expert, cannot be used; or ""."""
    if model.num_attention_heads % tp:
        return f"{tp} does not divide the {model.num_attention_heads} attention heads"
    problem = main_kind(model).split_problem(model, tp) or refused(model, tp)
    if problem:
        return problem
    padded = -(-model.vocab_size // 64) * 64
    if padded % tp:
        return f"{tp} does not divide the vocabulary, padded to {padded}"
    return _mlp_problem(model, tp, expert_ranks or tp) or _quantized_problem(model, tp)


def _mlp_problem(model: ModelConfig, tp: int, expert_ranks: int) -> str:
    """Return why the MLPs cannot be split, or ""."""
    widths: list[tuple[int, int]] = []
    if not model.moe or len(model.moe.layers) < model.num_hidden_layers:
        widths.append((model.intermediate_size, tp))
    if model.moe:
        widths.append((model.moe.intermediate_size, expert_ranks))
        widths.append((model.moe.shared_intermediate_size, tp))
    block = 1
    if model.quantization and model.quantization.block:
        block = model.quantization.block[0]
    for width, ranks in widths:
        if width % ranks:
            return f"{ranks} does not divide the MLP's width {width}"
        if ranks > 1 and width // ranks % block:
            return f"an MLP of width {width} on {ranks} ranks would cut its {block}-wide FP8 blocks"
    return ""


def _quantized_problem(model: ModelConfig, tp: int) -> str:
    """Return why the quantized weights cannot be split, or ""."""
    quantization = model.quantization
    if (
        tp > 1
        and quantization
        and quantization.method == "bitsandbytes"
        and not quantization.online
    ):
        return "vLLM does not split a checkpoint that bitsandbytes has quantized"
    inputs = _cut_group(model, tp)
    if inputs:
        groups = f"groups of {present(quantization).group_size}, which share a scale"
        return f"{inputs} inputs of a quantized product on {tp} ranks would cut its {groups}"
    return ""


def refused(model: ModelConfig, tp: int, pp: int = 1) -> str:
    """Return what vLLM's class said of a split that it could not build, or ""."""
    if model.exact is None:
        return ""
    for refused_tp, refused_pp, message in model.exact.refused:
        if refused_pp == pp and tp % refused_tp == 0:
            return f"vLLM's own class says {message}"
    return ""


def most_stages(model: ModelConfig) -> int:
    """Return the most pipeline stages that a model can be cut into."""
    if model.architecture in registries()["one_stage"] or refused(model, 1, 2):
        return 1
    return model.num_hidden_layers


def _cut_group(model: ModelConfig, tp: int) -> int:
    """Return the inputs of a dense product whose groups `tp` ranks would cut; 0 without."""
    quantization = model.quantization
    # its widths may be means
    if tp == 1 or has_states(model):
        return 0
    if not quantization or quantization.method not in GROUPED or quantization.group_size < 1:
        return 0
    for _, part in parts(model):
        inputs = part.weight.cols
        is_dense = part.weight.split == "row" and not part.weight.is_expert
        if is_dense and inputs // tp % quantization.group_size and part.is_quantized:
            return inputs
    return 0


def check_sizes(model: ModelConfig, tp: int, pp: int, cut: int | None = None) -> None:
    """Raise BadInput where the model cannot be split so; the sizes that can are named."""
    problem = tp_problem(model, tp, cut)
    if problem:
        usable = [str(size) for size in range(1, 33) if not tp_problem(model, size)]
        remedy = f"Choose from: {', '.join(usable)}."
        if most_stages(model) > 1:
            remedy += " Or pipeline parallelism, which splits by layers."
        if not tp_problem(model, tp, 1):
            whole = "add --enable-expert-parallel, with which experts stay whole."
            if cut in (None, tp):
                remedy += f" Or {whole}"
            else:
                remedy = whole.capitalize()
        raise BadInput(f"tensor_parallel_size {tp} cannot split {model.name}: {problem}.", remedy)
    most = most_stages(model)
    if pp > most:
        why = f"is more than the {most} layers of {model.name}"
        if most < model.num_hidden_layers:
            why = f"is not possible: vLLM cannot cut {model.architecture[:80]} into stages"
        raise BadInput(f"pipeline_parallel_size {pp} {why}.", f"Give at most {most}.")


def context_sizes(model: ModelConfig, tp: int) -> list[int]:
    """Return the decode context parallel sizes that can share the copies of a KV head.

    Source: vLLM 0.32.0, config/model.py verify_with_parallel_config, and
    v1/core/single_type_kv_cache_manager.py ("DCP not support sliding window attn now", "DCP not
    support mamba now").
    """
    if any(model.layer_windows) or any(model.layer_chunks) or has_states(model):
        return []
    return main_kind(model).context_sizes(model, tp)


def check_context(model: ModelConfig, tp: int, dcp: int) -> None:
    """Raise BadInput where the tokens of a KV head cannot be shared out over dcp of tp ranks."""
    usable = context_sizes(model, tp)
    if dcp in usable:
        return
    copies = main_kind(model).copies(model, tp)
    shares = f"has {copies} copies, and {dcp} does not share these out"
    why = f"with tensor_parallel_size {tp} a KV head of {model.name} {shares}"
    if any(model.layer_windows) or any(model.layer_chunks):
        why = f"{model.name} has sliding windows, which vLLM does not share out"
    if has_states(model):
        why = f"{model.name} has layers with states, which vLLM does not share out"
    remedy = "Leave it out, or raise --tensor-parallel-size above the KV heads."
    if usable:
        remedy = f"Choose from: {', '.join(map(str, usable))}."
    raise BadInput(f"decode_context_parallel_size {dcp} is not possible: {why}.", remedy)


def stage_weights(
    model: ModelConfig, is_first: bool, is_last: bool
) -> tuple[Iterable[Weight], Iterable[Weight]]:
    """Return what a pipeline stage holds besides layers: (before them, after them)."""
    has_both_ends = model.architecture in registries()["both_ends_everywhere"]
    # a tied lm_head needs the table on the last stage too
    has_embedding = is_first or (is_last and model.tie_word_embeddings) or has_both_ends
    before = list(tower_weights(model))  # every stage has a multimodal model's encoder
    if has_embedding:
        before += embedding_weights(model)
    after: list[Weight] = []
    if is_last or has_both_ends:
        after += head_weights(model)
    return before, after


def _build_rope(model: ModelConfig, table: tuple[int, int], memory: Allocator) -> None:
    """Allocate angles, cosines, sines, both in 32 bit, and the table that is kept in 16."""
    positions, rotary_dim = table
    half = positions * rotary_dim * 2
    angles = memory.alloc(half)
    cosines = memory.alloc(half)
    sines = memory.alloc(half)
    both = memory.alloc(2 * half)
    for block in (angles, cosines, sines):
        memory.free(block)
    if model.traits.rope_float32:
        return
    memory.alloc(positions * rotary_dim * DTYPE_BYTES[model.dtype])
    memory.free(both)


def stage_bytes(
    model: ModelConfig,
    tp: int,
    pp: int,
    stage: int,
    deep_gemm: bool = False,
    experts: ExpertSplit | None = None,
    most_split: int = MAX_SPLIT_WHILE_LOADING,
) -> int:
    """Return what loading keeps on a rank of a stage: vLLM's "Model loading took".

    Weights, scales and rope tables in the blocks that PyTorch's allocator hands out for them (see
    allocator.py).

    Args:
        deep_gemm: a workspace comes with DeepGEMM (loads_deep_gemm).
        most_split: bytes of the blocks from which on they are handed out whole.
    """
    built = model.exact.weights_of(tp, pp, experts) if model.exact else None
    if built:
        loaded = built.stage_bytes(stage, model.text_only)
        if deep_gemm:
            loaded += DEEP_GEMM_WORKSPACE
        return loaded
    representatives = stand_ins(model)
    windows = model.layer_windows or (None,) * model.num_hidden_layers
    layers: list[tuple[int, bool]] = []
    for i in partition_layers(model.num_hidden_layers, pp)[stage]:
        layers.append((representatives[i], bool(windows[i])))
    is_last = stage == pp - 1
    allocated = _allocated_bytes(
        model, tp, stage == 0, is_last, tuple(layers), deep_gemm, experts, most_split
    )
    if model.exact:
        return int(allocated * model.exact.scale)
    return allocated


@lru_cache(maxsize=1024)
def _allocated_bytes(
    model: ModelConfig,
    tp: int,
    is_first: bool,
    is_last: bool,
    layers: tuple[tuple[int, bool], ...],
    deep_gemm: bool,
    experts: ExpertSplit | None,
    most_split: int,
) -> int:
    """Return the bytes of the blocks that a stage allocates. Stages with the same layers share it.

    Args:
        layers: for each layer of the stage, its stand-in, and whether it has a sliding window.
    """
    memory = Allocator(most_split)
    tables = list(model.rope_tables)
    late = main_kind(model).deep_gemm  # loaded with the attention, after the first rope table
    if deep_gemm and not late:
        memory.alloc(DEEP_GEMM_WORKSPACE)
    before, after = stage_weights(model, is_first, is_last)
    for w in before:
        memory.alloc_all(tensor_bytes(model, w, 0, tp))
    for stand_in, has_window in layers:
        rest: list[int] = []
        for part in layer_parts(model, stand_in, tp, experts):
            if part.weight.name.startswith("self_attn"):
                memory.alloc_all(part.tensors)
            else:
                rest += part.tensors
        if tables and (len(tables) == len(model.rope_tables) or not has_window):
            # the second one, if any, is that of the full-attention layers
            _build_rope(model, tables.pop(0), memory)
            if deep_gemm and late:
                memory.alloc(DEEP_GEMM_WORKSPACE)
        memory.alloc_all(rest)
    for w in after:
        memory.alloc_all(tensor_bytes(model, w, 0, tp))
    return memory.allocated


def offloaded_bytes(deployment: Deployment, stage: int) -> int:
    """Return the bytes of weights that a rank of a stage leaves in the host's memory.

    Decoder layers alone can lie there; embeddings and lm_head stay. Source: vLLM 0.32.0,
    model_executor/models/utils.py make_layers, model_executor/offloader/uva.py.
    """
    if not deployment.settings.offload_bytes:
        return 0
    model = deployment.model
    layers = deployment.stages[stage]
    size = 0
    for count, part in parts(model, deployment.tp, deployment.expert_split, layers):
        size += count * part.bytes
    scale = model.exact.scale if model.exact else 1
    return min(deployment.settings.offload_bytes, int(size * scale))


def loads_deep_gemm(deployment: Deployment) -> bool:
    """Return True where DeepGEMM's workspace comes while loading: in 0.25.1, not in 0.32.0.

    In 0.32.0 8B with an FP8 KV cache on an H100, 70B and GLM-4.5 Air in FP8 on H200 were without it.
    """
    if not deployment.settings.version.loads_deep_gemm or not deployment.gpu.hopper_or_newer:
        return False
    quantization = deployment.model.quantization
    fp8_weights = False
    if quantization:
        fp8_weights = quantization.weight_bits == quantization.activation_bits == 8
    fp8_cache = kv_dtype_bytes(deployment.model, deployment.settings.kv_cache_dtype) == 1
    return fp8_weights or fp8_cache or main_kind(deployment.model).deep_gemm


def ranks(deployment: Deployment, loaded: Sequence[int]) -> list[Rank]:
    """Return every rank in vLLM's order: replica by replica, stage by stage.

    Args:
        loaded: the bytes on a rank of each stage, by `memory.loaded.loaded_bytes`.
    """
    model, tp = deployment.model, deployment.tp
    all_ranks: list[Rank] = []
    for stage, layers in enumerate(deployment.stages):
        for replica in range(deployment.dp):
            for tp_rank in range(tp):
                number = replica * deployment.replica_gpus + stage * tp + tp_rank
                rank = Rank(
                    rank=number,
                    node=deployment.node_of(number),
                    tp_rank=tp_rank,
                    layers=layers,
                    heads=model.num_attention_heads // tp,
                    kv_heads=main_kind(model).kv_heads(model, tp),
                    weight_bytes=loaded[stage],
                    dp_rank=replica,
                )
                all_ranks.append(rank)
    return sorted(all_ranks, key=lambda rank: rank.rank)
