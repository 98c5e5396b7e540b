"""What to do when vLLM refuses a request: its sentence → a remedy, of refusals.toml. Pure."""

import re
import tomllib
from importlib.resources import files

_KNOWN = tomllib.loads((files("workshop.use") / "refusals.toml").read_text(encoding="utf-8"))["refusal"]


def remedy(said: str) -> str:
    """Return what to do about a refusal, '' if vLLM's own sentence has to be enough."""
    for row in _KNOWN:
        if match := re.search(row["says"], said):
            return row["remedy"].format(*match.groups())
    return ""


def sentence(message: str) -> str:
    """Return what a refusal says, without the stop: its first line, or what a list of validation errors names first."""
    first = (message.strip().splitlines() or ["no word"])[0].rstrip(".")
    if not first.endswith(":"):
        return first
    said = re.search(r"'msg': (['\"])(?:Value error, )?(.+?)\1, 'input'", message)
    place = re.search(r"'loc': \('body', .*?'?(\w+)'?\)", message)
    return (f"{place[1]}: " if place else "") + said[2].rstrip(".") if said else first


def logprobs_limit(said: str) -> int | None:
    """Return the server's --max-logprobs if that is what the request exceeded, else None."""
    match = re.search(r"greater than max allowed: (\d+)", said)
    return int(match[1]) if match else None
