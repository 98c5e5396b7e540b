"""Helpers of notebook 02: the clusters to decide for, and a small MLP to split.

>>> from workshop.course.notebooks import nb02
>>> [matrix.shape for matrix in nb02.toy()]             # x, W1, W2
[(2, 4), (4, 8), (8, 4)]
"""

from workshop.course.exercises.sets.e02_parallelism import CLUSTERS, toy

__all__ = ["CLUSTERS", "toy"]
