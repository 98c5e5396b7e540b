"""Find the model that a log is of: its name among the catalog's, and the precision of its weights."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner import moe_backends, ranks
from inference_planner.catalog import ModelConfig, list_models, load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import present
from inference_planner.catalog.gpus import GIB, GPU
from inference_planner.catalog.read import existing
from inference_planner.kernels import experts_kernel
from inference_planner.moe_backends import BACKENDS
from inference_planner.weights import whole_bytes

from workshop.engine.log.facts import EngineLog
from workshop.errors import BadInput

LONGEST_NAME = 80  # letters of what a log calls a GPU, a model or a quantization

SAME_LAYOUT = 0.01  # weights that are nearer than this are laid out alike
ANOTHER_WEIGHTS = 0.05  # weights that are farther from a model's are in another precision


def find_model(
    log: EngineLog, requested: str | Path | ModelConfig | None, assumed: list[str]
) -> ModelConfig:
    """Return the model of a log: the given one, or the catalog's of a name that the log has.

    Raises BadInput: neither is known, or the given one has another architecture than the log's.
    """
    if requested is not None:
        model = load_model(requested)
        if log.architecture and model.architecture != log.architecture:
            raise BadInput(f"The log is of a {log.architecture}, but {model.name} is a {model.architecture}.",
                           "Give the model that the log was made with.")  # fmt: skip
        return model
    for name in _names(log):
        with suppress(BadInput):
            model = load_model(name)
            if log.architecture in (None, model.architecture):
                assumed.append(
                    f"The model was taken to be {model.name}, since the log says {log.model!r}."
                )
                return model
    if log.quantization is None and (model := _in_16_bit(log)):
        assumed.append(
            f"The model was taken to be {model.name} in 16 bit, since the log says {log.model!r}."
        )
        return model
    name = (log.model or "")[:LONGEST_NAME]
    logged_name = (
        f"only as {name!r}, which is not in the catalogue and no folder here"
        if name
        else "not at all"
    )
    raise BadInput(f"The log names its model {logged_name}.",
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
    similar = []
    for spelling in dict.fromkeys(names):
        if spelling in SAME_SHAPE:
            similar.append(SAME_SHAPE[spelling])
        if match := _catalog_spellings().get(_simple(spelling)):
            similar.append(match)
    return similar


def _in_16_bit(log: EngineLog) -> ModelConfig | None:
    """Return a model of which the catalog has a quantized checkpoint alone, not quantized."""
    part = re.split(r"[/\\\\]", (log.model or "").rstrip("/"))[-1][:LONGEST_NAME]
    if not part or QUANTIZED.search(part.lower()):
        return None
    for spelling, name in _catalog_spellings(True).items():
        if spelling == _simple(part):
            model = load_model(name)
            if log.architecture in (None, model.architecture):
                return _not_quantized(model)
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
    logged_name = (log.model or "").strip()
    parts = [part for part in re.split(r"[/\\\\]", logged_name[-4000:]) if part]
    cached = []
    for part in parts:
        if part.startswith("models--"):
            cached.append(part.removeprefix("models--").replace("--", "/"))
    hub_id = len(parts) == 2 and not logged_name.startswith(("/", ".", "~"))
    here = hub_id or existing(logged_name) is not None
    names = [*cached, *([logged_name] if here else [])]
    served = log.args.get("served_model_name")
    served_names = served if isinstance(served, list) else [served]
    for part in [*cached, *reversed(parts[-MOST_PARTS:]), *served_names[:MOST_PARTS]]:
        if isinstance(part, str):
            names += similar_names(part[:LONGEST_NAME])
    names += [*parts[-1:], "/".join(parts[-2:]), logged_name]
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


def with_quantization(model: ModelConfig, log: EngineLog, assumed: list[str]) -> ModelConfig:
    """Take the log's quantization where the model's config says something else."""
    method = log.quantization
    has = model.quantization.method if model.quantization else None
    if not method or (has and _method(has) == _method(method)):
        return model
    shown = method[:LONGEST_NAME]
    methods = {_method(name): value for name, value in reversed(quant.METHODS.items())}
    if has and (_method(method) in CONTAINERS or _method(method) not in methods):
        assumed.append(
            f"The log's quantization={shown} does not say its width here; that of {model.name}, {has}, was taken."
        )
        return model
    width = _width_of_name(log.model or "")
    if not has and width and (_method(method) in CONTAINERS or _method(method) not in methods):
        assumed.append(
            f"The log's quantization={shown} does not say its width, and its model's name says {width} bits: {OF_WIDTH[width]} "
            "was taken."
        )
        return model  # plan() quantizes it, by `_settings`
    if _method(method) not in methods:
        assumed.append(
            f"The log's quantization={shown} has no formulas here, so {model.name} is compared with weights in "
            f"{model.dtype}: the rows of weights and speed say nothing."
        )
        return model
    taken = methods[_method(method)]
    assumed.append(
        f"quantization={shown} was taken from the log; {model.name} has {has or 'none'}."
    )
    # a checkpoint in 16 bit stays the catalog's: plan() quantizes it, by `_settings`
    return model.with_quantization(taken) if has else model


def quantization_to_plan(log: EngineLog, model: ModelConfig) -> str | None:
    """Return plan()'s `quantization` for a 16-bit checkpoint that the log's run loads in fewer bits."""
    if model.quantization is not None or not log.quantization:
        return None
    names = {_method(name): name for name in reversed(quant.METHODS)}
    width = _width_of_name(log.model or "")
    method = _method(log.quantization)
    if width and (method in CONTAINERS or method not in names):
        return OF_WIDTH[width]
    return names.get(method)


def quantization_of_weights(
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


def moe_backend(
    log: EngineLog, model: ModelConfig, card: GPU, settings: Mapping[str, Any], assumed: list[str]
) -> str | None:
    """Return plan()'s `moe_backend`: the kernels of experts that the log has, where vLLM would choose others here.

    Where the log does not name them, weights of MXFP4 show them: Marlin's layout is larger than Triton's.
    """
    quantization = settings["quantization"]
    if quantization and model.quantization is None:
        model = model.with_quantization(quant.from_name(quantization))
    usual = experts_kernel(model, card)
    if usual is None:
        return None
    backend = log.moe_backend
    if backend is None:
        backend = _backend_of_weights(log, model, card, settings)
        if backend:
            assumed.append(
                f"The log's weights of {log.weights_gib:.2f} GiB are {model.name}'s as {BACKENDS[backend]}'s kernels lay "
                f"them out: --moe-backend {backend} was assumed."
            )
    if backend is None or usual.name == BACKENDS[backend]:
        return None
    try:
        moe_backends.check(model, card, backend)
    except BadInput as error:
        assumed.append(f"The log's moe_backend {backend} was not counted: {error.message}")
        return None
    return backend


def _backend_of_weights(
    log: EngineLog, model: ModelConfig, card: GPU, settings: Mapping[str, Any]
) -> str | None:
    """Return "marlin" if the log's MXFP4 weights are as large as in Marlin's layout, and not as in the usual one."""
    if log.weights_gib is None or moe_backends.stored_as(model) != moe_backends.MXFP4:
        return None
    tp, pp = settings["tensor_parallel_size"], settings["pipeline_parallel_size"]
    if settings["data_parallel_size"] or settings["enable_expert_parallel"] or pp > 1:
        return None
    usual, marlin = (
        ranks.stage_bytes(moe_backends.with_padding(model, card, backend), tp, pp, 0) / GIB
        for backend in (moe_backends.AUTO, "marlin")
    )
    distance = abs(marlin / log.weights_gib - 1)
    is_marlin = distance < SAME_LAYOUT and distance < abs(usual / log.weights_gib - 1)
    return "marlin" if is_marlin else None
