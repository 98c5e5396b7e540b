"""The two errors that the workshop raises on purpose: one clear sentence, and a remedy."""

from __future__ import annotations


class WorkshopError(Exception):
    """Something asked for could not be done.

    Args:
        message: one sentence: what was wrong, with the value.
        remedy: one sentence: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, remedy: str = ""):
        self.message, self.remedy = message, remedy
        super().__init__(f"{message} {remedy}".strip())

    def _render_traceback_(self) -> list[str]:
        """Notebooks show the sentence, not forty lines of frames (an IPython hook)."""
        lines = [f"\x1b[31m✗ {self.message}\x1b[0m"]
        return [*lines, f"\x1b[1m→ {self.remedy}\x1b[0m"] if self.remedy else lines


class BadInput(WorkshopError, ValueError):
    """What was given cannot be right: the message names the value, the remedy what is allowed."""

    exit_code = 2
