"""Find the model of a log: its name among the catalog's, and the precision of its weights."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_planner.catalog import ModelConfig, NotInCatalog, load_model, with_encoder
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.config import present
from inference_planner.catalog.gpus import GIB, GPU
from inference_planner.catalog.names import FORMATLESS, HUB_ID, read_name
from inference_planner.catalog.read import existing, from_dict
from inference_planner.model.weights import weight_bytes
from inference_planner.releases import moe_backends
from inference_planner.releases.moe_backends import BACKENDS
from inference_planner.speed.kernels import experts_kernel

from workshop.engine.log.facts import EngineLog
from workshop.errors import BadInput

LONGEST_NAME = 80  # letters of what a log calls a GPU, a model or a quantization

ANOTHER_WEIGHTS = 0.05  # weights that are farther from a model's are in another precision


class NotInLog(BadInput):
    """The model or the GPU of a run, which its log does not say and nobody gave."""


class UnknownModel(NotInLog):
    """A Hub id, of a log or given, whose config.json neither the catalog nor this machine has."""


def contradiction(flag: str, fact: str, value: str) -> BadInput:
    """Return the error of a flag whose value the log contradicts: it `fact` ("is of vLLM 0.32.0")."""
    return BadInput(f"The log {fact}, not {value}.", f"Leave {flag} out, or give the log's.")


def find_model(
    log: EngineLog, requested: str | Path | ModelConfig | None, assumed: list[str]
) -> ModelConfig:
    """Return the model of a log: the given one, or the catalog's of a name that the log has.

    Raises NotInLog: neither is known. Raises BadInput: the given one has another architecture than
    the log's.
    """
    if requested is not None:
        try:
            model = _as_logged(load_model(requested), log)
        except NotInCatalog as error:
            raise _unknown(str(requested)) from error
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
    hub_id = _hub_id(log)
    if hub_id:
        raise _unknown(hub_id)
    name = (log.model or "")[:LONGEST_NAME]
    how = "not at all"
    if name:
        how = f"only as {name!r}, which is not in the catalog and no folder here"
    raise NotInLog(
        f"The log names its model {how}.",
        "Add --model with a catalog name or the model's folder (or its config.json).",
    )


def _unknown(hub_id: str) -> UnknownModel:
    folder = hub_id.rpartition("/")[2]
    return UnknownModel(
        f"The catalog has no model of the shapes of {hub_id}, so nothing was predicted.",
        f"Get its config.json: hf download {hub_id} config.json --local-dir {folder}, "
        f"then add --model ./{folder}.",
    )


def _as_logged(model: ModelConfig, log: EngineLog) -> ModelConfig:
    """Return a model as the log's run loaded it: with its encoder of images, or the text model alone."""
    if _is_text_model(model.raw.get("text_config"), log.architecture):
        raw = {name: model.raw[name] for name in OF_THE_WHOLE if name in model.raw}
        raw |= {**model.raw["text_config"], "architectures": [log.architecture]}
        text = from_dict(raw, name=model.name)
        return replace(text, hub_ids=model.hub_ids, derived_from=model.derived_from)
    if log.architecture != model.text_of:
        return model
    if not model.derived_from:
        return with_encoder(model)
    raw = dict(with_encoder(load_model(model.derived_from)).raw)
    if "quantization_config" in model.raw:
        raw["quantization_config"] = model.raw["quantization_config"]
    whole = from_dict(raw, name=model.name)
    return replace(whole, hub_ids=model.hub_ids, derived_from=model.derived_from)


# fields of a config.json that stand beside its text_config, and count for it
OF_THE_WHOLE = ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")


def _is_text_model(text_config: Mapping[str, Any] | None, architecture: str | None) -> bool:
    """Return True if a class, such as Llama4ForCausalLM, is of a text_config (llama4_text)."""
    if not text_config or not architecture:
        return False
    model_type = str(text_config.get("model_type", "")).removesuffix("_text").replace("_", "")
    return architecture.replace("_", "").lower() == f"{model_type}forcausallm"


MOST_PARTS = 12  # of a path, from its end


def _parts(log: EngineLog) -> list[str]:
    """Return the parts of the path or Hub id that a log has."""
    # ModelScope writes ___ for a dot.
    name = (log.model or "").strip()[-4000:].replace("___", ".")
    return list(filter(None, re.split(r"[/\\\\]", name)))


def _hub_id(log: EngineLog) -> str:
    """Return the Hub id of a log's model: as such, or of a cache's folder; "" without one."""
    parts = _parts(log)
    for part in parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/", 1)
    name = "/".join(parts)
    if HUB_ID.fullmatch(name) and not (log.model or "").startswith(("/", ".", "~")):
        return name
    return ""


def _names(log: EngineLog) -> list[str]:
    """Return the names under which the catalog may know a log's model, the likeliest first.

    The log has a path, a Hub id or a cache folder. A part of a path is read as a Hub id is: with
    words for the tuning, and with the format of its weights.
    """
    logged_name = (log.model or "").strip()
    parts = _parts(log)
    names = [_hub_id(log)]
    if existing(logged_name) is not None:
        names.append(logged_name)
    names += ["/".join(parts[-1:]), "/".join(parts[-2:])]
    served_names = log.args.get("served_model_name")
    if not isinstance(served_names, list):
        served_names = [served_names]
    for part in [*reversed(parts[-MOST_PARTS:]), *served_names[:MOST_PARTS]]:
        if isinstance(part, str):
            names += [part[:LONGEST_NAME], f"local/{part[:LONGEST_NAME]}"]
            if part.endswith("-text"):  # a folder with the text model alone
                names.append(part.removesuffix("-text")[:LONGEST_NAME])
    return list(filter(None, dict.fromkeys([*names, logged_name])))


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
    if model_method:  # its checkpoint is quantized, so vLLM quantizes nothing while it loads
        return model.with_quantization(replace(formats[method], online=False))
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


def with_quantization_of_name(
    model: ModelConfig, log: EngineLog, ranks_of_replica: int, assumed: list[str]
) -> ModelConfig:
    """Return the model in the format that the name of a log's checkpoint says, if it says one.

    Only a log that names no quantization is asked, and a model in 16 bit or one that was read by
    its name. The log's weights decide if it has them, and so does a configuration that says
    quantization=None.
    """
    last = re.split(r"[/\\\\]", (log.model or "").rstrip("/"))[-1][:LONGEST_NAME]
    weights = read_name(last).weights
    if log.quantization or weights in FORMATLESS:
        return model
    whole = named = model
    if model.derived_from and model.quantization:
        whole = _as_logged(load_model(model.derived_from), log)
    elif model.quantization is None:
        with suppress(BadInput):  # the model is none of the catalog's
            named = _as_logged(load_model(f"local/{model.name}-{weights}"), log)
    if whole is named:
        return model
    if log.weights_gib is None:
        is_named = "quantization" not in log.config
    else:
        sizes_gib = [weight_bytes(config) / GIB / ranks_of_replica for config in (whole, named)]
        of_whole, of_named = (abs(size_gib / log.weights_gib - 1) for size_gib in sizes_gib)
        is_named = of_named < of_whole
    if not is_named:
        return whole
    assumed.append(
        f"The log names no quantization, and its model is {(log.model or '')[-LONGEST_NAME:]!r}: "
        f"{present(named.quantization).method} was taken."
    )
    return named


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
    """Return plan()'s `moe_backend`: the log's kernels of experts, if vLLM's default differs."""
    backend = log.moe_backend
    if backend is None:
        return None
    quantization = settings["quantization"]
    if quantization and model.quantization is None:
        model = model.with_quantization(quant.from_name(quantization))
    usual = experts_kernel(model, card)
    if usual is None or usual.name == BACKENDS[backend]:
        return None
    try:
        moe_backends.check(model, card, backend)
    except BadInput as error:
        assumed.append(f"The log's moe_backend {backend} was not counted: {error.message}")
        return None
    return backend
