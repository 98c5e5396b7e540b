"""Read the name of a checkpoint: who made it, which model it is, and how it is quantized.

The rules are in names.json. A name is taken apart at its hyphens. Words for the tuning, such as
Instruct, change no shape, unless the catalog has a model of that very title. Dates, sizes and
languages stay: what they change is another model.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

FORMATLESS = ("", "bf16", "fp16")
VERSION = re.compile(r"(?<=\d)_(?=\d)")  # 3_1 is 3.1
GGUF = re.compile(r"[-_]gguf$", re.IGNORECASE)
HUB_ID = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """The parts of a checkpoint's name, in lower case.

    Attributes:
        maker: the organization on the Hub; "" without one.
        model: the name without the words for its tuning and its format.
        weights: the format of the weights as the name ends, such as "fp8-dynamic"; "" without one.
        title: the name without its format alone, such as "phi-4-reasoning".
    """

    maker: str
    model: str
    weights: str
    title: str


@lru_cache(maxsize=1)
def _rules() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("names.json").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def _format_at_end() -> re.Pattern[str]:
    names = "|".join(dict.fromkeys(row["name"] for row in _rules()["formats"]))
    return re.compile(f"[-_.]({names})(-v[0-9])?$")


def shorthand(name: str) -> str:
    """Return the catalog name that a size alone stands for, as in `70b`; other names as they are."""
    return _rules()["shorthands"].get(name, name)


@lru_cache(maxsize=1024)
def read_name(name: str) -> Checkpoint:
    """Return the parts of a checkpoint's name.

    >>> parts = read_name("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16")
    >>> parts.maker, parts.model, parts.weights
    ('redhatai', 'llama-3.1-8b', 'quantized.w4a16')
    """
    maker, _, model = name.lower().rpartition("/")
    weights = ""
    ending = _format_at_end().search(model)
    if ending:
        weights = ending[1]
        model = model[: ending.start()]
    for prefix in _rules()["makers"]:
        model = model.removeprefix(prefix)
    model = VERSION.sub(".", model)
    title = re.split("[-_]", model)
    shape = [part for part in title if part not in _rules()["tuning"]]
    return Checkpoint(maker, "-".join(shape), weights, "-".join(title))


def models_by_name(spellings: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the catalog name of each (title or model, format).

    "" is the format that others derive from. A title goes before the name without words for tuning.

    Args:
        spellings: every spelling of a name in the catalog, to the catalog name.
    """
    titles: dict[tuple[str, str], str] = {}
    models: dict[tuple[str, str], str] = {}
    for spelling, name in spellings.items():
        parts = read_name(spelling)
        weights = "" if parts.weights in FORMATLESS else parts.weights
        titles.setdefault((parts.title, weights), name)
        models.setdefault((parts.model, weights), name)
    return models | titles


def base_of_gguf(name: str) -> str:
    """Return the name of the model whose GGUF files a repository has; "" for other names."""
    ending = GGUF.search(name)
    if ending is None:
        return ""
    return name[: ending.start()]


def has_own_format(parts: Checkpoint) -> bool:
    """Return True if the maker is known to quantize otherwise than others do in that format."""
    return any(
        parts.maker in row.get("makers", []) and re.fullmatch(row["name"], parts.weights)
        for row in _rules()["formats"]
    )


def quantization_config(
    parts: Checkpoint, architecture: str, has_experts: bool
) -> dict[str, Any] | None:
    """Return the quantization_config that such a name usually has; None for 16 bits."""
    return next(
        row["config"]
        for row in _rules()["formats"]
        if re.fullmatch(row["name"], parts.weights)
        and parts.maker in row.get("makers", [parts.maker])
        and architecture in row.get("architectures", [architecture])
        and (has_experts or not row.get("experts"))
    )
