"""What notebook 12 uses: speculative decoding, recorded, foretold and measured on a server.

>>> from workshop.course import nb12
>>> nb12.speculation.lengths([[True, False, True, True, True, True, True]], guesses=3)  # tokens of each step
[2, 4, 2]
"""

from workshop.course import speculation

__all__ = ["speculation"]
