"""Name the answers that ended in length, and the tokens with which a batch asks for them again.

The command line reads this for its help, so nothing is imported here.
"""

ENDED_IN_LENGTH = "length"  # the finish reason of an answer that had no tokens left
UNFINISHED = (None, "abort", "error")  # finish reasons of answers that did not end
RETRY_FACTOR = 4  # so many times the tokens that an answer had which ended in length
