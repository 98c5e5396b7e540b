"""One line of `workshop doctor`'s report."""

from dataclasses import dataclass

OK, NOTE, LACK = "ok", "note", "lack"


@dataclass(frozen=True)
class Check:
    """One line of the report: state is "ok", "note" (works, with less) or "lack" (does not work)."""

    name: str
    state: str
    found: str
    remedy: str = ""
