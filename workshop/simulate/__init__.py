"""Many users: vLLM's own scheduler on the plan's clock. Call it with a model, a GPU and a load; no GPU is needed.

>>> from workshop import simulate
>>> load = simulate.drawn(rate=4, seconds=10, prompt=(64, 512), output=(16, 256), seed=1)
>>> 25 < len(load) < 60
True
>>> found = simulate("llama-3.1-8b", "h100", rate=4, seconds=10)      # doctest: +SKIP
>>> found.of("ttft")["p50"], found.tokens_per_s                       # doctest: +SKIP
"""

import sys
from types import ModuleType

from workshop.lazy import lazily

_HOMES = {
    "on_plan": f"{__name__}.load:on_plan",
    "drawn": f"{__name__}.arrivals:drawn",
    "read_trace": f"{__name__}.arrivals:read_trace",
    "Arrival": f"{__name__}.arrivals:Arrival",
    "tune": f"{__name__}.tuning:tune",
    "load": f"{__name__}.load",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)


class _Simulate(ModuleType):
    """The package can be called."""

    def __call__(self, *args, **kwargs):
        """Return a Simulation; see workshop.simulate.load.simulate."""
        return self.load.simulate(*args, **kwargs)


sys.modules[__name__].__class__ = _Simulate
