"""A deployment: one model on one kind of GPU, with vLLM's settings and the split. All else is computed from it."""

# m model, g GPU, s settings
from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference_planner import settings
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.settings import Settings
from inference_planner.weight import ExpertSplit

GPUS_PER_NODE = 8  # where nothing is said about the hardware
DEFAULT_NETWORK = "infiniband-ndr"


@dataclass(frozen=True)
class Deployment:
    """What runs where. Every node has as many ranks, in order: those of a tensor-parallel group are neighbours.

    Each of dp replicas has tp × pp ranks, attention and KV cache of its own; experts are shared by all replicas.
    """

    model: ModelConfig
    gpu: GPU
    settings: Settings
    tp: int = 1  # tensor_parallel_size
    pp: int = 1  # pipeline_parallel_size
    gpus_per_node: int = GPUS_PER_NODE
    network: str = DEFAULT_NETWORK  # between the nodes; one of communication.NETWORKS
    quantization: str | None = (
        None  # what --quantization asks for; a checkpoint that is quantised already needs none
    )
    dp: int = 1  # data_parallel_size
    ep: bool = (
        False  # enable_expert_parallel: experts stay whole, and are dealt out over tp × dp ranks
    )
    dcp: int = 1  # decode_context_parallel_size: so many of the tp ranks share the tokens of a copied KV head
    refused: str = ""  # what the vLLM that was asked said of an architecture that it does not have

    @property
    def replica_gpus(self) -> int:
        return self.tp * self.pp

    @property
    def gpus(self) -> int:
        return self.replica_gpus * self.dp

    def experts_cut(self, tp: int) -> int:
        """Return over how many ranks each expert's matrices are cut at this tensor parallel size."""
        return 1 if self.ep else tp * self.dp

    @property
    def expert_split(self) -> ExpertSplit | None:
        """How the experts are shared out; None where tensor parallelism alone cuts them, as all else.

        Shared experts are whole on every rank where the work between two attentions is split by tokens, but in Qwen2-MoE.
        Source: vLLM 0.32.0, fused_moe/config.py FusedMoEParallelConfig.make; config/parallel.py use_sequence_parallel_moe.
        """
        if not self.model.moe or (self.dp == 1 and not self.ep):
            return None
        by_tokens = (
            self.ep
            and self.tp > 1
            and self.dp > 1
            and not self.model.traits.cuts_shared_experts
        )
        cut = self.experts_cut(self.tp)
        return ExpertSplit(cut, self.tp * self.dp // cut, 1 if by_tokens else self.tp)

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    def node_of(self, rank: int) -> int:
        """Return the node of a rank: vLLM starts as many on each (--nnodes), whether they fill it or not."""
        return rank // (self.gpus // self.nodes)

    @property
    def uneven(self) -> str:
        """Why vLLM's --nnodes, which "must evenly divide the total world size", refuses it; an empty string where not."""
        if (self.gpus if self.dp == 1 else self.dp) % self.nodes == 0:
            return ""
        what = (
            f"{self.gpus} GPUs"
            if self.dp == 1
            else f"{self.dp} replicas of {self.replica_gpus} GPU(s)"
        )
        return f"{what} cannot be shared out evenly over {self.nodes} nodes of {self.gpus_per_node}, as vLLM asks"

    def split(self, tp: int, pp: int) -> Deployment:
        """Return the same model and settings with tp × pp GPUs a replica."""
        return replace(self, tp=tp, pp=pp)

    def with_settings(self, **changes: object) -> Deployment:
        """Return it with other engine settings."""
        return replace(self, settings=replace(self.settings, **changes))

    def quantised(self, method: str) -> Deployment:
        """Return it with weights quantised so. Raises BadInput where the GPU has no kernels for them."""
        model = self.model.with_quantization(quant.from_name(method))
        settings.check_quantization(model, self.gpu)
        return replace(self, model=model, quantization=method)


def prepare(
    model: str | Path | ModelConfig,
    gpu: str | GPU,
    *,
    quantization: str | None = None,
    dtype: str = "auto",
    gpus_per_node: int | None = None,
    network: str = DEFAULT_NETWORK,
    **asked: Any,
) -> Deployment:
    """Return the deployment on one GPU, with vLLM's defaults filled in; `choose` splits it.

    asked: Settings' fields; None where vLLM's default is meant.

    Raises BadInput: an unknown name, a number out of range, something that the GPU has no kernels for, or another
    quantization than the checkpoint's.
    """
    m, g = load_model(model), load_gpu(gpu)
    if quantization and m.quantization:
        quant.check_stored(m.quantization, quantization)
    elif quantization:
        m = m.with_quantization(quant.from_name(quantization))
    settings.check_quantization(m, g)
    settings.check_kv_cache_dtype(m, g, asked.get("kv_cache_dtype") or "auto")
    dtype = settings.dtype_for(m, g, dtype)
    if dtype != "auto":
        m = replace(m, dtype=settings.DTYPES[dtype])
    s = settings.resolve(m, g, dtype=dtype, **asked)
    return Deployment(m, g, s, 1, 1, gpus_per_node or GPUS_PER_NODE, network, quantization)
