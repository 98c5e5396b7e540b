"""Diagnose from the lines of a log why a start failed; failures.toml lists the failures. Pure."""

import importlib
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# How much an error explains: what follows from the end of another process gives way to a symptom
# ("engine core died"), a symptom to any exception, and this to what is often survived or a
# consequence (a look-up at the Hub, NCCL). All give way to the first exception of a worker or the
# engine core, and that to a known failure. Of errors that explain as much, the first counts.
CONSEQUENCE, SYMPTOM, UNEXPLAINED, LIKELY, ROOT, KNOWN = range(6)
RANKS = {"symptom": SYMPTOM, "likely": LIKELY}
LONGEST_GROUP = 200  # letters of what a pattern found
LOOKED_AT_CHARS = 1000  # the message is at the front
# between two parts of a pattern: without a limit they would cost the square of the length
FARTHEST_CHARS = 300


@dataclass(frozen=True)
class Failure:
    """The first real error of a log."""

    what: str  # one plain sentence
    remedy: str  # one sentence
    line: str  # vLLM's own words
    key: str = ""  # the failure's short name
    rank: int = KNOWN  # how much it explains
    fatal: bool = False  # whether it ends a server that was already running


@lru_cache(maxsize=1)
def table() -> tuple[list[tuple[dict, re.Pattern]], re.Pattern]:
    """Return the known failures with their patterns, and one pattern for all of them.

    The one pattern is fast: nearly every line of a log is no failure.
    """
    rows = []
    # A job's Python may be 3.10, which has no tomllib; with no reader at all its errors are quoted
    # as they are.
    for name in ("tomllib", "tomli", "pip._vendor.tomli"):
        with suppress(ImportError):
            text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
            rows = importlib.import_module(name).loads(text)["failure"]
            break
    failures: list[tuple[dict, re.Pattern]] = []
    alternatives: list[str] = []
    for row in rows:
        pattern = _bounded("|".join(row["says"]))
        failures.append((row, re.compile(pattern)))
        without_names = re.sub(r"[?]P<[a-z]+>", "?:", pattern)
        alternatives.append(f"(?:{without_names})")
    matches_nothing = "(?!)"
    return failures, re.compile("|".join(alternatives) or matches_nothing)


def _bounded(pattern: str) -> str:
    """Return a pattern whose `.*`, `\\S*` and `\\S+` go no farther than FARTHEST_CHARS."""
    pattern = re.sub(r"(?<!\\)\.\*", f".{{0,{FARTHEST_CHARS}}}", pattern)
    pattern = pattern.replace(r"\S*", rf"\S{{0,{FARTHEST_CHARS}}}")
    return pattern.replace(r"\S+", rf"\S{{1,{FARTHEST_CHARS}}}")


def diagnose(text: str) -> Failure | None:
    """Return what a line means, if it is one of the known failures."""
    text = text[:LOOKED_AT_CHARS]
    rows, any_of_them = table()
    if not any_of_them.search(text):
        return None
    for row, pattern in rows:
        match = pattern.search(text)
        if match:
            return _failure(row, match.groupdict(), text)
    return None


def _failure(row: dict, captured: dict[str, str | None], text: str) -> Failure:
    """Return the failure of a row of the table, with what its pattern captured in a line."""
    # The alternatives of a pattern name their own group, so what one of them captured fills all.
    fallback = next(filter(None, captured.values()), "?")
    groups: dict[str, str] = {}
    for name, value in captured.items():
        groups[name] = (value or fallback)[:LONGEST_GROUP]
    return Failure(
        what=row["what"].format(**groups),
        remedy=row["remedy"].format(**groups),
        line=text.strip()[:500],
        key=row["key"],
        rank=RANKS.get(row.get("rank", ""), KNOWN),
        fatal=row.get("fatal", False),
    )
