"""How to split a model, and the fewest GPUs that hold it: one search over tensor × pipeline parallel sizes.

Every question goes through `splits`, which lists the ways to use so many GPUs, the one with most tensor parallelism
first: it makes each request faster, where pipeline parallelism only makes room. Which numbers of GPUs are tried is that
of vLLM's guide "How to decide the distributed inference strategy": one GPU, a node, all nodes.
"""

# d deployment, m model, s one of its splits, n number of GPUs
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB
from inference_planner.communication import spans_nodes
from inference_planner.deployment import GPUS_PER_NODE, Deployment
from inference_planner.errors import BadInput
from inference_planner.memory import fit, may_fit
from inference_planner.ranks import check_context, check_sizes, most_stages, tp_problem
from inference_planner.settings import whole

MOST, MOST_NODES = 4096, 32  # of what may be asked for; that are searched


@dataclass(frozen=True)
class Choice:
    """The split, why it is so, and how many GPUs there are: 0 where nobody said, or gave the sizes."""

    deployment: Deployment
    reasons: list[str]
    world: int = 0


def splits(d: Deployment, gpus: int) -> list[Deployment]:
    """Return every split of a replica over exactly so many GPUs whose tensor-parallel groups stay in a node, the widest
    first. Stages may hold different numbers of layers, so any number of GPUs up to the number of layers can be used.
    """
    return [
        d.split(tp, gpus // tp)
        for tp in _widths(d.model, gpus, d.gpus_per_node, 0 if d.ep else d.dp)
    ]


@lru_cache(maxsize=4096)
def _widths(m: ModelConfig, gpus: int, node: int, replicas: int) -> list[int]:
    """replicas that share the matrices of each expert; 0 where experts stay whole."""
    share, rest = divmod(gpus, -(-gpus // node))  # of each node
    sizes = (
        tp
        for tp in range(share, 0, -1)
        if not rest and share % tp == 0 and gpus <= tp * most_stages(m)
    )
    return [tp for tp in sizes if not tp_problem(m, tp, tp * replicas or 1)]


def first_that_fits(d: Deployment, numbers: Iterable[int]) -> Deployment | None:
    """Return the first split that fits, over the first of these numbers of GPUs that has one."""
    tried = (s for gpus in numbers if may_fit(d, gpus) for s in splits(d, gpus))
    return next((s for s in tried if fit(s).fits), None)


def spread(d: Deployment, gpus: int) -> Deployment:
    """Return the first split over so many GPUs that fits; the widest where none does.

    Raises BadInput for more GPUs than the model has layers, heads and experts to give them.
    """
    found = splits(d, gpus)
    # as many as can be used
    if not found and gpus > 1 and (most_stages(d.model) == 1 or d.split(1, gpus).uneven):
        return spread(d, gpus - 1)
    if not found:
        check_sizes(d.model, 1, gpus, d.experts_cut(1))
    return first_that_fits(d, [gpus]) or found[0]


def fewest(d: Deployment, most: int = 256) -> Deployment | None:
    """Return the split over the fewest GPUs that serves one request of max_model_len; None if `most` do not."""
    return first_that_fits(d, range(1, most + 1))


def choose(
    d: Deployment,
    *,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    tp: int | None = None,
    pp: int | None = None,
    dp: int | None = None,
    ep: bool = False,
    dcp: int | None = None,
) -> Choice:
    """Return the split that was asked for, or the one to take on this hardware.

    Raises BadInput for numbers that are none, or sizes that cannot split the model.
    """
    names = (
        "gpus_per_node",
        "nodes",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
    )
    names += ("decode_context_parallel_size",)
    for name, value in zip(names, (gpus_per_node, nodes, tp, pp, dp, dcp), strict=True):
        if value is not None:
            whole(name, value, MOST, "Give how many there are.")
    if ep and not d.model.moe:
        raise BadInput(
            f"{d.model.name} has no experts to deal out.", "Leave --enable-expert-parallel out."
        )
    if dcp and dcp > 1:
        check_context(d.model, tp or 1, dcp)
    d = replace(d, gpus_per_node=gpus_per_node or GPUS_PER_NODE, dp=dp or 1, ep=ep, dcp=dcp or 1)
    if d.gpu.is_slice:
        if (tp or 1) * (pp or 1) * d.dp > 1:
            raise BadInput(
                f"{d.gpu.title} is a slice, and NCCL joins no slices.",
                "Give sizes of 1, or a whole GPU.",
            )
        return Choice(
            d, ["A slice of a GPU: what does not fit on one needs a larger slice, or a whole GPU."]
        )
    node, most_nodes = d.gpus_per_node, nodes or 1
    world = node * most_nodes if gpus_per_node or nodes else None
    if tp or pp:
        return _checked(*_given(d, nodes, tp, pp, world), world)
    if d.dp > 1 or ep:  # the fewest GPUs a replica
        most = max(1, (world or node * MOST_NODES) // d.dp)
        widest = next((n for n in range(min(most, node), 0, -1) if splits(d, n)), 1)
        found = first_that_fits(d, range(1, most + 1)) or spread(d, widest)
        return _checked(found, [], world)
    if fit(d).fits:
        length = d.settings.max_model_len
        why = f"The model and one request of {length:,} tokens fit on a single GPU: no distribution, no communication."
        return Choice(d, [why], world or 0)
    if world is None:  # half a node or a whole one, then whole nodes
        found = first_that_fits(d, (2, 4, *range(node, node * MOST_NODES + 1, node))) or spread(
            d, node
        )
    elif not (
        found := first_that_fits(d, dict.fromkeys((node, world)))
    ):  # one node if it holds the model, else all
        found = spread(d, next(n for n in range(world, 0, -1) if splits(d, n)))
    return Choice(found, [_why_not_one(d), _why_split(found)], world or 0)


def executor(gpus: int, nodes: int) -> tuple[str, str]:
    """Return (what starts the workers, why): uni or mp, as vLLM decides without --distributed-executor-backend.

    Source: vllm/config/parallel.py (0.25.1): --nnodes above 1 means mp; too few GPUs on this host for the sizes and
    no --nnodes is an error, where older versions took Ray. Inside a Ray placement group it is ray.
    """
    if gpus == 1:
        return "uni", "One GPU: the engine runs the model in its own process."
    why = "vLLM's own multiprocessing starts the workers; Ray is only needed where --distributed-executor-backend ray asks for it."
    if nodes > 1:
        why = f"vLLM's own multiprocessing starts the workers on all {nodes} nodes (--nnodes): no Ray needed; --distributed-executor-backend ray on a Ray cluster is the other way."
    return "mp", why


def _given(
    d: Deployment, nodes: int | None, tp: int | None, pp: int | None, world: int | None
) -> tuple[Deployment, list[str]]:
    """Take the sizes that were given; the one that is missing follows from the hardware."""
    replica = world // d.dp if world else None
    if tp is None:
        most = max(1, replica // (pp or 1)) if replica else 1
        tp = next(
            (t for t in range(most, 0, -1) if not tp_problem(d.model, t, d.experts_cut(t))), 1
        )
    if pp is None:
        pp = max(1, replica // tp) if replica and nodes and nodes > 1 else 1
    check_sizes(d.model, tp, pp, d.experts_cut(tp))
    stage = "each stage in one node" if pp > 1 else "in one node"
    d = d.split(tp, pp)
    where = "across nodes, which needs a fast network" if spans_nodes(d) else stage
    return d, [f"Tensor parallel size {tp} and pipeline parallel size {pp}, as given ({where})."]


def _checked(d: Deployment, why: list[str], world: int | None) -> Choice:
    """Refuse what the hardware has no room for, and say how replicas share their experts."""
    node, experts = d.gpus_per_node, d.expert_split
    if world and d.gpus > world:
        sizes = f"TP {d.tp} × PP {d.pp}" + (f" × DP {d.dp}" if d.dp > 1 else "")
        remedy = "Give more nodes, or smaller sizes whose product is at most the number of GPUs."
        raise BadInput(
            f"{sizes} needs {d.gpus} GPUs, and {world // node} node(s) of {node} have {world}.",
            remedy,
        )
    if d.uneven:
        raise BadInput(
            f"{d.uneven}.",
            "Give sizes that put as many whole replicas, or else GPUs, on every node.",
        )
    if d.dp > 1:
        own = "attention, KV cache and requests of its own"
        why.append(f"{d.dp} replicas of {d.replica_gpus} GPU(s), each with {own}.")
    if d.dcp > 1:
        cost = "Each decoding step then gathers queries and joins partial answers in every layer, which the speed here leaves out (not measured)."
        why.append(
            f"{d.dcp} ranks share out the tokens of what each would keep a copy of: {d.dcp} times as many fit. {cost}"
        )
    if experts and experts.dealt > 1:
        n = d.model.experts.num_experts
        why.append(
            f"The {n} experts stay whole: at most {-(-n // experts.dealt)} on each of {experts.dealt} GPUs."
        )
    elif experts:
        why.append(f"The matrices of every expert are cut over all {experts.cut} GPUs of a stage.")
    return Choice(d, why)


def _why_split(d: Deployment) -> str:
    """Say what made the split so: the node, its heads, or the number of nodes."""
    node = min(d.gpus, d.gpus_per_node)
    if problem := tp_problem(d.model, node):
        rest = (
            "evenly or not"
            if d.tp == 1
            else f"evenly or not, and tensor parallel size {d.tp} divides it"
        )
        whole = (
            ""
            if not d.model.moe or tp_problem(d.model, node, 1)
            else " without --enable-expert-parallel"
        )
        return f"Tensor parallel size {node} is not possible{whole}: {problem}. Pipeline parallelism splits by layers, {rest}."
    if d.nodes > 1:
        return f"One node of {d.gpus_per_node} is not enough, so the layers are split over nodes: tensor parallel size = GPUs per node, pipeline parallel size = nodes."
    if d.pp > 1:
        return f"Pipeline parallelism over {d.pp} stages leaves more memory than tensor parallelism over {node} GPUs."
    return f"Tensor parallel over {d.tp} GPUs of one node: every GPU works on every layer, over {d.gpu.link}."


def _why_not_one(d: Deployment) -> str:
    one, title = fit(d), d.gpu.title
    weights, overhead = one.weights[0] / GIB, one.overhead[0] / GIB
    if not one.loads:
        return f"One {title} cannot hold it: {weights:.1f} GiB of weights and {overhead:.1f} GiB of overhead, of {one.requested / GIB:.1f} GiB that the engine may use."
    return f"One {title} holds the weights ({weights:.1f} GiB), but not a request of {d.settings.max_model_len:,} tokens: it takes {one.needed / GIB:.1f} GiB of KV cache, and {one.available[0] / GIB:.1f} GiB are left."
