"""Names that notebooks of earlier releases import as `given` and `elsewhere`.

Learners have copies of them. Today these names are in `workshop.course.nb01`, `nb02`, …
"""

from workshop.course.exercise_sets.e13_scale_out import SERVICES, WAYS
from workshop.course.exercise_sets.e13_scale_out import toy as experts
from workshop.course.nb01 import TIGHT, recorded_errors
from workshop.course.nb02 import CLUSTERS, toy
from workshop.course.nb03 import CAUSES
from workshop.course.nb08 import ThreePlaces, kubernetes, manifest, vm
from workshop.course.nb09 import BitsExplorer, reference, schemes
from workshop.course.nb09 import measured_runs as recorded
from workshop.course.nb09 import quantized as quantised
from workshop.course.nb11 import engine_lab

__all__ = [
    "CAUSES",
    "CLUSTERS",
    "SERVICES",
    "TIGHT",
    "WAYS",
    "BitsExplorer",
    "ThreePlaces",
    "engine_lab",
    "experts",
    "kubernetes",
    "manifest",
    "quantised",
    "recorded",
    "recorded_errors",
    "reference",
    "schemes",
    "toy",
    "vm",
]
