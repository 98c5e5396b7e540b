"""Find the model of a log: its name among the catalog's, and the precision of its weights."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.catalog import ModelConfig, list_models, load_model, with_encoder
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import present
from inference_planner.catalog.gpus import GIB, GPU
from inference_planner.catalog.read import existing
from inference_planner.model.weights import weight_bytes
from inference_planner.releases import moe_backends
from inference_planner.releases.moe_backends import BACKENDS
from inference_planner.speed.kernels import experts_kernel
from inference_planner.split import ranks

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
        model = _as_logged(load_model(requested), log)
        if log.architecture and model.architecture != log.architecture:
            raise BadInput(
                f"The log is of a {log.architecture}, but {model.name} is a {model.architecture}.",
                "Give the model that the log was made with.",
            )
        return model
    for name in _names(log):
        with suppress(BadInput):
            model = _as_logged(load_model(name), log)
            if log.architecture in (None, model.architecture):
                assumed.append(
                    f"The model was taken to be {model.name}, since the log says {log.model!r}."
                )
                return model
    if log.quantization is None:
        model = _in_16_bit(log)
        if model:
            assumed.append(
                f"The model was taken to be {model.name} in 16 bit, since the log says {log.model!r}."
            )
            return model
    name = (log.model or "")[:LONGEST_NAME]
    how = "not at all"
    if name:
        how = f"only as {name!r}, which is not in the catalog and no folder here"
    raise BadInput(
        f"The log names its model {how}.",
        "Add --model with a catalog name or the model's folder (or its config.json).",
    )


def _as_logged(model: ModelConfig, log: EngineLog) -> ModelConfig:
    """Return a text model of the catalog with its encoder, where the log's run loaded both."""
    if log.architecture == model.text_of:
        return with_encoder(model)
    return model


# What publishers add to a model's name without changing its shape.
TUNED = re.compile(
    r"(?<![a-z0-9])"
    r"(?:meta|instruct|chat|it|base|hf|sft|dpo|thinking|v1|2507|hub|models?)"
    r"(?![a-z0-9])"
)

QUANTIZED = re.compile(
    r"[-_.](?:fp8|nvfp4|fp4|mxfp4|awq|gptq|int[48]|w\d{1,2}a\d{1,2}|4bit|8bit|bnb|gguf"
    r"|auto[-_]?round|hqq|torchao|quantized"
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
    """Return the catalog name of each simple spelling of a name or of a Hub id.

    Args:
        without_format: quantized checkpoints alone, spelled without the format ("-fp8") at the end.
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
    """Return the catalog names that a folder's or repository's name means, the nearest first."""
    name = part.lower().replace("___", ".")  # ModelScope writes a dot so
    name = name.removesuffix(".gguf").removesuffix(".safetensors")
    names = [name.rpartition("/")[2]]
    names.append(QUANTIZED.sub("", names[0]))
    similar = []
    for spelling in dict.fromkeys(names):
        if spelling in SAME_SHAPE:
            similar.append(SAME_SHAPE[spelling])
        catalog_name = _catalog_spellings().get(_simple(spelling))
        if catalog_name:
            similar.append(catalog_name)
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
    """Return the spellings under which the catalog may know a log's model.

    The log has a path, a Hub id or a cache folder. The likeliest spelling is the first: looking for
    one that is not there costs the search for similar names.
    """
    logged_name = (log.model or "").strip()
    parts = list(filter(None, re.split(r"[/\\\\]", logged_name[-4000:])))
    cached = []
    for part in parts:
        if part.startswith("models--"):
            cached.append(part.removeprefix("models--").replace("--", "/"))
    names = list(cached)
    is_hub_id = len(parts) == 2 and not logged_name.startswith(("/", ".", "~"))
    if is_hub_id or existing(logged_name) is not None:
        names.append(logged_name)
    served_names = log.args.get("served_model_name")
    if not isinstance(served_names, list):
        served_names = [served_names]
    for part in [*cached, *reversed(parts[-MOST_PARTS:]), *served_names[:MOST_PARTS]]:
        if isinstance(part, str):
            names += similar_names(part[:LONGEST_NAME])
    names += [*parts[-1:], "/".join(parts[-2:]), logged_name]
    return list(filter(None, dict.fromkeys(names)))


# FP8 with other scales: the same bytes, within 0.1 %
SAME_BYTES = {"ptpc_fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_block": "fp8", "cpu_awq": "awq"}


# What `--quantization` may say, with the layout that it usually has.
FORMATS = {**quant.METHODS, "bitsandbytes": quant.BITSANDBYTES}


def _method(name: str) -> str:
    """Return one name for a method that vLLM calls by several.

    awq_marlin is awq with faster kernels, gpt_oss_mxfp4 is mxfp4, auto-round is inc.
    """
    method = name.lower().replace("-", "_").removesuffix("_marlin")
    method = quant.SAME.get(method, method).replace("-", "_")
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
    "bitsandbytes",
)

OF_WIDTH = {4: "awq", 8: "fp8"}  # which of the planner's formats stands for a width in bits


def _of_width(method: str, width: int) -> str:
    """Return the planner's format for a container's width: its own, if that is the usual one."""
    if method in ("bitsandbytes", "inc") and FORMATS[method].weight_bits == width:
        return method
    return OF_WIDTH[width]


def _width_of_name(name: str) -> int | None:
    """Return the bits of a weight that the name of a checkpoint says, as in "-int4" or "-w8a8"."""
    width = r"(?i)[-_.](?:(?:int|w|fp|nvfp|mxfp)([48])(?:a\d{1,2})?|([48])bit)(?![a-z0-9])"
    match = re.search(width, name[:4000])
    if not match:
        return None
    return int(match[1] or match[2])


def with_quantization(model: ModelConfig, log: EngineLog, assumed: list[str]) -> ModelConfig:
    """Return the model with the log's quantization, if the model's config says something else."""
    if not log.quantization:
        return model
    method = _method(log.quantization)
    shown = log.quantization[:LONGEST_NAME]
    model_method = None
    if model.quantization:
        model_method = model.quantization.method
        if _method(model_method) == method:
            return model
    formats = {_method(name): value for name, value in reversed(FORMATS.items())}
    says_width = method in formats and method not in CONTAINERS
    if model_method and not says_width:
        assumed.append(
            f"The log's quantization={shown} does not say its width here; "
            f"that of {model.name}, {model_method}, was taken."
        )
        return model
    width = _width_of_name(log.model or "")
    if width and not says_width:
        assumed.append(
            f"The log's quantization={shown} does not say its width, "
            f"and its model's name says {width} bits: {_of_width(method, width)} was taken."
        )
        return model  # plan() quantizes it, by `_settings`
    if method not in formats:
        assumed.append(
            f"The log's quantization={shown} has no formulas here, "
            f"so {model.name} is compared with weights in {model.dtype}: "
            "the rows of weights and speed say nothing."
        )
        return model
    assumed.append(
        f"quantization={shown} was taken from the log; {model.name} has {model_method or 'none'}."
    )
    if model_method:
        return model.with_quantization(formats[method])
    return model  # a checkpoint in 16 bit stays the catalog's: plan() quantizes it, by `_settings`


def quantization_to_plan(log: EngineLog, model: ModelConfig) -> str | None:
    """Return plan()'s `quantization` for a 16-bit checkpoint that the run loads in fewer bits."""
    if model.quantization is not None or not log.quantization:
        return None
    names = {_method(name): name for name in reversed(FORMATS)}
    width = _width_of_name(log.model or "")
    method = _method(log.quantization)
    if width and (method in CONTAINERS or method not in names):
        return _of_width(method, width)
    return names.get(method)


# What the end of a checkpoint's name says of its format.
FORMAT_OF_NAME = {"awq": "awq", "gptq": "gptq", "bnb": "bitsandbytes", "mxfp4": "mxfp4"}


def _format_of_name(name: str) -> str | None:
    """Return the planner's format that a checkpoint's name ends in, as in "-FP8"; else None."""
    last = re.split(r"[/\\\\]", name[-4000:].rstrip("/"))[-1][:LONGEST_NAME]
    for word, method in FORMAT_OF_NAME.items():
        if re.search(rf"(?i)[-_.]{word}(?![a-z0-9])", last):
            return method
    width = _width_of_name(last)
    if width is None:
        return None
    return OF_WIDTH[width]


def quantization_of_name(
    log: EngineLog, model: ModelConfig, ranks_of_replica: int, assumed: list[str]
) -> str | None:
    """Return the quantization that the name of a log's checkpoint says; None if it says none.

    Only a log that names no quantization is asked, and a model in 16 bit. The log's weights decide
    if it has them, and so does a configuration that says quantization=None.
    """
    if model.quantization or log.quantization:
        return None
    method = _format_of_name(log.model or "")
    if method is None:
        return None
    if log.weights_gib is None:
        if "quantization" in log.config:
            return None
    else:
        sizes_gib = []
        for config in (model, model.with_quantization(quant.from_name(method))):
            sizes_gib.append(weight_bytes(config) / GIB / ranks_of_replica)
        in_16_bit, quantized = (abs(size / log.weights_gib - 1) for size in sizes_gib)
        if in_16_bit <= quantized:
            return None
    assumed.append(
        f"The log names no quantization, and its model is {(log.model or '')[-LONGEST_NAME:]!r}: "
        f"{method} was taken."
    )
    return method


def quantization_of_weights(
    log: EngineLog, model: ModelConfig, ranks_of_replica: int, assumed: list[str]
) -> str | None:
    """Return the quantization that the size of a log's weights shows; None if it shows none.

    Only a log without arguments is asked, and a model in 16 bit.
    """
    measured_gib = log.weights_gib
    if measured_gib is None or model.quantization or log.quantization or log.args or log.config:
        return None
    stated_gib = weight_bytes(model) / GIB / ranks_of_replica
    if abs(stated_gib / measured_gib - 1) <= ANOTHER_WEIGHTS:
        return None
    for method in ("fp8", "awq"):
        quantized = model.with_quantization(quant.from_name(method))
        size_gib = weight_bytes(quantized) / GIB / ranks_of_replica
        if abs(size_gib / measured_gib - 1) <= ANOTHER_WEIGHTS:
            bits = present(quantized.quantization).weight_bits
            assumed.append(
                f"The log's weights of {measured_gib:.2f} GiB are those of {model.name} "
                f"in {bits} bits ({size_gib:.2f} GiB), and not in 16 ({stated_gib:.2f}): {method} was assumed."
            )
            return method
    return None


def moe_backend(
    log: EngineLog, model: ModelConfig, card: GPU, settings: Mapping[str, Any], assumed: list[str]
) -> str | None:
    """Return plan()'s `moe_backend`: the log's kernels of experts, if vLLM's default differs.

    If the log does not name them, weights of MXFP4 show them: Marlin's layout is larger than
    Triton's.
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
                f"The log's weights of {log.weights_gib:.2f} GiB are {model.name}'s "
                f"as {BACKENDS[backend]}'s kernels lay them out: "
                f"--moe-backend {backend} was assumed."
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
    """Return "marlin" if the log's MXFP4 weights have the size of Marlin's layout, else None."""
    if log.weights_gib is None or moe_backends.stored_as(model) != moe_backends.MXFP4:
        return None
    tp = settings["tensor_parallel_size"]
    pp = settings["pipeline_parallel_size"]
    if settings["data_parallel_size"] or settings["enable_expert_parallel"] or pp > 1:
        return None

    def distance(backend: str) -> float:
        """Return by which share the weights in a backend's layout differ from the log's."""
        padded = moe_backends.with_padding(model, card, backend)
        size_gib = ranks.stage_bytes(padded, tp, pp, 0) / GIB
        return abs(size_gib / measured_gib - 1)

    measured_gib = log.weights_gib
    marlin = distance("marlin")
    if marlin < SAME_LAYOUT and marlin < distance(moe_backends.AUTO):
        return "marlin"
    return None
