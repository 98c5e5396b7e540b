"""The catalog: models by the facts of their config.json, and GPUs, each with its source."""

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.fields import nearest
from inference_planner.catalog.gpus import GPU, list_gpus, load_gpu
from inference_planner.catalog.read import existing, from_dict, read_file
from inference_planner.errors import BadInput

__all__ = [
    "GPU",
    "ModelConfig",
    "list_gpus",
    "list_models",
    "load_gpu",
    "load_model",
    "with_encoder",
]

HERE = Path(__file__).parent
LONGEST_SHOWN = 200  # letters of a name in a message


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    files = (
        json.loads((HERE / name).read_text(encoding="utf-8"))
        for name in ("models.json", "models_2026.json")
    )
    return {name: entry for file in files for name, entry in file["models"].items()}


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Every accepted spelling, in lower case, to the catalog name."""
    return {
        alias.lower(): name
        for name, entry in _entries().items()
        for alias in (name, *entry.get("aliases", ()), *entry.get("hub_ids", ()))
    }


def list_models() -> list[str]:
    """Return the catalog's model names."""
    return list(_entries())


@lru_cache(maxsize=256)
def _catalog_model(name: str) -> ModelConfig:
    entry = _entries()[name]
    config = from_dict(entry["config"], name=name, where=f"the catalog's {name}")
    ids = tuple(entry.get("hub_ids", ()))
    return replace(
        config,
        published_parameters=entry.get("parameters"),
        source=entry.get("source", ""),
        text_of=entry.get("text_of", ""),
        hub_ids=ids,
    )


def with_encoder(model: ModelConfig) -> ModelConfig:
    """Return a text model of the catalog as it is published: with its encoder of images.

    A model without such an encoder is returned as it is. The name is that of the published
    repository.
    """
    encoder = _entries().get(model.name, {}).get("encoder")
    if not model.text_of or not encoder:
        return model
    text_config = {name: value for name, value in model.raw.items() if name != "architectures"}
    raw = {
        "architectures": [model.text_of],
        "torch_dtype": model.raw["torch_dtype"],
        **encoder,
        "text_config": text_config,
    }
    name = model.hub_ids[-1].rpartition("/")[2]
    return replace(from_dict(raw, name=name, where=f"the catalog's {name}"), hub_ids=model.hub_ids)


def load_model(name_or_path: str | Path | ModelConfig) -> ModelConfig:
    """Return a model by its name in the catalog, its Hub id, or a folder or file with config.json.

    Hub ids are those of the models that the catalog knows.

    Raises BadInput: no such name (the nearest are offered) or folder, or a config.json that is cut,
    wrong, or of an architecture that is not known.
    """
    if isinstance(name_or_path, ModelConfig):
        return name_or_path
    if isinstance(name_or_path, str) and not name_or_path.strip():
        raise BadInput("The model's name is empty.", f"Choose from: {', '.join(list_models())}.")
    name = str(name_or_path).lower()
    if name in _names():
        model = _catalog_model(_names()[name])
        if name in (hub_id.lower() for hub_id in model.hub_ids):
            # the Hub id by which the model was requested comes first
            hub_ids = sorted(model.hub_ids, key=lambda hub_id: hub_id.lower() != name)
            model = replace(model, hub_ids=tuple(hub_ids))
        return model
    path = existing(name_or_path)
    if path:
        return read_file(path)
    shown_name = str(name_or_path)[:LONGEST_SHOWN]
    remedy = (
        f"{nearest(shown_name.lower(), _names(), 3)}Give a catalog name (workshop plan "
        "--list-models) or a folder with a config.json."
    )
    raise BadInput(
        f"The model {shown_name!r} is not in the catalog, and no "
        "folder or file of that name exists.",
        remedy,
    )
