"""How to split a model when the user does not say: one GPU, tensor parallel in a node, pipeline over nodes.

The order is that of vLLM's guide "How to decide the distributed inference strategy": a single GPU if the model fits;
otherwise tensor parallel size = GPUs in the node; over nodes, pipeline parallel size = nodes. GPUs that do not divide
the model: tensor parallel 1, pipeline parallel size = GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.errors import BadInput
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GPU
from workshop.plan.fit import Fit, fit, may_fit
from workshop.plan.ranks import check_sizes, tp_problem
from workshop.plan.settings import Settings

DEFAULT_GPUS_PER_NODE = 8
MOST_NODES = 32


@dataclass(frozen=True)
class Choice:
    """The split, the hardware it stands on, and why."""

    fit: Fit
    gpus_per_node: int
    nodes: int
    reasons: list[str]
    counted: bool = False        # the user said how many GPUs there are


def _whole(name: str, value: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096:
        raise BadInput(f"{name} is {value!r}, and must be a whole number from 1 to 4096.", "Give how many there are.")


def executor(gpus: int, nodes: int, *, inside_ray: bool = False) -> tuple[str, str]:
    """Return (what starts the workers, why): uni, mp or ray, as vLLM decides without --distributed-executor-backend.

    Source: vllm/config/parallel.py (0.25.1): --nnodes above 1 means mp; a Ray placement group means ray; too few GPUs
    on this host for the sizes and no --nnodes is an error, where older versions took Ray.
    """
    if gpus == 1:
        return "uni", "One GPU: the engine runs the model in its own process."
    if nodes > 1:
        return "mp", (f"vLLM's own multiprocessing starts the workers on all {nodes} nodes (--nnodes): no Ray needed; "
                      "--distributed-executor-backend ray on a Ray cluster is the other way.")
    if inside_ray:
        return "ray", "Started inside a Ray placement group, vLLM takes Ray."
    return "mp", ("vLLM's own multiprocessing starts the workers; Ray is only needed where "
                  "--distributed-executor-backend ray asks for it.")


def choose(m: ModelConfig, gpu: GPU, s: Settings, *, gpus_per_node: int | None, nodes: int | None,
           tp: int | None, pp: int | None) -> Choice:
    """Return the split that was asked for, or the smallest that fits the hardware."""
    for name, value in (("gpus_per_node", gpus_per_node), ("nodes", nodes), ("tensor_parallel_size", tp),
                        ("pipeline_parallel_size", pp)):
        _whole(name, value)
    if tp or pp:
        return _given(m, gpu, s, gpus_per_node, nodes, tp, pp)
    per_node = gpus_per_node or DEFAULT_GPUS_PER_NODE
    one = fit(m, gpu, s, 1, 1)
    if one.fits:
        return Choice(one, per_node, 1, [f"The model and one request of {s.max_model_len:,} tokens fit on a single "
                                         "GPU: "
                                         "no distribution, no communication."], gpus_per_node is not None)
    if gpus_per_node is None and nodes is None:
        return _free(m, gpu, s, one)
    return _on_hardware(m, gpu, s, per_node, nodes or 1, one)


def _given(m: ModelConfig, gpu: GPU, s: Settings, gpus_per_node: int | None, nodes: int | None, tp: int | None,
           pp: int | None) -> Choice:
    """Take the sizes that were given; the one that is missing follows from the hardware."""
    per_node = gpus_per_node or DEFAULT_GPUS_PER_NODE
    world = per_node * (nodes or 1) if gpus_per_node or nodes else None
    if tp is None:
        tp = max(1, world // pp) if world else 1
        tp = next(t for t in range(tp, 0, -1) if not tp_problem(m, t))
    if pp is None:
        pp = max(1, world // tp) if nodes and nodes > 1 else 1
    check_sizes(m, tp, pp)
    if world and tp * pp > world:
        raise BadInput(f"TP {tp} × PP {pp} needs {tp * pp} GPUs, and {nodes or 1} node(s) of {per_node} have {world}.",
                       "Give more nodes, or smaller sizes whose product is at most the number of GPUs.")
    where = "in one node" if tp <= per_node else "across nodes, which needs a fast network"
    reasons = [f"Tensor parallel size {tp} and pipeline parallel size {pp}, as given ({where})."]
    return Choice(fit(m, gpu, s, tp, pp), per_node, -(-tp * pp // per_node), reasons)


def _free(m: ModelConfig, gpu: GPU, s: Settings, one: Fit) -> Choice:
    """No hardware named: the fewest GPUs that do it, in nodes of eight."""
    why = [_why_not_one(m, gpu, s, one)]
    best = one
    for tp in (2, 4, 8):
        if tp_problem(m, tp):
            continue
        best = fit(m, gpu, s, tp, 1) if may_fit(m, gpu, s, tp, 1) else best
        if best.fits:
            why.append(f"Tensor parallel over {tp} GPUs of one node is the smallest that holds it.")
            return Choice(best, DEFAULT_GPUS_PER_NODE, 1, why)
    return _over_nodes(m, gpu, s, DEFAULT_GPUS_PER_NODE, MOST_NODES, best, why)


def _on_hardware(m: ModelConfig, gpu: GPU, s: Settings, per_node: int, nodes: int, one: Fit) -> Choice:
    why = [_why_not_one(m, gpu, s, one)]
    problem = tp_problem(m, per_node)
    if problem:
        return _uneven(m, gpu, s, per_node, nodes, why, problem)
    node = fit(m, gpu, s, per_node, 1)
    if node.fits or nodes == 1:
        why.append(f"Tensor parallel size = the {per_node} GPUs of the node: every GPU works on every layer, over "
                   f"{gpu.link}.")
        return Choice(node, per_node, 1, why)
    return _over_nodes(m, gpu, s, per_node, nodes, node, why)


def _over_nodes(m: ModelConfig, gpu: GPU, s: Settings, per_node: int, nodes: int, node: Fit, why: list[str]) -> Choice:
    tp = next(t for t in range(per_node, 0, -1) if not tp_problem(m, t))
    why.append(f"One node of {per_node} is not enough, so the layers are split over nodes: tensor parallel size = GPUs "
               "per node, pipeline parallel size = nodes." if tp == per_node else
               f"Tensor parallel size {per_node} is not possible: {tp_problem(m, per_node)}. So it is {tp}, and "
               "pipeline parallelism splits the layers, evenly or not.")
    best = node
    given = nodes != MOST_NODES          # as many stages as nodes; else the fewest that hold it
    for pp in [nodes] if given else range(2, MOST_NODES + 1):
        if pp <= m.num_hidden_layers and (given or may_fit(m, gpu, s, tp, pp)):
            best = fit(m, gpu, s, tp, pp)
            if best.fits:
                break
    return Choice(best, per_node, -(-best.tp * best.pp // per_node), why)


def _uneven(m: ModelConfig, gpu: GPU, s: Settings, per_node: int, nodes: int, why: list[str], problem: str) -> Choice:
    """The edge case of vLLM's guide: pipeline parallelism splits by layers, evenly or not."""
    why.append(f"Tensor parallel size {per_node} is not possible: {problem}. Pipeline parallelism splits by layers, "
               "evenly or not: tensor parallel size 1, pipeline parallel size = GPUs.")
    pp = min(per_node, m.num_hidden_layers)
    best = fit(m, gpu, s, 1, pp)
    while not best.fits and pp + per_node <= min(per_node * nodes, m.num_hidden_layers):
        pp += per_node
        best = fit(m, gpu, s, 1, pp)
    return Choice(best, per_node, -(-pp // per_node), why)


def _why_not_one(m: ModelConfig, gpu: GPU, s: Settings, one: Fit) -> str:
    gib = 1 << 30
    weights = one.weights[0] / gib
    if not one.loads:
        return (f"One {gpu.title} cannot hold it: {weights:.1f} GiB of weights and {one.overhead[0] / gib:.1f} GiB of "
                f"overhead, of {one.requested / gib:.1f} GiB that the engine may use.")
    return (f"One {gpu.title} holds the weights ({weights:.1f} GiB), but not a request of {s.max_model_len:,} tokens: "
            "it "
            f"takes {one.needed / gib:.1f} GiB of KV cache, and {one.available[0] / gib:.1f} GiB are left.")
