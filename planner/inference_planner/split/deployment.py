"""A deployment: one model on one kind of GPU, with vLLM's settings and the sizes of the split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from inference_planner.catalog import load_model, with_encoder
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB, GPU, load_card
from inference_planner.catalog.read import overridden
from inference_planner.catalog.weight import ExpertSplit
from inference_planner.model import adapters, drafts
from inference_planner.releases import moe_backends, platforms, versions
from inference_planner.releases.versions import Version
from inference_planner.request import DEFAULT_NETWORK, GPUS_PER_NODE, NAMES, PlanRequest, request_of
from inference_planner.split import capability, compilation, encoders, free_memory, settings
from inference_planner.split.measured_start import Start
from inference_planner.split.settings import Settings


@lru_cache(maxsize=1024)
def partition_layers(num_layers: int, pp: int) -> tuple[range, ...]:
    """Return each stage's layers; a rest goes to those before the last, from the back.

    The last stage already has the final norm and lm_head; with few extra layers the first is spared
    as well.
    Source: vLLM 0.25.1, distributed/utils.py get_pp_indices (VLLM_PP_LAYER_PARTITION overrides it).
    """
    counts = [num_layers // pp] * pp
    for i in range(2, num_layers % pp + 2):
        counts[-i] += 1
    ends = list(accumulate(counts))
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs, as it is split. Everything else is computed from it.

    Each of `dp` replicas has tp × pp ranks with their own attention and KV cache; experts are
    shared by all replicas. Every node has the same number of ranks. Ranks count through the
    tensor-parallel groups, so the ranks of a group are neighbors.
    """

    model: ModelConfig
    gpu: GPU
    settings: Settings
    tp: int = 1  # tensor_parallel_size
    pp: int = 1  # pipeline_parallel_size
    gpus_per_node: int = GPUS_PER_NODE
    network: str = DEFAULT_NETWORK  # between the nodes; one of communication.NETWORKS
    # What --quantization asks for; None for a checkpoint that is already quantized.
    quantization: str | None = None
    dp: int = 1  # data_parallel_size
    # enable_expert_parallel: experts stay whole, and each of the tp × dp ranks gets some of them.
    ep: bool = False
    # decode_context_parallel_size: so many of the tp ranks split the tokens of a KV head that each
    # would copy.
    dcp: int = 1
    # why the installed vLLM has no class for the architecture, or could not be asked for the GPU
    refused: str = ""
    # GiB that are free on each GPU before vLLM starts; None: nothing else runs there.
    free_gib: float | None = None
    # what starts on this site measured: see learned.py
    learned: tuple[Start, ...] = ()

    @property
    def free_bytes(self) -> int:
        """Bytes that are free on each GPU before vLLM starts."""
        if self.free_gib is None:
            return free_memory.most_free_bytes(self.gpu)
        return round(self.free_gib * GIB)

    @property
    def replica_gpus(self) -> int:
        return self.tp * self.pp

    @property
    def gpus(self) -> int:
        return self.replica_gpus * self.dp

    def experts_cut(self, tp: int) -> int:
        """Return over how many ranks the matrices of each expert are split."""
        return 1 if self.ep else tp * self.dp

    @property
    def expert_split(self) -> ExpertSplit | None:
        """The distribution of the experts; None if tensor parallelism splits them.

        With expert parallelism over tensor and data parallel ranks, each rank holds the shared
        experts whole, because it computes different tokens there. Qwen2-MoE is the exception.
        Source: vLLM 0.32.0, fused_moe/config.py FusedMoEParallelConfig.make; config/parallel.py
        use_sequence_parallel_moe.
        """
        if not self.model.moe or (self.dp == 1 and not self.ep):
            return None
        cut = self.experts_cut(self.tp)
        whole_experts = self.tp * self.dp // cut
        by_tokens = self.ep and self.tp > 1 and self.dp > 1
        if by_tokens and not self.model.traits.cuts_shared_experts:
            return ExpertSplit(cut, whole_experts, 1)
        return ExpertSplit(cut, whole_experts, self.tp)

    @property
    def stages(self) -> tuple[range, ...]:
        """The decoder layers of each pipeline stage."""
        return partition_layers(self.model.num_hidden_layers, self.pp)

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    def node_of(self, rank: int) -> int:
        """Return the node of a rank; vLLM starts the same number on each (--nnodes)."""
        return rank // (self.gpus // self.nodes)

    @property
    def uneven(self) -> str:
        """The reason for which --nnodes does not "evenly divide the total world size"; or ""."""
        if self.dp == 1:
            count, what = self.gpus, f"{self.gpus} GPUs"
        else:
            count, what = self.dp, f"{self.dp} replicas of {self.replica_gpus} GPU(s)"
        if count % self.nodes == 0:
            return ""
        nodes = f"{self.nodes} nodes of {self.gpus_per_node}"
        return f"{what} cannot be shared out evenly over {nodes}, as vLLM asks"

    def split(self, tp: int, pp: int) -> Deployment:
        """Return the same model and settings with tp × pp GPUs per replica."""
        return replace(self, tp=tp, pp=pp)

    def with_settings(self, **changes: object) -> Deployment:
        """Return the same split with other settings of vLLM."""
        return replace(self, settings=replace(self.settings, **changes))

    def quantized(self, method: str) -> Deployment:
        """Return the same split with quantized weights.

        Raises BadInput if the GPU has no kernels for them.
        """
        model = self.model.with_quantization(quant.from_name(method))
        capability.check_quantization(model, self.gpu)
        return replace(self, model=model, quantization=method)


def prepare(model: str | Path | ModelConfig, gpu: str | GPU | None, **settings: Any) -> Deployment:
    """Return the deployment on one GPU, as `deployment_of` does; settings are those of PlanRequest."""
    return deployment_of(model, gpu, request_of(prepare, settings))


# Settings of a request that vLLM's Settings have as well, and which `deployment_of` hands on.
HANDED_ON = sorted(
    {setting.name for setting in fields(Settings)}
    & set(NAMES) - {"dtype", "limit_mm_per_prompt", "moe_backend"}
)


def _asked_for(
    model: str | Path | ModelConfig, request: PlanRequest, version: Version
) -> ModelConfig:
    """Return the model's config as this release of vLLM reads it, with what the request overrides."""
    config = load_model(model)
    if request.limit_mm_per_prompt:
        config = with_encoder(config)  # the catalog's entry may be of the text model
    if request.hf_overrides:
        config = overridden(config, request.hf_overrides)
    if config.unscaled_positions and not version.scales_yarn:
        return replace(config, max_position_embeddings=config.unscaled_positions)
    return config


def _quantized(config: ModelConfig, quantization: str | None) -> tuple[ModelConfig, str | None]:
    """Return the config with --quantization, and the name as vLLM spells it.

    Raises BadInput: an unknown name, or another one than the checkpoint's.
    """
    if not quantization:
        return config, quantization
    name = quant.canonical(quantization)
    if config.quantization:
        quant.check_stored(config.quantization, name)
        return config, name
    return config.with_quantization(quant.from_name(name)), name


def _utilization(card: GPU, request: PlanRequest, version: Version) -> float | None:
    """Return --gpu-memory-utilization: as given, or what is free; None is vLLM's default.

    Raises BadInput: more is said to be free than the card has, or too little.
    """
    share_given = request.gpu_memory_utilization
    if request.free_gib is not None:
        share = free_memory.share_of_free(card, request.free_gib)
        if share_given is None and share < version.default_utilization:
            return share
    elif share_given is None and card.unified_memory:
        return free_memory.UNIFIED_UTILIZATION
    return share_given


def deployment_of(
    model: str | Path | ModelConfig,
    gpu: str | GPU | None,
    request: PlanRequest,
    learned: Sequence[Start] = (),
) -> Deployment:
    """Return the deployment on one GPU, with vLLM's defaults filled in; `choose` splits it.

    Where `free_gib` leaves less than vLLM's default share, that is taken if no share is given.

    Args:
        gpu: a name of the catalog, a GPU, or None for a card of which only the memory is known.
        learned: what starts on this site measured.

    Raises BadInput: an unknown name, a number out of range, something that the GPU has no kernels
    for, or another quantization than the checkpoint's.
    """
    version = versions.get(request.vllm_version or versions.DEFAULT)
    config, quantization = _quantized(_asked_for(model, request, version), request.quantization)
    card = load_card(gpu, request.gpu_memory_gib)
    values = {name: getattr(request, name) for name in HANDED_ON}
    values["gpu_memory_utilization"] = _utilization(card, request, version)
    moe_backend = moe_backends.canonical(request.moe_backend)
    moe_backends.check(config, card, moe_backend)
    config = moe_backends.with_padding(config, card, moe_backend)
    capability.check_quantization(config, card)
    dtype = capability.dtype_for(config, card, request.dtype)
    if dtype != "auto":
        config = replace(config, dtype=settings.DTYPES[dtype])
    chosen = settings.resolve(
        config,
        card,
        **values,
        dtype=dtype,
        limit_mm_per_prompt=encoders.limits(request.limit_mm_per_prompt),
        draft=drafts.read(config, request),
        adapters=adapters.checked(request),
        moe_backend=moe_backend,
        compilation=compilation.checked(
            request.compilation_config, request.max_cudagraph_capture_size
        ),
    )
    encoders.check_inputs(config, chosen)
    if encoders.skips_tower(config, chosen):
        config = replace(config, text_only=True)
    capability.check_kv_cache_dtype(
        config, card, request.kv_cache_dtype, bool(request.language_model_only)
    )
    return Deployment(
        model=capability.with_layout(config, card, request.kv_cache_dtype),
        gpu=card,
        settings=chosen,
        gpus_per_node=request.gpus_per_node or GPUS_PER_NODE,
        network=request.network,
        quantization=quantization,
        refused=platforms.not_asked(card),
        free_gib=request.free_gib,
        learned=tuple(learned),
    )
