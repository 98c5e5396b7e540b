"""Former name, for copies of older notebooks 08 and 09.

Today `workshop.course.nb08` and `workshop.course.nb09`.
"""

from workshop.course.nb08 import ThreePlaces, kubernetes, manifest, vm
from workshop.course.nb09 import BitsExplorer, reference, schemes
from workshop.course.nb09 import measured_runs as recorded
from workshop.course.nb09 import quantized as quantised

__all__ = [
    "BitsExplorer",
    "ThreePlaces",
    "kubernetes",
    "manifest",
    "quantised",
    "recorded",
    "reference",
    "schemes",
    "vm",
]
