"""The releases of vLLM that have an architecture, by their registries (benchmarks/architectures.py)."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.releases.versions import is_before

REGISTRIES = Path(__file__).with_name("architectures.json")


@lru_cache(maxsize=1)
def registries() -> dict[str, Any]:
    """Return which vLLM versions have which architectures.

    The result is {"versions": those that were read, the oldest first, "architectures": {name:
    [first, last of them]}}.

    Besides, which classes differ from most where a model is cut into pipeline stages, as vLLM
    0.32.0 built them (benchmarks/exact.py): "one_stage" are not cut (SupportsPP), which it refuses
    in verify_with_parallel_config; "both_ends_everywhere" make embedding, norm and lm_head on every
    stage.
    """
    return json.loads(REGISTRIES.read_text(encoding="utf-8"))


def lacks(architecture: str, version: str) -> str:
    """Say that a version of vLLM lacks an architecture, and which has it; "" if it does not."""
    oldest, *_, newest = registries()["versions"]
    first, last = registries()["architectures"].get(architecture, ("", ""))
    name = architecture[:80]
    if not first:
        return f"No vLLM from {oldest} to {newest} has {name} in its registry."
    if is_before(version, first):
        return f"vLLM {version} does not have {name}: {first} is the first that does."
    if last != newest and is_before(last, version):
        return f"vLLM {version} no longer has {name}: {last} was the last that did."
    return ""
