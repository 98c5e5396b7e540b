"""Which versions of vLLM have an architecture: by the registry of every release since 0.6.0 (benchmarks/architectures.py)."""

import json
import re
from functools import lru_cache
from pathlib import Path

FILE = Path(__file__).with_name("architectures.json")


def numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared: 0.8.5.post1 is (0, 8, 5, 1)."""
    return tuple(map(int, re.findall(r"\d+", version)))


@lru_cache(maxsize=1)
def table() -> dict:
    """Return {"versions": those that were read, the oldest first, "architectures": {name: [first, last of them]}}."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def lacks(architecture: str, version: str) -> str:
    """Say that a version of vLLM does not have an architecture, and which does; an empty string where it has it."""
    oldest, *_, newest = table()["versions"]
    first, last = table()["architectures"].get(architecture, ("", ""))
    name = architecture[:80]
    if not first:
        return f"No vLLM from {oldest} to {newest} has {name} in its registry."
    if numbers(version) < numbers(first):
        return f"vLLM {version} does not have {name}: {first} is the first that does."
    if last != newest and numbers(version) > numbers(last):
        return f"vLLM {version} no longer has {name}: {last} was the last that did."
    return ""
