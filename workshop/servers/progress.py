"""How far something is, in one small value that watchers pass on. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a start or a download is: `fraction` from 0 to 1, and words (the engine's own, where
    it has some).
    """

    fraction: float
    message: str
