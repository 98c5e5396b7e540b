"""What exercises start from: settings of sliders, clusters, matrices, causes of failures, and the errors on runs.

`recorded_errors` is how far each calculator is off on every recorded run, in percent of the KV-cache tokens.
`engine_lab` is what notebook 11 measures and simulates, for a machine without vLLM.

>>> from workshop import given
>>> given.TIGHT["gpus"], given.TIGHT["requests"]        # where notebook 01's sliders begin
(4, 16)
>>> [matrix.shape for matrix in given.toy()]            # x, W1, W2 of notebook 02
[(2, 4), (4, 8), (8, 4)]
>>> given.experts().W1.shape                            # 8 experts of notebook 13's mixture
(8, 4, 6)
"""

from workshop.course import recordings
from workshop.course.exercise_sets.e01_memory import TIGHT
from workshop.course.exercise_sets.e02_parallelism import CLUSTERS, toy
from workshop.course.exercise_sets.e03_server import CAUSES
from workshop.course.exercise_sets.e13_scale_out import SERVICES, WAYS
from workshop.course.exercise_sets.e13_scale_out import toy as experts
from workshop.course.timeline import Span
from workshop.course.widgets.reconcile.view import recorded_errors

__all__ = [
    "CAUSES",
    "CLUSTERS",
    "SERVICES",
    "TIGHT",
    "WAYS",
    "engine_lab",
    "experts",
    "recorded_errors",
    "toy",
]


def engine_lab() -> dict:
    """Return what was recorded: runs of requests with a budget of 256 tokens, budget → what the simulation says."""
    recorded = recordings.read("engine_lab.json")
    runs = [[Span(*span[:-1], tuple(span[-1])) for span in run] for run in recorded["runs"]]
    return recorded | {
        "runs": runs,
        "budgets": {int(budget): row for budget, row in recorded["budgets"].items()},
    }
