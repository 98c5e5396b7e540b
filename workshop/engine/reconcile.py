"""The plan beside what vLLM's own log says: line by line, where a difference comes from, and which flag to change."""

from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from inference_planner.catalog import GPU, ModelConfig
from inference_planner.weights import whole_bytes

from workshop.engine import log as engine_log
from workshop.engine import recording
from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile_advice import Advice, advise
from workshop.engine.reconcile_case import GIB, Case, make_case, size_words

DOUBTFUL_GIB = 4.0
ROUNDING_GIB = 0.011  # the log prints two decimals, and what is made of three such numbers is off by this at most


@dataclass(frozen=True)
class Row:
    """One line: predicted and actual in `unit`; error_percent is (predicted / actual - 1) · 100, None without both."""

    quantity: str
    predicted: float | None
    actual: float | None
    unit: str
    error_percent: float | None
    reason: str


@dataclass(frozen=True)
class Reconciliation:
    """The rows, the advice, and what had to be assumed because the log does not say it."""

    rows: list[Row]
    advice: list[Advice]
    assumed: list[str] = field(default_factory=list)
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return {"rows": […], "advice": […]}, as `workshop reconcile --json` prints it."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "advice": [asdict(item) for item in self.advice],
        }

    def row(self, quantity: str) -> Row | None:
        return next((row for row in self.rows if row.quantity == quantity), None)


def reconcile(source: str | Path | EngineLog, model: str | Path | ModelConfig | None = None,
              gpu: str | GPU | None = None, record: Path | None = None) -> Reconciliation:  # fmt: skip
    """Compare a log with the plan of the same run.

    Args:
        source: a log file, or what `workshop.engine.log.read` made of it.
        model: catalogue name or folder; needed where the log's own name of the model is of no use.
        gpu: catalogue name; vLLM's logs do not name the GPU.
        record: a file that the run is added to, in the form of planner/inference_planner/data/runs.

    Raises:
        BadInput: no vLLM log; the model or the GPU is not known; they do not belong to the log.
        WorkshopError: the log ends before there is anything to compare; the message says why it ended.
    """
    log = source if isinstance(source, EngineLog) else engine_log.read(source)
    case = make_case(log, model, gpu)
    if record:
        recording.record(case, record)
    rows = _cpu_rows(case) if case.gpu is None else _gpu_rows(case)
    failure = f"{log.error.what} {log.error.remedy}" if log.error else ""
    return Reconciliation(rows, advise(case), [*case.assumed, *log.notes], failure)


def _row(
    quantity: str, predicted: float | None, actual: float | None, unit: str, reason: str
) -> Row:
    both = predicted is not None and actual
    error = (round((predicted / actual - 1) * 100, 2) or 0.0) if both else None  # no -0.0
    digits = 0 if unit == "tokens" else 3
    values = [None if value is None else round(value, digits) or 0 for value in (predicted, actual)]
    return Row(
        quantity,
        *(int(v) if v is not None and digits == 0 else v for v in values),
        unit,
        error,
        reason,
    )


def _gpu_rows(case: Case) -> list[Row]:
    available = case.kv_bytes / GIB if case.kv_bytes else case.stage.available_gib
    said, reason = case.log.available_kv_gib, _available_reason(case)
    rows = [
        _weights_row(case),
        *([] if case.kv_bytes else [_requested_row(case), _overhead_row(case)]),
        _row("available KV cache per GPU", available, said, "GiB", reason),
        *_capacity_rows(case, available),
        _graphs_row(case),
        *_speed_rows(case),
    ]
    return [row for row in rows if row.actual is not None]


def _requested(case: Case) -> tuple[float, float]:
    """Memory that vLLM may take on one GPU, GiB: predicted, and of the log where it says the total."""
    total, plan = case.log.profile.get("total_gpu_memory_gib"), case.base
    share = case.log.gpu_memory_utilization or plan.settings.gpu_memory_utilization
    return plan.requested_gib_per_gpu, total * share if total else plan.requested_gib_per_gpu


def _requested_row(case: Case) -> Row:
    share, seen = case.base.settings.gpu_memory_utilization, f"{case.base.gpu_memory_gib:.2f} GiB"
    (predicted, said), known = _requested(case), "total_gpu_memory_gib" in case.log.profile
    return _row("memory for vLLM per GPU", predicted, said if known else None, "GiB",
                f"{share:g} of the {seen} that the engine sees of {case.gpu.title}")  # fmt: skip


def _weights_row(case: Case) -> Row:
    actual, predicted, plan = case.stage.weights_said_gib, case.stage.weights_gib, case.base
    reason = f"{case.model.name}, tensor parallel {plan.tensor_parallel_size}, pipeline {plan.pipeline_parallel_size}"
    if plan.pipeline_parallel_size > 1:
        reason += f"; stage {case.stage.index}, whose memory the log prints"
    rounded = actual is not None and actual < 1 and abs(predicted - actual) <= ROUNDING_GIB / 2
    if rounded:
        reason += f"; {predicted * 1024:.1f} MiB, of which the log prints two decimals of a GiB"
    elif actual is not None and abs(predicted - actual) > 0.01 * actual:
        reason += (
            "; more than 1 % apart: another precision, another model, or layers that stay in 16 bit"
        )
    row = _row("weights per GPU", predicted, actual, "GiB", reason)
    return replace(row, error_percent=0.0) if rounded else row


def _overhead_row(case: Case) -> Row:
    plan = case.base
    items = ", ".join(
        f"{item.name} {item.bytes / GIB:.2f}" for item in case.stage.overheads if item.bytes
    )
    share = f"{plan.settings.gpu_memory_utilization:g} of {case.gpu.title} ({plan.gpu_memory_gib:.2f} GiB)"
    actual, doubt = _actual_overhead(case), ""
    if actual is not None and actual > 2 * case.stage.overhead_gib + DOUBTFUL_GIB:
        doubt = "; far more than predicted: another GPU, or memory that another process held"
    return _row("overhead per GPU", case.stage.overhead_gib, actual, "GiB",
                f"{share} less weights and KV cache; predicted: {items or 'none'}{doubt}")  # fmt: skip


def _actual_overhead(case: Case) -> float | None:
    available, weights = case.log.available_kv_gib, case.stage.weights_said_gib
    return (
        None if available is None or weights is None else _requested(case)[1] - weights - available
    )


def _available_reason(case: Case) -> str:
    if case.kv_bytes:
        return "given in bytes (--kv-cache-memory-bytes), not measured"
    overhead, requested = _actual_overhead(case), _requested(case)
    if overhead is None:
        return "what is left of the memory after weights and overhead"
    causes = {
        "the memory of the GPU": requested[0] - requested[1],
        "the weights": case.stage.weights_said_gib - case.stage.weights_gib,
        "the overhead": overhead - case.stage.overhead_gib,
    }
    name, largest = max(causes.items(), key=lambda item: abs(item[1]))
    if abs(sum(causes.values())) <= ROUNDING_GIB:
        return "equal within the log's rounding"
    return f"mostly {name}: {largest:+.2f} GiB of {sum(causes.values()):+.2f} GiB"


def _capacity_rows(case: Case, available: float) -> list[Row]:
    log = case.log
    tokens, concurrency = case.base.kv_cache_tokens, case.base.max_concurrency
    if case.kv_bytes:
        capacity = case.capacity(case.kv_bytes)
        tokens, concurrency = capacity.tokens, capacity.max_concurrency
    rows, kib = [], (None, None)
    if (
        tokens
        and log.kv_cache_tokens
        and log.available_kv_gib
        and (case.kv_bytes or case.stage.tightest)
    ):
        kib = (available * 2**20 / tokens, log.available_kv_gib * 2**20 / log.kv_cache_tokens)
        rows.append(_row("KV cache per token and GPU", *kib, "KiB", _per_token_reason(case, kib)))
    rows.append(
        _row(
            "KV cache size",
            tokens,
            log.kv_cache_tokens,
            "tokens",
            _tokens_reason(case, available, kib),
        )
    )
    length = case.max_model_len
    rows.append(_row("maximum concurrency", concurrency, log.max_concurrency, "requests",
                     f"KV cache size for requests of {length:,} tokens each"))  # fmt: skip
    return rows


def _per_token_reason(case: Case, kib: tuple[float, float]) -> str:
    dtype = case.settings["kv_cache_dtype"]
    what = f"{case.model.kind}, {len(case.model.attention_layers)} layers, kv_cache_dtype {dtype}"
    if abs(kib[0] / kib[1] - 1) > 0.01:
        return f"{what}; more than 1 % apart: another kv_cache_dtype, or layers that keep only a window"
    return what


def _tokens_reason(case: Case, available: float, kib: tuple[float | None, float | None]) -> str:
    """Split the difference into what is left for the cache, and what a token takes."""
    log = case.log
    blocks = (
        f"{log.gpu_blocks:,} blocks of {log.kv_cache_tokens // log.gpu_blocks} tokens; "
        if log.gpu_blocks
        else ""
    )
    if not case.kv_bytes and not case.stage.tightest:
        return f"{blocks}the tightest stage decides, and the log prints the memory of stage {case.stage.index} only"
    if kib[0] is None:
        return f"{blocks}available KV cache divided by the bytes of a token"
    shares = ((available / log.available_kv_gib - 1) * 100, (kib[1] / kib[0] - 1) * 100)
    memory, token = (round(share, 2) or 0.0 for share in shares)
    return f"{blocks}{memory:+.2f} % from the available memory, {token:+.2f} % from the bytes of a token"


def _graphs_row(case: Case) -> Row:
    log, plan = case.log, case.base
    reserved = next(
        (item.bytes / GIB for item in plan.overheads if "graph" in item.name.lower()), None
    )
    if log.cuda_graph_estimate_gib is not None and reserved is not None:
        took = (
            f", {log.cuda_graph_gib:.2f} GiB when they were captured"
            if log.cuda_graph_gib is not None
            else ""
        )
        return _row("CUDA graphs, reserved", reserved, log.cuda_graph_estimate_gib, "GiB",
                    f"vLLM estimates them before it sizes the KV cache{took}")  # fmt: skip
    free = plan.gpu_memory_gib - plan.requested_gib_per_gpu
    return _row("CUDA graphs, captured", None, log.cuda_graph_gib, "GiB",
                f"taken after the KV cache is sized, from the {free:.2f} GiB that --gpu-memory-utilization leaves; the "
                "plan reserves nothing for them")  # fmt: skip


def _speed_rows(case: Case) -> list[Row]:
    """One stream: the log averages over 10 s, so its best interval with one running request is the nearest.

    One request at both ends of an interval: at the end alone, a batch that is nearly done looks the same.
    """
    engines: dict[int, list] = {}
    for line in case.log.throughput:
        engines.setdefault(line.engine, []).append(line)
    alone = [
        after.generation_tokens_per_s
        for lines in engines.values()
        for before, after in pairwise(lines)
        if before.running == after.running == 1 and before.waiting == after.waiting == 0
    ]
    if not alone or not case.base.single_stream_tokens_per_s:
        return []
    return [_row("single stream", case.base.single_stream_tokens_per_s, max(alone), "tokens/s",
                 "the log's best 10 s with one running request at both ends, pauses included")]  # fmt: skip


def _cpu_rows(case: Case) -> list[Row]:
    log, rows = case.log, []
    if case.kv_bytes:
        capacity = case.capacity(case.kv_bytes)
        space = f"{size_words(case.kv_bytes)} of KV cache on each rank, as given; no GPU, so nothing is measured"
        rows.append(_row("KV cache size", capacity.tokens, log.kv_cache_tokens, "tokens", space))
        rows.append(_row("maximum concurrency", capacity.max_concurrency, log.max_concurrency, "requests",
                         f"KV cache size for requests of {case.max_model_len:,} tokens each"))  # fmt: skip
    if log.checkpoint_gib and log.checkpoint_gib >= 0.05:  # smaller ones are lost in two decimals
        weights = whole_bytes(case.model) / GIB
        rows.append(
            _row("weights, all ranks", weights, log.checkpoint_gib, "GiB", "the checkpoint's files")
        )
    return rows
