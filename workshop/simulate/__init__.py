"""Simulate many users: vLLM's own scheduler on the plan's clock.

`simulate` takes a model, a GPU and a load; `search` finds the GPUs for a load. No GPU is needed.

>>> from workshop.simulate import drawn, simulate
>>> load = drawn(rate=4, seconds=10, prompt=(64, 512), output=(16, 256), seed=1)
>>> 25 < len(load) < 60
True
>>> result = simulate("llama-3.1-8b", "h100", rate=4, seconds=10)     # doctest: +SKIP
>>> result.of("ttft")["p50"], result.tokens_per_s                     # doctest: +SKIP
"""

from workshop.lazy import lazily

_HOMES = {name: f"{__name__}.arrivals:{name}" for name in ("Arrival", "drawn", "read_trace")}
_HOMES |= {
    "load": f"{__name__}.load",
    "simulate": f"{__name__}.load:simulate",
    "on_plan": f"{__name__}.load:on_plan",
    "search": f"{__name__}.choices:search",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
