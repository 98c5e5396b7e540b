"""The exercises, a set for each notebook.

Texts are in eNN_name.toml. Judges of answers that are not a number are in eNN_name.py.
"""

import tomllib
from functools import cache
from importlib.resources import files


@cache
def texts(name: str) -> dict[str, dict]:
    """Return what the set's TOML file holds: the key of an exercise → its fields."""
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
