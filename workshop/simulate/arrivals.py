"""Draw the requests of a load (Poisson, or all at once), or read a trace. In tokens and seconds."""

import itertools
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workshop.errors import BadInput
from workshop.files import open_regular

MOST_REQUESTS = 200_000
MOST_TOKENS = 10_000_000
# Mooncake's lines, with the hashes of long prompts, have some thousand
LONGEST_LINE_BYTES = 1 << 20
# Of all requests together. Measured, as the peak of the simulation's process: a prompt token takes
# 24 bytes until its request has its answer, an output token, whose time is recorded, 60.
MOST_PROMPT_TOKENS = 250_000_000
MOST_OUTPUT_TOKENS = 32_000_000
LATEST_MS = 1e15  # also of a clock that counts from 1970
LONGEST_S = 100_000_000  # three years: beyond, a step's milliseconds are lost in the clock's digits
REMEDY = 'A line is {"arrival_s": 0.5, "prompt_tokens": 300, "output_tokens": 40}, with lengths of at least 1.'
# The names that a trace may give its fields: ours, Mooncake's (timestamps in ms), those of vllm
# bench serve.
NAMES = {
    "prompt_tokens": ("prompt_tokens", "input_length", "prompt_len"),
    "output_tokens": ("output_tokens", "output_length", "output_len"),
}


# A part of a prompt: (name, tokens). Parts of one name are the same text, as far as both go.
Piece = tuple[str, int]
NEXT_ANSWER = -1  # in `follows`: whichever answer ends next
ANSWER_MARK = -2  # of an answer's tokens: below all other ids


@dataclass(frozen=True)
class Arrival:
    """One request: when it arrives, and its lengths.

    Requests whose prompts begin with the same pieces share them.

    Attributes:
        pieces: in their order. What is left of the prompt no other request has.
        answer: the name of this request's answer, so that a later prompt can have it as a piece.
        follows: the place in the load of the request whose answer the client waits for, or None.
            NEXT_ANSWER in a closed loop, whose clients take the next request of the load when they
            have an answer to any.
        think_s: from the end of that answer to this request. `arrival_s` is then the earliest
            possible time.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    pieces: tuple[Piece, ...] = ()
    answer: str | None = None
    follows: int | None = None
    think_s: float = 0.0


def drawn(
    *,
    rate: float | None = None,
    seconds: float | None = None,
    burst: int | None = None,
    concurrency: int | None = None,
    requests: int | None = None,
    prompt: tuple[int, int] = (64, 512),
    output: tuple[int, int] = (16, 256),
    prefix: int = 0,
    seed: int = 0,
) -> list[Arrival]:
    """Draw a load: `rate` requests a second (Poisson) for `seconds`, or `burst` requests at once.

    Or a closed loop: `concurrency` clients send `requests` requests in all, each client the next
    one when its answer has ended. So does `vllm bench serve --max-concurrency`.

    Args:
        prompt, output: (fewest, most) tokens; lengths are uniform in between.
        prefix: tokens that all prompts share at their beginning; they are part of the prompt's
            length.
        seed: of arrival times and lengths.

    Raises:
        BadInput: a number out of range, or not one of the three kinds of load.
    """
    for name, (low, high) in (("prompt", prompt), ("output", output)):
        if not 1 <= low <= high <= MOST_TOKENS:
            raise BadInput(
                f"{name} is {low}:{high}.", f"Give FEWEST:MOST tokens, from 1 to {MOST_TOKENS:,}."
            )
    if not 0 <= prefix < prompt[0]:
        problem = f"A shared prefix of {prefix} tokens is not shorter than the shortest prompt ({prompt[0]} tokens)."
        remedy = "Give a shorter --prefix or longer prompts: the prefix is a part of each prompt."
        raise BadInput(problem, remedy)
    dice = random.Random(seed)
    pieces: tuple[Piece, ...] = (("shared", prefix),) if prefix else ()
    kinds = ((rate, seconds), (burst,), (concurrency, requests))
    unclear = BadInput(
        "It is not clear when requests arrive.",
        "Give --rate with --seconds, or --burst, or --concurrency with --requests, or --trace.",
    )
    if sum(any(value is not None for value in kind) for kind in kinds) != 1:
        raise unclear
    if rate is not None and seconds is not None:
        times_s = _poisson_times(rate, seconds, dice)
    elif burst is not None:
        if not 1 <= burst <= MOST_REQUESTS:
            raise BadInput(
                f"A burst of {burst} requests cannot be.", f"Give 1 to {MOST_REQUESTS:,}."
            )
        times_s = [0.0] * burst
    elif concurrency is not None and requests is not None:
        if not 1 <= concurrency <= requests <= MOST_REQUESTS:
            raise BadInput(
                f"{concurrency} clients with {requests} requests in all cannot be.",
                f"Give --concurrency from 1, and --requests from that number to {MOST_REQUESTS:,}.",
            )
        times_s = [0.0] * requests
    else:
        raise unclear
    arrivals = []
    for number, arrival_s in enumerate(times_s):
        prompt_tokens = dice.randint(*prompt)
        output_tokens = dice.randint(*output)
        arrival = Arrival(arrival_s, prompt_tokens, output_tokens, pieces)
        if concurrency is not None and number >= concurrency:
            arrival = replace(arrival, follows=NEXT_ANSWER)
        arrivals.append(arrival)
    return arrivals


def _poisson_times(rate: float, seconds: float, dice: random.Random) -> list[float]:
    if not (0 < rate < math.inf and 0 < seconds <= LONGEST_S and rate * seconds <= MOST_REQUESTS):
        remedy = f"Give numbers above 0 whose product is at most {MOST_REQUESTS:,} requests."
        raise BadInput(f"{rate:g} requests a second for {seconds:g} s cannot be.", remedy)
    times = []
    arrival_s = dice.expovariate(rate)
    while arrival_s < seconds:
        times.append(arrival_s)
        arrival_s += dice.expovariate(rate)
    if not times:
        raise BadInput(
            f"At {rate:g} requests a second none came within {seconds:g} s.", "Give more --seconds."
        )
    return times


def read_trace(path: str | Path) -> list[Arrival]:
    """Return the requests of a JSON-lines file, in order of arrival; the first arrives at 0 s.

    A line is {"arrival_s", "prompt_tokens", "output_tokens", "prefix", "prefix_tokens", "answer"};
    the last three are optional. "prefix" is a name with its "prefix_tokens", or a list of named
    pieces: [["system", 1024], ["agent 3", 824]]. "answer" names the request's answer, which a later
    prompt may have as a piece. Mooncake's {"timestamp" (ms), "input_length", "output_length"} is
    read as well, without its hashes.

    Raises:
        BadInput: the file is missing or empty, or a line is not such a request; the message names
            the line.
    """
    arrivals = [_arrival(line, where) for line, where in _lines(Path(path))]
    if not arrivals:
        raise BadInput(f"The trace {path} has 0 requests.", f"Give 1 to {MOST_REQUESTS:,}.")
    times_s = [arrival.arrival_s for arrival in arrivals]
    start_s = min(times_s)
    if max(times_s) - start_s > LONGEST_S:
        raise BadInput(
            f"The requests of the trace {path} come over more than {LONGEST_S:,} s.",
            "Give a part of it.",
        )
    shifted = [replace(arrival, arrival_s=arrival.arrival_s - start_s) for arrival in arrivals]
    shifted.sort(key=lambda arrival: arrival.arrival_s)
    return shifted


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line that is not empty, and its place for an error message. Raises BadInput."""
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


def _field(row: dict[str, Any], field: str) -> Any:
    """Return a field of a trace's line by any of its names. Raises KeyError: it is not there."""
    for name in NAMES[field]:
        if name in row:
            return row[name]
    raise KeyError(field)


def _arrival(line: str, where: str) -> Arrival:
    try:
        row = json.loads(line)
        in_seconds = "arrival_s" in row
        time = row["arrival_s"] if in_seconds else row["timestamp"]
        prompt_tokens = _field(row, "prompt_tokens")
        output_tokens = _field(row, "output_tokens")
        answer = row.get("answer")
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        raise BadInput(
            f"What stands in {where} is not a request with a time and two lengths.", REMEDY
        ) from None
    lengths_are_valid = _is_length(prompt_tokens) and _is_length(output_tokens)
    time_is_valid = type(time) in (int, float) and 0 <= time <= LATEST_MS
    if not lengths_are_valid or not time_is_valid:
        raise BadInput(f"A time or a length of {where} is not a number that can be.", REMEDY)
    if not isinstance(answer, str | None):
        raise BadInput(
            f"The answer of {where} is not a name.", 'Write "answer": "turn 1 of agent 3".'
        )
    return Arrival(
        arrival_s=float(time) if in_seconds else time / 1e3,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        pieces=_pieces(row, prompt_tokens, where),
        answer=answer or None,
    )


def _pieces(row: dict[str, Any], prompt_tokens: int, where: str) -> tuple[Piece, ...]:
    """Return the named pieces that a prompt begins with.

    Raises BadInput: one is not [name, tokens], or they exceed the prompt.
    """
    rows = row.get("prefix")
    prefix_tokens = row.get("prefix_tokens", 0)
    if not isinstance(rows, list):
        rows = [[rows, prefix_tokens]] if rows and prefix_tokens != 0 else []
    elif "prefix_tokens" in row:
        raise BadInput(
            f"The prefix of {where} is a list of pieces and has prefix_tokens, too.",
            "Leave prefix_tokens out: each piece has its own.",
        )
    pieces: list[Piece] = []
    for piece in rows:
        is_pair = isinstance(piece, list) and len(piece) == 2
        if not is_pair or not isinstance(piece[0], str) or not piece[0] or not _is_length(piece[1]):
            raise BadInput(
                f"A piece of the prefix of {where} is not [name, tokens].",
                'Write "prefix": "system", "prefix_tokens": 1024, or a list of names with their '
                'tokens: [["system", 1024], ["agent 3", 824]].',
            )
        pieces.append((piece[0], piece[1]))
    tokens = sum(length for _, length in pieces)
    if tokens > prompt_tokens:
        raise BadInput(
            f"The pieces of the prefix of {where} have {tokens:,} tokens, its prompt {prompt_tokens:,}.",
            "Give at most as many tokens as the prompt has.",
        )
    return tuple(pieces)


def _is_length(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_TOKENS


class SimulatedTexts:
    """The token ids of a load's requests.

    They share the blocks of their common pieces, and no others.

    A block's hash covers all tokens before it, so one token that only this text has, at the
    beginning of each piece and of the rest, makes the blocks unique. All others are zeros: a list
    of them takes a fifth of the memory. An answer's tokens are one id that only this answer has,
    which the simulated engine samples.
    """

    def __init__(self, arrivals: Sequence[Arrival]):
        self._numbers: dict[str, int] = {}
        self._answers: set[str] = set()
        for arrival in arrivals:
            if arrival.answer:
                self._answers.add(arrival.answer)

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    def answer_token(self, arrival: Arrival) -> int | None:
        """Return the id that a request's answer consists of; None if nothing names the answer."""
        if arrival.answer is None:
            return None
        return ANSWER_MARK - self._number(arrival.answer)

    def prompt(self, arrival: Arrival, number: int) -> list[int]:
        """Return the token ids of the prompt of the request of this number."""
        tokens = [0] * arrival.prompt_tokens
        start = 0
        for name, length in arrival.pieces:
            if name in self._answers:
                tokens[start : start + length] = [ANSWER_MARK - self._number(name)] * length
            else:
                tokens[start] = 2 * self._number(name) + 1
            start += length
        if start < arrival.prompt_tokens:
            tokens[start] = 2 * number + 2
        return tokens


def check_size(arrivals: Sequence[Arrival]) -> None:
    """Raise BadInput for a load whose simulation would need too much memory."""
    prompt_tokens = 0
    output_tokens = 0
    for arrival in arrivals:
        prompt_tokens += arrival.prompt_tokens
        output_tokens += arrival.output_tokens
    for name, tokens, most in (
        ("prompts", prompt_tokens, MOST_PROMPT_TOKENS),
        ("answers", output_tokens, MOST_OUTPUT_TOKENS),
    ):
        if tokens > most:
            raise BadInput(
                f"The {name} have {tokens:,} tokens in all: more than the {most:,} whose simulation "
                "fits into memory.",
                "Give fewer or shorter requests.",
            )
