"""What exercises start from: settings of sliders, clusters, matrices, causes of failures, and the errors on runs.

`recorded_errors` is how far each calculator is off on every recorded run, in percent of the KV-cache tokens.

>>> from workshop import given
>>> given.TIGHT["gpus"], given.TIGHT["requests"]        # where notebook 01's sliders begin
(4, 16)
>>> [matrix.shape for matrix in given.toy()]            # x, W1, W2 of notebook 02
[(2, 4), (4, 8), (8, 4)]
"""

from __future__ import annotations

from workshop.learn.exercise_sets.e01_memory import TIGHT
from workshop.learn.exercise_sets.e02_parallelism import CLUSTERS, toy
from workshop.learn.exercise_sets.e03_server import CAUSES
from workshop.learn.widgets.reconcile.case import recorded_errors

__all__ = ["CAUSES", "CLUSTERS", "TIGHT", "recorded_errors", "toy"]
