"""The files of what starts on this site measured, for later plans.

One file a case in $WORKSHOP_HOME/learned (0600): the run in the form of a recorded run, and what
its log says it measured. No text of the log is kept. The differences from the formulas are computed
when a plan asks for them, so that better formulas need no new log; `inference_planner.memory.learned` says
what a plan takes from them.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import list_gpus, load_gpu
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB, GPU, load_card
from inference_planner.ground.basis import model_of
from inference_planner.memory import learned as planner
from inference_planner.memory.overheads import ACTIVATIONS, GRAPHS
from inference_planner.releases import versions
from inference_planner.split.measured_start import Start

from workshop.errors import BadInput, WorkshopError
from workshop.home import home, write_private, writing

FORMAT = 1
ROUNDING_GIB = 0.006  # the log prints two decimals
SUFFIX = ".json"
DAMAGE = (AttributeError, KeyError, TypeError, ValueError, WorkshopError)  # of a file

Predict = Callable[[ModelConfig, GPU, dict[str, Any]], Plan]


@dataclass(frozen=True)
class Measured:
    """The figures of one rank in a log: GiB, and tokens/s of one stream; None for missing ones."""

    weights_gib: float
    available_kv_gib: float
    total_gpu_memory_gib: float | None = None
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None
    consumed_gib: float | None = None
    cuda_graph_estimate_gib: float | None = None
    kv_cache_tokens: int | None = None
    tokens_per_s: float | None = None
    stage: int = 0  # the pipeline stage of the rank


@dataclass(frozen=True)
class KeptStart:
    """A run and what it measured, as a file holds them."""

    run: dict[str, Any]
    measured: Measured
    kept: str  # the day


def folder() -> Path:
    """Return the folder of what was kept. Raises BadInput: there is no home folder."""
    return home() / "learned"


def file_of(run: Mapping[str, Any]) -> Path:
    """Return the file of a case: the same for the same card, version, model, split and settings."""
    import hashlib

    case = json.dumps(dict(run), sort_keys=True)
    digest = hashlib.sha256(case.encode()).hexdigest()[:12]
    parts = [run["gpu"], run["vllm_version"], run["model"], f"tp{run['tp']}"]
    name = re.sub(r"[^\w.-]+", "-", "_".join(str(word) for word in parts))[:100]
    return folder() / f"{name}_{digest}{SUFFIX}"


def keep(start: KeptStart) -> Path:
    """Write what a start measured, in place of an earlier start of the same case; return the file.

    Raises WorkshopError: the file could not be written.
    """
    file = file_of(start.run)
    with writing(file.parent):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {"format": FORMAT, **asdict(start)}
    write_private(file, json.dumps(content, indent=1) + "\n")
    return file


def files() -> list[Path]:
    """Return the files of what was kept; none where there is no folder."""
    try:
        return sorted(folder().glob(f"[!.]*{SUFFIX}"))
    except BadInput:  # there is no home folder
        return []


def parse(content: bytes) -> KeptStart:
    """Return what a file holds. Raises one of DAMAGE: it is damaged, or of another format."""
    value = json.loads(content)
    if value["format"] != FORMAT:
        raise ValueError
    return KeptStart(value["run"], Measured(**value["measured"]), value["kept"])


_starts: dict[tuple[bytes, str], Start | None] = {}


def starts(predict: Predict, mode: str = "") -> tuple[Start, ...]:
    """Return what was kept on this site as the planner takes it; damaged files are left out.

    Args:
        predict: makes the plan of a run from the formulas alone.
        mode: what the plan depends on besides; the same content and mode are computed once.
    """
    result: list[Start] = []
    for file in files():
        try:
            content = file.read_bytes()
        except OSError:
            continue
        key = content, mode
        if key not in _starts:
            _starts[key] = None
            with contextlib.suppress(*DAMAGE):
                _starts[key] = _start(parse(content), predict)
        start = _starts[key]
        if start is not None:
            result.append(start)
    return tuple(result)


def _start(start: KeptStart, predict: Predict) -> Start:
    """Return the differences between a start and the plan of the same run."""
    run, measured = start.run, start.measured
    options = {
        "tensor_parallel_size": run["tp"],
        "pipeline_parallel_size": run["pp"],
        "max_model_len": run["max_model_len"],
        # the nearest formulas, also if they are newer than the run
        "vllm_version": versions.nearest(run["logged_version"]),
        **run["extra"],
    }
    plan = predict(model_of({**run, "name": run["model"]}), card_of(run), options)
    return _difference(start, plan, measured)


def card_of(run: Mapping[str, Any]) -> GPU:
    """Return the card of a run, with the memory that its log says."""
    size_gib = float(run["gpu_memory_gib"])
    if run["gpu"] not in list_gpus():
        return load_card(None, size_gib)
    card = load_gpu(run["gpu"])
    if round(size_gib * GIB) == card.engine_bytes:
        return card
    return load_card(card, size_gib)


def _difference(start: KeptStart, plan: Plan, measured: Measured) -> Start:
    """Return measured minus predicted: bytes of weights and overheads, and the speeds' ratio."""
    deployment = plan.deployment
    memory = plan.fit
    stage = min(measured.stage, deployment.pp - 1)
    parts = _predicted_parts(plan, stage)
    available_gib = _precise_available_gib(plan, measured, stage)
    requested_gib = memory.requested / GIB
    weights_gib = measured.weights_gib - memory.weights[stage] / GIB
    if abs(weights_gib) <= ROUNDING_GIB:
        weights_gib = 0.0
    overhead_gib = (
        requested_gib - available_gib - memory.overhead[stage] / GIB - memory.weights[stage] / GIB
    )
    overhead_gib -= weights_gib
    activations_gib = overhead_gib  # of a log that does not split it
    graphs_gib = 0.0
    other_gib = 0.0
    has_parts = measured.peak_activation_gib is not None
    if measured.peak_activation_gib is not None:
        peak_gib = measured.peak_activation_gib
        expected_gib = parts[ACTIVATIONS]
        if measured.consumed_gib is not None:  # since 0.28 the graphs' estimate is in the peak
            expected_gib += parts[GRAPHS]
        activations_gib = peak_gib - expected_gib
        if measured.cuda_graph_estimate_gib is not None:
            graphs_gib = measured.cuda_graph_estimate_gib - parts[GRAPHS]
            if measured.consumed_gib is not None:
                activations_gib -= graphs_gib
        other_gib = overhead_gib - activations_gib - graphs_gib
    return Start(
        gpu=deployment.gpu.name,
        engine_bytes=deployment.gpu.engine_bytes,
        vllm_version=deployment.settings.version.name,
        logged_version=start.run["logged_version"],
        model=start.run["model"],
        shape=planner.shape_of(deployment.model),
        kind=planner.start_kind(deployment.model),
        split=planner.split_of(deployment),
        settings=planner.settings_of(deployment),
        enforce_eager=deployment.settings.enforce_eager,
        has_parts=has_parts,
        weights=round(weights_gib * GIB),
        activations=round(activations_gib * GIB),
        graphs=round(graphs_gib * GIB),
        other=round(other_gib * GIB),
        speed=_speed(plan, measured),
        day=start.kept,
    )


def _predicted_parts(plan: Plan, stage: int) -> dict[str, float]:
    """Return the predicted activations and CUDA graphs of a rank, GiB."""
    parts = {ACTIVATIONS: 0.0, GRAPHS: 0.0}
    for item in plan.fit.overheads[stage]:
        if item.name in parts:
            parts[item.name] += item.bytes / GIB
    return parts


def _precise_available_gib(plan: Plan, measured: Measured, stage: int) -> float:
    """Return the memory for the KV cache, GiB.

    The log prints two decimals, and its tokens, or else the prediction, say it more precisely.
    """
    memory = plan.fit
    logged_gib = measured.available_kv_gib
    precise_gib = memory.available[stage] / GIB
    if measured.kv_cache_tokens and memory.capacity.tokens and stage == memory.tightest:
        token_bytes = memory.available[stage] / memory.capacity.tokens
        precise_gib = measured.kv_cache_tokens * token_bytes / GIB
    if abs(precise_gib - logged_gib) <= ROUNDING_GIB:
        return precise_gib
    return logged_gib


def _speed(plan: Plan, measured: Measured) -> float | None:
    """Return measured over predicted tokens/s of one stream; None if they cannot be compared."""
    predicted = plan.single_stream_tokens_per_s
    if not measured.tokens_per_s or not predicted:
        return None
    ratio = measured.tokens_per_s / predicted
    if not planner.LEAST_SPEED <= ratio <= planner.MOST_SPEED:
        return None
    return ratio
