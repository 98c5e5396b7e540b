"""What a rank needs besides weights and KV cache, item by item, each with its reason and source.

vLLM runs the model once on max_num_batched_tokens dummy tokens before it sizes the KV cache, and keeps what that
run needed at its peak. Source: vLLM 0.25.1, v1/worker/gpu_worker.py determine_available_memory.
"""

# d deployment, m model, s settings, o overhead
from dataclasses import dataclass

from workshop.plan.activations import candidates, graph_estimate, request_states, runner
from workshop.plan.catalog.gpus import MIB
from workshop.plan.deployment import Deployment
from workshop.plan.ranks import partition_layers

# Read with cudaMemGetInfo around each step on an H200 (CUDA 13.0, NCCL 2.28.9): benchmarks/gpu/measure_worker.py.
KERNELS_AT_LOAD = 162 * MIB  # a worker of its own loads its first CUDA modules after the first snapshot
KERNELS_AT_PROFILE = 68 * MIB  # modules that the profile run touches first
GATHER = 486 * MIB  # the communicator that the first gather of logits opens; the same for 2 and 4 ranks
GRAPHS_LEFT_OVER = 12 * MIB  # what capturing and dropping the trial graphs leaves behind, each rank


@dataclass(frozen=True)
class Overhead:
    """One item: bytes on one rank, why it is there, and where the number comes from."""

    name: str
    bytes: int
    reason: str
    source: str


def overheads(d: Deployment, stage: int) -> list[Overhead]:
    """Return the overhead items of one rank of pipeline stage `stage`."""
    m, s, tp = d.model, d.settings, d.tp
    first, last, alone = stage == 0, stage == d.pp - 1, d.replica_gpus == 1
    peak = max(candidates(d, first, last), key=lambda p: p.bytes)
    loaded = "" if alone else " (with several ranks, most are loaded before vLLM starts to count)"
    items = [
        Overhead(
            "activations",
            peak.bytes,
            f"peak of the profile run: {peak.name} ({peak.parts})",
            "shapes of vLLM 0.25.1's layers; live tensors traced on H200",
        ),
        Overhead(
            "CUDA kernels",
            KERNELS_AT_PROFILE + (KERNELS_AT_LOAD if alone else 0),
            f"modules that CUDA loads when a kernel is used for the first time{loaded}",
            "cudaMemGetInfo around the profile run, H200",
        ),
    ]
    if tp > 1 and last and s.vllm_version == "0.25.1":  # not seen under 0.32.0 (70B on two H200)
        reason = "buffers that the first gather of logits over the tensor-parallel ranks opens"
        items.append(Overhead("NCCL", GATHER, reason, "cudaMemGetInfo around the profile run, H200, NCCL 2.28.9"))
    if graphs := graph_estimate(m, s, tp, len(partition_layers(m.num_hidden_layers, d.pp)[stage])):
        old = runner(m, s.vllm_version) == 1
        kept, doubt = (GRAPHS_LEFT_OVER * tp, "") if old else (0, "; from the source, ±20 %")
        reason = f"vLLM sets aside what it estimates for {2 * len(s.graph_sizes)} graphs"
        source = f"profile_cudagraph_memory ({s.vllm_version}){doubt}"
        items.append(Overhead("CUDA graphs", graphs + kept, reason, source))
    if states := request_states(m, s):
        reason = f"token counts and masks of {s.max_num_seqs} requests"
        source = "v1/worker/gpu/sample (0.32.0), counted since memory is taken from cudaMemGetInfo"
        items.append(Overhead("request states", states, reason, source))
    return items
