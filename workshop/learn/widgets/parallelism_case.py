"""What the parallelism explorer computes: who holds what, what travels, a verdict. No widgets.

Ranks, divisibility, memory and the links are workshop.plan's; the traffic is that of plan.communication, with every
border between two stages over the link that it crosses here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workshop.errors import BadInput
from workshop.plan import ranks, settings, speed
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.catalog.config import DTYPE_BYTES, ModelConfig
from workshop.plan.catalog.gpus import GIB
from workshop.plan.communication import all_reduce_ms, message_ms, network_link, node_link
from workshop.plan.fit import Fit, fit
from workshop.plan.ranks import Rank

CONTEXT = 8192        # at which "fits" is judged


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
class Message:
    """One kind of traffic in one step: `count` times `bytes_each`, each GPU over `link`; `time_us` for all of them."""

    kind: str           # all-reduce, point-to-point
    link: str
    gb_s: float
    count: int
    bytes_each: int
    time_us: float


@dataclass(frozen=True)
class Layout:
    """Everything the picture shows. state: fits, small (too little memory), wrong (the sizes cannot be used)."""

    choice: Choice
    state: str
    verdict: str
    remedy: str
    ranks: tuple[Rank, ...]
    messages: tuple[Message, ...]
    compute_us: float           # all else in a step: weights, KV cache, small kernels, stage after stage
    tp_crosses_nodes: bool

    @property
    def idle(self) -> int:
        return max(0, self.choice.gpus - len(self.ranks))


def spans_nodes(choice: Choice) -> bool:
    """True where some tensor-parallel group has GPUs on two nodes (ranks fill the nodes in order)."""
    starts = (stage * choice.tp for stage in range(choice.pp))
    return any(s // choice.gpus_per_node != (s + choice.tp - 1) // choice.gpus_per_node for s in starts)


def messages(m: ModelConfig, choice: Choice) -> tuple[Message, ...]:
    """Return what travels in one step of `choice.requests` tokens; each border between stages over its own link."""
    each = choice.requests * m.hidden_size * DTYPE_BYTES[m.dtype]
    across = choice.tp * choice.pp > choice.gpus_per_node
    inside, outside = node_link(load_gpu(choice.gpu), across), network_link(choice.network)
    out = []
    if choice.tp > 1:
        link, count = outside if spans_nodes(choice) else inside, 2 * m.num_hidden_layers
        time_us = count * 1e3 * all_reduce_ms(each, choice.tp, link)
        out.append(Message("all-reduce", link.name, link.gb_s, count, each, time_us))
    borders = [stage * choice.tp for stage in range(1, choice.pp)]
    over = sum(1 for b in borders if (b - 1) // choice.gpus_per_node != b // choice.gpus_per_node)
    for link, count in ((inside, len(borders) - over), (outside, over)):
        if count:       # hidden states and residual; every rank of the stage sends its share
            size = 2 * each // choice.tp
            out.append(Message("point-to-point", link.name, link.gb_s, count, size,
                               count * 1e3 * message_ms(size, link)))
    return tuple(out)


@lru_cache(maxsize=256)
def _fit(model: str, gpu: str, tp: int, pp: int) -> Fit:
    return fit(load_model(model), load_gpu(gpu), _settings(model, gpu), tp, pp)


@lru_cache(maxsize=256)
def _settings(model: str, gpu: str) -> settings.Settings:
    m = load_model(model)
    return settings.resolve(m, load_gpu(gpu), usage="serve", max_model_len=min(CONTEXT, m.max_position_embeddings))


def _compute_us(m: ModelConfig, choice: Choice) -> float:
    terms = speed.decode_terms(m, load_gpu(choice.gpu), _settings(choice.model, choice.gpu), choice.tp, choice.pp,
                               choice.gpus_per_node, batch=choice.requests, network=choice.network)
    return 1e3 * sum(t.ms for t in terms if t.name not in ("all-reduce", "point-to-point"))


def usable_tp(m: ModelConfig, most: int) -> list[int]:
    """Return the tensor parallel sizes up to `most` that divide the model."""
    return [t for t in range(1, most + 1) if not ranks.tp_problem(m, t)]


def layout(choice: Choice) -> Layout:
    """Return who holds what, what travels, and whether it works.

    Raises:
        BadInput: an unknown model, GPU or network, or a size below 1.
    """
    m = load_model(choice.model)
    load_gpu(choice.gpu)
    network_link(choice.network)
    for name in ("nodes", "gpus_per_node", "tp", "pp", "requests"):
        value = getattr(choice, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} is {value!r}, and must be a whole number from 1.", "Give how many there are.")
    crosses = spans_nodes(choice)
    wrong = _wrong(m, choice)
    if wrong:
        return Layout(choice, "wrong", *wrong, (), (), 0.0, crosses)
    held = tuple(ranks.ranks(m, choice.tp, choice.pp, choice.gpus_per_node))
    f = _fit(choice.model, choice.gpu, choice.tp, choice.pp)
    state, said, remedy = _memory_words(m, choice, f)
    return Layout(choice, state, said, remedy, held, messages(m, choice), _compute_us(m, choice), crosses)


def _wrong(m: ModelConfig, choice: Choice) -> tuple[str, str] | None:
    problem = ranks.tp_problem(m, choice.tp)
    if problem:
        sizes = ", ".join(map(str, usable_tp(m, 32)))
        return (f"{m.name} does not divide: {problem}.",
                f"tensor parallel {sizes}; or tensor parallel 1 and pipeline parallel, which splits by layers")
    if choice.pp > m.num_hidden_layers:
        return (f"{m.name} has {m.num_hidden_layers} layers, too few for {choice.pp} stages.",
                f"pipeline parallel {m.num_hidden_layers} at most")
    if choice.tp * choice.pp > choice.gpus:
        fitting = max(1, choice.gpus // choice.tp)
        better = (f"pipeline parallel {fitting}" if choice.tp <= choice.gpus
                  else f"tensor parallel {usable_tp(m, choice.gpus)[-1]}")
        return (f"TP {choice.tp} × PP {choice.pp} needs {choice.tp * choice.pp} GPUs, and there are {choice.gpus}.",
                f"{better}, or more nodes")
    return None


def _memory_words(m: ModelConfig, choice: Choice, f: Fit) -> tuple[str, str, str]:
    i = f.tightest
    weights = f.weights[i] / GIB
    if f.fits:
        return ("fits", f"It divides and fits: {weights:.1f} GiB of weights on a GPU, and KV cache for "
                        f"{f.capacity.tokens:,} tokens.", "")
    needed = weights + (f.requested - f.weights[i] - f.available[i]) / GIB
    said = (f"It divides but does not fit: a GPU would need {needed:.1f} GiB before any KV cache, and vLLM may use "
            f"{f.requested / GIB:.1f} GiB.")
    return "small", said, _bigger(m, choice)


def _bigger(m: ModelConfig, choice: Choice) -> str:
    """The nearest split that fits: on the GPUs that are there, else with more nodes."""
    best_tp = max(t for t in usable_tp(m, choice.gpus_per_node) if choice.gpus_per_node % t == 0)
    for nodes in (choice.nodes, *(n for n in (1, 2, 4, 8, 16) if n > choice.nodes)):
        for tp in sorted({choice.tp, best_tp}):
            pp = nodes * choice.gpus_per_node // tp
            if 1 <= pp <= m.num_hidden_layers and _fit(choice.model, choice.gpu, tp, pp).fits:
                where = "" if nodes == choice.nodes else f" on {nodes} nodes"
                return f"tensor parallel {tp} × pipeline parallel {pp}{where}"
    return "a GPU with more memory, or a quantised checkpoint"


def head_range(rank: Rank, m: ModelConfig) -> tuple[range, range]:
    """Return the attention heads and the KV heads of a rank; KV heads repeat where there are fewer than ranks."""
    heads = range(rank.tp_rank * rank.heads, (rank.tp_rank + 1) * rank.heads)
    if m.mla:
        return heads, range(0, 1)
    if rank.kv_heads * (m.num_attention_heads // rank.heads) > m.num_key_value_heads:
        copies = m.num_attention_heads // rank.heads // m.num_key_value_heads
        return heads, range(rank.tp_rank // copies, rank.tp_rank // copies + 1)
    return heads, range(rank.tp_rank * rank.kv_heads, (rank.tp_rank + 1) * rank.kv_heads)
