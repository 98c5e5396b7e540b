"""What a plan rests on: runs that were measured, what vLLM's class says or said, or an estimate; and the words for it.

Also which versions of vLLM have an architecture: by the registry of every release since 0.6.0 (benchmarks/architectures.py).
"""

# d deployment, m model
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.gpus import GPU
from inference_planner.deployment import Deployment
from inference_planner.versions import is_before

RUNS = Path(__file__).parent / "data" / "runs"
REGISTRIES = Path(__file__).parent / "catalog" / "architectures.json"
UNCERTAINTY = "in 8 runs of such families on an H200 at most 0.6 GiB off"  # docs/exact.md


@lru_cache(maxsize=2)
def runs(folder: Path = RUNS) -> list[dict[str, Any]]:
    """Return every run: model (a catalog name), config (fields that differ), tp, pp, settings, what was measured.

    "vllm_version" is that of its file: the first of "software", which says "vllm 0.32.0, torch …". "gpu" is a GPU's
    name, h200 where the run says nothing else.
    """
    files = (json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json")))
    return [
        {"vllm_version": re.split("[ ,]", found["software"])[1], "gpu": "h200", **run}
        for found in files
        for run in found["runs"]
    ]


@lru_cache(maxsize=1)
def measured_architectures() -> frozenset[str]:
    """Return the architectures of the recorded runs (data/runs)."""
    return frozenset(load_model(name).architecture for name in {run["model"] for run in runs()})


@lru_cache(maxsize=1)
def measured_cards() -> frozenset[GPU]:
    """Return the GPUs of the recorded runs (data/runs)."""
    return frozenset(load_gpu(name) for name in {run["gpu"] for run in runs()})


def is_measured(d: Deployment) -> bool:
    """Return True if runs were recorded of this architecture, and on this card with all of its memory."""
    return d.model.architecture in measured_architectures() and d.gpu in measured_cards()


def basis(d: Deployment) -> str:
    """Say what a plan of this split rests on: measured, exact, recorded or estimate."""
    m, experts = d.model, d.expert_split
    if experts:  # no run was measured with experts shared out so
        return m.exact.basis if m.exact and m.exact.weights_of(d.tp, d.pp, experts) else "estimate"
    if m.exact and m.exact.of(d.tp, d.pp):
        if m.exact.basis == "recorded" and is_measured(d):
            return "measured"
        return m.exact.basis
    if m.architecture in FAMILIES:  # formulas, compared with vLLM's classes in the record
        return "measured" if is_measured(d) else "recorded"
    return "estimate"


def words(d: Deployment, why: str = "") -> Iterator[str]:
    """Say what the plan of a model without measured formulas rests on; why: what kept vLLM's class from being asked."""
    m, said, name = d.model, basis(d), d.model.architecture[:80]
    if lacking := lacks(m.architecture, d.settings.vllm_version):
        yield lacking
    if m.raw.get("auto_map") and m.architecture not in FAMILIES:
        yield "Its config.json names code of its own (auto_map), which was not run: its fields alone were read. vLLM runs it with --trust-remote-code only."
    if said in ("exact", "recorded") and m.exact:
        heard = "says" if said == "exact" else "said when it was recorded"
        yield f"Weights and KV cache are what vLLM {m.exact.source}'s own class of {name} {heard}; activations and kernels are estimated, {UNCERTAINTY}."
    elif said == "estimate" and m.architecture not in FAMILIES:
        size = m.exact.source if m.exact else "the sizes in the config alone"
        yield f"An estimate: there are no formulas for {name}, whose weights are taken from {size}, and its KV cache from its heads. {why or '--exact asks vLLM where it is installed.'}"


@lru_cache(maxsize=1)
def registries() -> dict[str, Any]:
    """Return {"versions": those that were read, the oldest first, "architectures": {name: [first, last of them]}}.

    Besides, which classes differ from most where a model is cut into pipeline stages, as vLLM 0.32.0 built them
    (benchmarks/exact.py): "one_stage" are not cut (SupportsPP), which it refuses in verify_with_parallel_config;
    "both_ends_everywhere" make embedding, norm and lm_head on every stage.
    """
    return json.loads(REGISTRIES.read_text(encoding="utf-8"))


def lacks(architecture: str, version: str) -> str:
    """Say that a version of vLLM does not have an architecture, and which does; an empty string where it has it."""
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
