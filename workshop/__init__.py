"""Distributed LLM inference with vLLM: plan → launch → use → reconcile → learn.

    from workshop import connect, plan
    plan("llama-3.1-70b", "h200").command
    connect().complete("San Francisco is a", max_tokens=16)

What there is, each loaded when you ask for it; `help(plan)` says more, with an example:
"""

# ruff: noqa: F401      type checkers see the names under TYPE_CHECKING
from __future__ import annotations

from typing import TYPE_CHECKING

from workshop.lazy import lazily
from workshop.this_package import VERSION

if TYPE_CHECKING:
    import inference_planner as planner

    from workshop import batch, errors, simulate
    from workshop.client import logprobs, sampling
    from workshop.client.client import Client
    from workshop.course.drawing import plots
    from workshop.course.drawing import tables as show
    from workshop.course.exercises.checking import check, predict
    from workshop.course.notebooks import live
    from workshop.course.progress.course_map import course_map
    from workshop.course.widgets.batch.view import BatchProgress
    from workshop.course.widgets.gpu_field.view import GpuField
    from workshop.course.widgets.kv_cache.view import KvCacheExplorer
    from workshop.course.widgets.logprobs.view import LogprobsViewer
    from workshop.course.widgets.memory.view import MemorySliders
    from workshop.course.widgets.metrics.view import MetricsPanel
    from workshop.course.widgets.parallelism.view import ParallelismExplorer
    from workshop.course.widgets.reconcile.view import ReconcileView
    from workshop.course.widgets.sampling.first_words import FirstWords
    from workshop.course.widgets.sampling.view import SamplingExplorer
    from workshop.course.widgets.server.view import ServerPanel
    from workshop.engine.log import read as read_log
    from workshop.engine.planning import plan

__version__ = VERSION
_WIDGETS = "workshop.course.widgets"
_DOOR = {  # name → where it is, what it is
    "connect": ("", "a client of the running server"),
    "check": ("workshop.course.exercises.checking:check", "check an answer to an exercise"),
    "predict": (
        "workshop.course.exercises.checking:predict",
        "say what you expect; see it beside the result",
    ),
    "plan": (
        "workshop.engine.planning:plan",
        "how many GPUs, which split, how fast, which command",
    ),
    "planner": (
        "inference_planner",
        "the catalog and the formulas behind plan(): load_model, kv_cache_bytes_per_token",
    ),
    "read_log": (
        "workshop.engine.log:read",
        "what vLLM's own log says: weights, KV cache, the first real error",
    ),
    "simulate": (
        "workshop.simulate",
        "what many users will wait for: vLLM's scheduler on the plan's clock; no GPU",
    ),
    "batch": ("workshop.batch", "many prompts: a file in, every answer once in a file out"),
    "logprobs": ("workshop.client.logprobs", "a response's log probabilities as rows; perplexity"),
    "sampling": (
        "workshop.client.sampling",
        "what temperature, top_k, top_p and penalties do to probabilities",
    ),
    "show": (
        "workshop.course.drawing.tables",
        "tables: any rows, the doctor, an answer field by field, logprobs",
    ),
    "plots": (
        "workshop.course.drawing.plots",
        "figures and schematic pictures in the course's style",
    ),
    "course_map": (
        "workshop.course.progress.course_map:course_map",
        "the course as a path, with your progress; one notebook's",
    ),
    "live": (
        "workshop.course.notebooks.live",
        "servers that run here: start, stop, their log, their metrics, requests in time",
    ),
    "errors": ("workshop.errors", "the two errors that the workshop raises on purpose"),
    "FirstWords": (
        f"{_WIDGETS}.sampling.first_words:FirstWords",
        "type a text, and see its next words branch",
    ),
    "ServerPanel": (
        f"{_WIDGETS}.server.view:ServerPanel",
        "find a server, or start one at a click",
    ),
    "GpuField": (
        f"{_WIDGETS}.gpu_field.view:GpuField",
        "a GPU as a field of squares that fills, step by step",
    ),
    "MemorySliders": (
        f"{_WIDGETS}.memory.view:MemorySliders",
        "what fills each GPU, and whether it fits",
    ),
    "KvCacheExplorer": (
        f"{_WIDGETS}.kv_cache.view:KvCacheExplorer",
        "a paged KV cache as requests fill it",
    ),
    "ParallelismExplorer": (
        f"{_WIDGETS}.parallelism.view:ParallelismExplorer",
        "who holds what, and what travels",
    ),
    "SamplingExplorer": (
        f"{_WIDGETS}.sampling.view:SamplingExplorer",
        "the next token under the sampling parameters",
    ),
    "LogprobsViewer": (
        f"{_WIDGETS}.logprobs.view:LogprobsViewer",
        "a text coloured by its logprobs",
    ),
    "MetricsPanel": (
        f"{_WIDGETS}.metrics.view:MetricsPanel",
        "what a server says at /metrics, as it works",
    ),
    "BatchProgress": (f"{_WIDGETS}.batch.view:BatchProgress", "how far a batch is"),
    "ReconcileView": (f"{_WIDGETS}.reconcile.view:ReconcileView", "the plan beside a log of vLLM"),
}
__all__ = list(_DOOR)  # pyright: ignore[reportUnsupportedDunderAll]  the door itself is the list
__doc__ = f"{__doc__}\n" + "\n".join(f"    {name:20} {about}" for name, (_, about) in _DOOR.items())
__getattr__, __dir__ = lazily(
    __name__, {name: place for name, (place, _) in _DOOR.items() if place}
)


def connect(name: str | None = None, by: str = "") -> Client:
    """Return a client of the running server, as its record says: address, model, key. Nothing is to be typed in.

    Taken in this order: WORKSHOP_URL with WORKSHOP_API_KEY, your own server, one that is shared with your class.

    >>> from workshop import connect
    >>> llm = connect()
    >>> answer = llm.complete("San Francisco is a", max_tokens=8, temperature=0)    # any of vLLM's parameters
    >>> answer.usage.completion_tokens
    8

    Args:
        name: of the server; needed where there are several.
        by: a name that your requests show in a trace of the engine (`workshop xray`); none by default.

    Raises:
        BadInput: `by` cannot be shown.
        WorkshopError: there is no server, or several and no name; the message says which.
    """
    # openai takes 0.5 s to import: only when needed
    from workshop.client.client import connect as _connect

    return _connect(name, by)
