"""The one form in which the workshop writes a time: ISO 8601 in UTC, as in 2026-11-25T16:59:44+00:00."""

from datetime import datetime, timezone


def now(precision: str = "seconds") -> str:
    """Return the present time; `precision` is "seconds" or "milliseconds"."""
    return datetime.now(timezone.utc).isoformat(timespec=precision)  # noqa: UP017  a job's Python may be 3.10
