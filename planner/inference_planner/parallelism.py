"""The plan: how many GPUs, how the model is split over them, what fits, what vLLM will say about it, and why."""

# d deployment, m model, s settings, f fit, i its tightest stage, t traffic
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

from inference_planner import builds, kv_cache, speed, versions
from inference_planner.advise import advise
from inference_planner.attention import main_kind
from inference_planner.basis import basis
from inference_planner.catalog.config import ModelConfig, present
from inference_planner.catalog.gpus import GIB, GPU
from inference_planner.choose import Choice, executor
from inference_planner.command import command, stand_in
from inference_planner.communication import Traffic, traffic
from inference_planner.deployment import DEFAULT_NETWORK, Deployment, prepare
from inference_planner.errors import BadInput
from inference_planner.memory import fit
from inference_planner.overheads import Overhead
from inference_planner.ranks import Rank, partition_layers, ranks
from inference_planner.settings import Settings, batch_defaults
from inference_planner.speed import Term


@dataclass(frozen=True)
class Plan:
    """One way to run a model, and what it gives. Sizes a GPU are of the tightest rank, in GiB of 2**30 bytes."""

    model: str
    gpu: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    nodes: int
    gpus: int
    fits: bool
    weights_gib_per_gpu: float
    overhead_gib_per_gpu: float
    available_kv_gib_per_gpu: float
    kv_bytes_per_token: int
    kv_cache_tokens: int
    max_concurrency: float
    single_stream_tokens_per_s: float
    command: str
    reasons: list[str]
    advice: list[str]
    decode_context_parallel_size: int = 1
    learners_at_once: int = (
        0  # who ask 300 tokens in the same moment, and see their first token within 5 s
    )
    num_gpu_blocks: int = 0
    block_size: int = 16
    max_model_len: int = 0
    gpus_per_node: int = 1
    executor: str = "uni"  # uni: one process; mp: vLLM's own multiprocessing, also over nodes
    vllm_version: str = versions.DEFAULT
    gpu_memory_gib: float = 0.0
    requested_gib_per_gpu: float = 0.0
    overheads: list[Overhead] = field(default_factory=list[Overhead])
    communication: list[Traffic] = field(default_factory=list[Traffic])
    decode: list[Term] = field(default_factory=list[Term])
    basis: str = "measured"  # measured, exact, recorded or estimate: see basis.py
    exact: bool = False
    source: str = ""  # the vLLM version whose classes said it, or what an estimate rests on
    ranks: list[Rank] = field(default_factory=list[Rank])
    deployment: Deployment | None = None

    @property
    def settings(self) -> Settings:
        """vLLM's settings, defaults filled in."""
        return present(self.deployment).settings

    @property
    def config(self) -> ModelConfig:
        """The model as it runs."""
        return present(self.deployment).model

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `workshop plan --json` prints it."""
        out = {k: v for k, v in self.__dict__.items() if k not in ("ranks", "deployment")}
        for key in ("overheads", "communication", "decode"):
            out[key] = [asdict(item) for item in out[key]]
        out["ranks"] = [
            {**r.__dict__, "layers": [r.layers.start, r.layers.stop]} for r in self.ranks
        ]
        out["settings"] = asdict(self.settings)
        return out


FindSplit = Callable[[Deployment, Mapping[str, Any]], Choice]


def plan(
    model: str | Path | ModelConfig,
    gpu: str | GPU,
    *,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    data_parallel_size: int | None = None,
    enable_expert_parallel: bool = False,
    decode_context_parallel_size: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    enforce_eager: bool | None = None,
    vllm_version: str | None = None,
    usage: str | None = None,
    network: str | None = None,
    find_split: FindSplit = builds.choose,
    **unknown: object,
) -> Plan:
    """Return the plan: how to split the model, what fits, what vLLM prints, and the command.

    The names are vLLM's own, and None means vLLM's default.

    >>> from inference_planner import plan
    >>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
    >>> p.fits, p.gpus, p.tensor_parallel_size
    (True, 2, 2)

    Args:
        model: a catalog name, a folder or file with a config.json, or a ModelConfig.
        gpu: a name of the catalog (`list_gpus`), or a GPU.
        gpus_per_node: GPUs in one node; 8 if nothing is known of the hardware.
        nodes: nodes that may be used.
        data_parallel_size: replicas that share their experts, each with attention and a KV cache of its own. Tokens and
            concurrency are those of one replica, as vLLM prints them. Such plans were not measured.
        decode_context_parallel_size: ranks that share the tokens of a KV head which each of them would copy.
        max_model_len, max_num_batched_tokens: tokens.
        gpu_memory_utilization: share of the GPU's memory, above 0 and at most 1.
        vllm_version: whose formulas and defaults are used.
        usage: "serve" (vllm serve) or "llm" (the LLM class): whose default of max_num_batched_tokens is taken.
        network: link between nodes; one of `communication.NETWORKS`.
        find_split: finds the split of a deployment, from the formulas and the records; the workshop gives one that also
            asks vLLM's own classes.

    Raises:
        BadInput: an unknown name or keyword, a number out of range, or sizes that cannot split the model.
    """
    check_keywords(plan, unknown)
    deployment = prepare(
        model,
        gpu,
        dtype=dtype or "auto",
        quantization=quantization,
        network=network or DEFAULT_NETWORK,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enforce_eager=enforce_eager,
        vllm_version=vllm_version,
        usage=usage,
    )
    sizes = {
        "gpus_per_node": gpus_per_node,
        "nodes": nodes,
        "tp": tensor_parallel_size,
        "pp": pipeline_parallel_size,
        "dp": data_parallel_size,
        "ep": enable_expert_parallel,
        "dcp": decode_context_parallel_size,
    }
    return of_choice(find_split(deployment, sizes))


def check_keywords(function: Callable[..., object], unknown: Mapping[str, object]) -> None:
    """Raise BadInput for a keyword argument that a function does not have; the remedy names the nearest one."""
    if not unknown:
        return
    parameters = signature(function).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    wrong = next(iter(unknown))
    nearest = get_close_matches(wrong, known, n=1, cutoff=0.5)
    remedy = f"Did you mean {nearest[0]}?" if nearest else f"Choose from: {', '.join(known)}."
    raise BadInput(f"{function.__name__}() has no argument {wrong!r}.", remedy)


def of_choice(choice: Choice) -> Plan:
    """Return the plan of a choice that was made."""
    d = choice.deployment
    m, s, f = d.model, d.settings, fit(d)
    i, ok = f.tightest, f.fits
    terms = list(speed.decode_terms(d)) if ok else []
    sent = traffic(d)
    return Plan(
        model=m.name,
        gpu=d.gpu.name,
        tensor_parallel_size=d.tp,
        pipeline_parallel_size=d.pp,
        data_parallel_size=d.dp,
        enable_expert_parallel=d.ep,
        nodes=d.nodes,
        gpus=d.gpus,
        fits=ok,
        weights_gib_per_gpu=f.weights[i] / GIB,
        overhead_gib_per_gpu=f.overhead[i] / GIB,
        available_kv_gib_per_gpu=f.available[i] / GIB if ok else 0.0,
        kv_bytes_per_token=kv_cache.kv_cache_bytes_per_token(m, s.kv_cache_dtype),
        kv_cache_tokens=f.capacity.tokens if ok else 0,
        max_concurrency=f.capacity.max_concurrency if ok else 0.0,
        single_stream_tokens_per_s=speed.decode_tokens_per_s(d) if ok else 0.0,
        command=command(d),
        reasons=[*choice.reasons, *reasons(d, sent)],
        advice=advise(choice),
        decode_context_parallel_size=d.dcp,
        learners_at_once=speed.learners_at_once(d, f.capacity.tokens) if ok else 0,
        num_gpu_blocks=f.capacity.blocks if ok else 0,
        block_size=f.layout.block_size,
        max_model_len=s.max_model_len,
        gpus_per_node=d.gpus_per_node,
        executor=executor(d.replica_gpus, d.nodes)[0],
        vllm_version=s.vllm_version,
        gpu_memory_gib=d.gpu.engine_gib,
        requested_gib_per_gpu=f.requested / GIB,
        overheads=list(f.overheads[i]),
        communication=sent,
        decode=terms,
        basis=basis(d),
        exact=bool(m.exact and m.exact.basis == "exact" and basis(d) == "exact"),
        source=m.exact.source if m.exact else "",
        ranks=ranks(d),
        deployment=d,
    )


def reasons(d: Deployment, sent: Sequence[Traffic]) -> Iterator[str]:
    """Yield the reasons for a deployment beside those of the choice; sent: what a step of one token sends."""
    m, s, f = d.model, d.settings, fit(d)
    if s.dtype == "half" and not d.gpu.has_bfloat16:
        yield f"{d.gpu.title} has no bfloat16: the model runs in float16 (--dtype half), which takes the same memory; vLLM's attention kernels there are Triton's, as FlashAttention and FlashInfer begin with Ampere."
    if stand_in(d):
        yield f"vLLM cannot make {present(m.quantization).method} weights while it loads: the numbers are those of a checkpoint that is quantised so already; give it in place of {stand_in(d)}."
    yield from _split(d)
    yield from _memory(d)
    if not f.fits:
        return
    if windows := [w for w in m.layer_windows if w]:
        where = (
            f"{len(windows)} of {m.num_hidden_layers} layers look back {windows[0]:,} tokens only"
        )
        yield f"{where}, so a long request keeps less there."
    for t in sent:
        each = f"{t.count} × {t.bytes_each / 1024:.0f} KiB ({t.what}, {t.reason})"
        yield f"A step of one token sends {each} over {t.link}: about {t.ms:.2f} ms."
    if d.dp > 1:
        yield "Each replica is an engine of its own; one API server shares the requests out among them."
    elif d.gpus > 1:
        yield executor(d.gpus, d.nodes)[1]
    serves = batch_defaults(d.gpu, "serve", s.version)[0]
    if s.usage == "llm" and serves != s.max_num_batched_tokens:
        yield f"max_num_batched_tokens is {s.max_num_batched_tokens:,}, as the LLM class takes it; vllm serve alone would take {serves:,}, so the command says it."


def _split(d: Deployment) -> Iterator[str]:
    m = d.model
    if d.tp > 1:
        heads, held = m.num_attention_heads // d.tp, main_kind(m).held(m, d.tp)
        yield f"Each GPU computes {heads} of {m.num_attention_heads} attention heads and keeps {held}."
    if d.pp > 1:
        sizes = [len(r) for r in partition_layers(m.num_hidden_layers, d.pp)]
        even = (
            f"{sizes[0]} layers each"
            if len(set(sizes)) == 1
            else "layers " + ", ".join(map(str, sizes))
        )
        yield f"The {m.num_hidden_layers} layers go to {d.pp} stages: {even}."


def _memory(d: Deployment) -> Iterator[str]:
    f = fit(d)
    i, room = f.tightest, f.available[f.tightest] / GIB
    short = "" if f.fits else f", too little for one request of {d.settings.max_model_len:,} tokens"
    left = f"are left for KV cache{short}" if room > 0 else "are missing before the first token"
    parts = f"{f.weights[i] / GIB:.2f} GiB are weights and {f.overhead[i] / GIB:.2f} GiB overhead"
    yield f"Of {f.requested / GIB:.1f} GiB that the engine may use on a GPU, {parts}; {abs(room):.2f} GiB {left}."
    if f.fits:
        tokens = f"{f.capacity.blocks:,} blocks of {f.layout.block_size} tokens: {f.capacity.tokens:,} tokens"
        at_once = f"{f.capacity.max_concurrency:.2f} requests of {d.settings.max_model_len:,} tokens at once"
        yield f"They hold {tokens}, or {at_once}{', in each replica' if d.dp > 1 else ''}."
