"""psutil is compiled for no browser; what needs it says so when it is used."""

from types import SimpleNamespace

from not_here import missing

__getattr__ = missing("psutil")


def virtual_memory() -> SimpleNamespace:
    """Return that no memory is left: no server fits beside a page."""
    return SimpleNamespace(total=0, available=0)
