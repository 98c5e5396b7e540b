"""Who asks when: drawn (Poisson, or all at once), or read from a trace. Lengths are in tokens, times in seconds."""

import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from pathlib import Path

from workshop.errors import BadInput
from workshop.files import open_regular

MOST_REQUESTS = 200_000
MOST_TOKENS = 10_000_000
# Mooncake's lines, with the hashes of long prompts, have some thousand
LONGEST_LINE_BYTES = 1 << 20
# Memory, measured (benchmarks/simulate/memory.py): of a token of a prompt and a request that are unfinished, and of a
# token of an answer, whose time is kept.
TOKEN_BYTES, REQUEST_BYTES, OUTPUT_TOKEN_BYTES = 24, 4000, 60
MOST_BYTES = 3 * 10**9
MOST_OUTPUT_TOKENS = 32_000_000
LATEST_MS = 1e15  # also of a clock that counts from 1970
LONGEST_S = 100_000_000  # three years: beyond, a step's milliseconds are lost in the clock's digits
REMEDY = 'A line is {"arrival_s": 0.5, "prompt_tokens": 300, "output_tokens": 40}, with lengths of at least 1.'
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
            raise BadInput(
                f"{name} is {low}:{high}.", f"Give FEWEST:MOST tokens, from 1 to {MOST_TOKENS:,}."
            )
    if not 0 <= prefix < prompt[0]:
        said = f"A shared prefix of {prefix} tokens is not shorter than the shortest prompt ({prompt[0]} tokens)."
        raise BadInput(
            said, "Give a shorter --prefix or longer prompts: the prefix is a part of each prompt."
        )
    dice = random.Random(seed)
    return [
        Arrival(
            at, dice.randint(*prompt), dice.randint(*output), "shared" if prefix else None, prefix
        )
        for at in _times(rate, seconds, burst, dice)
    ]


def _times(
    rate: float | None, seconds: float | None, burst: int | None, dice: random.Random
) -> list[float]:
    if (burst is None) == (rate is None) or (rate is None) != (seconds is None):
        raise BadInput(
            "It is not clear when requests arrive.",
            "Give --rate with --seconds, or --burst, or --trace.",
        )
    if burst is not None and not 1 <= burst <= MOST_REQUESTS:
        raise BadInput(f"A burst of {burst} requests cannot be.", f"Give 1 to {MOST_REQUESTS:,}.")
    if burst is not None:
        return [0.0] * burst
    if not (0 < rate < math.inf and 0 < seconds <= LONGEST_S and rate * seconds <= MOST_REQUESTS):
        remedy = f"Give numbers above 0 whose product is at most {MOST_REQUESTS:,} requests."
        raise BadInput(f"{rate:g} requests a second for {seconds:g} s cannot be.", remedy)
    times = list(
        takewhile(lambda at: at < seconds, accumulate(iter(lambda: dice.expovariate(rate), None)))
    )
    if not times:
        raise BadInput(
            f"At {rate:g} requests a second none came within {seconds:g} s.", "Give more --seconds."
        )
    return times


def read_trace(path: str | Path) -> list[Arrival]:
    """Return the requests of a JSON-lines file, in order of arrival.

    A line: {"arrival_s", "prompt_tokens", "output_tokens", "prefix": name or null, "prefix_tokens"}; the last two may
    be left out. Mooncake's {"timestamp" (ms), "input_length", "output_length"} is taken as well, without its hashes.

    Raises BadInput: no such file, an empty one, or a line that is not such a request; it names the line.
    """
    arrivals = [_arrival(line, where) for line, where in _lines(Path(path))]
    if not arrivals:
        raise BadInput(f"The trace {path} has 0 requests.", f"Give 1 to {MOST_REQUESTS:,}.")
    start = min(one.arrival_s for one in arrivals)
    if max(one.arrival_s for one in arrivals) - start > LONGEST_S:
        raise BadInput(
            f"The requests of the trace {path} come over more than {LONGEST_S:,} s.",
            "Give a part of it.",
        )
    return sorted(
        (replace(a, arrival_s=a.arrival_s - start) for a in arrivals), key=lambda a: a.arrival_s
    )


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line that is not empty, and what to call it. Raises BadInput."""
    count = 0
    with open_regular(path, "Give a file of JSON lines.") as file:
        for number in itertools.count(1):
            where = f"line {number} of {path}"
            try:
                data = file.readline(LONGEST_LINE_BYTES + 1)
                line = data.decode("utf-8-sig" if number == 1 else "utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise BadInput(
                    f"The trace {path} cannot be read ({error}).", "Give a file of JSON lines."
                ) from None
            if not data:
                return
            if len(data) > LONGEST_LINE_BYTES:
                raise BadInput(f"The {where} has more than {LONGEST_LINE_BYTES >> 20} MiB.", REMEDY)
            if line.strip():
                count += 1
                yield line, where
            if count > MOST_REQUESTS:
                raise BadInput(
                    f"The trace {path} has too many requests.", f"Give 1 to {MOST_REQUESTS:,}."
                )


def _arrival(line: str, where: str) -> Arrival:
    try:
        row = json.loads(line)
        at = row["arrival_s"] if "arrival_s" in row else row["timestamp"]
        ours = "arrival_s" in row
        lengths = [next(row[name] for name in names if name in row) for names in NAMES.values()]
        prefix, prefix_tokens = row.get("prefix"), row.get("prefix_tokens", 0)
    except (ValueError, TypeError, AttributeError, KeyError, StopIteration, RecursionError):
        raise BadInput(
            f"What stands in {where} is not a request with a time and two lengths.", REMEDY
        ) from None
    whole = (
        all(type(n) is int and 1 <= n <= MOST_TOKENS for n in lengths)
        and type(prefix_tokens) is int
    )
    if not whole or type(at) not in (int, float) or not 0 <= at <= LATEST_MS:
        raise BadInput(f"A time or a length of {where} is not a number that can be.", REMEDY)
    if not 0 <= prefix_tokens <= lengths[0] or not isinstance(prefix, str | None):
        raise BadInput(
            f"The prefix of {where} is not a name with at most as many tokens as the prompt.",
            REMEDY,
        )
    return Arrival(at / (1 if ours else 1e3), *lengths, prefix, prefix_tokens if prefix else 0)


def compact_prompt(one: Arrival, number: int, prefixes: dict[str, int]) -> list[int]:
    """Return token ids for the request of this number; no two share any blocks but those of their prefix.

    A block's hash covers all before it, so one token of its own at its beginning tells a text from all others. The
    rest is zeros: a list of them takes a fifth of the memory.

    prefixes: the number of each prefix that came before; a new one is added.
    """
    prompt = [0] * one.prompt_tokens
    if one.prefix and one.prefix_tokens:
        prompt[0] = 2 * prefixes.setdefault(one.prefix, len(prefixes)) + 1
    if one.prefix_tokens < one.prompt_tokens:
        prompt[one.prefix_tokens] = 2 * number + 2
    return prompt


def memory_bytes(tokens: int, requests: int) -> int:
    """Return about how much memory the scheduler takes for requests that are unfinished at one time."""
    return tokens * TOKEN_BYTES + requests * REQUEST_BYTES


def refuse_large(tokens: int, requests: int, arrival: Arrival) -> None:
    """Raise BadInput where unfinished requests with so many tokens of prompts would take too much memory."""
    size = memory_bytes(tokens, requests)
    if size > MOST_BYTES:
        said = f"{requests:,} requests of {tokens:,} tokens are unfinished at {arrival.arrival_s:,.1f} s"
        needed = f"to simulate so many takes about {size / 1e9:,.1f} GB of memory, more than {MOST_BYTES / 1e9:.1f}"
        raise BadInput(
            f"{said}, and {needed}.",
            "Give fewer or shorter requests, a lower --rate or more --replicas.",
        )


def check_size(arrivals: Sequence[Arrival]) -> None:
    """Raise BadInput for a load whose simulation would take too much memory, as far as that is known before."""
    tokens, requests = Counter(), Counter()  # of the requests that come at the same moment
    for one in arrivals:
        tokens[one.arrival_s] += one.prompt_tokens
        requests[one.arrival_s] += 1
        refuse_large(tokens[one.arrival_s], requests[one.arrival_s], one)
    answers = sum(one.output_tokens for one in arrivals)
    if answers > MOST_OUTPUT_TOKENS:
        size = answers * OUTPUT_TOKEN_BYTES / 1e9
        said = f"The answers have {answers:,} tokens in all, of which at most {MOST_OUTPUT_TOKENS:,} can be simulated"
        raise BadInput(
            f"{said}: so many take about {size:,.1f} GB of memory.",
            "Give fewer or shorter requests.",
        )


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
