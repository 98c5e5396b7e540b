"""Former name, for copies of older notebooks: what exercises start from.

Today `workshop.course.nb01`, `nb02`, …
"""

from workshop.course.exercise_sets.e13_scale_out import SERVICES, WAYS
from workshop.course.exercise_sets.e13_scale_out import toy as experts
from workshop.course.nb01 import TIGHT, recorded_errors
from workshop.course.nb02 import CLUSTERS, toy
from workshop.course.nb03 import CAUSES
from workshop.course.nb11 import engine_lab

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
