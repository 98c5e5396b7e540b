"""Exercises, a set for each notebook: words in eNN_name.toml, and judges of what is no number in
eNN_name.py.
"""

import tomllib
from functools import cache
from importlib.resources import files


@cache
def words(name: str) -> dict[str, dict]:
    """Return what the set's file of words holds: the key of an exercise, then what is said of it."""
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
