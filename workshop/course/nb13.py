"""What notebook 13 begins with: a small mixture of experts, the services, and the ways to scale out.

>>> from workshop.course import nb13
>>> nb13.toy().W1.shape                                 # 8 experts
(8, 4, 6)
"""

from workshop.course.exercise_sets.e13_scale_out import SERVICES, WAYS, toy

__all__ = ["SERVICES", "WAYS", "toy"]
