"""The starting point of a reconciliation: a log, its model and GPU, and the plan with the same settings."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from inference_planner import kv_cache, ranks, versions
from inference_planner.catalog import GPU, ModelConfig, list_gpus, load_gpu, load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import present
from inference_planner.catalog.gpus import GIB
from inference_planner.catalog.read import existing
from inference_planner.memory import kv_capacity
from inference_planner.overheads import Overhead
from inference_planner.parallelism import Plan
from inference_planner.settings import Settings

from workshop.engine.exact import plan
from workshop.engine.log.facts import EngineLog
from workshop.engine.log.rules import LARGEST
from workshop.errors import BadInput, WorkshopError

LONGEST_NAME = 80  # letters of what a log calls a GPU, a model or a quantization
SMALLEST_DEFAULT_BATCH = (
    2048  # max_num_batched_tokens of a log that does not say it: a CPU's, and a small GPU's
)
SAME_MEMORY = 0.006  # GPUs of one kind report totals that differ by less than this share
DEFAULT_UTILIZATION_BEFORE_0_21 = 0.9  # vllm/config/cache.py; 0.92 since


def size_words(size_bytes: int) -> str:
    """Write a size as people do: 16 MiB, 1.5 GiB."""
    return f"{size_bytes / GIB:g} GiB" if size_bytes >= GIB else f"{size_bytes / 2**20:g} MiB"


@dataclass(frozen=True)
class Stage:
    """One GPU of a pipeline stage: its predicted memory in GiB, and the weights that its rank reported."""

    index: int
    weights_gib: float
    overheads: Sequence[Overhead]
    available_gib: float
    tightest: bool
    reported_weights_gib: float | None

    @property
    def overhead_gib(self) -> float:
        """Memory of a rank besides weights and KV cache, GiB."""
        return sum(item.bytes for item in self.overheads) / GIB


@dataclass(frozen=True)
class LoggedRun:
    """A log beside its prediction.

    `gpu` is None for a log of a CPU. `settings` are plan()'s keyword arguments as the log has them, `kv_bytes` is the size
    of a rank's KV cache where it was given in bytes, and `assumed` lists what the log does not say.
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
        return plan(self.model, self.card, **self.settings)

    @property
    def card(self) -> GPU:
        """The GPU. Raises LookupError for a log of a CPU."""
        return present(self.gpu)

    @cached_property
    def stage(self) -> Stage:
        """The pipeline stage whose memory the log prints: one rank reports it, not always one of the tightest stage."""
        reports = []
        for name, rank in self.log.ranks.items():
            if rank.available_kv_gib is not None:
                reports.append((rank.available_kv_gib, name))
        name = min(reports)[1] if reports else ""
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
        )

    def capacity(self, kv_bytes: int, tp: int = 0) -> kv_cache.Capacity:
        """Return what kv_bytes on every rank hold, for a log whose KV cache was given in bytes.

        Args:
            tp: the tensor parallel size; 0 is the log's own.
        """
        tensor_parallel_size = tp or self.settings["tensor_parallel_size"]
        pipeline_parallel_size = self.settings["pipeline_parallel_size"]
        known = Settings(
            vllm_version=self.settings["vllm_version"],
            kv_cache_dtype=self.settings["kv_cache_dtype"],
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.settings["max_num_batched_tokens"]
            or SMALLEST_DEFAULT_BATCH,
        )
        available = [kv_bytes] * pipeline_parallel_size
        return kv_capacity(
            self.model, known, tensor_parallel_size, pipeline_parallel_size, available
        )

    @property
    def max_model_len(self) -> int:
        return self.settings["max_model_len"] or self.model.max_position_embeddings


def make_case(
    log: EngineLog, model: str | Path | ModelConfig | None, gpu: str | GPU | None
) -> LoggedRun:
    """Find the model and the GPU of a log, and its settings.

    Raises:
        BadInput: the model or the GPU is neither in the log nor given, or does not belong to the log.
        WorkshopError: the log ends before there is anything to compare.
    """
    assumed: list[str] = []
    _check_something_to_compare(log)
    config = _with_quantization(_find_model(log, model, assumed), log, assumed)
    card = None if log.platform == "cpu" else _find_gpu(log, gpu, assumed)
    if card is not None:
        _check_memory(log, card)
    if log.platform == "cpu" and gpu is not None:
        assumed.append(f"The log is of a CPU, so --gpu {gpu} was not used.")
    settings = _settings(log, config, assumed)
    return LoggedRun(log, config, card, settings, _kv_bytes(log), assumed)


def _check_something_to_compare(log: EngineLog) -> None:
    facts = (log.kv_cache_tokens, log.available_kv_gib, log.weights_gib, log.requested_kv_gib)
    if all(fact is None for fact in facts):
        if log.error is not None:
            raise WorkshopError(
                f"The start failed before it was known what fits. {log.error.what}",
                log.error.remedy,
            )
        raise WorkshopError("The log ends before the engine says what it loaded and what fits.",
                            "Give the log of a start that got at least as far as 'Model loading took'.")  # fmt: skip


def _check_memory(log: EngineLog, card: GPU) -> None:
    """Refuse a GPU that has less memory than the log reports."""
    used = (log.weights_gib or 0.0) + (log.available_kv_gib or 0.0)
    total = max(used, log.profile.get("total_gpu_memory_gib", 0.0))
    if total > card.engine_gib * (1 + SAME_MEMORY):
        others = map(load_gpu, list_gpus())
        enough = [other.name for other in others if other.engine_gib * (1 + SAME_MEMORY) >= total]
        raise BadInput(f"The log reports {total:.2f} GiB on a GPU, and {card.title} has {card.engine_gib:.2f} GiB.",
                       f"Give the GPU of the run; enough memory have: {', '.join(enough) or 'none'}.")  # fmt: skip


def _find_model(
    log: EngineLog, given: str | Path | ModelConfig | None, assumed: list[str]
) -> ModelConfig:
    if given is not None:
        found = load_model(given)
        if log.architecture and found.architecture != log.architecture:
            raise BadInput(f"The log is of a {log.architecture}, but {found.name} is a {found.architecture}.",
                           "Give the model that the log was made with.")  # fmt: skip
        return found
    for name in _names(log.model or ""):
        with suppress(BadInput):
            found = load_model(name)
            if log.architecture in (None, found.architecture):
                assumed.append(
                    f"The model was taken to be {found.name}, since the log says {log.model!r}."
                )
                return found
    name = (log.model or "")[:LONGEST_NAME]
    said = (
        f"only as {name!r}, which is not in the catalogue and no folder here"
        if name
        else "not at all"
    )
    raise BadInput(f"The log names its model {said}.",
                   "Add --model with a catalogue name or the model's folder (or its config.json).")  # fmt: skip


def _names(said: str) -> list[str]:
    """Spellings under which the catalogue may know what a log calls its model: a path, a Hub id, a cache folder.

    The likeliest first: looking for one that is not there costs the search for similar names.
    """
    parts = [part for part in said.rstrip("/").split("/") if part]
    cached = [
        part.removeprefix("models--").replace("--", "/")
        for part in parts
        if part.startswith("models--")
    ]
    hub_id = len(parts) == 2 and not said.startswith(("/", ".", "~"))
    here = hub_id or existing(said) is not None
    names = [*cached, *([said] if here else []), *parts[-1:], "/".join(parts[-2:]), said]
    return [name for name in dict.fromkeys(names) if name]


def _method(name: str) -> str:
    """One name of what vLLM calls by several: awq_marlin is awq with faster kernels, gpt_oss_mxfp4 is mxfp4."""
    return (
        name.lower()
        .replace("-", "_")
        .removesuffix("_marlin")
        .removeprefix("gpt_oss_")
        .removeprefix("auto_")
    )


def _with_quantization(model: ModelConfig, log: EngineLog, assumed: list[str]) -> ModelConfig:
    """Take the log's quantization where the model's config says something else."""
    said = log.quantization
    has = model.quantization.method if model.quantization else None
    if not said or (has and _method(has) == _method(said)):
        return model
    asked_for = log.args.get("quantization")
    known = {_method(name): value for name, value in quant.METHODS.items()}
    if _method(said) not in known and has:
        assumed.append(
            f"The log's quantization={said} is not known; that of {model.name}, {has}, was taken."
        )
        return model
    if _method(said) not in known:
        raise BadInput(f"The log's quantization {said[:LONGEST_NAME]!r} is not known.",
                       f"Known: {', '.join(quant.METHODS)}.")  # fmt: skip
    taken = quant.from_name(_method(said)) if asked_for and not has else known[_method(said)]
    assumed.append(f"quantization={said} was taken from the log; {model.name} has {has or 'none'}.")
    return replace(model, quantization=taken)


def _find_gpu(log: EngineLog, given: str | GPU | None, assumed: list[str]) -> GPU:
    if given is not None:
        return load_gpu(given)
    if log.gpu and (found := _gpu_by_name(log.gpu)):
        assumed.append(f"The GPU is a {log.gpu}, as a line of the log says.")
        return found
    total = log.profile.get("total_gpu_memory_gib")
    same = [
        card
        for card in map(load_gpu, list_gpus())
        if total and abs(card.engine_gib / total - 1) < SAME_MEMORY
    ]
    if len(same) == 1:
        assumed.append(f"The GPU was taken to be {same[0].title}, since the log says {total} GiB.")
        return same[0]
    hint = f"With {total} GiB it may be: {', '.join(card.name for card in same)}. " if same else ""
    raise BadInput("The log does not name its GPU (vLLM's logs do not).",
                   f"{hint}Add --gpu with one of: {', '.join(list_gpus())}.")  # fmt: skip


def _gpu_by_name(name: str) -> GPU | None:
    words = re.split(
        r"[\s_]+", name[:LONGEST_NAME].removeprefix("NVIDIA").removeprefix("AMD").strip()
    )
    for count in range(len(words), 0, -1):
        with suppress(BadInput):
            return load_gpu(" ".join(words[:count]))
    return None


def _settings(log: EngineLog, model: ModelConfig, assumed: list[str]) -> dict[str, Any]:
    """Return plan()'s keywords for the run of the log; what it does not say is left to vLLM's defaults."""
    version = _nearest_version(log.version, assumed)
    old = log.version is not None and versions.is_before(log.version, "0.21")
    ranks.check_sizes(model, log.tensor_parallel_size or 1, log.pipeline_parallel_size or 1)
    share = log.gpu_memory_utilization or (DEFAULT_UTILIZATION_BEFORE_0_21 if old else None)
    return {
        "tensor_parallel_size": log.tensor_parallel_size or 1,
        "pipeline_parallel_size": log.pipeline_parallel_size or 1,
        "max_model_len": log.max_model_len,
        "kv_cache_dtype": log.kv_cache_dtype or "auto",
        "dtype": log.dtype if log.dtype and log.dtype != model.dtype else "auto",
        "gpu_memory_utilization": share,
        "max_num_batched_tokens": log.max_num_batched_tokens or _old_batch(log, model, old),
        "max_num_seqs": log.max_num_seqs,
        "enforce_eager": bool(log.enforce_eager),
        "vllm_version": version,
        "usage": "serve" if log.server else "llm",
    }


def _old_batch(log: EngineLog, model: ModelConfig, old: bool) -> int | None:
    """Before 0.8 a prompt was not cut into chunks: the profile run took a whole one (vllm/config.py)."""
    if not old or log.version is None or not versions.is_before(log.version, "0.8"):
        return None
    return max(log.max_model_len or model.max_position_embeddings, 2048)


def _nearest_version(version: str | None, assumed: list[str]) -> str:
    """The version with formulas that is nearest to the log's."""
    if version is None:
        assumed.append(f"The log does not say its version of vLLM; {versions.DEFAULT} was assumed.")
        return versions.DEFAULT
    nearest = versions.nearest(version)
    if not versions.same_minor(nearest, version):
        assumed.append(
            f"The log is of vLLM {version}; the formulas are those of {nearest}, the nearest known."
        )
    return nearest


def _kv_bytes(log: EngineLog) -> int | None:
    """Bytes of KV cache a rank, where they were given instead of measured."""
    given = log.args.get("kv_cache_memory_bytes")
    said = log.requested_kv_gib  # two decimals; VLLM_CPU_KVCACHE_SPACE goes before the argument
    if (
        type(given) is int
        and 0 < given <= LARGEST
        and (said is None or abs(given / GIB - said) <= 0.01)
    ):
        return given
    return round(said * GIB) if said else None
