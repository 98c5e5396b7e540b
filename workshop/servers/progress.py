"""The progress of a task: one small value that watchers pass on. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TaskProgress:
    """The progress of a start or a download."""

    fraction: float  # from 0 to 1
    message: str  # the engine's own words, where it has some
