"""Values of a JSON text, told apart with their types."""

from __future__ import annotations

from typing import Any, cast


def as_object(value: object) -> dict[str, Any] | None:
    """Return a JSON object; None for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any] | None:
    """Return a JSON list; None for any other value."""
    return cast("list[Any]", value) if isinstance(value, list) else None
