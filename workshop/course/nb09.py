"""What notebook 09 uses: a slider for bits, the quantized teaching model and what was measured of it, recorded runs.

>>> from workshop.course import nb09
>>> nb09.BitsExplorer(bits=4, group="64 inputs").result.bits_per_weight
4.25
>>> "bf16" in nb09.quantized.measured()["schemes"]
True
"""

from workshop.course import quantized
from workshop.course.widgets.bits.view import BitsExplorer
from workshop.engine import measured_runs
from workshop.teaching_model import reference, schemes

__all__ = ["BitsExplorer", "measured_runs", "quantized", "reference", "schemes"]
