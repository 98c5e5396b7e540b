"""What notebook 01 begins with: where its sliders stand, and how far each calculator is off on
every recorded run.

>>> from workshop.course import nb01
>>> nb01.TIGHT["gpus"], nb01.TIGHT["requests"]
(4, 16)
"""

from workshop.course.exercise_sets.e01_memory import TIGHT
from workshop.course.widgets.reconcile.view import recorded_errors

__all__ = ["TIGHT", "recorded_errors"]
