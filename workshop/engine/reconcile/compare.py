"""Compare the plan with vLLM's own log: where a difference comes from, and which flag to change."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from inference_planner.catalog import GPU, ModelConfig
from inference_planner.catalog.gpus import GIB
from inference_planner.memory.overheads import ACTIVATIONS, GRAPHS
from inference_planner.model.attention import main_kind
from inference_planner.model.weights import weight_bytes

from workshop.engine import log as engine_log
from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile import attention
from workshop.engine.reconcile.advice import Advice, advise
from workshop.engine.reconcile.case import LoggedRun, best_single_stream, make_case, size_words
from workshop.engine.reconcile.ending import ABOUT_KV_CACHE, END_OF_LOG, failure_of
from workshop.engine.reconcile.model import NotInLog, UnknownModel

DOUBTFUL_GIB = 4.0
# the log prints two decimals, and a sum of three such numbers is off by this at most
ROUNDING_GIB = 0.011
ALONE = "the log's best 10 s with one running request at both ends, pauses included"


@dataclass(frozen=True)
class Quantity:
    """One compared quantity.

    `error_percent` is (predicted / actual - 1) · 100, or None if one of them is unknown.
    """

    quantity: str
    predicted: float | None
    actual: float | None
    unit: str
    error_percent: float | None
    reason: str


@dataclass(frozen=True)
class Reconciliation:
    """The compared rows, the advice, assumptions about gaps of the log, and why the run failed.

    `case` is None if nothing was predicted, because the model or the GPU is not known: the rows
    then have the log's own figures alone.
    """

    rows: list[Quantity]
    advice: list[Advice]
    assumed: list[str] = field(default_factory=list)
    failure: str = ""
    case: LoggedRun | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return {"rows": […], "advice": […]}, as `workshop reconcile --json` prints it."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "advice": [asdict(item) for item in self.advice],
        }

    def row(self, quantity: str) -> Quantity | None:
        """Return the row of a quantity; None if the log does not have it."""
        for row in self.rows:
            if row.quantity == quantity:
                return row
        return None


def reconcile(
    source: str | Path | EngineLog,
    model: str | Path | ModelConfig | None = None,
    gpu: str | GPU | None = None,
    **of_the_run: Any,
) -> Reconciliation:
    """Compare a log with the plan of the same run.

    Without its GPU a run that failed has its failure and its own figures, and so has any run of a
    Hub id that is not known.

    Args:
        source: a log file, or the result of `workshop.engine.log.read`.
        model: catalog name or folder; needed if the catalog has no model of the log's name.
        gpu: catalog name; vLLM's logs do not name the GPU.
        of_the_run: what the log does not say: keywords of `make_case`, such as vllm_version.

    Raises:
        BadInput: this is no vLLM log, or one of the V0 engine or of a release before 0.10; the
            model or the GPU of a run that did not fail is unknown; or an argument contradicts the
            log.
        WorkshopError: the log ends before there is anything to compare; the message says why.
    """
    log = source if isinstance(source, EngineLog) else engine_log.read(source)
    try:
        case = make_case(log, model, gpu, **of_the_run)
    except NotInLog as gap:
        if failure_of(log) is None and not isinstance(gap, UnknownModel):
            raise
        return _of_the_log_alone(log, gap)
    return compare(case)


def _of_the_log_alone(log: EngineLog, gap: NotInLog) -> Reconciliation:
    """Return the log's own figures and its failure; `gap` says why nothing was predicted."""
    notes = [f"{gap.message} {gap.remedy}", *log.notes]
    return Reconciliation(_own_rows(log), [], notes, _failure_words(log))


def _failure_words(log: EngineLog) -> str:
    failure = failure_of(log)
    if failure is None:
        return ""
    return f"{failure.message} {failure.remedy}"


def compare(case: LoggedRun) -> Reconciliation:
    """Compare a logged run with its plan."""
    log = case.log
    rows = _cpu_rows(case) if case.gpu is None else _gpu_rows(case)
    failure = _failure_words(log)
    notes = [*case.assumed, *log.notes]
    if not failure and not log.engine_ready:
        notes.append(f"{END_OF_LOG} It does not say that the engine was ready.")
    advice = []
    if not failure or (log.error and log.error.key in ABOUT_KV_CACHE):
        advice = advise(case)
    return Reconciliation(rows, advice, notes, failure, case)


def _own_rows(log: EngineLog) -> list[Quantity]:
    """Return what a log says and adds up to by itself, without a prediction."""
    weights_gib = log.weights_gib
    available_gib = log.available_kv_gib
    tokens = log.kv_cache_tokens
    total_gib = log.profile.get("total_gpu_memory_gib")
    share = log.gpu_memory_utilization
    sum_gib = overhead_gib = token_kib = None
    if weights_gib is not None and available_gib is not None:
        sum_gib = weights_gib + available_gib
    given_in_bytes = log.requested_kv_gib or log.args.get("kv_cache_memory_bytes")
    if sum_gib is not None and total_gib and share and not given_in_bytes:
        overhead_gib = total_gib * share - sum_gib
    if tokens and available_gib:
        token_kib = available_gib * 2**20 / tokens
    rows = [
        _row("weights per GPU", None, weights_gib, "GiB", "the heaviest rank"),
        _row("available KV cache per GPU", None, available_gib, "GiB", "the tightest rank"),
        _row("weights and KV cache per GPU", None, sum_gib, "GiB", "the sum of both"),
        _row(
            "overhead per GPU",
            None,
            overhead_gib,
            "GiB",
            f"{share} of {total_gib} GiB, less weights and KV cache",
        ),
        _row(
            "KV cache per token and GPU",
            None,
            token_kib,
            "KiB",
            "available KV cache, by its tokens",
        ),
        _row("KV cache size", None, tokens, "tokens", "as vLLM counts them"),
        _row(
            "maximum concurrency",
            None,
            log.max_concurrency,
            "requests",
            f"of {log.max_model_len or 0:,} tokens each",
        ),
        _row("CUDA graphs, reserved", None, log.cuda_graph_estimate_gib, "GiB", "an estimate"),
        _row("CUDA graphs, captured", None, log.cuda_graph_gib, "GiB", "the rank with the largest"),
        _row("single stream", None, best_single_stream(log), "tokens/s", ALONE),
    ]
    return [row for row in rows if row.actual is not None]


def _row(
    quantity: str, predicted: float | None, actual: float | None, unit: str, reason: str
) -> Quantity:
    error_percent = None
    if predicted is not None and actual:
        error_percent = round((predicted / actual - 1) * 100, 2) or 0.0  # no -0.0
    return Quantity(
        quantity,
        predicted=_rounded(predicted, unit),
        actual=_rounded(actual, unit),
        unit=unit,
        error_percent=error_percent,
        reason=reason,
    )


def _rounded(value: float | None, unit: str) -> float | None:
    """Round to what is shown: whole tokens, three decimals of anything else."""
    if value is None:
        return None
    if unit == "tokens":
        return round(value)
    return round(value, 3) or 0


def _gpu_rows(case: LoggedRun) -> list[Quantity]:
    available_gib = case.stage.available_gib
    if case.kv_bytes:
        available_gib = case.kv_bytes / GIB
    rows = [_weights_row(case)]
    if not case.kv_bytes:
        rows += [_requested_row(case), _overhead_row(case), *_overhead_parts(case)]
    reason = _available_reason(case)
    reported_gib = case.log.available_kv_gib
    reason += _another_rank(case)
    rows.append(_row("available KV cache per GPU", available_gib, reported_gib, "GiB", reason))
    rows += _capacity_rows(case, available_gib)
    rows.append(_graphs_row(case))
    rows += _speed_rows(case)
    rows = [row for row in rows if row.actual is not None]
    backend = attention.difference(case)
    if backend:
        rows.append(Quantity("attention backend", None, None, "", None, backend))
    return rows


def _requested(case: LoggedRun) -> tuple[float, float]:
    """Return the GiB that vLLM may take on one GPU: (predicted, logged or else predicted)."""
    predicted_gib = case.base.requested_gib_per_gpu
    total_gib = case.log.profile.get("total_gpu_memory_gib")
    if not total_gib:
        return predicted_gib, predicted_gib
    share = case.log.gpu_memory_utilization or case.base.deployment.settings.gpu_memory_utilization
    return predicted_gib, total_gib * share


def _requested_row(case: LoggedRun) -> Quantity:
    share = case.base.deployment.settings.gpu_memory_utilization
    predicted_gib, logged_gib = _requested(case)
    actual_gib = None
    if "total_gpu_memory_gib" in case.log.profile:
        actual_gib = logged_gib
    size = f"{case.base.deployment.gpu.engine_gib:.2f} GiB"
    reason = f"{share:g} of the {size} that the engine sees of {case.card.title}"
    return _row("memory for vLLM per GPU", predicted_gib, actual_gib, "GiB", reason)


def _weights_row(case: LoggedRun) -> Quantity:
    actual = case.stage.reported_weights_gib
    predicted = case.stage.weights_gib
    plan = case.base
    reason = (
        f"{case.model.name}, tensor parallel {plan.tensor_parallel_size}, "
        f"pipeline {plan.pipeline_parallel_size}"
    )
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
    if rounded:
        return replace(row, error_percent=0.0)
    return row


def _overhead_row(case: LoggedRun) -> Quantity:
    plan = case.base
    items: list[str] = []
    for item in case.stage.overheads:
        if item.bytes:
            items.append(f"{item.name} {item.bytes / GIB:.2f}")
    predicted = ", ".join(items) or "none"
    share = f"{plan.deployment.settings.gpu_memory_utilization:g} of {case.card.title}"
    size = f"{plan.deployment.gpu.engine_gib:.2f} GiB"
    reason = f"{share} ({size}) less weights and KV cache; predicted: {predicted}"
    actual = _actual_overhead(case)
    if actual is not None and actual > 2 * case.stage.overhead_gib + DOUBTFUL_GIB:
        reason += "; far more than predicted: another GPU, or memory that another process held"
    return _row("overhead per GPU", case.stage.overhead_gib, actual, "GiB", reason)


def _overhead_parts(case: LoggedRun) -> list[Quantity]:
    """Compare the parts of the overhead where the log splits it, so that the wrong one is seen.

    Activations are PyTorch's peak in the profile run. What stays is libraries, kernels and
    communicators, which vLLM counts apart (up to 0.27) or together with the weights (since 0.28,
    "consumed memory").
    """
    reported = case.stage.reported
    activations_gib = _overhead_gib(case, ACTIVATIONS)
    graphs_gib = _overhead_gib(case, GRAPHS)
    other_gib = case.stage.overhead_gib - activations_gib - graphs_gib
    weights_gib = case.stage.reported_weights_gib
    actual_other_gib = reported.non_torch_gib
    name = "of it activations"
    why = (
        "PyTorch's peak in the profile run: depends on max_num_batched_tokens, max_num_seqs "
        "and images"
    )
    if reported.consumed_gib is not None:
        name += " and CUDA graphs"
        activations_gib += graphs_gib
        why += "; with what is set aside for graphs"
        if weights_gib is not None:
            actual_other_gib = reported.consumed_gib - weights_gib
    other = (
        "libraries, kernels, tables, communicators; and other processes, where memory is read from "
        "the GPU"
    )
    return [
        _row(name, activations_gib, reported.peak_activation_gib, "GiB", why),
        _row("of it other memory", other_gib, actual_other_gib, "GiB", other),
    ]


def _overhead_gib(case: LoggedRun, name: str) -> float:
    """Return the predicted GiB of the overheads of this name."""
    total_bytes = 0
    for item in case.stage.overheads:
        if item.name == name:
            total_bytes += item.bytes
    return total_bytes / GIB


def _actual_overhead(case: LoggedRun) -> float | None:
    """Return the overhead of a GPU by the log, GiB; None if it does not say enough."""
    available_gib = case.log.available_kv_gib
    weights_gib = case.stage.reported_weights_gib
    if available_gib is None or weights_gib is None:
        return None
    _, requested_gib = _requested(case)
    return requested_gib - weights_gib - available_gib


def _available_reason(case: LoggedRun) -> str:
    """Return what the difference in the memory for the KV cache comes from."""
    if case.kv_bytes:
        return "given in bytes (--kv-cache-memory-bytes), not measured"
    overhead = _actual_overhead(case)
    weights_gib = case.stage.reported_weights_gib
    predicted_gib, logged_gib = _requested(case)
    if overhead is None or weights_gib is None:
        return "what is left of the memory after weights and overhead"
    causes = {
        "the memory of the GPU": predicted_gib - logged_gib,
        "the weights": weights_gib - case.stage.weights_gib,
        "the overhead": overhead - case.stage.overhead_gib,
    }
    name, largest = max(causes.items(), key=lambda item: abs(item[1]))
    difference = sum(causes.values())
    if abs(difference) <= ROUNDING_GIB:
        return "equal within the log's rounding"
    if name == "the overhead":
        name += _largest_part(case)
    return f"mostly {name}: {largest:+.2f} GiB of {difference:+.2f} GiB"


def _another_rank(case: LoggedRun) -> str:
    """Say that the log's memory is of a rank that did not decide: its tokens take much less."""
    available_gib = case.log.available_kv_gib
    tokens = case.logged_tokens
    if not available_gib or not tokens or case.kv_bytes:
        return ""
    if case.base.tensor_parallel_size == 1 or not case.stage.tightest:
        return ""
    capacity = case.capacity(round(max(0.0, available_gib) * GIB)).tokens
    if not capacity or tokens > 0.95 * capacity:
        return ""
    token_gib = available_gib * tokens / capacity
    return (
        f"; the log's tokens take {token_gib:.2f} GiB, "
        "so a rank decided whose memory it does not print"
    )


def _largest_part(case: LoggedRun) -> str:
    """Return the part of the overhead that differs most, in brackets; "" without parts."""
    differences: dict[str, float] = {}
    for row in _overhead_parts(case):
        if row.actual is not None and row.predicted is not None:
            differences[row.quantity.removeprefix("of it ")] = row.actual - row.predicted
    if not differences:
        return ""
    name = max(differences, key=lambda part: abs(differences[part]))
    return f" (its {name}, {differences[name]:+.2f} GiB)"


def _predicted_capacity(case: LoggedRun, available_gib: float) -> tuple[int, float]:
    """Return the predicted tokens and requests of full length that the KV cache holds."""
    if case.kv_bytes:
        capacity = case.capacity(case.kv_bytes)
        return capacity.tokens, capacity.max_concurrency
    if not case.base.kv_cache_tokens and available_gib > 0:
        # No request of full length fits; the log counts the tokens all the same.
        capacity = case.capacity(round(available_gib * GIB))
        return capacity.tokens, capacity.max_concurrency
    return case.base.kv_cache_tokens, case.base.max_concurrency


def _capacity_rows(case: LoggedRun, available: float) -> list[Quantity]:
    """Compare the KV cache's bytes of a token, its tokens, and the requests of full length.

    Args:
        available: predicted memory for the KV cache on one GPU, GiB.
    """
    log = case.log
    tokens: int | None
    concurrency: float | None
    tokens, concurrency = _predicted_capacity(case, available)
    rows = []
    one_memory = bool(case.kv_bytes) or case.stage.tightest
    logged_tokens = case.logged_tokens
    if tokens and logged_tokens and log.available_kv_gib and one_memory:
        predicted_kib = available * 2**20 / tokens
        actual_kib = log.available_kv_gib * 2**20 / logged_tokens
        per_token_reason = _per_token_reason(case, predicted_kib, actual_kib)
        rows.append(
            _row("KV cache per token and GPU", predicted_kib, actual_kib, "KiB", per_token_reason)
        )
        memory_percent = (available / log.available_kv_gib - 1) * 100
        token_percent = (actual_kib / predicted_kib - 1) * 100
        reason = (
            f"{round(memory_percent, 2) or 0.0:+.2f} % from the available memory, "
            f"{round(token_percent, 2) or 0.0:+.2f} % from the bytes of a token"
        )
    elif not one_memory:
        stage = case.stage.index
        reason = f"the tightest stage decides, and the log prints the memory of stage {stage} only"
    else:
        reason = "available KV cache divided by the bytes of a token"
    if logged_tokens and not tokens:
        tokens = None
        concurrency = None
        reason = (
            "the plan does not fit, and the log ran: "
            "give the model, precision, GPU and parallel sizes of the run"
        )
    if logged_tokens != log.kv_cache_tokens:
        reason += (
            f"; the log's {log.kv_cache_tokens:,} count each group of layers apart, "
            "so requests times length were taken"
        )
    rows.append(_row("KV cache size", tokens, logged_tokens, "tokens", reason))
    rows.append(_concurrency_row(case, concurrency))
    return rows


def _concurrency_row(case: LoggedRun, predicted: float | None) -> Quantity:
    reason = f"KV cache size for requests of {case.max_model_len:,} tokens each"
    return _row("maximum concurrency", predicted, case.log.max_concurrency, "requests", reason)


def _per_token_reason(case: LoggedRun, predicted_kib: float, actual_kib: float) -> str:
    dtype = case.settings["kv_cache_dtype"]
    what = f"{main_kind(case.model).label(case.model)}, {len(case.model.attention_layers)} layers, kv_cache_dtype {dtype}"
    if abs(predicted_kib / actual_kib - 1) > 0.01:
        cause = "another kv_cache_dtype, or layers that keep only a window"
        return f"{what}; more than 1 % apart: {cause}"
    return what


def _graphs_row(case: LoggedRun) -> Quantity:
    log = case.log
    plan = case.base
    graphs = [item for item in plan.overheads if item.name == GRAPHS]
    if log.cuda_graph_estimate_gib is not None and graphs:
        reserved_gib = graphs[0].bytes / GIB
        reason = "vLLM estimates them before it sizes the KV cache"
        if log.cuda_graph_gib is not None:
            reason += f", {log.cuda_graph_gib:.2f} GiB when they were captured"
        return _row(
            "CUDA graphs, reserved", reserved_gib, log.cuda_graph_estimate_gib, "GiB", reason
        )
    free_gib = plan.deployment.gpu.engine_gib - plan.requested_gib_per_gpu
    reason = (
        f"taken after the KV cache is sized, from the {free_gib:.2f} GiB that "
        "--gpu-memory-utilization leaves; the plan reserves "
    )
    if graphs and graphs[0].bytes:
        reason += f"{graphs[0].bytes / GIB:.2f} GiB for them"
    else:
        reason += "nothing for them"
    return _row("CUDA graphs, captured", None, log.cuda_graph_gib, "GiB", reason)


def _speed_rows(case: LoggedRun) -> list[Quantity]:
    """Compare one stream with the log's best interval with one running request.

    The log averages over 10 s, so that interval is the nearest.
    """
    measured = best_single_stream(case.log)
    predicted = case.base.single_stream_tokens_per_s
    if measured is None or not predicted:
        return []
    return [_row("single stream", predicted, measured, "tokens/s", ALONE)]


def _cpu_rows(case: LoggedRun) -> list[Quantity]:
    log = case.log
    rows = []
    if case.kv_bytes:
        capacity = case.capacity(case.kv_bytes)
        size = size_words(case.kv_bytes)
        reason = f"{size} of KV cache on each rank, as given; no GPU, so nothing is measured"
        rows.append(_row("KV cache size", capacity.tokens, log.kv_cache_tokens, "tokens", reason))
        rows.append(_concurrency_row(case, capacity.max_concurrency))
    if log.checkpoint_gib and log.checkpoint_gib >= 0.05:  # smaller ones are lost in two decimals
        weights = weight_bytes(case.model) / GIB
        rows.append(
            _row("weights, all ranks", weights, log.checkpoint_gib, "GiB", "the checkpoint's files")
        )
    return rows
