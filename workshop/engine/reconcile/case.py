"""The start of a reconciliation: a log, its model and GPU, and the plan with the same settings."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import GPU, ModelConfig
from inference_planner.catalog.config import present
from inference_planner.catalog.gpus import GIB
from inference_planner.memory.fit import kv_capacity
from inference_planner.memory.overheads import Overhead
from inference_planner.model import kv_cache
from inference_planner.model.attention import has_states
from inference_planner.releases import versions
from inference_planner.request import VLLM_ARGUMENTS
from inference_planner.split import compilation, ranks
from inference_planner.split.settings import Settings, batch_defaults

from workshop.engine.log.facts import EngineLog, RankFacts, Throughput
from workshop.engine.log.rules import ARGUMENTS, LARGEST, parse_arguments
from workshop.engine.planning import plan
from workshop.engine.reconcile.card import check_memory, find_gpu, with_logged_memory
from workshop.engine.reconcile.ending import failure_of
from workshop.engine.reconcile.model import (
    contradiction,
    find_model,
    moe_backend,
    quantization_of_weights,
    quantization_to_plan,
    with_quantization,
    with_quantization_of_name,
)
from workshop.engine.reconcile.release import (
    check_release,
    nearest_version,
    release_of,
    with_version,
)
from workshop.engine.reconcile.split import parallel_sizes
from workshop.errors import BadInput, WorkshopError

# max_num_batched_tokens of a log that does not say it: a CPU's, and a small GPU's
SMALLEST_DEFAULT_BATCH = 2048
SHARE_ROUNDING = 0.0051  # a log may print two decimals of gpu_memory_utilization


def size_words(size_bytes: int) -> str:
    """Write a size as people do: 16 MiB, 1.5 GiB."""
    if size_bytes >= GIB:
        return f"{size_bytes / GIB:g} GiB"
    return f"{size_bytes / 2**20:g} MiB"


@dataclass(frozen=True)
class Stage:
    """One GPU of a pipeline stage: its predicted memory in GiB, and its rank's reported weights."""

    index: int
    weights_gib: float
    overheads: Sequence[Overhead]
    available_gib: float
    tightest: bool
    reported_weights_gib: float | None
    reported: RankFacts = field(default_factory=RankFacts)

    @property
    def overhead_gib(self) -> float:
        """Memory of a rank besides weights and KV cache, GiB."""
        return sum(item.bytes for item in self.overheads) / GIB


@dataclass(frozen=True)
class LoggedRun:
    """A log beside its prediction.

    `gpu` is None for a log of a CPU. `settings` are plan()'s keyword arguments as the log has them,
    `kv_bytes` is the size of a rank's KV cache if it was set in bytes, and `assumed` lists what the
    log does not say.
    """

    log: EngineLog
    model: ModelConfig
    gpu: GPU | None
    settings: dict[str, Any]
    kv_bytes: int | None
    assumed: list[str] = field(default_factory=list)

    @cached_property
    def base(self) -> Plan:
        """The plan with the settings of the log. Raises LookupError for a log of a CPU."""
        settings = dict(self.settings)
        settings["max_num_seqs"] = self.max_num_seqs
        return plan(self.model, self.card, **settings, learned=())

    @property
    def max_num_seqs(self) -> int | None:
        """max_num_seqs of the log, or vLLM's default, which a plan of a hybrid model may lower.

        None for other models.
        """
        logged = self.settings["max_num_seqs"]
        if logged or not has_states(self.model):
            return logged
        version = versions.get(self.settings["vllm_version"])
        tokens, seqs = batch_defaults(self.card, self.settings["usage"], version)
        return min(seqs, self.settings["max_num_batched_tokens"] or tokens)

    @property
    def card(self) -> GPU:
        """The GPU. Raises LookupError for a log of a CPU."""
        return present(self.gpu)

    @cached_property
    def stage(self) -> Stage:
        """The pipeline stage whose memory the log prints.

        One rank reports it, not always one of the tightest stage.
        """
        name = self._reporting_rank()
        index = 0
        match = re.search(r"PP(\d{1,4})(?!\d)", name)
        if match and int(match[1]) < self.base.pipeline_parallel_size:
            index = int(match[1])
        reported_gib = None
        if name in self.log.ranks:
            reported_gib = self.log.ranks[name].weights_gib
        if reported_gib is None:
            reported_gib = self.log.weights_gib
        memory = self.base.fit
        return Stage(
            index=index,
            weights_gib=memory.weights[index] / GIB,
            overheads=memory.overheads[index],
            available_gib=memory.available[index] / GIB,
            tightest=index == memory.tightest,
            reported_weights_gib=reported_gib,
            reported=self._reported(name),
        )

    def _reporting_rank(self) -> str:
        """Return the name of the rank with the least memory for the KV cache; "" without reports."""
        reports = []
        for name, rank in self.log.ranks.items():
            if rank.available_kv_gib is not None:
                reports.append((rank.available_kv_gib, name))
        if not reports:
            return ""
        _, name = min(reports)
        return name

    def _reported(self, name: str) -> RankFacts:
        """Return the split of a rank's memory; of another rank where this one prints none."""
        ranks_of_log = []
        if name in self.log.ranks:
            ranks_of_log.append(self.log.ranks[name])
        ranks_of_log += self.log.ranks.values()
        for rank in ranks_of_log:
            if rank.peak_activation_gib is not None:
                return rank
        return RankFacts()

    def capacity(self, kv_bytes: int, tp: int = 0) -> kv_cache.Capacity:
        """Return what kv_bytes on every rank hold, for a log whose KV cache was given in bytes.

        Args:
            tp: the tensor parallel size; 0 is the log's own.
        """
        tensor_parallel_size = tp or self.settings["tensor_parallel_size"]
        pipeline_parallel_size = self.settings["pipeline_parallel_size"]
        settings = Settings(
            vllm_version=self.settings["vllm_version"],
            kv_cache_dtype=self.settings["kv_cache_dtype"],
            enable_prefix_caching=self.settings.get("enable_prefix_caching"),
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.settings["max_num_batched_tokens"]
            or SMALLEST_DEFAULT_BATCH,
        )
        available = [kv_bytes] * pipeline_parallel_size
        return kv_capacity(
            self.model, settings, tensor_parallel_size, pipeline_parallel_size, available
        )

    @cached_property
    def logged_tokens(self) -> int | None:
        """The tokens of the log's KV cache, in the measure of today.

        Older releases divide by the number of groups of layers (`Version.divides_tokens_by_groups`),
        so that a hybrid's log may have a fourth of the tokens. Its maximum concurrency is right.
        """
        log = self.log
        release = release_of(log)
        if release is None or not versions.row_of(release).divides_tokens_by_groups:
            return log.kv_cache_tokens
        if log.kv_cache_tokens and log.max_concurrency and _has_groups(self.model):
            return round(log.max_concurrency * self.max_model_len)
        return log.kv_cache_tokens

    @property
    def max_model_len(self) -> int:
        """The tokens of the longest request."""
        return self.settings["max_model_len"] or self.model.max_position_embeddings


def best_single_stream(log: EngineLog) -> float | None:
    """Return the tokens/s of the best interval with one running request at both ends, or None.

    At one end alone, a batch that is nearly done looks the same.
    """
    engines: dict[int, list[Throughput]] = {}
    for line in log.throughput:
        engines.setdefault(line.engine, []).append(line)
    alone: list[float] = []
    for lines in engines.values():
        for before, after in pairwise(lines):
            if before.running == after.running == 1 and before.waiting == after.waiting == 0:
                alone.append(after.generation_tokens_per_s)
    return max(alone, default=None)


def _has_groups(model: ModelConfig) -> bool:
    """Return True if several kinds of layers share the KV cache.

    These are states beside attention, or windows of several sizes.
    """
    return has_states(model) or len(set(model.layer_windows)) > 1


def make_case(
    log: EngineLog,
    model: str | Path | ModelConfig | None,
    gpu: str | GPU | None,
    *,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    vllm_version: str | None = None,
    gpu_memory_utilization: float | None = None,
    gpu_memory_gib: float | None = None,
) -> LoggedRun:
    """Find the model and the GPU of a log, and its settings.

    Args:
        log: what was read from the log.
        model: catalog name, folder or ModelConfig; None takes the one that the log names.
        gpu: catalog name or GPU; None takes the one that the log names.
        tensor_parallel_size: ranks of a stage; needed if the log does not say it and it is not 1.
        pipeline_parallel_size: stages; needed if the log does not say it and it is not 1.
        vllm_version: release; needed if the log does not say it.
        gpu_memory_utilization: needed if the log does not say it and it is not vLLM's default.
        gpu_memory_gib: memory of one GPU in GiB as vLLM sees it, for a card of another size.

    Raises:
        NotInLog: the model or the GPU is neither in the log nor given.
        BadInput: the log is of the V0 engine or of a release before 0.10, or what is given
            contradicts the log.
        WorkshopError: the log ends before there is anything to compare.
    """
    assumed: list[str] = []
    check_release(log)
    if vllm_version is not None:
        log = with_version(log, vllm_version)
    if gpu_memory_utilization is not None:
        log = _with_utilization(log, gpu_memory_utilization)
    _check_something_to_compare(log)
    split = parallel_sizes(log, tensor_parallel_size, pipeline_parallel_size, assumed)
    ranks_of_replica = split["tensor_parallel_size"] * split["pipeline_parallel_size"]
    config = with_quantization(find_model(log, model, assumed), log, assumed)
    config = with_quantization_of_name(config, log, ranks_of_replica, assumed)
    config = _with_logged_length(log, config, assumed)
    card = _card(log, gpu, gpu_memory_gib, assumed)
    settings = _settings(log, config, assumed) | split
    if settings["quantization"] is None:
        settings["quantization"] = quantization_of_weights(log, config, ranks_of_replica, assumed)
    if not config.moe:  # replicas of a dense model share nothing: each is a run of its own
        settings |= {"data_parallel_size": None, "enable_expert_parallel": False}
    parts_of_an_expert = None  # as many as there are ranks of tensor parallelism
    if settings["enable_expert_parallel"]:
        parts_of_an_expert = 1
    ranks.check_sizes(
        config,
        settings["tensor_parallel_size"],
        settings["pipeline_parallel_size"],
        parts_of_an_expert,
    )
    settings["enable_prefix_caching"] = _prefix_caching(log, config)
    settings["moe_backend"] = None
    if card is not None:
        settings["moe_backend"] = moe_backend(log, config, card, settings, assumed)
        settings |= _features(log, config, card, settings, assumed)
    return LoggedRun(log, config, card, settings, _kv_bytes(log), assumed)


def _with_logged_length(log: EngineLog, model: ModelConfig, assumed: list[str]) -> ModelConfig:
    """Return the model with at least the log's max_model_len: the run started with it."""
    length = log.max_model_len or 0
    if length <= model.max_position_embeddings:
        return model
    assumed.append(
        f"The log's max_model_len of {length:,} is more than "
        f"the {model.max_position_embeddings:,} of {model.name}'s config.json, and was taken."
    )
    return replace(model, max_position_embeddings=length)


def _with_utilization(log: EngineLog, share: float) -> EngineLog:
    """Return the log with a gpu_memory_utilization that it does not say itself.

    Raises BadInput: it is no share, or the log says another one.
    """
    flag = "--gpu-memory-utilization"
    if not 0 < share <= 1:
        raise BadInput(f"{flag} {share:g} is no share.", "Give a number above 0, and at most 1.")
    logged = log.gpu_memory_utilization
    if logged and abs(logged - share) > SHARE_ROUNDING:
        raise contradiction(flag, f"is of {flag} {logged:g}", f"{share:g}")
    return replace(log, gpu_memory_utilization=logged or share)


def _card(
    log: EngineLog, requested: str | GPU | None, memory_gib: float | None, assumed: list[str]
) -> GPU | None:
    """Return the GPU of a log with the memory that it prints; None for a log of a CPU."""
    if log.platform == "cpu":
        if requested is not None:
            assumed.append(f"The log is of a CPU, so --gpu {requested} was not used.")
        if memory_gib is not None:
            assumed.append("The log is of a CPU, so --gpu-memory was not used.")
        return None
    card = find_gpu(log, requested, assumed, memory_gib)
    check_memory(log, card)
    return with_logged_memory(log, card, assumed)


# Arguments that the plan takes as a log prints them: all but those that become facts, and those of
# `_compilation` and `_kv_bytes`.
FEATURES = tuple(
    name
    for name in VLLM_ARGUMENTS
    if name not in (*ARGUMENTS, "compilation_config", "kv_cache_memory_bytes")
)


def _features(
    log: EngineLog, model: ModelConfig, card: GPU, settings: dict[str, Any], assumed: list[str]
) -> dict[str, Any]:
    """Return plan()'s keywords for drafts, adapters, images and other arguments of the log.

    If the plan refuses them together, they are those that it takes one after the other.
    """
    features = {name: log.args[name] for name in FEATURES if log.args.get(name)}
    if not features or not _refusal(model, card, settings | features):
        return features
    counted: dict[str, Any] = {}
    refused: dict[str, list[str]] = {}
    for name, value in features.items():
        message = _refusal(model, card, settings | counted | {name: value})
        if message:
            refused.setdefault(message, []).append(name)
        else:
            counted[name] = value
    for message, names in refused.items():
        assumed.append(f"The log's {', '.join(names)} was not counted: {message}")
    return counted


def _refusal(model: ModelConfig, card: GPU, settings: dict[str, Any]) -> str:
    """Return why the plan refuses these settings; "" if it takes them."""
    try:
        plan(model, card, **settings, learned=())
    except BadInput as error:
        return error.message
    return ""


def _check_something_to_compare(log: EngineLog) -> None:
    facts = (log.kv_cache_tokens, log.available_kv_gib, log.weights_gib, log.requested_kv_gib)
    if any(fact is not None for fact in facts):
        return
    failure = failure_of(log)
    if failure is not None:
        raise failure
    raise WorkshopError(
        "The log does not say what the engine loaded and what fits.",
        "Give the log from its first line on.",
    )


def _settings(log: EngineLog, model: ModelConfig, assumed: list[str]) -> dict[str, Any]:
    """Return plan()'s keywords for the run of the log; vLLM's defaults fill the gaps."""
    version = nearest_version(log, assumed)
    share = log.gpu_memory_utilization
    default = versions.get(version).default_utilization
    if not share and default != Settings.gpu_memory_utilization:
        share = default
    dtype = "auto"
    if log.dtype and log.dtype != model.dtype:
        dtype = log.dtype
    return {
        "max_model_len": log.max_model_len,
        "quantization": quantization_to_plan(log, model),
        "kv_cache_dtype": log.kv_cache_dtype or "auto",
        "dtype": dtype,
        "gpu_memory_utilization": share or None,
        "max_num_batched_tokens": log.max_num_batched_tokens or None,
        "max_num_seqs": log.max_num_seqs or None,
        "enforce_eager": bool(log.enforce_eager),
        "compilation_config": _compilation(log),
        "vllm_version": version,
        "usage": "serve" if log.server else "llm",
    }


def _compilation(log: EngineLog) -> dict[str, Any] | None:
    """Return what was given of --compilation-config and decides memory; None for vLLM's default.

    vLLM prints it with all its fields, those that nobody gave as None.
    """
    printed = log.args.get("compilation_config")
    if isinstance(printed, str):  # with the name of a mode in it, such as <CUDAGraphMode.NONE: 0>
        printed = parse_arguments(printed)
    if not isinstance(printed, dict):
        return None
    fields = {}
    for name in compilation.COMPUTED:
        value = printed.get(name)
        mode = re.match(r"<\w+\.(\w+):", str(value))
        if mode:
            value = mode[1]
        if value is not None:
            fields[name] = value
    return fields or None


def _prefix_caching(log: EngineLog, model: ModelConfig) -> bool | None:
    """Return enable_prefix_caching of a hybrid's log, whose requests then keep further states.

    None for other models, and for releases without formulas, which kept states in other ways.
    """
    outside = log.version is None or versions.is_outside(log.version)
    if not has_states(model) or (log.enable_prefix_caching and outside):
        return None
    return log.enable_prefix_caching


def _kv_bytes(log: EngineLog) -> int | None:
    """Return the bytes of a rank's KV cache that were set instead of measured; None without any."""
    argument = log.args.get("kv_cache_memory_bytes")
    # two decimals; VLLM_CPU_KVCACHE_SPACE goes before the argument
    logged_gib = log.requested_kv_gib
    if type(argument) is int and 0 < argument <= LARGEST:
        agrees = logged_gib is None or abs(argument / GIB - logged_gib) <= 0.01
        if agrees:
            return argument
    if not logged_gib:
        return None
    return round(logged_gib * GIB)
