"""The plan: how many GPUs, how the model is split over them, what fits, and what vLLM will say about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from workshop.errors import BadInput
from workshop.plan import kv_cache, overheads, ranks, settings
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.catalog import quantization as quant
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GIB, GPU
from workshop.plan.overheads import Overhead
from workshop.plan.settings import Settings


@dataclass(frozen=True)
class Plan:
    """One way to run a model, and what it gives. Sizes a GPU are of the tightest rank."""

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
    # more than the contract
    num_gpu_blocks: int = 0
    block_size: int = 16
    max_model_len: int = 0
    gpus_per_node: int = 1
    gpu_memory_gib: float = 0.0
    requested_gib_per_gpu: float = 0.0
    overheads: list[Overhead] = field(default_factory=list)
    ranks: list[ranks.Rank] = field(default_factory=list)
    settings: Settings | None = None
    config: ModelConfig | None = None

    def to_dict(self) -> dict:
        """Return plain data, as `workshop plan --json` prints it."""
        out = {k: v for k, v in self.__dict__.items() if k not in ("ranks", "overheads", "settings", "config")}
        out["overheads"] = [asdict(o) for o in self.overheads]
        out["ranks"] = [{**r.__dict__, "layers": [r.layers.start, r.layers.stop]} for r in self.ranks]
        out["settings"] = asdict(self.settings) if self.settings else {}
        return out


@dataclass(frozen=True)
class Fit:
    """The memory of one split: what each stage has left for the KV cache, and what that holds."""

    tp: int
    pp: int
    requested: int
    weights: tuple[int, ...]
    overhead: tuple[tuple[Overhead, ...], ...]
    capacity: kv_cache.Capacity
    layout: kv_cache.Layout
    needed: int                       # bytes that one request of max_model_len takes on the tightest rank

    @property
    def available(self) -> tuple[int, ...]:
        return tuple(self.requested - w - sum(o.bytes for o in items)
                     for w, items in zip(self.weights, self.overhead, strict=True))

    @property
    def tightest(self) -> int:
        return min(range(self.pp), key=lambda i: self.available[i])

    @property
    def fits(self) -> bool:
        """True if at least one request of max_model_len fits, which is what vLLM asks for before it starts."""
        return min(self.available) > 0 and self.capacity.max_concurrency >= 1


def fit(m: ModelConfig, gpu: GPU, s: Settings, tp: int, pp: int) -> Fit:
    """Return the memory of this split. Pure arithmetic on ints; bytes throughout."""
    requested = -(-int(gpu.engine_bytes * s.gpu_memory_utilization * 1000) // 1000)
    deep_gemm = ranks.loads_deep_gemm(m, gpu, s.kv_cache_dtype)
    weights = tuple(ranks.stage_bytes(m, tp, pp, i, deep_gemm) for i in range(pp))
    over = tuple(tuple(overheads.overheads(m, gpu, s, tp, pp, i)) for i in range(pp))
    lay = kv_cache.layout(m, tp, s.kv_cache_dtype, s.max_model_len, s.max_num_batched_tokens)
    available = [requested - w - sum(o.bytes for o in items) for w, items in zip(weights, over, strict=True)]
    stages = [list(r) for r in ranks.partition_layers(m.num_hidden_layers, pp)]
    cap = kv_cache.capacity(lay, stages, available, s.max_model_len)
    needed = max(kv_cache.pool_bytes_per_block(lay, stage) for stage in stages) * kv_cache.blocks_per_request(lay)
    return Fit(tp, pp, requested, weights, over, cap, lay, needed)


def plan(model: str | Path | ModelConfig, gpu: str | GPU, *, gpus_per_node: int | None = None,
         nodes: int | None = None, tensor_parallel_size: int | None = None,
         pipeline_parallel_size: int | None = None, dtype: str = "auto", quantization: str | None = None,
         kv_cache_dtype: str = "auto", max_model_len: int | None = None, gpu_memory_utilization: float | None = None,
         max_num_batched_tokens: int | None = None, max_num_seqs: int | None = None, enforce_eager: bool = False,
         vllm_version: str | None = None, usage: str = "llm") -> Plan:
    """Return the plan: how to split the model, what fits, what vLLM prints, and the command.

    Raises:
        BadInput: an unknown name, a number out of range, or sizes that cannot split the model.
    """
    m, g = load_model(model), load_gpu(gpu)
    if quantization and not m.quantization:
        m = m.with_quantization(quant.from_name(quantization))
    m = settings.apply_dtype(m, dtype)
    s = settings.resolve(m, g, vllm_version=vllm_version, usage=usage, dtype=dtype, kv_cache_dtype=kv_cache_dtype,
                         max_model_len=max_model_len, gpu_memory_utilization=gpu_memory_utilization,
                         max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
                         enforce_eager=enforce_eager)
    for name, value in (("gpus_per_node", gpus_per_node), ("nodes", nodes),
                        ("tensor_parallel_size", tensor_parallel_size),
                        ("pipeline_parallel_size", pipeline_parallel_size)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 4096):
            raise BadInput(f"{name} is {value!r}, and must be a whole number from 1 to 4096.", "Give how many there are.")
    tp, pp = tensor_parallel_size or 1, pipeline_parallel_size or 1
    per_node = gpus_per_node or 8
    ranks.check_sizes(m, tp, pp)
    f = fit(m, g, s, tp, pp)
    return _plan(m, g, s, f, per_node, [], [])


def _plan(m: ModelConfig, g: GPU, s: Settings, f: Fit, per_node: int, reasons: list[str], advice: list[str]) -> Plan:
    i, ok = f.tightest, f.fits
    return Plan(
        model=m.name, gpu=g.name, tensor_parallel_size=f.tp, pipeline_parallel_size=f.pp,
        nodes=-(-f.tp * f.pp // per_node), gpus=f.tp * f.pp, fits=ok, weights_gib_per_gpu=f.weights[i] / GIB,
        overhead_gib_per_gpu=sum(o.bytes for o in f.overhead[i]) / GIB,
        available_kv_gib_per_gpu=max(0, f.available[i]) / GIB if ok else 0.0,
        kv_bytes_per_token=kv_cache.kv_cache_bytes_per_token(m, s.kv_cache_dtype),
        kv_cache_tokens=f.capacity.tokens if ok else 0, max_concurrency=f.capacity.max_concurrency if ok else 0.0,
        single_stream_tokens_per_s=0.0, command="vllm serve", reasons=reasons, advice=advice,
        num_gpu_blocks=f.capacity.blocks if ok else 0, block_size=f.layout.block_size, max_model_len=s.max_model_len,
        gpus_per_node=per_node, gpu_memory_gib=g.engine_gib, requested_gib_per_gpu=f.requested / GIB,
        overheads=list(f.overhead[i]), ranks=ranks.ranks(m, f.tp, f.pp, per_node), settings=s, config=m)
