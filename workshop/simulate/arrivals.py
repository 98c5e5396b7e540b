"""Who asks when: drawn (Poisson, or all at once), or read from a trace. Lengths are in tokens, times in seconds."""

import json
import math
import random
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path

from workshop.errors import BadInput

MOST_REQUESTS = 200_000
MOST_TOKENS = 10_000_000
# What a trace may call its fields: ours, then those of Mooncake's traces (timestamps in ms), then vllm bench serve's.
NAMES = {
    "prompt_tokens": ("prompt_tokens", "input_length", "prompt_len"),
    "output_tokens": ("output_tokens", "output_length", "output_len"),
}


@dataclass(frozen=True)
class Arrival:
    """One request. Those with the same prefix begin with the same prefix_tokens tokens."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: str | None = None
    prefix_tokens: int = 0


def drawn(
    *,
    rate: float | None = None,
    seconds: float | None = None,
    burst: int | None = None,
    prompt: tuple[int, int] = (64, 512),
    output: tuple[int, int] = (16, 256),
    prefix: int = 0,
    seed: int = 0,
) -> list[Arrival]:
    """Return `rate` requests a second (Poisson) for `seconds`, or `burst` at once; lengths uniform in their ranges.

    prefix: tokens that all prompts share at their beginning; part of the prompt's length.
    """
    for name, (low, high) in (("prompt", prompt), ("output", output)):
        if not 1 <= low <= high <= MOST_TOKENS:
            raise BadInput(f"{name} is {low}:{high}.", f"Give FEWEST:MOST tokens, from 1 to {MOST_TOKENS:,}.")
    if not 0 <= prefix < prompt[0]:
        said = f"A shared prefix of {prefix} tokens is not shorter than the shortest prompt ({prompt[0]} tokens)."
        raise BadInput(said, "Give a shorter --prefix or longer prompts: the prefix is a part of each prompt.")
    dice = random.Random(seed)
    return [
        Arrival(at, dice.randint(*prompt), dice.randint(*output), "shared" if prefix else None, prefix)
        for at in _times(rate, seconds, burst, dice)
    ]


def _times(rate: float | None, seconds: float | None, burst: int | None, dice: random.Random) -> list[float]:
    if (burst is None) == (rate is None) or (rate is None) != (seconds is None):
        raise BadInput("It is not clear when requests arrive.", "Give --rate with --seconds, or --burst, or --trace.")
    if burst is not None and not 1 <= burst <= MOST_REQUESTS:
        raise BadInput(f"A burst of {burst} requests cannot be.", f"Give 1 to {MOST_REQUESTS:,}.")
    if burst is not None:
        return [0.0] * burst
    if not (0 < rate < math.inf and 0 < seconds < math.inf and rate * seconds <= MOST_REQUESTS):
        remedy = f"Give numbers above 0 whose product is at most {MOST_REQUESTS:,} requests."
        raise BadInput(f"{rate:g} requests a second for {seconds:g} s cannot be.", remedy)
    times = list(takewhile(lambda at: at < seconds, accumulate(iter(lambda: dice.expovariate(rate), None))))
    if not times:
        raise BadInput(f"At {rate:g} requests a second none came within {seconds:g} s.", "Give more --seconds.")
    return times


def read_trace(path: str | Path) -> list[Arrival]:
    """Return the requests of a JSON-lines file, in order of arrival.

    A line: {"arrival_s", "prompt_tokens", "output_tokens", "prefix": name or null, "prefix_tokens"}; the last two may
    be left out. Mooncake's {"timestamp" (ms), "input_length", "output_length"} is taken as well, without its hashes.

    Raises BadInput: no such file, an empty one, or a line that is not such a request; it names the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The trace {path} cannot be read ({error}).", "Give a file of JSON lines.") from None
    found = [_arrival(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found or len(found) > MOST_REQUESTS:
        raise BadInput(f"The trace {path} has {len(found):,} requests.", f"Give 1 to {MOST_REQUESTS:,}.")
    start = min(one.arrival_s for one in found)
    return sorted((replace(a, arrival_s=a.arrival_s - start) for a in found), key=lambda a: a.arrival_s)


def _arrival(line: str, where: str) -> Arrival:
    remedy = 'A line is {"arrival_s": 0.5, "prompt_tokens": 300, "output_tokens": 40}, with lengths of at least 1.'
    try:
        row = json.loads(line)
        at = row["arrival_s"] if "arrival_s" in row else row["timestamp"] / 1e3
        lengths = [next(row[name] for name in names if name in row) for names in NAMES.values()]
        prefix, prefix_tokens = row.get("prefix"), row.get("prefix_tokens", 0)
    except (ValueError, TypeError, AttributeError, KeyError, StopIteration):
        raise BadInput(f"What stands in {where} is not a request with a time and two lengths.", remedy) from None
    whole = all(type(n) is int and 1 <= n <= MOST_TOKENS for n in lengths) and type(prefix_tokens) is int
    if not whole or type(at) not in (int, float) or not 0 <= at < math.inf:
        raise BadInput(f"A time or a length of {where} is not a number that can be.", remedy)
    if not 0 <= prefix_tokens <= lengths[0] or not isinstance(prefix, str | None):
        raise BadInput(f"The prefix of {where} is not a name with at most as many tokens as the prompt.", remedy)
    return Arrival(float(at), *lengths, prefix, prefix_tokens if prefix else 0)


def prompts(arrivals: list[Arrival]) -> list[list[int]]:
    """Return token ids for each request: no two share any but those of their prefix."""
    fresh, prefixes, made = 0, {}, []
    for one in arrivals:
        known = prefixes.setdefault(one.prefix, []) if one.prefix else []
        if len(known) < one.prefix_tokens:
            missing = one.prefix_tokens - len(known)
            known += range(fresh, fresh + missing)
            fresh += missing
        own = one.prompt_tokens - one.prefix_tokens
        made.append([*known[: one.prefix_tokens], *range(fresh, fresh + own)])
        fresh += own
    return made
