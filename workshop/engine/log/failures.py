"""What a failure is, and what makes a row of the table of known ones (known.py). Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

# How much an error explains: a symptom ("engine core died") gives way to the error behind it, and so does what is
# often survived (a look-up at the Hub that failed). Of errors that explain as much, the first counts.
SYMPTOM, UNEXPLAINED, LIKELY, KNOWN = 0, 1, 2, 3
LONGEST_GROUP = 200  # letters of what a pattern found


@dataclass(frozen=True)
class Failure:
    """The first real error of a log.

    what: one plain sentence; remedy: one sentence; line: vLLM's own words; key: the failure's short name;
    rank: how much it explains; fatal: whether it ends a server that was already running.
    """

    what: str
    remedy: str
    line: str
    key: str = ""
    rank: int = KNOWN
    fatal: bool = False


@dataclass(frozen=True)
class Known:
    """A row of the table; what and remedy may name the pattern's groups as {name}."""

    key: str
    pattern: re.Pattern[str]
    what: str
    remedy: str
    rank: int = KNOWN
    fatal: bool = False

    def explain(self, match: re.Match[str], line: str) -> Failure:
        said = match.groupdict()
        fallback = next((value for value in said.values() if value), "?")  # alternatives name their own group
        groups = {name: (value or fallback)[:LONGEST_GROUP] for name, value in said.items()}
        return Failure(self.what.format(**groups), self.remedy.format(**groups), line.strip()[:500],
                       self.key, self.rank, self.fatal)  # fmt: skip


def known(key: str, pattern: str, what: str, remedy: str, **more) -> Known:
    return Known(key, re.compile(pattern), what, remedy, **more)
