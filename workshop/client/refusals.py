"""Says in one sentence what a server's refusal means, and what to do about it.

What vLLM says, and the remedies, are in refusals.toml. Pure.
"""

import re
import tomllib
from importlib.resources import files

_REFUSALS_FILE = files("workshop.client") / "refusals.toml"
_KNOWN = tomllib.loads(_REFUSALS_FILE.read_text(encoding="utf-8"))["refusal"]


def remedy(message: str) -> str:
    """Return what to do about a refusal; '' if vLLM's own sentence is all there is."""
    for row in _KNOWN:
        match = re.search(row["says"], message)
        if match:
            return row["remedy"].format(*match.groups())
    return ""


def sentence(message: str) -> str:
    """Return the first line of a refusal, or of the first of its errors, without its full stop."""
    first = (message.strip().splitlines() or ["no word"])[0].rstrip(".")
    if not first.endswith(":"):
        return first
    text = re.search(r"'msg': (['\"])(?:Value error, )?(.+?)\1, 'input'", message)
    if not text:
        return first
    problem = text[2].rstrip(".")
    place = re.search(r"'loc': \('body', .*?'?(\w+)'?\)", message)
    if not place:
        return problem
    return f"{place[1]}: {problem}"


def logprobs_limit(message: str) -> int | None:
    """Return the server's --max-logprobs if that is what the request exceeded, else None."""
    match = re.search(r"greater than max allowed: (\d+)", message)
    if not match:
        return None
    return int(match[1])
