"""Record a run in the form of planner/inference_planner/data/runs: `workshop reconcile LOG --record FILE`.

Only numbers, and names that the planner itself has, are written: no text of the log, no key, host or path.
"""

import datetime
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_planner.builds import NOT_SIZES
from inference_planner.catalog import list_models
from inference_planner.catalog.read import from_dict

from workshop.engine.learned import KeptStart, Measured
from workshop.engine.reconcile_case import FEATURES, LoggedRun
from workshop.errors import BadInput
from workshop.files import output, read_json

HEAD = ("hardware", "software", "how", "date")
# of a recorded run; the log's own names are without `_per_gpu`
MEASURED = (
    "weights_gib_per_gpu",
    "available_kv_gib_per_gpu",
    "kv_cache_tokens",
    "max_concurrency",
    "cuda_graph_gib",
)
NEEDED = MEASURED[:3]
# of every run
FIELDS = {
    "name": (str,),
    "model": (str,),
    "extra": (dict,),
    "tp": (int,),
    "pp": (int,),
    "max_model_len": (int,),
}
FIELDS |= dict.fromkeys(NEEDED, (int, float))
SHORT = re.compile(r"[\w.+-]{1,40}")  # a version, a method, a dtype
LARGEST_FILE_BYTES = 16 << 20
REMEDY = "Give a new file, or one that --record wrote."


def run_of(case: LoggedRun) -> dict[str, Any]:
    """Return the run of a log. Raises BadInput for a CPU's, or one that does not say what it measured."""
    if case.gpu is None:
        raise BadInput(
            "The log is of a CPU, and only runs on GPUs are recorded.", "Give a log of a GPU."
        )
    measured = {name: getattr(case.log, name.removesuffix("_per_gpu")) for name in MEASURED}
    if missing := [name for name in NEEDED if not measured[name]]:
        raise BadInput(
            f"The log does not say {', '.join(missing)}.",
            "Give the log of a start that became ready.",
        )
    measurements = {name: value for name, value in measured.items() if value is not None}
    return {**described(case), **measurements}


def described(case: LoggedRun) -> dict[str, Any]:
    """Return model, card, split and settings of a run, without what it measured.

    Raises BadInput: a setting of the log that vLLM does not have.
    """
    m, s = case.model, dict(case.settings)
    for name in FEATURES:
        s.pop(name, None)
    sizes = {"tp": s.pop("tensor_parallel_size"), "pp": s.pop("pipeline_parallel_size")}
    s.pop("max_model_len")
    stored = {}
    if (
        m.quantization
        and case.log.args.get("quantization")
        and not m.raw.get("quantization_config")
    ):
        s["quantization"] = m.quantization.method
    elif (
        m.quantization and m.quantization != from_dict(m.raw, name=m.name).quantization
    ):  # another checkpoint's
        stored = {"quantization_config": {"quant_method": m.quantization.method}}
    extra = {name: value for name, value in s.items() if value not in (None, "auto", False)}
    if s.get("enable_prefix_caching") is False:
        extra["enable_prefix_caching"] = False
    if wrong := [
        name
        for name, value in extra.items()
        if isinstance(value, str) and not SHORT.fullmatch(value)
    ]:
        raise BadInput(
            f"The log's {wrong[0]} is not one that vLLM has.", "Give the log as vLLM wrote it."
        )
    is_in_catalog = m.name in list_models()
    name = (
        m.name
        if is_in_catalog
        else f"{m.model_type or m.architecture}-{m.num_hidden_layers}x{m.hidden_size}"
    )
    run = {
        "name": name,
        "model": name,
        "gpu": case.card.name,
        **sizes,
        "max_model_len": case.max_model_len,
    }
    config = ({} if is_in_catalog else sizes_alone(m.raw)) | stored
    return {**run, **({"config": config} if config else {}), "extra": extra}


def kept_run(case: LoggedRun) -> dict[str, Any]:
    """Return the case that a start is kept under (`workshop reconcile LOG --keep`).

    Raises BadInput: a log of a CPU, or one that does not say its version.
    """
    if case.gpu is None:
        raise BadInput("The log is of a CPU, where nothing is measured.", "Give a log of a GPU.")
    version = case.log.version or ""
    if not SHORT.fullmatch(version):
        raise BadInput(
            "The log does not say its version of vLLM.", "Give the log from its first line on."
        )
    run = described(case)
    del run["name"]
    if case.max_num_seqs:
        run["extra"]["max_num_seqs"] = case.max_num_seqs
    run["gpu_memory_gib"] = case.card.engine_gib
    run["extra"] |= _features(case)
    run["vllm_version"] = run["extra"].pop("vllm_version")
    run["logged_version"] = version
    return run


def _features(case: LoggedRun) -> dict[str, Any]:
    """Return the log's drafts, adapters and images: numbers and vLLM's own names, and no text of the log."""
    features = {name: case.settings[name] for name in FEATURES if name in case.settings}
    draft = features.get("speculative_config")
    if isinstance(draft, Mapping):
        names = ("method", "num_speculative_tokens")
        features["speculative_config"] = {name: draft[name] for name in names if name in draft}
    if any(re.search(r"[/\\~]", json.dumps(value)) for value in features.values()):
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
    if weights_gib is None or available_gib is None:
        missing = "the weights" if weights_gib is None else "the memory for the KV cache"
        raise BadInput(
            f"The log does not say {missing}, so there is nothing to keep.",
            "Give the log of a start that got as far as 'Available KV cache memory'.",
        )
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
        tokens_per_s=case.single_stream_tokens_per_s,
        stage=case.stage.index,
    )
    return KeptStart(run, measured, datetime.date.today().isoformat())


def sizes_alone(raw: Mapping) -> dict:
    """Return a config without what says where it came from: names of files and folders, and whoever wrote it."""
    sizes = {
        k: v
        for k, v in raw.items()
        if k not in NOT_SIZES and not (isinstance(v, str) and re.search(r"[/\\]", v))
    }
    return {name: sizes_alone(v) if isinstance(v, Mapping) else v for name, v in sizes.items()}


def record(case: LoggedRun, file: Path) -> dict[str, Any]:
    """Write the run into a file, beside those of the same hardware and software that are there; return it.

    Raises BadInput: a log without what a record needs, a file that is no record, of another GPU or version, or has it.
    """
    run, version = run_of(case), case.log.version or ""
    if not SHORT.fullmatch(version):
        raise BadInput(
            "The log does not say its version of vLLM.", "Give the log from its first line on."
        )
    head = {
        "hardware": f"{case.card.title}, {case.card.engine_gib:.1f} GiB each for the engine",
        "software": f"vllm {version}",
        "how": "workshop reconcile LOG --record FILE",
        "date": datetime.date.today().isoformat(),
    }
    content = check(file) if file.exists() else {**head, "runs": []}
    for key in ("hardware", "software"):
        if content[key] != head[key]:
            raise BadInput(
                f"{file} has runs of {content[key]}, and the log is of {head[key]}.", REMEDY
            )
    if run in content["runs"]:
        raise BadInput(f"{file} has this run already.", "Give another log.")
    content["runs"].append(run)
    with output(file, force=True) as written:  # what was in it is in `content`
        written.write((json.dumps(content, indent=1) + "\n").encode())
    return run


def check(file: Path) -> dict[str, Any]:
    """Return what a file of recorded runs holds. Raises BadInput naming what is not as it should be."""
    content = read_json(file, LARGEST_FILE_BYTES, REMEDY)
    if not isinstance(content, dict) or not all(isinstance(content.get(key), str) for key in HEAD):
        raise BadInput(f"{file} lacks one of {', '.join(HEAD)}.", REMEDY)
    runs = content.get("runs")
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        raise BadInput(f"{file}: runs is not a list of runs.", REMEDY)
    for number, run in enumerate(runs, 1):
        if wrong := next(
            (name for name, kinds in FIELDS.items() if type(run.get(name)) not in kinds), None
        ):
            raise BadInput(
                f"{file}: {wrong} of run {number} is missing, or of another kind.", REMEDY
            )
    return content
