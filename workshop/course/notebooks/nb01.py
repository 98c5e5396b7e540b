"""Helpers of notebook 01: its sliders, and the errors of calculators on recorded runs.

>>> from workshop.course.notebooks import nb01
>>> nb01.TIGHT["gpus"], nb01.TIGHT["requests"]
(4, 16)
"""

from workshop.course.exercises.sets.e01_memory import TIGHT
from workshop.course.widgets.reconcile.view import recorded_errors

__all__ = ["TIGHT", "recorded_errors"]
