"""The plan: how many GPUs, how the model is split over them, what fits, and what vLLM will say about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from workshop.plan import capability, kv_cache, settings, speed, words
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.catalog import quantization as quant
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GIB, GPU
from workshop.plan.choose import Choice, choose, executor
from workshop.plan.communication import Traffic, traffic
from workshop.plan.overheads import Overhead
from workshop.plan.ranks import Rank, loads_deep_gemm, ranks
from workshop.plan.settings import Settings
from workshop.plan.speed import Term


@dataclass(frozen=True)
class Plan:
    """One way to run a model, and what it gives. Sizes a GPU are of the tightest rank, in GiB of 2**30 bytes."""

    model: str
    gpu: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
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
    num_gpu_blocks: int = 0
    block_size: int = 16
    max_model_len: int = 0
    gpus_per_node: int = 1
    executor: str = "uni"                       # uni: one process; mp: vLLM's own multiprocessing, also over nodes
    vllm_version: str = settings.DEFAULT_VERSION
    gpu_memory_gib: float = 0.0
    requested_gib_per_gpu: float = 0.0
    overheads: list[Overhead] = field(default_factory=list)
    communication: list[Traffic] = field(default_factory=list)
    decode: list[Term] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    settings: Settings | None = None
    config: ModelConfig | None = None

    def to_dict(self) -> dict:
        """Return plain data, as `workshop plan --json` prints it."""
        out = {k: v for k, v in self.__dict__.items() if k not in ("ranks", "config")}
        for key in ("overheads", "communication", "decode"):
            out[key] = [asdict(item) for item in out[key]]
        out["ranks"] = [{**r.__dict__, "layers": [r.layers.start, r.layers.stop]} for r in self.ranks]
        out["settings"] = asdict(self.settings) if self.settings else {}
        return out


def plan(model: str | Path | ModelConfig, gpu: str | GPU, *, gpus_per_node: int | None = None,
         nodes: int | None = None, tensor_parallel_size: int | None = None,
         pipeline_parallel_size: int | None = None, dtype: str = "auto", quantization: str | None = None,
         kv_cache_dtype: str = "auto", max_model_len: int | None = None, gpu_memory_utilization: float | None = None,
         max_num_batched_tokens: int | None = None, max_num_seqs: int | None = None, enforce_eager: bool = False,
         vllm_version: str | None = None, usage: str = "llm", network: str = "infiniband-ndr") -> Plan:
    """Return the plan: how to split the model, what fits, what vLLM prints, and the command.

    usage: whose defaults of max_num_batched_tokens are taken where none is given: "llm" (the LLM class) or "serve"
    (vllm serve); the command states the value where `vllm serve` would take another.

    Raises:
        BadInput: an unknown name, a number out of range, or sizes that cannot split the model.
    """
    m, g = load_model(model), load_gpu(gpu)
    if quantization and not m.quantization:
        m = m.with_quantization(quant.from_name(quantization))
    capability.check_quantization(m, g)
    capability.check_kv_cache_dtype(g, kv_cache_dtype)
    dtype = capability.dtype_for(m, g, dtype)
    m = settings.apply_dtype(m, dtype)
    s = settings.resolve(m, g, vllm_version=vllm_version, usage=usage, dtype=dtype, kv_cache_dtype=kv_cache_dtype,
                         max_model_len=max_model_len, gpu_memory_utilization=gpu_memory_utilization,
                         max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
                         enforce_eager=enforce_eager)
    choice = choose(m, g, s, gpus_per_node=gpus_per_node, nodes=nodes, tp=tensor_parallel_size,
                    pp=pipeline_parallel_size)
    return _assemble(m, g, s, choice, quantization, network)


def _assemble(m: ModelConfig, g: GPU, s: Settings, choice: Choice, quantization: str | None, network: str) -> Plan:
    f, per_node = choice.fit, choice.gpus_per_node
    i, ok, tp, pp = f.tightest, f.fits, f.tp, f.pp
    terms = speed.decode_terms(m, g, s, tp, pp, per_node, network=network) if ok else []
    sent = traffic(m, g, tp, pp, per_node, 1, network)
    deep_gemm = loads_deep_gemm(m, g, s.kv_cache_dtype)
    return Plan(
        model=m.name, gpu=g.name, tensor_parallel_size=tp, pipeline_parallel_size=pp, nodes=choice.nodes,
        gpus=tp * pp, fits=ok, weights_gib_per_gpu=f.weights[i] / GIB, overhead_gib_per_gpu=f.overhead[i] / GIB,
        available_kv_gib_per_gpu=f.available[i] / GIB if ok else 0.0,
        kv_bytes_per_token=kv_cache.kv_cache_bytes_per_token(m, s.kv_cache_dtype),
        kv_cache_tokens=f.capacity.tokens if ok else 0, max_concurrency=f.capacity.max_concurrency if ok else 0.0,
        single_stream_tokens_per_s=1e3 / sum(t.ms for t in terms) if ok else 0.0,
        command=words.command(m, g, s, choice, quantization), reasons=words.reasons(m, g, s, choice, sent),
        advice=words.advice(m, g, s, choice), num_gpu_blocks=f.capacity.blocks if ok else 0,
        block_size=f.layout.block_size, max_model_len=s.max_model_len, gpus_per_node=per_node,
        executor=executor(tp * pp, choice.nodes)[0], vllm_version=s.vllm_version, gpu_memory_gib=g.engine_gib,
        requested_gib_per_gpu=f.requested / GIB, overheads=list(f.overheads[i]), communication=sent, decode=terms,
        ranks=ranks(m, tp, pp, per_node, deep_gemm), settings=s, config=m)
