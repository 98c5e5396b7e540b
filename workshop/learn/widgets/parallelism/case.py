"""What the parallelism explorer computes: who holds what, what travels, a verdict. No widgets.

Ranks, divisibility, memory, traffic and the nearest split that fits are workshop.plan's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from workshop.errors import BadInput
from workshop.plan import advise, ranks, speed
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GIB
from workshop.plan.communication import Traffic, network_link, spans_nodes, traffic
from workshop.plan.deployment import Deployment, prepare
from workshop.plan.memory import fit
from workshop.plan.ranks import Rank

CONTEXT = 8192  # at which "fits" is judged


@dataclass(frozen=True)
class Choice:
    """What the controls say. `requests` are answered at once: one token of each goes through the model in a step."""

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
class Layout:
    """Everything the picture shows. state: fits, small (too little memory), wrong (the sizes cannot be used)."""

    choice: Choice
    state: str
    verdict: str
    remedy: str
    ranks: tuple[Rank, ...]
    messages: tuple[Traffic, ...]
    compute_us: float  # all else in a step: weights, KV cache, small kernels, stage after stage
    tp_crosses_nodes: bool

    @property
    def idle(self) -> int:
        return max(0, self.choice.gpus - len(self.ranks))


@lru_cache(maxsize=256)
def _prepared(model: str, gpu: str) -> Deployment:
    m = load_model(model)
    return prepare(m, gpu, max_model_len=min(CONTEXT, m.max_position_embeddings))


def deployment(choice: Choice) -> Deployment:
    """Return what the plan is asked about.

    Raises:
        BadInput: an unknown model or GPU, or weights that the GPU has no kernels for.
    """
    return replace(
        _prepared(choice.model, choice.gpu),
        tp=choice.tp,
        pp=choice.pp,
        network=choice.network,
        gpus_per_node=choice.gpus_per_node,
    )


def _compute_us(d: Deployment, requests: int) -> float:
    terms = speed.decode_terms(d, batch=requests)
    return 1e3 * sum(t.ms for t in terms if t.name not in ("all-reduce", "point-to-point"))


def usable_tp(m: ModelConfig, most: int) -> list[int]:
    """Return the tensor parallel sizes up to `most` that divide the model."""
    return [t for t in range(1, most + 1) if not ranks.tp_problem(m, t)]


def layout(choice: Choice) -> Layout:
    """Return who holds what, what travels, and whether it works.

    Raises:
        BadInput: an unknown model, GPU or network, or a size below 1.
    """
    load_model(choice.model), load_gpu(choice.gpu)
    network_link(choice.network)
    for name in ("nodes", "gpus_per_node", "tp", "pp", "requests"):
        value = getattr(choice, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} is {value!r}, and must be a whole number from 1.", "Give how many there are.")
    d = deployment(choice)
    m, crosses = d.model, spans_nodes(d)
    wrong = _wrong(m, choice)
    if wrong:
        return Layout(choice, "wrong", *wrong, (), (), 0.0, crosses)
    sent = tuple(traffic(d, choice.requests))
    return Layout(choice, *_memory_words(d), tuple(ranks.ranks(d)), sent, _compute_us(d, choice.requests), crosses)


def _wrong(m: ModelConfig, choice: Choice) -> tuple[str, str] | None:
    problem = ranks.tp_problem(m, choice.tp)
    if problem:
        sizes = ", ".join(map(str, usable_tp(m, 32)))
        return (
            f"{m.name} does not divide: {problem}.",
            f"tensor parallel {sizes}; or tensor parallel 1 and pipeline parallel, which splits by layers",
        )
    if choice.pp > m.num_hidden_layers:
        return (
            f"{m.name} has {m.num_hidden_layers} layers, too few for {choice.pp} stages.",
            f"pipeline parallel {m.num_hidden_layers} at most",
        )
    if choice.tp * choice.pp > choice.gpus:
        fitting = max(1, choice.gpus // choice.tp)
        better = (
            f"pipeline parallel {fitting}"
            if choice.tp <= choice.gpus
            else f"tensor parallel {usable_tp(m, choice.gpus)[-1]}"
        )
        return (
            f"TP {choice.tp} × PP {choice.pp} needs {choice.tp * choice.pp} GPUs, and there are {choice.gpus}.",
            f"{better}, or more nodes",
        )
    return None


def _memory_words(d: Deployment) -> tuple[str, str, str]:
    f = fit(d)
    i = f.tightest
    weights = f.weights[i] / GIB
    if f.fits:
        return (
            "fits",
            f"It divides and fits: {weights:.1f} GiB of weights on a GPU, and KV cache for "
            f"{f.capacity.tokens:,} tokens.",
            "",
        )
    needed = weights + f.overhead[i] / GIB
    said = (
        f"It divides but does not fit: a GPU would need {needed:.1f} GiB before any KV cache, and vLLM may use "
        f"{f.requested / GIB:.1f} GiB."
    )
    return "small", said, _bigger(d)


def _bigger(d: Deployment) -> str:
    """The nearest split that fits: on the GPUs that are there, else on more."""
    found = advise.first_fit(d, advise.other_split, advise.more_gpus)
    if not found:
        return "a GPU with more memory, or a quantised checkpoint"
    where = f" on {found.after.nodes} nodes" if found.after.nodes > d.nodes else ""
    return f"tensor parallel {found.after.tp} × pipeline parallel {found.after.pp}{where}"


def head_range(rank: Rank, m: ModelConfig) -> tuple[range, range]:
    """Return the attention heads and the KV heads of a rank; KV heads repeat where there are fewer than ranks."""
    heads = range(rank.tp_rank * rank.heads, (rank.tp_rank + 1) * rank.heads)
    if m.mla:
        return heads, range(0, 1)
    if rank.kv_heads * (m.num_attention_heads // rank.heads) > m.num_key_value_heads:
        copies = m.num_attention_heads // rank.heads // m.num_key_value_heads
        return heads, range(rank.tp_rank // copies, rank.tp_rank // copies + 1)
    return heads, range(rank.tp_rank * rank.kv_heads, (rank.tp_rank + 1) * rank.kv_heads)
