"""What a plan rests on: runs that were measured, what vLLM's class says or said, or an estimate; and the words for it."""

# d deployment, m model
import json
from functools import lru_cache
from pathlib import Path

from workshop.plan.catalog import load_model
from workshop.plan.catalog.families import FAMILIES
from workshop.plan.catalog.known import lacks
from workshop.plan.deployment import Deployment

RUNS = Path(__file__).parents[1] / "data" / "runs"
UNCERTAINTY = "in 8 runs of such families on an H200 at most 0.6 GiB off"  # docs/exact.md


@lru_cache(maxsize=1)
def measured_architectures() -> frozenset[str]:
    """Return the architectures of the recorded runs (workshop/data/runs)."""
    files = sorted(RUNS.glob("*.json"))
    runs = [run for file in files for run in json.loads(file.read_text(encoding="utf-8"))["runs"]]
    return frozenset(load_model(name).architecture for name in {run["model"] for run in runs})


def basis(d: Deployment) -> str:
    """Say what a plan of this split rests on: measured, exact, recorded or estimate."""
    m, experts = d.model, d.expert_split
    if experts:  # no run was measured with experts shared out so
        return m.exact.basis if m.exact and m.exact.weights_of(d.tp, d.pp, experts) else "estimate"
    if m.exact and m.exact.of(d.tp, d.pp):
        seen = m.exact.basis == "recorded" and m.architecture in measured_architectures()
        return "measured" if seen else m.exact.basis
    if m.architecture in FAMILIES:  # formulas, compared with vLLM's classes in the record
        return "measured" if m.architecture in measured_architectures() else "recorded"
    return "estimate"


def words(d: Deployment, why: str = "") -> list[str]:
    """Say what the plan of a model without measured formulas rests on; why: what kept vLLM's class from being asked."""
    m, said = d.model, basis(d)
    out = list(filter(None, [lacks(m.architecture, d.settings.vllm_version)]))
    if m.raw.get("auto_map") and m.architecture not in FAMILIES:
        out.append(
            "Its config.json names code of its own (auto_map), which was not run: its fields alone were read. vLLM runs it with --trust-remote-code only."
        )
    if said in ("exact", "recorded") and m.exact:
        heard = "says" if said == "exact" else "said when it was recorded"
        out.append(
            f"Weights and KV cache are what vLLM {m.exact.source}'s own class of {m.architecture[:80]} {heard}; activations and kernels are estimated, {UNCERTAINTY}."
        )
    elif said == "estimate" and m.architecture not in FAMILIES:
        size = m.exact.source if m.exact else "the sizes in the config alone"
        out.append(
            f"An estimate: there are no formulas for {m.architecture[:80]}, whose weights are taken from {size}, and its KV cache from its heads. {why or '--exact asks vLLM where it is installed.'}"
        )
    return out
