"""One line of `workshop doctor`'s report."""

from dataclasses import dataclass

OK = "ok"
NOTE = "note"  # it works, with less
LACK = "lack"  # it does not work


@dataclass(frozen=True)
class Check:
    """One line of the report. Its fields are those of `workshop doctor --json`."""

    name: str
    state: str  # OK, NOTE or LACK
    found: str  # what is here
    remedy: str = ""
