"""The two errors that are raised on purpose: one clear sentence, and a remedy.

BadInput is a PlannerError, for what was given and cannot be right; it names the value and the
choices.

>>> from inference_planner import errors, plan
>>> try:
...     plan("llama-3.1-8b", "h1000")
... except errors.BadInput as error:
...     print(error.message)
The GPU 'h1000' is not in the catalog.
"""

import re

UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# In an address; what is said goes to logs and notebooks.
PASSWORD = re.compile(r"(?<=://)[^\s/?#]+@")


def plain(text: str) -> str:
    """Return text that a terminal only shows: control characters become their escapes."""
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class PlannerError(Exception):
    """Something asked for could not be done.

    Args:
        message: one sentence: what was wrong, with the value.
        remedy: one sentence: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = ""):
        self.message, self.remedy = (PASSWORD.sub("…@", plain(text)) for text in (message, remedy))
        super().__init__(f"{self.message} {self.remedy}".strip())

    def _render_traceback_(self) -> list[str]:
        """Notebooks show the sentence, not forty lines of frames (an IPython hook)."""
        lines = [f"\x1b[31m✗ {self.message}\x1b[0m"]
        return [*lines, f"\x1b[1m→ {self.remedy}\x1b[0m"] if self.remedy else lines


class BadInput(PlannerError, ValueError):
    """An input that cannot be right: the message names the value, the remedy what is allowed."""

    exit_code = 2
