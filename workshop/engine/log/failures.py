"""Diagnose why a start failed from the lines of its log; failures.toml lists the known failures. Pure."""

import importlib
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

# How much an error explains: a symptom ("engine core died") gives way to the error behind it, and so does what is
# often survived (a look-up at the Hub that failed). Of errors that explain as much, the first counts.
SYMPTOM, UNEXPLAINED, LIKELY, KNOWN = 0, 1, 2, 3
RANKS = {"symptom": SYMPTOM, "likely": LIKELY}
LONGEST_GROUP = 200  # letters of what a pattern found
LOOKED_AT_CHARS = 1000  # the message is at the front
FARTHEST_CHARS = (
    300  # between two parts of a pattern: without a limit they would cost the square of the length
)


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
    """Return the known failures with their patterns, and one pattern for all: nearly every line is none of these."""
    rows = []
    # A job's Python may be 3.10, which has no tomllib; with no reader at all its errors are quoted as they are.
    for name in ("tomllib", "tomli", "pip._vendor.tomli"):
        with suppress(ImportError):
            text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
            rows = importlib.import_module(name).loads(text)["failure"]
            break
    patterns = [re.compile(_bounded("|".join(row["says"]))) for row in rows]
    unnamed = [re.sub(r"[?]P<[a-z]+>", "?:", pattern.pattern) for pattern in patterns]
    any_pattern = "|".join(f"(?:{pattern})" for pattern in unnamed) or "(?!)"
    return list(zip(rows, patterns, strict=True)), re.compile(any_pattern)


def _bounded(pattern: str) -> str:
    """Return a pattern whose `.*`, `\\S*` and `\\S+` go no farther than FARTHEST_CHARS."""
    pattern = re.sub(r"(?<!\\)\.\*", f".{{0,{FARTHEST_CHARS}}}", pattern)
    return re.sub(
        r"\\S([*+])", lambda match: rf"\S{{{int(match[1] == '+')},{FARTHEST_CHARS}}}", pattern
    )


def diagnose(text: str) -> Failure | None:
    """Return what a line means, if it is one of the known failures."""
    text = text[:LOOKED_AT_CHARS]
    rows, any_of_them = table()
    if not any_of_them.search(text):
        return None
    row, match = next((row, match) for row, pattern in rows if (match := pattern.search(text)))
    captured = match.groupdict()
    # alternatives name their own group
    fallback = next((value for value in captured.values() if value), "?")
    groups = {name: (value or fallback)[:LONGEST_GROUP] for name, value in captured.items()}
    rank, fatal = RANKS.get(row.get("rank", ""), KNOWN), row.get("fatal", False)
    what, remedy = row["what"].format(**groups), row["remedy"].format(**groups)
    return Failure(what, remedy, text.strip()[:500], row["key"], rank, fatal)
