"""The starting point of a reconciliation: a log, its model and GPU, and the plan with the same settings."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any

from inference_planner import kv_cache, ranks, versions
from inference_planner.attention import has_states
from inference_planner.catalog import (
    GPU,
    ModelConfig,
    families,
    list_gpus,
    list_models,
    load_gpu,
    load_model,
)
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import present
from inference_planner.catalog.gpus import GIB, load_card
from inference_planner.catalog.read import existing
from inference_planner.memory import kv_capacity
from inference_planner.overheads import Overhead
from inference_planner.parallelism import Plan
from inference_planner.settings import Settings, batch_defaults
from inference_planner.weights import whole_bytes

from workshop.engine.exact import plan
from workshop.engine.log.facts import EngineLog, RankFacts, Throughput
from workshop.engine.log.rules import LARGEST
from workshop.errors import BadInput, WorkshopError

WHOLE_PROMPTS_UP_TO = 32768  # tokens of max_model_len, under the V0 engine
MOST_RANKS = 100_000  # of one replica; more was not printed by an engine
LONGEST_NAME = 80  # letters of what a log calls a GPU, a model or a quantization
SMALLEST_DEFAULT_BATCH = (
    2048  # max_num_batched_tokens of a log that does not say it: a CPU's, and a small GPU's
)
ANOTHER_MEMORY = 0.05  # a total that is farther from a GPU's is another GPU's
SAME_MEMORY = 0.006  # GPUs of one kind report totals that differ by less than this share
DEFAULT_UTILIZATION_BEFORE_0_21 = 0.9  # vllm/config/cache.py; 0.92 since
ANOTHER_WEIGHTS = 0.05  # weights that are farther from a model's are in another precision
SEQS_OF_V0 = 256  # max_num_seqs; vllm/config.py of 0.6 and 0.7


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
    reported: RankFacts = field(default_factory=RankFacts)

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
        settings = dict(self.settings)
        settings["max_num_seqs"] = self.max_num_seqs
        return plan(self.model, self.card, **settings, learned=())

    @property
    def max_num_seqs(self) -> int | None:
        """max_num_seqs of the log, or vLLM's default, which a plan of a hybrid model may lower; None elsewhere."""
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
            reported=self._reported(name),
        )

    def _reported(self, name: str) -> RankFacts:
        """Return the split of a rank's memory; of another rank where this one prints none."""
        ranks_of_log = [self.log.ranks[name]] if name in self.log.ranks else []
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

    @cached_property
    def logged_tokens(self) -> int | None:
        """The tokens of the log's KV cache, in the measure of today.

        Up to 0.19 vLLM divided by the number of groups of layers: a hybrid's log has a fourth, say. Its maximum concurrency
        was right. Source: v1/core/kv_cache_utils.py of both.
        """
        log = self.log
        old = log.version is not None and versions.is_before(log.version, "0.20")
        if old and log.kv_cache_tokens and log.max_concurrency and _has_groups(self.model):
            return round(log.max_concurrency * self.max_model_len)
        return log.kv_cache_tokens

    @cached_property
    def single_stream_tokens_per_s(self) -> float | None:
        """Tokens/s of the best interval with one running request at both ends; None if the log has none.

        At one end alone, a batch that is nearly done looks the same.
        """
        engines: dict[int, list[Throughput]] = {}
        for line in self.log.throughput:
            engines.setdefault(line.engine, []).append(line)
        alone: list[float] = []
        for lines in engines.values():
            for before, after in pairwise(lines):
                if before.running == after.running == 1 and before.waiting == after.waiting == 0:
                    alone.append(after.generation_tokens_per_s)
        return max(alone, default=None)

    @property
    def max_model_len(self) -> int:
        return self.settings["max_model_len"] or self.model.max_position_embeddings


def _has_groups(model: ModelConfig) -> bool:
    """Return True if layers of several kinds share the KV cache: states beside attention, or windows of several sizes."""
    return has_states(model) or len(set(model.layer_windows)) > 1


def make_case(
    log: EngineLog,
    model: str | Path | ModelConfig | None,
    gpu: str | GPU | None,
    *,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
) -> LoggedRun:
    """Find the model and the GPU of a log, and its settings.

    Args:
        log: what was read from the log.
        model: catalog name, folder or ModelConfig; None takes the one that the log names.
        gpu: catalog name or GPU; None takes the one that the log names.
        tensor_parallel_size: ranks of a stage, where the log does not say it.
        pipeline_parallel_size: stages, where the log does not say it.

    Raises:
        BadInput: the model or the GPU is neither in the log nor given, or does not belong to the log.
        WorkshopError: the log ends before there is anything to compare.
    """
    assumed: list[str] = []
    _check_something_to_compare(log)
    config = _with_quantization(_find_model(log, model, assumed), log, assumed)
    if (
        log.max_model_len or 0
    ) > config.max_position_embeddings:  # it started, so its model reads so many
        assumed.append(
            f"The log's max_model_len of {log.max_model_len:,} is more than the {config.max_position_embeddings:,} of "
            f"{config.name}'s config.json, and was taken."
        )
        config = replace(config, max_position_embeddings=log.max_model_len or 0)
    card = None if log.platform == "cpu" else _find_gpu(log, gpu, assumed)
    if card is not None:
        _check_memory(log, card)
        card = _with_logged_memory(log, card, assumed)
    if log.platform == "cpu" and gpu is not None:
        assumed.append(f"The log is of a CPU, so --gpu {gpu} was not used.")
    settings = _settings(log, config, assumed)
    settings |= _parallel_sizes(log, tensor_parallel_size, pipeline_parallel_size, assumed)
    if settings["quantization"] is None:
        ranks_of_replica = settings["tensor_parallel_size"] * settings["pipeline_parallel_size"]
        settings["quantization"] = _quantization_of_weights(log, config, ranks_of_replica, assumed)
    if not config.moe:  # replicas of a dense model share nothing: each is a run of its own
        settings |= {"data_parallel_size": None, "enable_expert_parallel": False}
    ranks.check_sizes(
        config,
        settings["tensor_parallel_size"],
        settings["pipeline_parallel_size"],
        1 if settings["enable_expert_parallel"] else None,
    )
    if card is not None:
        settings |= _features(log, config, card, settings, assumed)
    return LoggedRun(log, config, card, settings, _kv_bytes(log), assumed)


# Arguments that the plan takes as vLLM does, where a log has them: drafts, adapters, and what else is in a prompt.
FEATURES = (
    "speculative_config",
    "limit_mm_per_prompt",
    "language_model_only",
    "enable_lora",
    "max_loras",
    "max_lora_rank",
    "fully_sharded_loras",
    "decode_context_parallel_size",
)


def _features(
    log: EngineLog, model: ModelConfig, card: GPU, settings: dict[str, Any], assumed: list[str]
) -> dict[str, Any]:
    """Return plan()'s keywords for drafts, adapters and images of the log; none where the plan cannot count them."""
    parameters = signature(plan).parameters
    features: dict[str, Any] = {}
    for name in FEATURES:
        value = log.args.get(name)
        if name in parameters and value is not None and value is not False:
            features[name] = value
    if not features:
        return {}
    try:
        plan(model, card, **{**settings, **features}, learned=())
    except BadInput as error:
        assumed.append(f"The log's {', '.join(features)} was not counted: {error.message}")
        return {}
    return features


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
    """Refuse a GPU that has less memory than the log uses, or another amount than the log prints."""
    used = (log.weights_gib or 0.0) + max(0.0, log.available_kv_gib or 0.0)
    total = log.profile.get("total_gpu_memory_gib", 0.0)
    contradicted = total > 0 and abs(card.engine_gib / total - 1) > ANOTHER_MEMORY
    if not contradicted and used <= card.engine_gib * (1 + SAME_MEMORY):
        return
    cards = [load_gpu(name) for name in list_gpus()]
    if contradicted:
        names = _cards_of_size(total, ANOTHER_MEMORY)
        hint = f"with that memory there are: {', '.join(names) or 'none in the catalog'}"
    else:
        total = used
        names = [other.name for other in cards if other.engine_gib * (1 + SAME_MEMORY) >= used]
        hint = f"enough memory have: {', '.join(names) or 'none'}"
    raise BadInput(
        f"The log reports {total:.2f} GiB on a GPU, and {card.title} has {card.engine_gib:.2f} GiB.",
        f"Give the GPU of the run; {hint}.",
    )


def _with_logged_memory(log: EngineLog, card: GPU, assumed: list[str]) -> GPU:
    """Return the GPU with the memory that the log prints, where drivers or platforms leave another amount."""
    total = log.profile.get("total_gpu_memory_gib")
    if not total or abs(card.engine_gib / total - 1) <= SAME_MEMORY:
        return card
    assumed.append(
        f"The log says {total:g} GiB of memory, and was compared with those instead of the {card.engine_gib:.2f} GiB "
        f"of {card.title}."
    )
    return load_card(card, total)


def _cards_of_size(total_gib: float, tolerance: float) -> list[str]:
    """Return the names of the catalog's GPUs whose memory is the same within a share."""
    names = []
    for name in list_gpus():
        if abs(load_gpu(name).engine_gib / total_gib - 1) <= tolerance:
            names.append(name)
    return names


def _find_model(
    log: EngineLog, given: str | Path | ModelConfig | None, assumed: list[str]
) -> ModelConfig:
    if given is not None:
        found = load_model(given)
        if log.architecture and found.architecture != log.architecture:
            raise BadInput(f"The log is of a {log.architecture}, but {found.name} is a {found.architecture}.",
                           "Give the model that the log was made with.")  # fmt: skip
        return found
    for name in _names(log):
        with suppress(BadInput):
            found = load_model(name)
            if log.architecture in (None, found.architecture):
                assumed.append(
                    f"The model was taken to be {found.name}, since the log says {log.model!r}."
                )
                return found
    if log.quantization is None and (found := _in_16_bit(log)):
        assumed.append(
            f"The model was taken to be {found.name} in 16 bit, since the log says {log.model!r}."
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


# What publishers add to a model's name without changing its shape.
TUNED = re.compile(
    r"(?<![a-z0-9])(?:meta|instruct|chat|it|base|hf|sft|dpo|thinking|v1|2507|hub|models?)(?![a-z0-9])"
)
QUANTIZED = re.compile(
    r"[-_.](?:fp8|nvfp4|fp4|mxfp4|awq|gptq|int[48]|w\d{1,2}a\d{1,2}|4bit|8bit|bnb|gguf|auto[-_]?round|hqq|torchao|quantized"
    r"|marlin|exl2|aqlm|quark|bf16|fp16)(?![a-z0-9]).*$"
)
# Distilled models that keep the shape of another one: their config.json of 2025-01.
SAME_SHAPE = {
    "deepseek-r1-distill-qwen-7b": "qwen2.5-7b",
    "deepseek-r1-distill-qwen-14b": "qwen2.5-14b",
    "deepseek-r1-distill-qwen-32b": "qwen2.5-32b",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
}
MOST_PARTS = 12  # of a path, from its end


def _simple(name: str) -> str:
    """Return a model's name without what tuning adds to it, and without separators."""
    return re.sub(r"[^a-z0-9.]+", "", TUNED.sub("", name.lower())).strip(".")


@lru_cache(maxsize=2)
def _catalog_spellings(without_format: bool = False) -> dict[str, str]:
    """Return the catalog name of each simple spelling: of the names themselves, and of their Hub ids.

    Args:
        without_format: only of quantized checkpoints, spelled without the format ("-fp8") at the end.
    """
    spellings: dict[str, str] = {}
    for name in list_models():
        for spelling in (name, *load_model(name).hub_ids):
            last = spelling.rpartition("/")[2].lower()
            if without_format:
                if not QUANTIZED.search(last):
                    continue
                last = QUANTIZED.sub("", last)
            spellings.setdefault(_simple(last), name)
    return spellings


def similar_names(part: str) -> list[str]:
    """Return the catalog names that a folder's or Hub repository's name stands for, the nearest first."""
    name = part.lower().replace("___", ".")  # ModelScope writes a dot so
    name = name.removesuffix(".gguf").removesuffix(".safetensors")
    names = [name.rpartition("/")[2]]
    names.append(QUANTIZED.sub("", names[0]))
    found = []
    for spelling in dict.fromkeys(names):
        if spelling in SAME_SHAPE:
            found.append(SAME_SHAPE[spelling])
        if match := _catalog_spellings().get(_simple(spelling)):
            found.append(match)
    return found


def _in_16_bit(log: EngineLog) -> ModelConfig | None:
    """Return a model of which the catalog has a quantized checkpoint alone, not quantized."""
    part = re.split(r"[/\\\\]", (log.model or "").rstrip("/"))[-1][:LONGEST_NAME]
    if not part or QUANTIZED.search(part.lower()):
        return None
    for spelling, name in _catalog_spellings(True).items():
        if spelling == _simple(part):
            found = load_model(name)
            if log.architecture in (None, found.architecture):
                return _not_quantized(found)
    return None


def _not_quantized(model: ModelConfig) -> ModelConfig:
    """Return the model in 16 bit, with nothing that is recorded of its quantized checkpoint."""
    raw = dict(model.raw)
    raw.pop("quantization_config", None)
    raw.pop("compression_config", None)
    name = QUANTIZED.sub("", model.name)
    return replace(model, name=name, raw=raw, exact=None, quantization=None)


def _names(log: EngineLog) -> list[str]:
    """Spellings under which the catalogue may know what a log calls its model: a path, a Hub id, a cache folder.

    The likeliest first: looking for one that is not there costs the search for similar names.
    """
    said = (log.model or "").strip()
    parts = [part for part in re.split(r"[/\\\\]", said[-4000:]) if part]
    cached = []
    for part in parts:
        if part.startswith("models--"):
            cached.append(part.removeprefix("models--").replace("--", "/"))
    hub_id = len(parts) == 2 and not said.startswith(("/", ".", "~"))
    here = hub_id or existing(said) is not None
    names = [*cached, *([said] if here else [])]
    served = log.args.get("served_model_name")
    served_names = served if isinstance(served, list) else [served]
    for part in [*cached, *reversed(parts[-MOST_PARTS:]), *served_names[:MOST_PARTS]]:
        if isinstance(part, str):
            names += similar_names(part[:LONGEST_NAME])
    names += [*parts[-1:], "/".join(parts[-2:]), said]
    return [name for name in dict.fromkeys(names) if name]


# FP8 with other scales: the same bytes, within 0.1 %
SAME_BYTES = {"ptpc_fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_block": "fp8", "cpu_awq": "awq"}


def _method(name: str) -> str:
    """One name of what vLLM calls by several: awq_marlin is awq with faster kernels, gpt_oss_mxfp4 is mxfp4."""
    method = name.lower().replace("-", "_").removesuffix("_marlin")
    method = method.removeprefix("gpt_oss_").removeprefix("auto_")
    return SAME_BYTES.get(method, method)


# Formats of several widths: a checkpoint says which, a log does not.
CONTAINERS = (
    "compressed_tensors",
    "modelopt",
    "modelopt_fp4",
    "modelopt_mixed",
    "quark",
    "torchao",
    "inc",
)


OF_WIDTH = {4: "awq", 8: "fp8"}  # which of the planner's formats stands for a width in bits


def _width_of_name(name: str) -> int | None:
    """Return the bits of a weight that the name of a checkpoint says, as in "-int4" or "-w8a8"."""
    width = r"(?i)[-_.](?:(?:int|w|fp|nvfp|mxfp)([48])(?:a\d{1,2})?|([48])bit)(?![a-z0-9])"
    match = re.search(width, name[:4000])
    return int(match[1] or match[2]) if match else None


def _with_quantization(model: ModelConfig, log: EngineLog, assumed: list[str]) -> ModelConfig:
    """Take the log's quantization where the model's config says something else."""
    said = log.quantization
    has = model.quantization.method if model.quantization else None
    if not said or (has and _method(has) == _method(said)):
        return model
    shown = said[:LONGEST_NAME]
    known = {_method(name): value for name, value in reversed(quant.METHODS.items())}
    if has and (_method(said) in CONTAINERS or _method(said) not in known):
        assumed.append(
            f"The log's quantization={shown} does not say its width here; that of {model.name}, {has}, was taken."
        )
        return model
    width = _width_of_name(log.model or "")
    if not has and width and (_method(said) in CONTAINERS or _method(said) not in known):
        assumed.append(
            f"The log's quantization={shown} does not say its width, and its model's name says {width} bits: {OF_WIDTH[width]} "
            "was taken."
        )
        return model  # plan() quantizes it, by `_settings`
    if _method(said) not in known:
        assumed.append(
            f"The log's quantization={shown} has no formulas here, so {model.name} is compared with weights in "
            f"{model.dtype}: the rows of weights and speed say nothing."
        )
        return model
    taken = known[_method(said)]
    assumed.append(
        f"quantization={shown} was taken from the log; {model.name} has {has or 'none'}."
    )
    # a checkpoint in 16 bit stays the catalog's: plan() quantizes it, by `_settings`
    return model.with_quantization(taken) if has else model


def _quantization_to_plan(log: EngineLog, model: ModelConfig) -> str | None:
    """Return plan()'s `quantization` for a 16-bit checkpoint that the log's run loads in fewer bits."""
    if model.quantization is not None or not log.quantization:
        return None
    names = {_method(name): name for name in reversed(quant.METHODS)}
    width = _width_of_name(log.model or "")
    method = _method(log.quantization)
    if width and (method in CONTAINERS or method not in names):
        return OF_WIDTH[width]
    return names.get(method)


def _quantization_of_weights(
    log: EngineLog, model: ModelConfig, ranks_of_replica: int, assumed: list[str]
) -> str | None:
    """Return the quantization that the log's weights show, where it names no arguments and its model is in 16 bit."""
    measured_gib = log.weights_gib
    if measured_gib is None or model.quantization or log.quantization or log.args or log.config:
        return None
    stated_gib = whole_bytes(model) / GIB / ranks_of_replica
    if abs(stated_gib / measured_gib - 1) <= ANOTHER_WEIGHTS:
        return None
    for method in ("fp8", "awq"):
        quantized = model.with_quantization(quant.from_name(method))
        size_gib = whole_bytes(quantized) / GIB / ranks_of_replica
        if abs(size_gib / measured_gib - 1) <= ANOTHER_WEIGHTS:
            bits = present(quantized.quantization).weight_bits
            assumed.append(
                f"The log's weights of {measured_gib:.2f} GiB are those of {model.name} in {bits} bits ({size_gib:.2f} GiB), "
                f"and not in 16 ({stated_gib:.2f}): {method} was assumed."
            )
            return method
    return None


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
    if total and not _cards_of_size(total, ANOTHER_MEMORY):
        assumed.append(
            f"No GPU of the catalog has the {total:g} GiB that the log says, so memory alone was compared."
        )
        return load_card(None, total)
    hint = f"With {total} GiB it may be: {', '.join(card.name for card in same)}. " if same else ""
    raise BadInput("The log does not name its GPU (vLLM's logs do not).",
                   f"{hint}Add --gpu with one of: {', '.join(list_gpus())}.")  # fmt: skip


# Words behind a card's name that make it another card, with other memory or speed.
OTHER_CARD = {
    *("laptop", "mobile", "max-q", "maxq", "super", "ti", "d", "ada", "mig", "slice", "generation", "vgpu", "grid"),
    *("nvl", "pcie", "sxm2", "sxm3", "blackwell", "workstation", "server", "max", "xt", "xtx", "gre", "dual"),
}  # fmt: skip


def _gpu_by_name(name: str) -> GPU | None:
    """Return the catalog's GPU of a name; None if words are left that make it another one, as in "RTX 4090 Laptop GPU"."""
    plain = name[:LONGEST_NAME].removeprefix("NVIDIA").removeprefix("AMD").strip()
    words = re.split(r"[\s_]+", plain)
    for count in range(len(words), 0, -1):
        rest = words[count:]
        if any(word.lower() in OTHER_CARD for word in rest):
            return None
        with suppress(BadInput):
            return load_gpu(" ".join(words[:count]))
    return None


def _settings(log: EngineLog, model: ModelConfig, assumed: list[str]) -> dict[str, Any]:
    """Return plan()'s keywords for the run of the log; what it does not say is left to vLLM's defaults."""
    version = _nearest_version(log, assumed)
    v0 = is_of_v0(log)
    old = v0 or (log.version is not None and versions.is_before(log.version, "0.21"))
    share = log.gpu_memory_utilization or (DEFAULT_UTILIZATION_BEFORE_0_21 if old else None)
    return {
        "max_model_len": log.max_model_len,
        "quantization": _quantization_to_plan(log, model),
        "kv_cache_dtype": log.kv_cache_dtype or "auto",
        "dtype": log.dtype if log.dtype and log.dtype != model.dtype else "auto",
        "gpu_memory_utilization": share,
        "max_num_batched_tokens": log.max_num_batched_tokens or _old_batch(log, model, old),
        "max_num_seqs": log.max_num_seqs or (SEQS_OF_V0 if v0 else None),
        # V0 captures its graphs after the KV cache is sized, so that they take none of it
        "enforce_eager": bool(log.enforce_eager) or v0,
        "vllm_version": version,
        "usage": "serve" if log.server else "llm",
    }


def _parallel_sizes(
    log: EngineLog, given_tp: int | None, given_pp: int | None, assumed: list[str]
) -> dict[str, Any]:
    """Return plan()'s keywords for the split: what the log says, what its ranks show, what was given, or 1."""
    logged_tp, logged_pp, shown_by = log.tensor_parallel_size, log.pipeline_parallel_size, "log"
    if logged_tp is None and logged_pp is None and not (log.args or log.config):
        logged_tp, logged_pp = _sizes_of_ranks(log)
        shown_by = "ranks"
    _check_size("tensor", logged_tp, given_tp, shown_by)
    _check_size("pipeline", logged_pp, given_pp, shown_by)
    tp, pp = logged_tp or given_tp, logged_pp or given_pp
    if shown_by == "ranks" and logged_tp and not (given_tp and given_pp):
        assumed.append(
            f"The log's ranks show tensor parallel {tp}, pipeline parallel {pp or 1}; the log does not name its arguments."
        )
    elif shown_by == "ranks" and tp is None and pp is None:
        assumed.append(
            "The log does not say over how many GPUs the model is split; one was assumed. Otherwise add "
            "--tensor-parallel-size and --pipeline-parallel-size."
        )
    return {
        "tensor_parallel_size": tp or 1,
        "pipeline_parallel_size": pp or 1,
        "data_parallel_size": log.data_parallel_size or _replicas_of_ranks(log),
        "enable_expert_parallel": _has_expert_ranks(log),
    }


def _check_size(kind: str, logged: int | None, given: int | None, shown_by: str) -> None:
    if given is not None and given < 1:
        raise BadInput(f"--{kind}-parallel-size {given} is not a size.", "Give a number from 1.")
    if logged and given and logged != given and (shown_by == "log" or logged > given):
        flag = f"--{kind}-parallel-size"
        raise BadInput(
            f"The log is of {flag} {logged}, not {given}.", f"Leave {flag} out, or give the log's."
        )


RANK_NAME = re.compile(r"(?<![A-Za-z])(?P<kind>DP|PP|TP|EP)(?P<rank>\d{1,4})(?!\d)")


def _highest_ranks(log: EngineLog) -> dict[str, int]:
    """Return the highest rank of each kind in the names of the log's processes: {"TP": 3} for Worker_TP3."""
    highest: dict[str, int] = {}
    for name in log.ranks:
        for match in RANK_NAME.finditer(name.replace("_", " ")):
            highest[match["kind"]] = max(int(match["rank"]), highest.get(match["kind"], 0))
    return highest


def _sizes_of_ranks(log: EngineLog) -> tuple[int | None, int | None]:
    """Return the tensor and pipeline parallel sizes that the names and the number of ranks show."""
    highest = _highest_ranks(log)
    tp = max(highest.get("TP", 0), round(log.profile.get("highest_tensor_rank", 0))) + 1
    pp = max(highest.get("PP", 0), round(log.profile.get("highest_pipeline_rank", 0))) + 1
    if log.world_size and log.world_size <= MOST_RANKS:
        if log.world_size % pp == 0 and log.world_size > tp * pp:
            tp = log.world_size // pp
        return tp, pp
    # workers of the V0 engine differ by their process alone; the driver is the process without a name
    workers = sum(name.startswith(("VllmWorkerProcess", "RayWorkerWrapper")) for name in log.ranks)
    if tp == pp == 1 and workers:
        tp = workers + ("" in log.ranks)
    return (tp, pp) if tp * pp > 1 else (None, None)


def _replicas_of_ranks(log: EngineLog) -> int | None:
    """Return the data parallel size that the ranks' names show; None for one replica."""
    highest = _highest_ranks(log).get("DP", 0)
    return highest + 1 if highest else None


def _has_expert_ranks(log: EngineLog) -> bool:
    """Return True if experts are spread over the ranks: an argument says it, or a worker is called `…_EP0`."""
    if log.enable_expert_parallel is not None:
        return log.enable_expert_parallel
    return "EP" in _highest_ranks(log)


def _old_batch(log: EngineLog, model: ModelConfig, old: bool) -> int | None:
    """Return max_num_batched_tokens of the V0 engine, whose profile run took a whole prompt; None for later ones.

    From 32,768 tokens on, prompts of models without images were cut into chunks. Source: vLLM 0.7.3,
    engine/arg_utils.py create_engine_config, config.py SchedulerConfig.
    """
    if not old or not is_of_v0(log):
        return None
    length = log.max_model_len or model.max_position_embeddings
    if length > WHOLE_PROMPTS_UP_TO and not families.reads_images(model.architecture):
        return SMALLEST_DEFAULT_BATCH
    return max(length, SMALLEST_DEFAULT_BATCH)


def is_of_v0(log: EngineLog) -> bool:
    """Return True for a log of the V0 engine: it says so, or its release had no other by default."""
    if log.engine is not None:
        return log.engine == "V0"
    return log.version is not None and versions.is_before(log.version, "0.8")


def outside_words(log: EngineLog) -> str:
    """Say in a sentence that a log's release is outside of the formulas; empty for one that has some."""
    if log.version is None:
        return ""
    oldest = next(iter(versions.TABLE))
    if not versions.is_before(log.version, oldest) or versions.same_minor(log.version, oldest):
        return ""
    what = f"vLLM {log.version[:LONGEST_NAME]} is outside of the releases that the formulas are of"
    if is_of_v0(log):
        return f"{what}: those of the V0 engine rest on five public logs, and may be 10 % off."
    return f"{what}: those of {oldest} were taken, and the predicted memory may be far off."


def _nearest_version(log: EngineLog, assumed: list[str]) -> str:
    """Return the version with formulas that is nearest to the log's, and say what was assumed."""
    if is_of_v0(log):
        if log.version is None:
            assumed.append("The log does not say its version of vLLM; it is of the V0 engine.")
        else:
            assumed.append(outside_words(log))
        oldest = log.version is not None and versions.is_before(log.version, "0.6.6")
        return (versions.V0_ENGINE_OF_0_6_4 if oldest else versions.V0_ENGINE).name
    version = log.version
    if version is None:
        assumed.append(f"The log does not say its version of vLLM; {versions.DEFAULT} was assumed.")
        return versions.DEFAULT
    nearest = versions.nearest(version)
    outside = outside_words(log)
    if outside:
        assumed.append(outside)
    elif not versions.same_minor(nearest, version):
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
