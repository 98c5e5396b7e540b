"""Compute the parallelism explorer: who holds what, what travels, a verdict. No widgets.

Ranks, divisibility, memory, traffic and the nearest split that fits are workshop.plan's.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

from inference_planner.answer import advise, choose
from inference_planner.answer.builds import with_records
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.memory.fit import fit
from inference_planner.model.attention import main_kind
from inference_planner.request import MOST_GPUS, PlanRequest, whole
from inference_planner.speed import roofline as speed
from inference_planner.split import ranks
from inference_planner.split.communication import Traffic, network_link, spans_nodes, traffic
from inference_planner.split.deployment import Deployment, prepare
from inference_planner.split.ranks import Rank

from workshop.course.drawing.readable_numbers import gib
from workshop.engine.planning import kept_starts
from workshop.errors import BadInput

CONTEXT = 8192  # at which "fits" is judged


@dataclass(frozen=True)
class ChosenSplit:
    """The values of the controls.

    `requests` are answered at once: one token of each goes through the model in a step.
    """

    model: str = "llama-3.1-70b"
    gpu: str = "h100"
    nodes: int = 2
    gpus_per_node: int = 4
    tp: int = 4
    pp: int = 2
    network: str = "infiniband-ndr"
    requests: int = 1

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True)
class SplitLayout:
    """Everything that the picture shows.

    `state` is fits, small (too little memory) or wrong (the sizes cannot be used).
    """

    choice: ChosenSplit
    state: str
    verdict: str
    remedy: str
    ranks: tuple[Rank, ...] = ()
    messages: tuple[Traffic, ...] = ()
    compute_us: float = (
        0.0  # all else in a step: weights, KV cache, small kernels, stage after stage
    )
    tp_crosses_nodes: bool = False

    @property
    def idle(self) -> int:
        return max(0, self.choice.gpus - len(self.ranks))


@lru_cache(maxsize=256)
def _prepared(model: str, gpu: str) -> Deployment:
    m = load_model(model)
    return with_records(prepare(m, gpu, max_model_len=min(CONTEXT, m.max_position_embeddings)))


def deployment(choice: ChosenSplit) -> Deployment:
    """Return the plan's deployment of a choice.

    Raises:
        BadInput: the plan does not know a name, the GPU has no kernels for the model, or the sizes
            cannot be used.
    """
    whole_model = replace(
        _prepared(choice.model, choice.gpu), network=choice.network, learned=kept_starts()
    )
    request = PlanRequest(
        gpus_per_node=choice.gpus_per_node,
        nodes=choice.nodes,
        tensor_parallel_size=choice.tp,
        pipeline_parallel_size=choice.pp,
    )
    return choose.choose(whole_model, request).deployment


def layout(choice: ChosenSplit) -> SplitLayout:
    """Return who holds what, what travels, and whether it works.

    Raises:
        BadInput: a name is unknown, or a size is below 1.
    """
    load_model(choice.model)
    load_gpu(choice.gpu)
    network_link(choice.network)
    for name in ("nodes", "gpus_per_node", "tp", "pp", "requests"):
        whole(name, getattr(choice, name), MOST_GPUS, "Give how many there are.")
    _prepared(choice.model, choice.gpu)  # without kernels for the model, no sizes help
    try:
        d = deployment(choice)
    except BadInput as error:
        return SplitLayout(choice, "wrong", error.message, error.remedy)
    terms = speed.decode_terms(d, batch=choice.requests)
    compute_ms = 0.0
    for term in terms:
        if term.name not in ("all-reduce", "point-to-point"):
            compute_ms += term.ms
    sent = tuple(traffic(d, choice.requests))
    return SplitLayout(
        choice,
        *_memory_words(d),
        tuple(ranks.ranks(d, fit(d).loaded)),
        sent,
        1e3 * compute_ms,
        spans_nodes(d),
    )


def _memory_words(deployment: Deployment) -> tuple[str, str, str]:
    """Return the state, the verdict, and the nearest split that fits.

    The split is on the GPUs of the choice, or else on more.
    """
    f = fit(deployment)
    weights, overhead = gib(f.weights[f.tightest]), f.weights[f.tightest] + f.overhead[f.tightest]
    if f.holds_a_request:
        room = f"KV cache for {f.capacity.tokens:,} tokens"
        return "fits", f"It divides and fits: {weights} of weights on each GPU, and {room}.", ""
    needed = f"each GPU would need {gib(overhead)} before any KV cache"
    needed += f", and vLLM may use {gib(f.requested)}"
    remedy = "a GPU with more memory, or a quantized checkpoint"
    other = advise.first_fit(deployment, advise.other_split, advise.more_gpus)
    if other:
        where = ""
        if other.after.nodes > deployment.nodes:
            where = f" on {other.after.nodes} nodes"
        remedy = f"tensor parallel {other.after.tp} × pipeline parallel {other.after.pp}{where}"
    return "small", f"It divides but does not fit: {needed}.", remedy


def head_range(rank: Rank, model: ModelConfig) -> tuple[range, range]:
    """Return the attention heads and the KV heads of a rank.

    KV heads repeat where there are fewer of them than ranks. A latent counts as one.
    """
    heads = range(rank.tp_rank * rank.heads, (rank.tp_rank + 1) * rank.heads)
    tp = model.num_attention_heads // rank.heads
    first = rank.tp_rank // main_kind(model).copies(model, tp) * rank.kv_heads
    return heads, range(first, first + rank.kv_heads)
