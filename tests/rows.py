"""Tests with rows: which of them failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_row(*values: object) -> Iterator[None]:
    """Name the row of a test's table in whatever fails inside, also where nothing was raised."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the row {values!r:.300}")
        raise
