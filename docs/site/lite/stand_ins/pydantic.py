"""pydantic reads what servers answer, and no server is asked from a page."""

from not_here import missing

__getattr__ = missing("pydantic")
