"""The messages between GPUs: all-reduces of tensor, activations of pipeline parallelism.

A decoder layer ends its two row-parallel products (o_proj and down_proj) with an all-reduce of
[tokens, hidden_size] (Megatron-LM, arXiv 1909.08053); a pipeline stage hands hidden states and
residual to the next. Bytes are one GPU's.
"""

from collections import Counter
from dataclasses import dataclass, replace

from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.errors import BadInput
from inference_planner.request import DEFAULT_NETWORK
from inference_planner.split.deployment import Deployment, prepare


@dataclass(frozen=True)
class Link:
    """A link: bandwidth and latency.

    The bandwidth is of one way and one GPU, in 10**9 bytes a second. The latency is of one small
    all-reduce or message, in µs.

    Attributes:
        gb_s: of one copy between two GPUs.
        all_reduce_us: latency of an all-reduce of any number of ranks, or of two ranks where
            `step_us` is given.
        message_us: latency of a message between two GPUs.
        step_us: latency of each of the 2·(n-1) steps of a ring, where it depends on the ranks
            (PCIe); else 0.
        many_ranks_us: what an all-reduce of more than four ranks takes longer.
        ring_share: of the bandwidth, that an all-reduce of many tokens reaches.
        port_each_gpu: a network's: every GPU has a port of its own. Else a node has one port.
    """

    name: str
    gb_s: float
    all_reduce_us: float
    message_us: float
    source: str
    step_us: float = 0.0
    many_ranks_us: float = 0.0
    ring_share: float = 1.0
    workstation: bool = False
    port_each_gpu: bool = False

    def ports(self, gpus: int, nodes: int = 1) -> int:
        """Return how many ports to the network so many GPUs on so many nodes have together."""
        if self.port_each_gpu:
            return gpus
        return nodes

    def reached_gb_s(self, ranks: int) -> float:
        """Return the bandwidth that the messages of so many ranks reach."""
        if not self.step_us:
            return self.gb_s
        if ranks > 2:
            return PCIE_SHARE * self.gb_s
        if self.workstation:
            return min(PCIE_PAIR_GB_S, PCIE_SHARE * self.gb_s)
        return PCIE_PAIR_SHARE * self.gb_s


ROUGHLY = "order of magnitude"
# Over PCIe more than two GPUs have NCCL's ring and not vLLM's own all-reduce, which asks for NVLink
# there (vLLM 0.32.0, device_communicators/custom_all_reduce.py). Each step of a ring waits for the
# one before. The bytes pass the processors' memory, or their links, and reach a part of what one
# copy does: prompts and loads of Qwen3 32B on two RTX PRO 6000 (PCIe 5.0) say 7 to 13 GB/s, those
# of Qwen3 235B on four of them about 20.
PCIE_STEP_US = 7.0
PCIE_SHARE = 0.35  # of a copy's bandwidth
PCIE_PAIR_GB_S = 11.0  # at most, between two GPUs of a workstation
# Two H100 of one server with NCCL_P2P_DISABLE=1: prompts of 1,024 and 8,192 tokens of Llama 3.1 8B
# and Qwen3 32B say 29 to 31 GB/s of 64 (vLLM 0.32.0, tests/data/gpu/records/two_h100_0.32.json).
PCIE_PAIR_SHARE = 0.47
# Eight GPUs with NVLink: the 92 public points of Llama 3.1 70B and Qwen3 32B on eight H100 and B200
# against those on two and four (docs/speed.md). At home nobody measured more than four.
MANY_RANKS_US = 3.0
# Llama 3.1 70B on four H100 and in FP8 on two (0.33.0) say 0.7: prompts of 2,048 tokens, 64 at once.
# Loads on two H200 (0.32.0) say 1.
RING_SHARE = 0.85
LINKS = {
    "nvlink": Link(
        "NVLink 4",
        450,
        6.6,
        10,
        "18 × 25 GB/s one way on H100 (NVIDIA); latency fitted to runs on H200",
        many_ranks_us=MANY_RANKS_US,
        ring_share=RING_SHARE,
        port_each_gpu=True,
    ),
    "pcie": Link(
        "PCIe 5.0 x16",
        64,
        2 * PCIE_STEP_US,
        15,
        "PCI-SIG; all-reduce fitted to public runs of 2 and 4 RTX PRO 6000 (benchmarks/accuracy)",
        PCIE_STEP_US,
    ),
    # AMD's links between all GPUs of a node
    "fabric": Link("Infinity Fabric", 64, 25, 15, f"AMD; latency: {ROUGHLY}"),
    "infiniband-ndr": Link(
        "InfiniBand NDR",
        50,
        35,
        20,
        f"400 Gbit/s a GPU (NVIDIA); latency: NCCL, {ROUGHLY}",
        port_each_gpu=True,
    ),
    "ethernet-100g": Link(
        "100 Gbit/s Ethernet", 12.5, 120, 60, f"IEEE 802.3; latency: NCCL over TCP, {ROUGHLY}"
    ),
    "ethernet-25g": Link(
        "25 Gbit/s Ethernet", 3.125, 150, 80, f"IEEE 802.3; latency: NCCL over TCP, {ROUGHLY}"
    ),
}
NCCL_ALL_REDUCE_US = 18  # in a node, where vLLM's own all-reduce is off; order of magnitude
NETWORKS = ("infiniband-ndr", "ethernet-100g", "ethernet-25g", "nvlink")


@dataclass(frozen=True)
class Traffic:
    """Communication of a forward pass: `count` of `bytes_each` over `link`, `ms` in all."""

    what: str  # all-reduce, point-to-point
    count: int
    bytes_each: int
    link: str
    gb_s: float  # one way; of a ring over nodes: of all its ports together
    ms: float
    reason: str


def node_link(gpu: GPU) -> Link:
    """Return the link between the GPUs of one node, with vLLM's own all-reduce."""
    base = LINKS[link_kind(gpu)]
    workstation = gpu.name.startswith("rtx")
    return replace(
        base, name=gpu.link, gb_s=gpu.link_gb_s, source=gpu.source, workstation=workstation
    )


def link_kind(gpu: GPU) -> str:
    """Return the name in LINKS whose latencies the GPU's link has: nvlink, fabric or pcie."""
    if gpu.link.startswith("NVLink"):
        return "nvlink"
    if gpu.link.startswith("Infinity"):
        return "fabric"
    return "pcie"


def by_nccl(link: Link) -> Link:
    """Return a link with NCCL's all-reduce in the place of vLLM's own."""
    if link.step_us:
        return link
    return replace(link, all_reduce_us=max(link.all_reduce_us, NCCL_ALL_REDUCE_US))


def network_link(name: str) -> Link:
    if name not in NETWORKS:
        raise BadInput(f"network {name!r} is not known.", f"Choose from: {', '.join(NETWORKS)}.")
    return LINKS[name]


def ring_over_nodes(inside: Link, outside: Link, gpus_of_a_node: int) -> Link:
    """Return the link that a ring has whose nodes have so many of its GPUs.

    NCCL makes a ring through each port, so the ports of a node add up until the link inside the
    node is the limit. Eight ports of 400 Gbit/s reach 350 GB/s of 400 in runs that users report
    (github.com/NVIDIA/nccl-tests, issue 283).
    """
    if not outside.port_each_gpu:
        return outside
    ports = outside.ports(gpus_of_a_node)
    return replace(outside, gb_s=min(ports * outside.gb_s, inside.gb_s))


def all_reduce_ms(payload_bytes: int, ranks: int, link: Link) -> float:
    """Return the latency of an all-reduce, and 2·(n-1)/n times the payload over the link."""
    if ranks == 1:
        return 0.0
    latency_us = link.all_reduce_us
    if ranks > 4:
        latency_us += link.many_ranks_us
    if link.step_us:
        latency_us = link.step_us * 2 * (ranks - 1)
    ring_bytes = 2 * (ranks - 1) / ranks * payload_bytes
    reached_gb_s = link.ring_share * link.reached_gb_s(ranks)
    return latency_us / 1e3 + ring_bytes / reached_gb_s / 1e6


def gpus_of_a_node(deployment: Deployment) -> int:
    """Return how many GPUs a tensor-parallel group has on the node where it has the fewest."""
    fewest = deployment.tp
    for start in range(0, deployment.gpus, deployment.tp):
        on_nodes = Counter(deployment.node_of(rank) for rank in range(start, start + deployment.tp))
        fewest = min(fewest, *on_nodes.values())
    return fewest


def spans_nodes(deployment: Deployment) -> bool:
    """True where some tensor-parallel group has GPUs on two nodes."""
    return gpus_of_a_node(deployment) < deployment.tp


def traffic(deployment: Deployment, tokens: int = 1) -> list[Traffic]:
    """Return what a forward pass sends for one GPU of each stage; a border takes its link."""
    model, tp = deployment.model, deployment.tp
    out: list[Traffic] = []
    payload = tokens * model.hidden_size * DTYPE_BYTES[model.dtype]
    inside, outside = node_link(deployment.gpu), network_link(deployment.network)
    only_nccl = deployment.nodes > 1
    only_nccl = only_nccl and not deployment.settings.version.custom_all_reduce_on_nodes
    if only_nccl or deployment.settings.disable_custom_all_reduce:
        inside = by_nccl(inside)
    if tp > 1:
        count = 2 * model.num_hidden_layers
        link, where = inside, ""
        if spans_nodes(deployment):
            link, where = (
                ring_over_nodes(inside, outside, gpus_of_a_node(deployment)),
                ", across nodes",
            )
        ms = count * all_reduce_ms(payload, tp, link)
        out.append(
            Traffic(
                "all-reduce",
                count,
                payload,
                link.name,
                link.gb_s,
                ms,
                f"2 a layer over {tp} ranks{where}",
            )
        )
    if model.moe and deployment.dp > 1:
        link = inside
        if deployment.nodes > 1:
            link = ring_over_nodes(
                inside, outside, max(1, deployment.gpus_per_node // deployment.replica_gpus)
            )
        out.append(_all_to_all(deployment, payload, link))
    borders = [stage * tp for stage in range(1, deployment.pp)]
    over = sum(deployment.node_of(b - 1) != deployment.node_of(b) for b in borders)
    message_bytes = 2 * payload // tp  # hidden states and residual, each tensor rank a slice
    why = f"hidden states and residual between {deployment.pp} stages"
    ranks = min(tp, deployment.gpus_per_node)  # of a stage on one node
    slices = ranks // outside.ports(ranks)  # that leave through the same port, one after the other
    for link, shared, count in ((inside, 1, len(borders) - over), (outside, slices, over)):
        if count:
            message_ms = shared * message_bytes / link.reached_gb_s(2) / 1e6
            ms = count * (link.message_us / 1e3 + message_ms)
            out.append(
                Traffic("point-to-point", count, message_bytes, link.name, link.gb_s, ms, why)
            )
    return out


def _all_to_all(deployment: Deployment, payload: int, link: Link) -> Traffic:
    """Return the traffic between replicas: tokens go to the ranks of their experts, and come back.

    That is an all-gather and a reduce-scatter over the replicas a layer. Each of the two takes the
    half of a ring's all-reduce by NCCL. With that a token of Qwen3 30B A3B on two H200 came within
    2 % of what was measured (tests/data/simulate/records, one node); between nodes it is an
    estimate.
    Source: vLLM 0.32.0, --all2all-backend allgather_reducescatter, which is the default.
    """
    count = 2 * len(deployment.model.experts.layers)
    ms = count * all_reduce_ms(deployment.dp * payload, deployment.dp, by_nccl(link)) / 2
    why = f"2 a layer with experts over {deployment.dp} replicas"
    return Traffic(
        "all-to-all", count, (deployment.dp - 1) * payload, link.name, link.gb_s, ms, why
    )


def compare_splits(
    model: str | ModelConfig,
    gpu: str | GPU,
    gpus_per_node: int,
    nodes: int,
    tokens: int = 1,
    network: str = DEFAULT_NETWORK,
) -> dict[str, list[Traffic]]:
    """Return the traffic of TP in the node × PP over nodes beside that of TP alone."""
    deployment = prepare(model, gpu, gpus_per_node=gpus_per_node, network=network)
    return {
        f"TP {gpus_per_node} × PP {nodes}": traffic(deployment.split(gpus_per_node, nodes), tokens),
        f"TP {gpus_per_node * nodes}": traffic(deployment.split(gpus_per_node * nodes, 1), tokens),
    }
