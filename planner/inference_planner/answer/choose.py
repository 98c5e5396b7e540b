"""Choose how to split a model, and the fewest GPUs that hold it.

One search goes over tensor × pipeline parallel sizes.

`splits` lists the ways to use a number of GPUs, the one with most tensor parallelism first: tensor
parallelism makes each request faster, pipeline parallelism only makes room. The numbers of GPUs
that are tried are those of vLLM's guide "How to decide the distributed inference strategy": one
GPU, a node, all nodes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB
from inference_planner.errors import BadInput
from inference_planner.memory.fit import Fit, fit, longest_context, may_fit
from inference_planner.refusals import with_seqs_that_start
from inference_planner.request import GPUS_PER_NODE, PlanRequest
from inference_planner.split.communication import spans_nodes
from inference_planner.split.deployment import Deployment
from inference_planner.split.ranks import check_context, check_sizes, most_stages, tp_problem

MOST_NODES = 32  # that are searched if nothing is known of the hardware


@dataclass(frozen=True)
class Split:
    """The chosen split, its reasons, and the GPUs available (0: unknown, or sizes were given)."""

    deployment: Deployment
    reasons: list[str]
    world_size: int = 0


def splits(deployment: Deployment, gpus: int) -> list[Deployment]:
    """Return every split of one replica over exactly `gpus` GPUs, most tensor parallelism first.

    Each tensor-parallel group stays within a node. Stages may hold different numbers of layers, so
    any number of GPUs up to the number of layers can be used.
    """
    replicas = 0 if deployment.ep else deployment.dp
    return [
        deployment.split(tp, gpus // tp)
        for tp in _tensor_sizes(deployment.model, gpus, deployment.gpus_per_node, replicas)
    ]


@lru_cache(maxsize=4096)
def _tensor_sizes(model: ModelConfig, gpus: int, gpus_per_node: int, replicas: int) -> list[int]:
    """Return the tensor parallel sizes for so many GPUs, the largest first.

    Args:
        replicas: replicas that share the matrices of each expert; 0 if experts stay whole.
    """
    nodes = -(-gpus // gpus_per_node)
    if gpus % nodes:
        return []
    per_node = gpus // nodes
    sizes: list[int] = []
    for tp in range(per_node, 0, -1):
        enough_layers = gpus <= tp * most_stages(model)
        if per_node % tp == 0 and enough_layers and not tp_problem(model, tp, tp * replicas or 1):
            sizes.append(tp)
    return sizes


def first_that_fits(
    deployment: Deployment,
    numbers: Iterable[int],
    holds: Callable[[Deployment], bool] | None = None,
) -> Deployment | None:
    """Return the first split that fits, over the first of these numbers of GPUs that has one.

    Args:
        holds: whether a split fits; by default, whether its `Fit` holds a request.
    """
    holds = holds or (lambda split: fit(split).holds_a_request)
    for gpus in numbers:
        if may_fit(deployment, gpus):
            for split in splits(deployment, gpus):
                if holds(split):
                    return split
    return None


def split_over(deployment: Deployment, gpus: int) -> Deployment:
    """Return the first split over so many GPUs that fits, or that with most tensor parallelism.

    Raises BadInput: there are more GPUs than the model has layers, heads and experts to give them,
    or several slices.
    """
    _check_slices(deployment, gpus)
    options = splits(deployment, gpus)
    stays_whole = most_stages(deployment.model) == 1 or deployment.split(1, gpus).uneven
    if not options and gpus > 1 and stays_whole:  # use as many GPUs as can be used
        return split_over(deployment, gpus - 1)
    if not options:
        check_sizes(deployment.model, 1, gpus, deployment.experts_cut(1))
    return first_that_fits(deployment, [gpus]) or options[0]


def fewest(
    deployment: Deployment,
    most: int = 256,
    holds: Callable[[Deployment], bool] | None = None,
) -> Deployment | None:
    """Return the split over the fewest GPUs that holds one request; None if `most` do not.

    Args:
        holds: as in `first_that_fits`.
    """
    return first_that_fits(deployment, range(1, most + 1), holds)


def choose(deployment: Deployment, request: PlanRequest) -> Split:
    """Return the split that was asked for, or the one to take on this hardware.

    Where vLLM would refuse its own default of max_num_seqs, the deployment has a smaller one.

    Raises BadInput: sizes that cannot split the model.
    """
    if request.enable_expert_parallel and not deployment.model.moe:
        raise BadInput(
            f"{deployment.model.name} has no experts.", "Leave --enable-expert-parallel out."
        )
    if request.decode_context_parallel_size and request.decode_context_parallel_size > 1:
        check_context(
            deployment.model,
            request.tensor_parallel_size or 1,
            request.decode_context_parallel_size,
        )
    deployment = replace(
        deployment,
        gpus_per_node=request.gpus_per_node or GPUS_PER_NODE,
        dp=request.data_parallel_size or 1,
        ep=request.enable_expert_parallel,
        dcp=request.decode_context_parallel_size or 1,
    )
    world_size = 0
    if request.gpus_per_node or request.nodes:
        world_size = deployment.gpus_per_node * (request.nodes or 1)
    if not (request.tensor_parallel_size or request.pipeline_parallel_size):
        deployment = _with_length_that_fits(deployment)
    split = _split(deployment, request, world_size)
    split = replace(split, deployment=_with_length_that_fits(split.deployment))
    return replace(split, deployment=with_seqs_that_start(split.deployment))


def _with_length_that_fits(deployment: Deployment) -> Deployment:
    """Return the deployment with the longest request that fits, if that was asked for (auto).

    Source: v1/core/kv_cache_utils.py _auto_fit_max_model_len.
    """
    if not deployment.settings.fits_length:
        return deployment
    longest = longest_context(deployment)
    return deployment.with_settings(max_model_len=longest) if longest else deployment


def _split(deployment: Deployment, request: PlanRequest, world_size: int) -> Split:
    """Choose the split, from the sizes that were given or from the hardware."""
    if deployment.gpu.is_slice:
        return _one_slice(
            deployment,
            (request.tensor_parallel_size or 1)
            * (request.pipeline_parallel_size or 1)
            * deployment.dp,
        )
    if request.tensor_parallel_size or request.pipeline_parallel_size:
        return _with_sizes(deployment, request, world_size)
    if deployment.dp > 1 or deployment.ep:
        return _fewest_a_replica(deployment, world_size)
    single = fit(deployment)
    if single.holds_a_request:
        length = f"{deployment.settings.max_model_len:,} tokens"
        why = f"The model and one request of {length} fit on a single GPU, so nothing is split."
        return Split(deployment, [why], world_size)
    chosen = _over_gpus(deployment, world_size)
    why = [_why_not_one(deployment, single)]
    if chosen.gpus > 1:
        why.append(_why_split(chosen))
    return Split(chosen, why, world_size)


def _check_slices(deployment: Deployment, gpus: int) -> None:
    """Raise BadInput for a split over several slices of GPUs (MIG)."""
    if gpus > 1 and deployment.gpu.is_slice:
        raise BadInput(
            f"{deployment.gpu.title} is a slice of a GPU, and NCCL cannot join slices.",
            "Give sizes of 1, or a whole GPU.",
        )


def _one_slice(deployment: Deployment, gpus: int) -> Split:
    _check_slices(deployment, gpus)
    why = (
        "This is a slice of a GPU: a model that does not fit on it "
        "needs a larger slice, or a whole GPU."
    )
    return Split(deployment, [why])


def _fewest_a_replica(deployment: Deployment, world_size: int) -> Split:
    """Choose the fewest GPUs for each replica."""
    node = deployment.gpus_per_node
    most = max(1, (world_size or node * MOST_NODES) // deployment.dp)
    chosen = first_that_fits(deployment, range(1, most + 1))
    if not chosen:
        widest = next(
            (gpus for gpus in range(min(most, node), 0, -1) if splits(deployment, gpus)), 1
        )
        chosen = split_over(deployment, widest)
    return Split(chosen, _further_reasons(chosen, world_size), world_size)


def _over_gpus(deployment: Deployment, world_size: int) -> Deployment:
    """Split a model that one GPU does not hold: over a part of a node, a node, or all nodes."""
    node = deployment.gpus_per_node
    if not world_size:
        numbers = (2, 4, *range(node, node * MOST_NODES + 1, node))
        return first_that_fits(deployment, numbers) or split_over(deployment, node)
    chosen = first_that_fits(deployment, dict.fromkeys((node, world_size)))
    if chosen:
        return chosen
    usable = next(gpus for gpus in range(world_size, 0, -1) if splits(deployment, gpus))
    return split_over(deployment, usable)


def executor(gpus: int, nodes: int) -> tuple[str, str]:
    """Return what starts the workers without --distributed-executor-backend, uni or mp, and why.

    Source: vllm/config/parallel.py (0.25.1): --nnodes above 1 means mp; too few GPUs on this host
    for the sizes and no --nnodes is an error, where older versions took Ray. Inside a Ray placement
    group it is ray.
    """
    if gpus == 1:
        return "uni", "One GPU: the engine runs the model in its own process."
    if nodes == 1:
        return (
            "mp",
            "vLLM's own multiprocessing starts the workers. Ray is only used "
            "with --distributed-executor-backend ray.",
        )
    return (
        "mp",
        f"vLLM's own multiprocessing starts the workers on all {nodes} nodes (--nnodes), without "
        "Ray. On a Ray cluster, --distributed-executor-backend ray is the alternative.",
    )


def _with_sizes(deployment: Deployment, request: PlanRequest, world_size: int) -> Split:
    """Take the sizes that were given. A size that is missing follows from the hardware."""
    tp, pp = request.tensor_parallel_size, request.pipeline_parallel_size
    replica_gpus = world_size // deployment.dp
    if tp is None:
        most = max(1, replica_gpus // (pp or 1))
        usable = (
            size
            for size in range(most, 0, -1)
            if not tp_problem(deployment.model, size, deployment.experts_cut(size))
        )
        tp = next(usable, 1)
    if pp is None:
        pp = 1
        if request.nodes and request.nodes > 1:
            pp = max(1, replica_gpus // tp)
    check_sizes(deployment.model, tp, pp, deployment.experts_cut(tp))
    deployment = deployment.split(tp, pp)
    where = "in one node"
    if spans_nodes(deployment):
        where = "across nodes, which needs a fast network"
    elif pp > 1:
        where = "each stage in one node"
    why = f"Tensor parallel size {tp} and pipeline parallel size {pp}, as given ({where})."
    # without world_size: whoever gives sizes knows of idle GPUs
    return Split(deployment, [why, *_further_reasons(deployment, world_size)])


def _further_reasons(deployment: Deployment, world_size: int) -> list[str]:
    """Return the reasons of data, expert and context parallelism.

    Raises BadInput: there are not enough GPUs, or vLLM cannot start so many on the nodes.
    """
    node = deployment.gpus_per_node
    if world_size and deployment.gpus > world_size:
        sizes = f"TP {deployment.tp} × PP {deployment.pp}"
        if deployment.dp > 1:
            sizes += f" × DP {deployment.dp}"
        raise BadInput(
            f"{sizes} needs {deployment.gpus} GPUs, and {world_size // node} "
            f"node(s) of {node} have {world_size}.",
            "Give more nodes, or smaller sizes whose product is at most the number of GPUs.",
        )
    if deployment.uneven:
        raise BadInput(
            f"{deployment.uneven}.",
            "Give sizes that put as many whole replicas, or else GPUs, on every node.",
        )
    reasons: list[str] = []
    if deployment.dp > 1:
        own = "its own attention weights, KV cache and requests"
        reasons.append(
            f"Data parallelism: {deployment.dp} replicas of {deployment.replica_gpus} GPU(s), each with {own}."
        )
    if deployment.dcp > 1:
        split = (
            f"{deployment.dcp} ranks store different tokens of the KV heads that each would "
            f"otherwise copy, so {deployment.dcp} times as many tokens fit"
        )
        cost = (
            "Each decoding step then gathers queries and combines partial attention in every "
            "layer. That time was not measured, and the speed here leaves it out"
        )
        reasons.append(f"Decode context parallelism: {split}. {cost}.")
    experts = deployment.expert_split
    if experts and experts.dealt > 1:
        count = deployment.model.experts.num_experts
        on_each = -(-count // experts.dealt)
        reasons.append(
            f"Expert parallelism: the {count} experts stay whole, at most "
            f"{on_each} on each of {experts.dealt} GPUs."
        )
    elif experts:
        reasons.append(
            "Tensor parallelism splits the matrices of every expert "
            f"over all {experts.cut} GPUs of a stage."
        )
    return reasons


def _why_split(deployment: Deployment) -> str:
    """Say what decided the split: the heads, the number of nodes, or the memory."""
    node = min(deployment.gpus, deployment.gpus_per_node)
    problem = tp_problem(deployment.model, node)
    if problem:
        expert_parallel_helps = deployment.model.moe and not tp_problem(deployment.model, node, 1)
        without = ""
        if expert_parallel_helps:
            without = " without --enable-expert-parallel"
        divides = ""
        if deployment.tp > 1:
            divides = f", and tensor parallel size {deployment.tp} divides it"
        return (
            f"Tensor parallel size {node} is not possible{without}: {problem}. Pipeline "
            f"parallelism splits by layers, evenly or not{divides}."
        )
    if deployment.nodes > 1:
        return (
            f"One node of {deployment.gpus_per_node} is not enough, so the layers are split over nodes: "
            "tensor parallel size = GPUs per node, pipeline parallel size = nodes."
        )
    if deployment.pp > 1:
        return (
            f"Pipeline parallelism over {deployment.pp} stages leaves more memory "
            f"than tensor parallelism over {node} GPUs."
        )
    return (
        f"Tensor parallel over {deployment.tp} GPUs of one node: every GPU "
        f"works on every layer, over {deployment.gpu.link}."
    )


def _why_not_one(deployment: Deployment, single: Fit) -> str:
    """Say why one GPU does not hold the model. single: the memory of the deployment on one GPU."""
    title = deployment.gpu.title
    weights, overhead = single.weights[0] / GIB, single.overhead[0] / GIB
    if not single.loads:
        return (
            f"One {title} cannot hold it: {weights:.1f} GiB of weights and {overhead:.1f} GiB of "
            f"overhead, and vLLM may use {single.requested / GIB:.1f} GiB."
        )
    request = f"a request of {deployment.settings.max_model_len:,} tokens"
    needed = (
        f"it needs {single.needed / GIB:.1f} GiB of KV cache, and "
        f"{single.available[0] / GIB:.1f} GiB are left"
    )
    return f"One {title} holds the weights ({weights:.1f} GiB), but not {request}: {needed}."
