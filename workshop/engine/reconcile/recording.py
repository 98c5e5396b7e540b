"""Describe a run and what it measured, as `learned` keeps it.

That is numbers, and names that the planner itself has: no text of the log, no key, host or path.
"""

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

from inference_planner.answer.builds import NOT_SIZES
from inference_planner.catalog import ModelConfig, list_models
from inference_planner.catalog.config import present
from inference_planner.catalog.read import from_dict

from workshop.engine.reconcile.case import FEATURES, LoggedRun, best_single_stream
from workshop.engine.reconcile.learned import KeptStart, Measured
from workshop.errors import BadInput

SHORT = re.compile(r"[\w.+-]{1,40}")  # a version, a method, a dtype


def described(case: LoggedRun) -> dict[str, Any]:
    """Return model, card, split and settings of a run, without what it measured.

    Raises BadInput: a setting of the log that vLLM does not have.
    """
    model = case.model
    settings = dict(case.settings)
    for name in (*FEATURES, "max_model_len"):
        settings.pop(name, None)
    tp = settings.pop("tensor_parallel_size")
    pp = settings.pop("pipeline_parallel_size")
    config: dict[str, Any] = {}
    if model.name in list_models():
        name = model.name
    else:
        kind = model.model_type or model.architecture
        name = f"{kind}-{model.num_hidden_layers}x{model.hidden_size}"
        config = sizes_alone(model.raw)
    if _is_quantized_when_loaded(case):
        settings["quantization"] = present(model.quantization).method
    elif _is_of_another_checkpoint(model):
        config["quantization_config"] = {"quant_method": present(model.quantization).method}
    run = {
        "model": name,
        "gpu": case.card.name,
        "tp": tp,
        "pp": pp,
        "max_model_len": case.max_model_len,
    }
    if config:
        run["config"] = config
    run["extra"] = _further_settings(settings)
    return run


def _is_quantized_when_loaded(case: LoggedRun) -> bool:
    """Return True if an argument of the run quantizes a checkpoint that is in 16 bit."""
    model = case.model
    argument = case.log.args.get("quantization")
    return bool(model.quantization and argument and not model.raw.get("quantization_config"))


def _is_of_another_checkpoint(model: ModelConfig) -> bool:
    """Return True if the model is quantized, and in another way than its config.json says."""
    if not model.quantization:
        return False
    return model.quantization != from_dict(model.raw, name=model.name).quantization


def _further_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from vLLM's defaults.

    Raises BadInput: one of them is no word of vLLM.
    """
    extra: dict[str, Any] = {}
    for name, value in settings.items():
        if value in (None, "auto", False):
            continue
        if isinstance(value, str) and not SHORT.fullmatch(value):
            raise BadInput(
                f"The log's {name} is not one that vLLM has.", "Give the log as vLLM wrote it."
            )
        extra[name] = value
    if settings.get("enable_prefix_caching") is False:
        extra["enable_prefix_caching"] = False
    return extra


def kept_run(case: LoggedRun) -> dict[str, Any]:
    """Return the case that a start is kept under.

    Raises BadInput: a log of a CPU, or one that does not say its version.
    """
    if case.gpu is None:
        raise BadInput("The log is of a CPU, where nothing is measured.", "Give a log of a GPU.")
    version = case.log.version or ""
    if not SHORT.fullmatch(version):
        raise BadInput(
            "The log does not say its version of vLLM.",
            "Give the log from its first line on, or add --vllm-version.",
        )
    run = described(case)
    if case.max_num_seqs:
        run["extra"]["max_num_seqs"] = case.max_num_seqs
    run["gpu_memory_gib"] = case.card.engine_gib
    run["extra"] |= _features(case)
    run["vllm_version"] = run["extra"].pop("vllm_version")
    run["logged_version"] = version
    return run


def _features(case: LoggedRun) -> dict[str, Any]:
    """Return the log's settings of draft tokens, adapters and images.

    They hold numbers and vLLM's own names, and no text of the log. Raises BadInput: one is a path.
    """
    features: dict[str, Any] = {}
    for name in FEATURES:
        if name in case.settings:
            features[name] = case.settings[name]
    draft = features.get("speculative_config")
    if isinstance(draft, Mapping):
        names = ("method", "num_speculative_tokens")
        features["speculative_config"] = {name: draft[name] for name in names if name in draft}
    for value in features.values():
        if re.search(r"[/\\~]", json.dumps(value)):
            raise BadInput(
                "The log's draft or images are given by a path.", "Such a start cannot be kept."
            )
    return features


def kept_start(case: LoggedRun) -> KeptStart:
    """Return what a start measured, as it is kept.

    Raises BadInput: a log without what a plan takes from it.
    """
    run = kept_run(case)
    if case.kv_bytes:
        raise BadInput(
            "The log's KV cache was given in bytes, so vLLM measured nothing.",
            "Give a log of a start without --kv-cache-memory-bytes.",
        )
    weights_gib = case.stage.reported_weights_gib
    available_gib = case.log.available_kv_gib
    if weights_gib is None:
        raise _nothing_to_keep("the weights")
    if available_gib is None:
        raise _nothing_to_keep("the memory for the KV cache")
    reported = case.stage.reported
    measured = Measured(
        weights_gib=weights_gib,
        available_kv_gib=available_gib,
        total_gpu_memory_gib=case.log.profile.get("total_gpu_memory_gib"),
        peak_activation_gib=reported.peak_activation_gib,
        non_torch_gib=reported.non_torch_gib,
        consumed_gib=reported.consumed_gib,
        cuda_graph_estimate_gib=case.log.cuda_graph_estimate_gib,
        kv_cache_tokens=case.logged_tokens,
        tokens_per_s=best_single_stream(case.log),
        stage=case.stage.index,
    )
    return KeptStart(run, measured, datetime.date.today().isoformat())


def _nothing_to_keep(missing: str) -> BadInput:
    return BadInput(
        f"The log does not say {missing}, so there is nothing to keep.",
        "Give the log of a start that got as far as 'Available KV cache memory'.",
    )


def sizes_alone(raw: Mapping) -> dict:
    """Return a config without what says where it came from: names of files, folders and people."""
    sizes: dict[str, Any] = {}
    for name, value in raw.items():
        if name in NOT_SIZES:
            continue
        if isinstance(value, Mapping):
            sizes[name] = sizes_alone(value)
        elif not (isinstance(value, str) and re.search(r"[/\\]", value)):
            sizes[name] = value
    return sizes
