"""A deployment: one model on one kind of GPU, with vLLM's settings and the sizes of the split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

from inference_planner.catalog import load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB, GPU, load_card
from inference_planner.catalog.read import overridden
from inference_planner.catalog.weight import ExpertSplit
from inference_planner.model import adapters, drafts
from inference_planner.releases import moe_backends, versions
from inference_planner.split import encoders, settings
from inference_planner.split.measured_start import Start
from inference_planner.split.settings import Settings

GPUS_PER_NODE = 8  # if nothing is known of the hardware
DEFAULT_NETWORK = "infiniband-ndr"


@lru_cache(maxsize=1024)
def partition_layers(num_layers: int, pp: int) -> tuple[range, ...]:
    """Return each stage's layers.

    What does not divide goes to the stages before the last, from the second last back.

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
    refused: str = ""  # why the installed vLLM has no class for the architecture
    # GiB that are free on each GPU before vLLM starts; None: nothing else runs there.
    free_gib: float | None = None
    # what starts on this site measured: see learned.py
    learned: tuple[Start, ...] = ()

    @property
    def free_bytes(self) -> int:
        """Bytes that are free on each GPU before vLLM starts."""
        if self.free_gib is None:
            return self.gpu.engine_bytes
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
        """Return the node of a rank.

        vLLM starts the same number of ranks on each node (--nnodes).
        """
        return rank // (self.gpus // self.nodes)

    @property
    def uneven(self) -> str:
        """The reason for which vLLM's --nnodes refuses the split; "" if it does not.

        The number of nodes "must evenly divide the total world size".
        """
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
        settings.check_quantization(model, self.gpu)
        return replace(self, model=model, quantization=method)


def prepare(
    model: str | Path | ModelConfig,
    gpu: str | GPU | None,
    *,
    gpu_memory_gib: float | None = None,
    free_gib: float | None = None,
    quantization: str | None = None,
    dtype: str = "auto",
    gpus_per_node: int | None = None,
    network: str = DEFAULT_NETWORK,
    learned: Sequence[Start] = (),
    limit_mm_per_prompt: str | Mapping[str, Any] | None = None,
    hf_overrides: str | Mapping[str, Any] | None = None,
    speculation: Mapping[str, Any] | None = None,
    lora: Mapping[str, Any] | None = None,
    moe_backend: str | None = None,
    **more: Any,
) -> Deployment:
    """Return the deployment on one GPU, with vLLM's defaults filled in; `choose` splits it.

    Args:
        gpu: a name of the catalog, a GPU, or None for a card of which only the memory is known.
        gpu_memory_gib: memory of one GPU in GiB as vLLM sees it, in place of the catalog's.
        free_gib: free on each GPU when vLLM starts, in GiB; utilization is lowered to it if none is
            given.
        learned: what starts on this site measured.
        limit_mm_per_prompt: images, videos and sounds that a prompt may hold, as `encoders.limits`
            reads them.
        hf_overrides: fields that replace those of config.json, as an object or as JSON.
        speculation: the arguments of `drafts.read` beside the model.
        lora: the arguments of `adapters.checked`.
        moe_backend: the kernels of experts, one of moe_backends.BACKENDS; None lets vLLM choose.
        more: other fields of Settings; None means vLLM's default.

    Raises BadInput: an unknown name, a number out of range, something that the GPU has no kernels
    for, or another quantization than the checkpoint's.
    """
    config = load_model(model)
    if hf_overrides:
        config = overridden(config, hf_overrides)
    version = versions.get(more.get("vllm_version") or versions.DEFAULT)
    if config.unscaled_positions and not version.scales_yarn:
        config = replace(config, max_position_embeddings=config.unscaled_positions)
    card = load_card(gpu, gpu_memory_gib)
    if free_gib is not None:
        share = settings.share_of_free(card, free_gib)
        if more.get("gpu_memory_utilization") is None and share < version.default_utilization:
            more["gpu_memory_utilization"] = share
    if quantization:
        quantization = quant.canonical(quantization)
    if quantization and config.quantization:
        quant.check_stored(config.quantization, quantization)
    elif quantization:
        config = config.with_quantization(quant.from_name(quantization))
    moe_backend = moe_backends.canonical(moe_backend)
    moe_backends.check(config, card, moe_backend)
    config = moe_backends.with_padding(config, card, moe_backend)
    settings.check_quantization(config, card)
    settings.check_kv_cache_dtype(config, card, more.get("kv_cache_dtype") or "auto")
    dtype = settings.dtype_for(config, card, dtype)
    if dtype != "auto":
        config = replace(config, dtype=settings.DTYPES[dtype])
    chosen = settings.resolve(
        config,
        card,
        dtype=dtype,
        limit_mm_per_prompt=encoders.limits(limit_mm_per_prompt),
        draft=drafts.read(config, **speculation) if speculation else None,
        adapters=adapters.checked(**lora) if lora else None,
        moe_backend=moe_backend,
        **more,
    )
    encoders.check_inputs(config, chosen)
    if encoders.skips_tower(config, chosen):
        config = replace(config, text_only=True)
    return Deployment(
        model=config,
        gpu=card,
        settings=chosen,
        gpus_per_node=gpus_per_node or GPUS_PER_NODE,
        network=network,
        quantization=quantization,
        free_gib=free_gib,
        learned=tuple(learned),
    )
