"""The catalog: models by the facts of their config.json, and GPUs, each with its source."""

import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.fields import nearest
from inference_planner.catalog.gpus import GPU, list_gpus, load_gpu
from inference_planner.catalog.names import (
    FORMATLESS,
    HUB_ID,
    base_of_gguf,
    has_own_format,
    models_by_name,
    quantization_config,
    read_name,
    shorthand,
)
from inference_planner.catalog.read import existing, from_dict, read_file
from inference_planner.errors import BadInput

__all__ = [
    "GPU",
    "ModelConfig",
    "NotInCatalog",
    "list_gpus",
    "list_models",
    "load_gpu",
    "load_model",
    "with_encoder",
]

HERE = Path(__file__).parent
FILES = ("models.json", "models_2026.json")
ENTRY = re.compile(r'^  "([^"]+)": (\{.*\}),?$', re.MULTILINE)
SPELLINGS = re.compile(r'"(?:aliases|hub_ids)": (\[.*?\])')
LONGEST_SHOWN = 200  # letters of a name in a message


class NotInCatalog(BadInput):
    """A Hub id whose config.json the catalog neither has nor derives."""


@lru_cache(maxsize=1)
def _lines() -> dict[str, str]:
    """Return the entry of each model as text; the files have one model a line."""
    texts = [(HERE / file).read_text(encoding="utf-8") for file in FILES]
    return {match[1]: match[2] for text in texts for match in ENTRY.finditer(text)}


@lru_cache(maxsize=256)
def _entry(name: str) -> dict[str, Any]:
    """Return the entry of a model, with the config of the model that it is like."""
    entry = json.loads(_lines()[name])
    if "like" in entry:
        entry["config"] = {**_entry(entry["like"])["config"], **entry["config"]}
    return entry


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Every accepted spelling, in lower case, to the catalog name."""
    names = {name.lower(): name for name in _lines()}
    for name, line in _lines().items():
        for spellings in SPELLINGS.findall(line.partition('"config": ')[0]):
            names |= dict.fromkeys(json.loads(spellings.lower()), name)
    return names


def list_models() -> list[str]:
    """Return the catalog's model names."""
    return list(_lines())


@lru_cache(maxsize=256)
def _catalog_model(name: str) -> ModelConfig:
    entry = _entry(name)
    config = from_dict(entry["config"], name=name, where=f"the catalog's {name}")
    ids = tuple(entry.get("hub_ids", ()))
    return replace(
        config,
        published_parameters=entry.get("parameters"),
        source=entry.get("source", ""),
        text_of=entry.get("text_of", ""),
        hub_ids=ids,
        derived_from=entry.get("derived_from", ""),
        assumed=entry.get("assumed", ""),
    )


def with_encoder(model: ModelConfig) -> ModelConfig:
    """Return a text model of the catalog as it is published, with encoder and name."""
    if not model.text_of or model.name not in _lines():
        return model
    encoder = _entry(model.name).get("encoder")
    if not encoder:
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


def _derived_model(name: str) -> ModelConfig | None:
    """Return a checkpoint by the rules for its name; None without such a model or a Hub id."""
    parts = read_name(name)
    models = models_by_name(_names())

    def named(weights: str) -> str | None:
        return models.get((parts.title, weights)) or models.get((parts.model, weights))

    same_format = named(parts.weights)
    if same_format and has_own_format(parts):
        makers = {read_name(hub_id).maker for hub_id in _catalog_model(same_format).hub_ids}
        same_format = same_format if parts.maker in makers else None
    base_name = same_format or named("")
    is_hub_id = HUB_ID.fullmatch(name) is not None
    if base_name is None or not (is_hub_id or parts.weights in FORMATLESS):
        return None
    base = _catalog_model(base_name)
    model, assumed = base, f"the shapes of {base_name}"
    if parts.weights and not same_format:
        raw = {key: value for key, value in base.raw.items() if key != "quantization_config"}
        config = quantization_config(parts, base.architecture, base.moe is not None)
        if config:
            raw["quantization_config"] = config
            assumed += f", and what checkpoints in {parts.weights} usually leave in 16 bits"
        model = from_dict(raw, name=name.rpartition("/")[2], where=name)
    return replace(
        model,
        published_parameters=base.published_parameters,
        source=f"derived from {base_name}: {base.source}",
        text_of=base.text_of,
        hub_ids=(name,) if is_hub_id else base.hub_ids,
        derived_from=base_name,
        assumed=f"{base.assumed}; {assumed}" if base.assumed else assumed,
    )


def _not_in_catalog(hub_id: str) -> NotInCatalog:
    """Return the refusal of a Hub id, with the command that gets what is missing."""
    folder = hub_id.rpartition("/")[2]
    base = base_of_gguf(folder)
    if not base:
        return NotInCatalog(
            f"The catalog has no model of the shapes of {hub_id}.",
            f"Get its config.json: hf download {hub_id} config.json --local-dir {folder}, "
            f"then workshop plan ./{folder}.",
        )
    model = _derived_model(base)
    if model:
        remedy = f"Plan the model itself: workshop plan {model.derived_from}."
    else:
        remedy = (
            f"Get that of the model itself: hf download BASE config.json --local-dir {base}, "
            f"where BASE is its Hub id, then workshop plan ./{base}."
        )
    return NotInCatalog(
        f"{hub_id} has GGUF files of several sizes, and vLLM wants the config.json of the base "
        "model beside them, which such repositories often lack.",
        remedy,
    )


def load_model(name_or_path: str | Path | ModelConfig) -> ModelConfig:
    """Return a model by its name in the catalog, its Hub id, or a folder or file with config.json.

    A size alone, such as `70b`, is that of Llama 3.1. A Hub id is one that the catalog has, or is
    read by the rules of names.py: then `derived_from` and `assumed` say from what.

    Raises:
        NotInCatalog: a Hub id that the catalog does not have; the remedy gets its config.json.
        BadInput: no such name (the nearest are offered) or folder, or a config.json that is cut,
            wrong, or of an architecture that is not known.
    """
    if isinstance(name_or_path, ModelConfig):
        return name_or_path
    if isinstance(name_or_path, str) and not name_or_path.strip():
        raise BadInput("The model's name is empty.", f"Choose from: {', '.join(list_models())}.")
    name = shorthand(str(name_or_path).lower())
    catalog_name = name if name in _lines() else _names().get(name)
    if catalog_name:
        model = _catalog_model(catalog_name)
        if name in (hub_id.lower() for hub_id in model.hub_ids):
            # the Hub id by which the model was requested comes first
            hub_ids = sorted(model.hub_ids, key=lambda hub_id: hub_id.lower() != name)
            model = replace(model, hub_ids=tuple(hub_ids))
        return model
    path = existing(name_or_path)
    if path:
        return read_file(path)
    shown_name = str(name_or_path)[:LONGEST_SHOWN]
    derived = _derived_model(shown_name)
    if derived:
        return derived
    if HUB_ID.fullmatch(shown_name):
        raise _not_in_catalog(shown_name)
    remedy = (
        f"{nearest(shown_name.lower(), _names(), 3)}Give a name of the catalog (workshop models), "
        "a Hub id, or a folder with a config.json."
    )
    raise BadInput(
        f"The model {shown_name!r} is not in the catalog, and no "
        "folder or file of that name exists.",
        remedy,
    )
