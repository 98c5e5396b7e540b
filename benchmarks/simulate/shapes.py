"""The requests of a load that benchmarks describe in JSON: one place for who records a load and who predicts it.

A load is {"name", and either
    "rate" and "seconds", or "burst", with "prompt", "output", "prefix", "seed": see `workshop.simulate.arrivals.drawn`;
    "agents": the fields of `workshop.simulate.sessions.Sessions`;
    "bursty": the fields of `Bursty`}.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.sessions import Sessions, drawn_sessions


@dataclass(frozen=True)
class Bursty:
    """Traffic as services report it: requests come in bursts, and lengths are lognormal.

    Attributes:
        bursts_per_s: bursts that begin in a second (Poisson).
        burst_size: mean requests of a burst (geometric); they come within `burst_s` seconds.
        seconds: when the last burst may begin.
        prompt_median, output_median: tokens.
        sigma: of the logarithm of both lengths; 1 means that one in six is longer than e medians.
        longest: tokens of the longest prompt and of the longest answer.
        seed: of everything drawn.
    """

    bursts_per_s: float
    burst_size: float
    seconds: float
    prompt_median: int
    output_median: int
    sigma: float = 1.0
    burst_s: float = 0.5
    longest: int = 4096
    seed: int = 0


def requests(load: dict[str, Any]) -> list[Arrival]:
    """Return the requests of a load, in the order in which the simulation numbers them."""
    if "agents" in load:
        return drawn_sessions(Sessions(**load["agents"]))
    if "bursty" in load:
        return drawn_bursts(Bursty(**load["bursty"]))
    return drawn(**{key: value for key, value in load.items() if key != "name"})


def drawn_bursts(options: Bursty) -> list[Arrival]:
    """Return the requests of all bursts, in order of arrival."""
    dice = random.Random(options.seed)
    arrivals = []
    begin_s = dice.expovariate(options.bursts_per_s)
    while begin_s < options.seconds:
        for _ in range(_geometric(options.burst_size, dice)):
            arrivals.append(
                Arrival(
                    arrival_s=begin_s + dice.uniform(0, options.burst_s),
                    prompt_tokens=_lognormal(options.prompt_median, options, dice),
                    output_tokens=_lognormal(options.output_median, options, dice),
                )
            )
        begin_s += dice.expovariate(options.bursts_per_s)
    arrivals.sort(key=lambda arrival: arrival.arrival_s)
    return arrivals


def _geometric(mean: float, dice: random.Random) -> int:
    """Return a whole number of at least 1 with this mean."""
    if mean <= 1:
        return 1
    return 1 + int(math.log(1 - dice.random()) / math.log(1 - 1 / mean))


def _lognormal(median: int, options: Bursty, dice: random.Random) -> int:
    """Return a length in tokens, at least 2 and at most the longest."""
    length = round(median * math.exp(dice.gauss(0, options.sigma)))
    return min(max(2, length), options.longest)
