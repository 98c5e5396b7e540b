"""psutil is compiled for no browser, where a page is one process; what needs more says so when it is used."""

from types import SimpleNamespace

from not_here import missing

__getattr__ = missing("psutil")


class Error(Exception):
    """Nothing is known of a process."""


class Process:
    """A process, of which nothing is known here."""

    def __init__(self, pid: int | None = None):
        raise Error(f"nothing is known of process {pid}")


def virtual_memory() -> SimpleNamespace:
    """Return that no memory is left: no server fits beside a page."""
    return SimpleNamespace(total=0, available=0)
