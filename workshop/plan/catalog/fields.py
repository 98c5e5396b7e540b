"""Read config.json field by field, and refuse by name what is missing or cannot be true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from workshop.errors import BadInput

# Far above any model that exists, far below what would make the arithmetic meaningless.
LARGEST = {
    "hidden_size": 1 << 18, "num_hidden_layers": 2048, "vocab_size": 1 << 24, "intermediate_size": 1 << 21,
    "num_attention_heads": 4096, "num_key_value_heads": 4096, "head_dim": 4096, "num_experts": 1 << 16,
    "max_position_embeddings": 1 << 28,
}


class Fields:
    """The fields of one config.json; every access checks the value and names the field when it is wrong."""

    def __init__(self, raw: Mapping, where: str):
        self.raw, self.where, self.layers = raw, where, 0

    def refuse(self, name: str, why: str) -> NoReturn:
        raise BadInput(f"{self.where}: {name} {why}.", "Give the config.json as the model's authors published it.")

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def int(self, name: str, default: int | None = None, least: int = 0) -> int:
        """Return a whole number; a missing field without default is refused by name."""
        value = self.raw.get(name)
        if value is None:
            if default is None:
                self.refuse(name, "is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            if not (isinstance(value, float) and value.is_integer()):
                self.refuse(name, f"is {value!r}, not a whole number")
            value = int(value)
        if value < least:
            self.refuse(name, f"is {value}, and must be at least {least}")
        if value > LARGEST.get(name, 1 << 40):
            self.refuse(name, f"is {value}, more than any model has (at most {LARGEST.get(name, 1 << 40)})")
        return value

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return the first field of `names` that is there, as a number of at least 1."""
        for name in names:
            if self.has(name):
                return self.int(name, least=1)
        if default is None:
            self.refuse(names[0], "is missing")
        return default

    def first_int(self, *names: str, default: int | None = None) -> int:
        return self.positive(*names, default=default)

    def optional_int(self, name: str) -> int | None:
        return self.int(name, least=1) if self.has(name) else None

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(name, f"is {value!r}, not a number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, f"is {value!r}, not true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.raw.get(name)
        return value if isinstance(value, str) else default

    def list(self, name: str) -> list:
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(name, f"is {value!r}, not a list")
        return value

    def all_layers(self) -> frozenset[int]:
        return frozenset(range(self.layers))

    def layer_windows(self, window: int) -> tuple[int | None, ...]:
        """Return the window of each layer by `layer_types`, or () where the config has no such list."""
        types = self.list("layer_types")
        if types and len(types) != self.layers:
            self.refuse("layer_types", f"names {len(types)} layers, num_hidden_layers {self.layers}")
        return tuple(window if t == "sliding_attention" else None for t in types)
