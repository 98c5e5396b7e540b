"""Helpers of notebook 11: its measurements and simulations, recorded for use without vLLM.

>>> from workshop.course.notebooks import nb11
>>> sorted(nb11.engine_lab()["budgets"])                # tokens of a step
[512, 2048, 8192]
>>> nb11.XRay().steps                     # a recorded run; XRay(FILE) of `serve --trace FILE`
56
"""

from workshop.course.topics import recorded_data
from workshop.course.topics.timeline import Span
from workshop.course.widgets.xray.view import XRay

__all__ = ["XRay", "engine_lab"]


def engine_lab() -> dict:
    """Return what was recorded.

    `runs` are lists of Spans: requests with a budget of 256 tokens a step. `budgets` maps tokens of
    a step to what the simulation says.
    """
    recorded = recorded_data.read("engine_lab.json")
    runs = []
    for run in recorded["runs"]:
        runs.append([_span(*fields) for fields in run])
    budgets = {}
    for budget, row in recorded["budgets"].items():
        budgets[int(budget)] = row
    return recorded | {"runs": runs, "budgets": budgets}


def _span(
    name: str, sent: float, first: float, ended: float, tokens: int, seen: list[float]
) -> Span:
    return Span(name, sent, first, ended, tokens, tuple(seen))
