"""Read the recorded builds (data/exact), and plan with them.

They are weights and KV cache as vLLM's own model classes make them.

Nothing is built here: the workshop starts vLLM's classes (`workshop plan --exact`) and hands over
their answers. The records are of models without formulas, for machines without vLLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.answer.choose import Split, choose
from inference_planner.catalog import load_model
from inference_planner.catalog.config import Built, Exact, Group, ModelConfig, SizesFrom
from inference_planner.catalog.estimate import unknown_part
from inference_planner.catalog.families import FAMILIES, has_formulas
from inference_planner.catalog.fields import json_object
from inference_planner.catalog.gpus import GIB
from inference_planner.catalog.weight import ExpertSplit
from inference_planner.errors import BadInput
from inference_planner.files import as_object
from inference_planner.ground.basis import explain_sizes
from inference_planner.model.weights import weight_bytes
from inference_planner.request import PlanRequest
from inference_planner.split.deployment import Deployment
from inference_planner.split.ranks import stage_bytes

DATA = Path(__file__).parents[1] / "data"
# fields of a config that change no size
NOT_SIZES = {
    "transformers_version",
    "_name_or_path",
    "auto_map",
    "use_cache",
    "initializer_range",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "attention_dropout",
    "hidden_dropout",
    "pretraining_tp",
}
INDEX = "model.safetensors.index.json"
LARGEST_INDEX_BYTES = 64 << 20  # a hundred thousand experts' tensors have 14
LARGEST_BYTES = 1 << 50  # of a checkpoint
# Times what the config makes of them: weights of 4 bits are 4 times less, the largest miss of an
# estimate is 2.
FAR = 16


def digest(raw: Mapping[str, Any]) -> str:
    """Return a digest of a config's fields, the same in whatever order they stand."""
    import hashlib

    sizes = {name: value for name, value in raw.items() if name not in NOT_SIZES}
    try:
        return hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:16]
    except ValueError:  # a number of thousands of digits, which no record has
        return ""


@lru_cache(maxsize=1)
def records() -> dict[str, dict[str, Any]]:
    """Return each record ("name", "vllm", "builds", "refused") by the digest of its config."""
    entries: dict[str, dict[str, Any]] = {}
    for file in sorted((DATA / "exact").glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        for entry in record["models"]:
            refused: list[tuple[int, int, str]] = []
            for split, reason in entry.get("errors", {}).items():
                tp, pp = map(int, split.split()[1::2])
                refused.append((tp, pp, reason))
            entries[entry["digest"]] = {
                **entry,
                "vllm": record["vllm"],
                "refused": tuple(refused),
            }
    return entries


def with_records(deployment: Deployment) -> Deployment:
    """Return a deployment with what is recorded of a model that has no formulas.

    Without a record, the size of the checkpoint beside the config is taken.
    """
    model = deployment.model
    if has_formulas(model.architecture) or model.exact:
        return deployment  # of a multimodal model the formulas have the language part alone
    entry = records().get(digest(model.raw))
    if entry:
        builds = [built(build) for build in entry["builds"]]
        return with_builds(deployment, "recorded", entry["vllm"], builds, entry["refused"])
    if model.derived_from:
        return _with_records_of_base(deployment)
    size = stored_bytes(Path(model.location)) if model.location else 0
    if not size:
        return deployment
    scale = size / weight_bytes(as_stored(deployment))
    if scale and not 1 / FAR < scale < FAR:
        problem = (
            f"{model.name}: its files hold {size / GIB:,.2f} GiB, and the sizes in its "
            f"config.json make {size / scale / GIB:,.2f}."
        )
        raise BadInput(problem, "Give the config.json and the weights of the same model.")
    if not scale:
        return deployment
    exact = Exact("estimate", "the checkpoint's own size", (), scale)
    return replace(deployment, model=replace(model, exact=exact))


def stored_bytes(folder: Path) -> int:
    """Return the bytes of the weights in a folder: of their index, or of the files; 0 without.

    Raises BadInput for an index that cannot be read, or is cut.
    """
    index = folder / INDEX
    if index.exists():
        metadata = as_object(json_object(index, LARGEST_INDEX_BYTES).get("metadata")) or {}
        size: Any = metadata.get("total_size")
        if type(size) in (int, float) and 0 < size < LARGEST_BYTES:
            return int(size)
    weights = (file for file in folder.glob("*.safetensors") if file.is_file())
    return sum(file.stat().st_size for file in weights)


def _with_records_of_base(deployment: Deployment) -> Deployment:
    """Return a deployment with what is recorded of the checkpoint that its model is derived from.

    The KV cache is the same. Weights shrink as the formulas say, and the encoder stays in 16 bits.
    """
    model = deployment.model
    base = load_model(model.derived_from)
    while digest(base.raw) not in records() and base.derived_from:
        base = load_model(base.derived_from)
    entry = records().get(digest(base.raw))
    if not entry:
        return deployment
    builds: list[Built] = []
    for recorded in map(built, entry["builds"]):
        encoders = recorded.encoder_bytes or (0,) * recorded.pp
        after = _stages_bytes(as_stored(deployment), recorded)
        before = _stages_bytes(base, recorded)
        loaded = tuple(
            encoder + (stored - encoder) * small // large
            for encoder, stored, small, large in zip(
                encoders, recorded.loaded_bytes, after, before, strict=True
            )
        )
        builds.append(replace(recorded, loaded_bytes=loaded))
    return with_builds(deployment, "derived", entry["vllm"], builds, entry["refused"])


def check_estimate(model: ModelConfig, why: str = "") -> None:
    """Raise BadInput if only an estimate remains, and it would be more than 5 % off.

    Args:
        why: what kept vLLM's own class from being asked.
    """
    if model.architecture in FAMILIES or (model.exact and model.exact.builds):
        return
    part = unknown_part(model.raw, has_checkpoint=model.exact is not None)
    if part:
        remedy = "`workshop plan MODEL --exact` gives the exact answer where vLLM is installed."
        raise BadInput(
            f"The formulas do not know {model.architecture[:80]}, and cannot estimate {part}.",
            f"{why} {remedy}".strip(),
        )


def as_stored(deployment: Deployment) -> ModelConfig:
    """Return the model as its checkpoint has it: without --quantization and what is known of it."""
    stored_quantization = None if deployment.quantization else deployment.model.quantization
    return replace(deployment.model, quantization=stored_quantization, exact=None)


def with_builds(
    deployment: Deployment,
    basis: SizesFrom,
    source: str,
    builds: Sequence[Built],
    refused: tuple[tuple[int, int, str], ...] = (),
) -> Deployment:
    """Return the deployment with these splits as built.

    What --quantization shrinks while loading, the class does not.
    """
    smallest = min(builds, key=lambda build: build.tp * build.pp)  # with the fewest copies
    stored = as_stored(deployment)
    predicted = weight_bytes(stored) / smallest.tp
    if smallest.experts:
        predicted = sum(_stages_bytes(stored, smallest))
    text_only = deployment.model.text_only
    loaded = sum(smallest.stage_bytes(stage, text_only) for stage in range(smallest.pp))
    scale = loaded / predicted
    if deployment.quantization:
        builds = [replace(build, loaded_bytes=_shrunk(deployment, build)) for build in builds]
    exact = Exact(basis, source, tuple(builds), scale, refused)
    return replace(deployment, model=replace(deployment.model, exact=exact))


def _stages_bytes(model: ModelConfig, build: Built) -> list[int]:
    """Return the bytes that the formulas predict for each pipeline stage of a build."""
    sizes: list[int] = []
    for stage in range(build.pp):
        sizes.append(stage_bytes(model, build.tp, build.pp, stage, experts=build.experts))
    return sizes


def _shrunk(deployment: Deployment, build: Built) -> tuple[int, ...]:
    """Return the loaded bytes of each stage after --quantization."""
    quantized = _stages_bytes(replace(deployment.model, exact=None), build)
    stored = _stages_bytes(as_stored(deployment), build)
    sizes: list[int] = []
    for loaded, after, before in zip(build.loaded_bytes, quantized, stored, strict=True):
        sizes.append(loaded * after // before)
    return tuple(sizes)


def built(description: Mapping[str, Any], experts: ExpertSplit | None = None) -> Built:
    """Return a split as the worker described it; experts: how it was asked to share them out."""
    cache = description["kv_cache"]
    return Built(
        description["tp"],
        description["pp"],
        tuple(stage["loaded_bytes"] for stage in description["stages"]),
        tuple(cache["pool_bytes_per_block"]),
        tuple(_group(group) for group in cache["groups"]),
        cache["bytes_per_token"],
        description["kv_bytes_each"],
        experts,
        tuple(stage.get("encoder_bytes", 0) for stage in description["stages"]),
    )


def _group(described: Mapping[str, Any]) -> Group:
    facts = dict(described)
    facts["layers"] = tuple(facts["layers"])
    return Group(**facts)


def choose_with_records(deployment: Deployment, request: PlanRequest, why: str = "") -> Split:
    """Return the split that was asked for, or the one to take, from the formulas and the records.

    Args:
        request: what the user gave.
        why: what kept vLLM's own class from being asked; the reasons of an estimate say it.

    Raises BadInput: sizes that cannot split the model, or a kind of model that the planner cannot
    estimate.
    """
    deployment = with_records(deployment)
    check_estimate(deployment.model, why)
    split = choose(deployment, request)
    return replace(split, reasons=[*split.reasons, *explain_sizes(split.deployment, why)])
