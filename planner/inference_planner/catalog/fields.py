"""Read config.json field by field, and refuse by name what is missing or cannot be true."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from inference_planner.errors import BadInput
from inference_planner.files import as_list, as_object, read_json

# Far above any model that exists (126 layers, 315 in merged ones; 2,048 experts; a vocabulary of a
# million), far below what would make the arithmetic meaningless, or a plan take minutes.
POSITIONS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "original_max_position_embeddings",
)
LARGEST = {
    **dict.fromkeys(("num_hidden_layers", "n_layer"), 512),
    **dict.fromkeys(POSITIONS, 1 << 28),
    **dict.fromkeys(("bits", "w_bit", "num_bits"), 32),
}
LARGEST_OTHER = 1 << 21
LARGEST_FACTOR = 1 << 20  # by which rope scaling may stretch the positions
LONGEST_LIST = 4096


def nearest(unknown_name: str, names: Mapping[str, str], count: int = 1) -> str:
    """Return "Nearest: …. " with the names (spelling to name) like the unknown one, or ""."""
    import difflib

    spellings = difflib.get_close_matches(unknown_name, names, count, cutoff=0.5)
    if not spellings:
        return ""
    near = dict.fromkeys(names[spelling] for spelling in spellings)
    return f"Nearest: {', '.join(near)}. "


def json_object(file: Path, most_bytes: int) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises BadInput: it cannot be read, is too large, cut, or no object.
    """
    again = "Copy or download the file again."
    raw = read_json(file, most_bytes, again)
    if not isinstance(raw, dict):
        raise BadInput(f"{file} holds a {type(raw).__name__}, not an object of fields.", again)
    return cast(dict[str, Any], raw)


Item = TypeVar("Item", int, str)


class Fields:
    """The fields of a config.json, or of an object in it. An access checks its field."""

    def __init__(self, raw: Mapping[str, Any], where: str, inside: str = ""):
        self.raw = raw
        self.where = where
        self.inside = inside
        self.layers = 0

    def refuse(self, name: str, why: str) -> NoReturn:
        remedy = "Give the config.json as the model's authors published it."
        raise BadInput(f"{self.where}: {self.inside}{name} {why}.", remedy)

    def is_not(self, name: str, value: object, what: str) -> NoReturn:
        self.refuse(name, f"is {reprlib.repr(value)}, not {what}")

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def int(self, name: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number from `least` on; a missing one without default is refused."""
        value = self.raw.get(name)
        if value is None:
            if default is None:
                self.refuse(name, "is missing")
            return default
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            self.is_not(name, value, "a whole number")
        most = LARGEST.get(name, LARGEST_OTHER)
        if not least <= value <= most:
            self.refuse(name, f"is {reprlib.repr(value)}, and must be between {least} and {most}")
        return int(value)

    def first_int(self, *names: str, default: int | None = None) -> int:
        """Return the first field of `names` that is there."""
        for name in names:
            if self.has(name):
                return self.int(name, default)
        return self.int(names[0], default)

    def positive(self, *names: str, default: int = 0) -> int:
        """Return the first of `names` that is a whole number above 0; nothing is refused."""
        for name in names:
            value = self.raw.get(name)
            if type(value) is int and value > 0:
                return value
        return default

    def optional_int(self, name: str) -> int | None:
        if not self.has(name):
            return None
        return self.int(name)

    def number(self, name: str, default: float, most: float) -> float:
        """Return a number above 0 and at most `most`."""
        if not self.has(name):
            return float(default)
        value = self.raw[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.is_not(name, value, "a number")
        if not 0 < value <= most:
            self.refuse(name, f"is {reprlib.repr(value)}, and must be above 0 and at most {most:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        if not self.has(name):
            return default
        value = self.raw[name]
        if not isinstance(value, bool):
            self.is_not(name, value, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.raw.get(name)
        if isinstance(value, str):
            return value
        return default

    def list(self, name: str, kind: type[Item]) -> list[Item]:
        """Return a list whose items are all of one kind; [] where the field is missing."""
        if not self.has(name):
            return []
        items = as_list(self.raw[name])
        if (
            items is None
            or len(items) > LONGEST_LIST
            or any(type(item) is not kind for item in items)
        ):
            kinds = "names"
            if kind is int:
                kinds = "whole numbers"
            self.is_not(name, self.raw[name], f"a list of at most {LONGEST_LIST} {kinds}")
        most = LARGEST.get(name, LARGEST_OTHER)
        if kind is int and any(cast("int", item) > most for item in items):
            self.refuse(name, f"has a number above {most}")
        return items

    def object(self, name: str) -> Fields:
        """Return the fields of an object inside; it has none where the field is missing."""
        value: object = {}
        if self.has(name):
            value = self.raw[name]
        fields = as_object(value)
        if fields is None:
            self.is_not(name, value, "an object")
        return Fields(fields, self.where, f"{self.inside}{name}.")

    def layer_types(self) -> list[str]:
        """Return the kind of each layer; [] where the config has no such list."""
        types = self.list("layer_types", str)
        if types and len(types) != self.layers:
            self.refuse(
                "layer_types", f"names {len(types)} layers, num_hidden_layers {self.layers}"
            )
        return types

    def layer_windows(self, window: int) -> tuple[int | None, ...]:
        """Return the window of each layer by `layer_types`; () where there is no such list."""
        return tuple(window if t == "sliding_attention" else None for t in self.layer_types())
