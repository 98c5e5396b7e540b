"""The memory that vLLM sets aside for CUDA graphs before it sizes the KV cache.

The first full graph of decoding, of at most max_num_seqs requests, holds FlashAttention's partial
sums (`_partial_sums`). With adapters every size is captured twice, with and without them. Source:
profile_cudagraph_memory in v1/worker/gpu_model_runner.py and, for 0.32.0,
v1/worker/gpu/cudagraph_utils.py.
"""

from collections.abc import Mapping
from typing import cast

from inference_planner.catalog.architectures import GRAPH_SUMS
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.catalog.fields import Fields
from inference_planner.catalog.gpus import MIB
from inference_planner.memory.peaks import runner
from inference_planner.model import drafts
from inference_planner.model.attention import has_states, kinds, main_kind
from inference_planner.speed.roofline import has_full_decode_graphs
from inference_planner.split.compilation import FULL, PIECEWISE
from inference_planner.split.deployment import Deployment

GRAPH_SPLITS = 32  # config/attention.py, flash_attn_max_num_splits_for_cuda_graph
# driver memory of one more graph, measured (24 layers: 4 MiB)
FULL_GRAPH = 2 * MIB
PIECEWISE_GRAPH = 6 * MIB
PIECEWISE_GRAPH_OF_FEW_LAYERS = 4 * MIB
FEW_LAYERS = 28
# Of a hybrid model, whose layers with states are cut out of the graphs as attention is: 0.61 GiB
# for 35 sizes (Qwen3.8-27B, 64 layers, TP 2 on L20, 0.28.0)
PIECEWISE_GRAPH_OF_STATES = 16 * MIB
MORE_OF_8_BITS = 11 * MIB  # kernels that quantize activations: 0.97 GiB for the same in FP8
# Under 0.32.0, read from 24 records with 16 to 80 layers, TP 1 and 2 (120 MiB off at most):
LAYER_GRAPHS = 9 * MIB  # a layer's pieces in 51 sizes
# Of a hybrid model: 10.3 (Qwen3-Next, H200), 11.4 (Qwen3.8-27B, TP 2 on L20), and Nemotron Nano,
# whose layers are halves
LAYER_GRAPHS_OF_STATES = 11 * MIB
# Where shared experts run beside the routed ones, on a stream of their own, whose blocks the pool
# keeps apart: one run on two H100 (GLM-4.5-Air). What a kind of attention adds is in its module.
LAYER_GRAPHS_OF_SHARED_EXPERTS = 23 * MIB
# One run of each on four H100 (0.33.0): Llama 3.1 405B in 4 bits, whose kernel (Machete) computes
# beside its result; Llama 4 Scout, whose shared experts take less
LAYER_GRAPHS_OF_PACKED = 15 * MIB
LAYER_GRAPHS_OF_CHUNKED = 14 * MIB
# what the largest pieces compute with, and what a run before a capture leaves
CAPTURED_BESIDE = 80 * MIB


def graph_estimate(deployment: Deployment, layers: int) -> int:
    """Return what vLLM sets aside for the CUDA graphs of a rank with so many layers."""
    version = deployment.settings.version
    if not deployment.settings.graph_sizes:
        return 0
    if runner(deployment.model, version) == 1:
        return _of_runner_v1(deployment, layers) if version.graphs_are_profiled else 0
    return _of_runner_v2(deployment, layers) if version.graphs_are_estimated else 0


def _graph_cases(deployment: Deployment) -> int:
    """Return how often each size is captured."""
    return 2 if deployment.settings.adapters else 1


def _has_pieces(deployment: Deployment) -> bool:
    settings = deployment.settings
    if PIECEWISE in (settings.decode_graphs, settings.mixed_graphs):
        return True
    return settings.mixed_graphs == FULL and not _captures_mixed_steps(deployment)


def _of_runner_v1(deployment: Deployment, layers: int) -> int:
    """Return the same bytes for each graph, and the partial sums of the largest."""
    model, settings = deployment.model, deployment.settings
    full_graph = 0
    sums = 0
    if has_full_decode_graphs(deployment):
        full_graph = FULL_GRAPH
        sums = settings.decode_graph_sizes[-1] * _partial_sums(deployment)
    piece = 0
    if _has_pieces(deployment):
        piece = PIECEWISE_GRAPH
        if has_states(model):
            piece = PIECEWISE_GRAPH_OF_STATES
            if model.quantization and model.quantization.activation_bits == 8:
                piece += MORE_OF_8_BITS
        elif _has_shared_stream(model):
            piece = max(piece, layers * _layer_graphs(model) // 51)
        elif model.num_hidden_layers <= FEW_LAYERS:
            piece = PIECEWISE_GRAPH_OF_FEW_LAYERS
    others = _graph_cases(deployment) * len(settings.graph_sizes) - 1
    return sums + full_graph + (full_graph + piece) * others


def _of_runner_v2(deployment: Deployment, layers: int) -> int:
    """Return all pieces and two full graphs, of which the second stands for all others.

    Each of those takes 1 MiB, since capturing it first hands back what the run before it took. Those
    are partial sums again (`_times_summed_again`).
    """
    settings = deployment.settings
    cases = _graph_cases(deployment)
    decode_sizes = settings.decode_graph_sizes
    full_graphs = 0
    partial_sums = 0
    if has_full_decode_graphs(deployment):
        full_graphs = (cases * len(decode_sizes) - 1) * MIB
        second = decode_sizes[-1]
        if cases == 1 and len(decode_sizes) > 1:
            second = decode_sizes[-2]
        requests = decode_sizes[-1] + _times_summed_again(deployment) * second
        partial_sums = requests * _partial_sums(deployment)
    pieces = 0
    if _has_pieces(deployment):
        sizes = cases * len(settings.graph_sizes)
        pieces = layers * sizes * _layer_graphs(deployment.model) // 51
    return partial_sums + CAPTURED_BESIDE + full_graphs + pieces + _draft_graphs(deployment)


def _captures_mixed_steps(deployment: Deployment) -> bool:
    """Return True if a step that prefills can be captured as a whole; else vLLM captures pieces.

    FlashAttention 3 can, FlashAttention 2 and FlashInfer cannot, nor can latents and states.
    Source: _cudagraph_support in v1/attention/backends (0.32.0).
    """
    layers_can = all(kind.captures_mixed_steps for kind in kinds(deployment.model))
    return deployment.gpu.is_hopper and layers_can


def _draft_graphs(deployment: Deployment) -> int:
    """Return the bytes of a draft's own graphs, all of which vLLM captures to estimate them.

    They are the pieces of its layers, a full graph for each of the model's, and, for the second and
    later draft tokens, one for each number of requests, of which the largest holds partial sums.
    EAGLE-3 also has each full graph of the model return the hidden states of three layers. Three
    runs on H100 (0.32.0) are met within 35 MiB.
    Source: v1/worker/gpu/spec_decode/target_dependent_ar (0.32.0).
    """
    draft, model, settings = deployment.settings.draft, deployment.model, deployment.settings
    if draft is None or not draft.layers:
        return 0
    decode_sizes = settings.decode_graph_sizes
    full_graphs = len(decode_sizes)
    partial_sums = 0
    if draft.tokens > 1:
        request_counts = [size for size in settings.graph_sizes if size <= settings.max_num_seqs]
        full_graphs += len(request_counts)
        partial_sums = max(request_counts, default=1) * _partial_sums(deployment)
    pieces = draft.layers * len(settings.graph_sizes) * _layer_graphs(model) // 51
    states = 0
    if draft.method == "eagle3":
        state_bytes = drafts.AUXILIARY_LAYERS * model.hidden_size * DTYPE_BYTES[model.dtype]
        states = len(decode_sizes) * decode_sizes[-1] * state_bytes
    return pieces + full_graphs * MIB + partial_sums + states


def _partial_sums(deployment: Deployment) -> int:
    """Return the bytes of a request's partial sums in a full graph: splits × heads × width × 4.

    FlashAttention 3, which runs on Hopper alone, splits each request of a graph GRAPH_SPLITS times.
    With MLA the width is that of the latent; where it is sparse, its scores stand beside. Source: v1/attention/backends/flash_attn.py and
    mla/flashattn_mla.py (aot_schedule).
    """
    kind = main_kind(deployment.model)
    rows = kind.graph_row_bytes(deployment.model, deployment.settings.max_model_len)
    if not deployment.gpu.is_hopper:
        return rows
    heads = _most_heads(deployment.model) // deployment.tp
    return rows + GRAPH_SPLITS * heads * kind.summed_width(deployment.model) * 4


def _most_heads(model: ModelConfig) -> int:
    """Return the attention heads of the layer that has most."""
    fields = Fields(model.raw, model.location or model.name)
    per_layer = fields.list("num_attention_heads_per_layer", int)
    return max([model.num_attention_heads, *per_layer])


def _layer_graphs(model: ModelConfig) -> int:
    """Return the bytes that the pieces of one layer take in 51 sizes."""
    if has_states(model):
        return LAYER_GRAPHS_OF_STATES
    if any(model.layer_chunks):
        return LAYER_GRAPHS_OF_CHUNKED
    if _is_packed(model):
        return LAYER_GRAPHS_OF_PACKED
    if not _has_shared_stream(model):
        return LAYER_GRAPHS
    return LAYER_GRAPHS_OF_SHARED_EXPERTS + main_kind(model).shared_stream_graph_bytes


def _has_shared_stream(model: ModelConfig) -> bool:
    """Return True if shared experts run on a stream of their own; in hybrids none was seen."""
    return bool(model.moe and model.moe.shared_intermediate_size and not has_states(model))


def _is_packed(model: ModelConfig) -> bool:
    """Return True if whole numbers of less than 8 bits are unpacked in the kernels of a dense model."""
    quantization = model.quantization
    if quantization is None or model.moe:
        return False
    return quantization.weight_bits < 8 and quantization.activation_bits == 16


def _has_mrope(model: ModelConfig) -> bool:
    """Return True if positions have time, height and width of an image or a video."""
    text = model.raw.get("text_config")
    places: list[Mapping[str, object]] = [model.raw]
    if isinstance(text, dict):
        places.append(cast("Mapping[str, object]", text))
    for place in places:
        for name in ("rope_scaling", "rope_parameters"):
            rope = place.get(name)
            if isinstance(rope, dict) and "mrope_section" in rope:
                return True
    return False


def _times_summed_again(deployment: Deployment) -> int:
    """Return how often the second full graph holds partial sums under 0.32.0.

    Twice where layers keep more beside them (latents, norms of q and k, gates, positions in three
    dimensions, several ranks), but once in dense hybrids (Qwen3.5 27B, two runs), with FP8 scales of
    blocks (Qwen3 32B FP8, one run on an H200) and beside a stream of shared experts (GLM-4.5-Air).
    Where splits are not planned (windows that differ), not at all on one GPU, and once over several
    (gpt-oss-120b on two H100, 0.33.0, within 52 MiB). Laguna, Mellum 2 and Muse Glimmer, whose norms
    or gates count beside windows too, are met within 55 MiB (H200, 0.33.0).
    """
    model = deployment.model
    if model.architecture in GRAPH_SUMS:
        return GRAPH_SUMS[model.architecture]
    if main_kind(model).graphs_keep_more:
        return 2
    if has_states(model) and not model.moe and deployment.settings.draft is None:
        return 1
    if model.quantization and model.quantization.block and not model.moe:
        return 1
    if model.traits.qk_norm or model.traits.gated_attention or _has_mrope(model):
        return 2
    if len(set(model.layer_windows)) > 1:
        return 1 if deployment.tp > 1 else 0
    if _has_shared_stream(model):
        return 1
    return 2 if deployment.tp > 1 else 1
