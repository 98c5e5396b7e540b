"""Draws sessions of agents: each prompt is the conversation so far with answers, and new tokens."""

import random
from dataclasses import dataclass

from workshop.errors import BadInput
from workshop.simulate.arrivals import LONGEST_S, MOST_REQUESTS, MOST_TOKENS, Arrival, Piece

Range = tuple[int, int]


@dataclass(frozen=True)
class Sessions:
    """The settings of drawn sessions; each range is (fewest, most), with uniform values between.

    Attributes:
        sessions: how many.
        turns: requests of a session.
        think_s: mean seconds from an answer to the next request, exponential.
        system: tokens at the beginning of every prompt, the same for all sessions.
        prompt: tokens of the first request besides those.
        tool: new tokens of each later request: what a tool or the user says.
        output: tokens of an answer.
        rate: sessions that begin in a second (Poisson); None: all within the first think_s.
        seed: of everything drawn.
    """

    sessions: int
    turns: Range = (3, 6)
    think_s: float = 3.0
    system: int = 1024
    prompt: Range = (64, 512)
    tool: Range = (64, 512)
    output: Range = (16, 256)
    rate: float | None = None
    seed: int = 0


def drawn_sessions(options: Sessions) -> list[Arrival]:
    """Return the requests of all sessions, one session after the other.

    Raises BadInput: a number out of range.

    All but the first of a session follow an answer: the time at which they are sent is that of its
    end, and thinking.
    """
    _check(options)
    dice = random.Random(options.seed)
    arrivals: list[Arrival] = []
    begin_s = 0.0
    for session in range(options.sessions):
        if options.rate is None:
            begin_s = dice.uniform(0, options.think_s)
        else:
            begin_s += dice.expovariate(options.rate)
        arrivals += _session(session, begin_s, len(arrivals), options, dice)
    return arrivals


def _session(
    session: int, begin_s: float, first: int, options: Sessions, dice: random.Random
) -> list[Arrival]:
    """Return the requests of one session; `first` is the place of its first request in the load."""
    history: list[Piece] = []
    if options.system:
        history.append(("system", options.system))
    arrivals: list[Arrival] = []
    earliest_s = begin_s
    for turn in range(dice.randint(*options.turns)):
        new_tokens = dice.randint(*(options.tool if turn else options.prompt))
        output_tokens = dice.randint(*options.output)
        think_s = 0.0
        if turn:
            think_s = dice.expovariate(1 / options.think_s) if options.think_s else 0.0
        earliest_s += think_s
        history.append((f"session {session}, turn {turn}", new_tokens))
        answer = f"session {session}, answer {turn}"
        arrivals.append(
            Arrival(
                arrival_s=earliest_s,
                prompt_tokens=sum(tokens for _, tokens in history),
                output_tokens=output_tokens,
                pieces=tuple(history),
                answer=answer,
                follows=first + turn - 1 if turn else None,
                think_s=think_s,
            )
        )
        history.append((answer, output_tokens))
    return arrivals


def _check(options: Sessions) -> None:
    if not 1 <= options.sessions <= MOST_REQUESTS:
        raise BadInput(
            f"{options.sessions} sessions cannot be.", f"Give 1 to {MOST_REQUESTS:,} --sessions."
        )
    ranges = {
        "turns": (options.turns, 1000),
        "prompt": (options.prompt, MOST_TOKENS),
        "tool": (options.tool, MOST_TOKENS),
        "output": (options.output, MOST_TOKENS),
    }
    for name, ((low, high), most) in ranges.items():
        if not 1 <= low <= high <= most:
            raise BadInput(
                f"{name} is {low}:{high}.", f"Give --{name} FEWEST:MOST, from 1 to {most:,}."
            )
    if options.sessions * options.turns[1] > MOST_REQUESTS:
        raise BadInput(
            f"The sessions may have more than {MOST_REQUESTS:,} requests.",
            "Give fewer --sessions or --turns.",
        )
    if not 0 <= options.system <= MOST_TOKENS:
        raise BadInput(
            f"A system prompt of {options.system} tokens cannot be.",
            f"Give --system from 0 to {MOST_TOKENS:,}.",
        )
    if not 0 <= options.think_s <= LONGEST_S:
        raise BadInput(
            f"To think for {options.think_s:g} s cannot be.",
            f"Give --think from 0 to {LONGEST_S:,} s.",
        )
    if options.rate is not None and not 0 < options.rate < LONGEST_S:
        raise BadInput(f"{options.rate:g} sessions a second cannot be.", "Give a --rate above 0.")
