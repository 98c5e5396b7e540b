"""Plan how vLLM runs a model on GPUs.

Does it fit, how is it split, how fast is it, and with which command?

The planner needs the standard library alone. It starts no process, reads no environment variable
and writes no file.

>>> from inference_planner import kv_cache_bytes_per_token, load_model, plan
>>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
>>> p.fits, p.gpus
(True, 2)
>>> model = load_model("llama-3.1-8b")           # the facts of its config.json
>>> kv_cache_bytes_per_token(model)              # 2 × 32 layers × 8 KV heads × 128 × 2 bytes
131072
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inference_planner.answer.parallelism import Plan, plan
    from inference_planner.catalog import list_gpus, list_models, load_gpu, load_model
    from inference_planner.errors import BadInput, PlannerError
    from inference_planner.model.kv_cache import kv_cache_bytes_per_token
    from inference_planner.model.weights import parameters, weight_bytes

__version__ = "0.1.0"

# Each name, also of a module, and where it is. It is imported when somebody asks for it, so that
# importing one module (the errors, for example) does not import all of them.
_NAMES = {
    "plan": "answer.parallelism",
    "Plan": "answer.parallelism",
    "load_model": "catalog",
    "load_gpu": "catalog",
    "list_models": "catalog",
    "list_gpus": "catalog",
    "kv_cache_bytes_per_token": "model.kv_cache",
    "parameters": "model.weights",
    "weight_bytes": "model.weights",
    "BadInput": "errors",
    "PlannerError": "errors",
}
_MODULES = {
    "calculators": "tables.calculators",
    "catalog": "catalog",
    "communication": "split.communication",
    "errors": "errors",
    "hardware": "tables.hardware",
    "kv_cache": "model.kv_cache",
    "machines": "answer.machines",
    "quantized": "tables.quantized",
    "ranks": "split.ranks",
    "rules": "tables.rules",
}
__all__ = [
    "BadInput",
    "Plan",
    "PlannerError",
    "kv_cache_bytes_per_token",
    "list_gpus",
    "list_models",
    "load_gpu",
    "load_model",
    "parameters",
    "plan",
    "weight_bytes",
]


def __getattr__(name: str) -> object:
    """Import a name of the front door, or a module, when it is first used (PEP 562)."""
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    choices = ", ".join(sorted({*_NAMES, *_MODULES}))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {choices}")


def __dir__() -> list[str]:
    """List what can be asked for, for completion in a notebook."""
    return sorted({*globals(), *_NAMES, *_MODULES})
