"""Finds what can spoil a measurement: one sentence for each fault, from figures seen beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workshop.engine.metrics import Metrics
from workshop.simulate.arrivals import Arrival

# A percentile is told apart from the maximum only if at least one request lies beyond it.
FEWEST_REQUESTS = {"p50": 2, "p95": 20, "p99": 100}
BUSY_CLIENT = 0.9  # of one core: the client is one thread of Python
LATE_CLIENT = 1.1  # times as long to send all requests as their rate says
LATE_BY_S = 0.5  # a shorter delay is the start of the client
COUNTED = 0.9  # of the requests: the last ones may be counted a moment after their answer
# of the prompts' tokens: of somebody else's few requests, which are a fault of their own
FEW_HITS = 0.01
LOST = 0.5  # of the prefixes that return: fewer hits mean that something destroys them
ENOUGH_TO_RETURN = 0.1  # of all prompt tokens: below it nothing is to be found
# times as long as an answer takes: shorter loads end before the server is as full as it gets
FULL_LOAD = 2.0


@dataclass(frozen=True)
class Fault:
    """One reason not to trust a point. kind: a lasting name for `--json`."""

    kind: str
    sentence: str


def prefix_hits(before: Metrics, after: Metrics) -> tuple[float | None, Fault | None]:
    """Return the share of prompt tokens from the prefix cache, and the fault if there is one.

    The prompts are random, so a hit means that the server had read the same prompts before: an
    earlier run with the same seed. None: this server publishes no such counter.
    """
    if before.prefix_hits_total is None or after.prefix_hits_total is None:
        return None, None
    if before.prompt_tokens_total is None or after.prompt_tokens_total is None:
        return None, None
    hits = after.prefix_hits_total - before.prefix_hits_total
    prompt_tokens = after.prompt_tokens_total - before.prompt_tokens_total
    if prompt_tokens <= 0:
        return None, None
    share = hits / prompt_tokens
    if share <= FEW_HITS:
        return share, None
    sentence = (
        f"{share:.0%} of the prompts' tokens came from the prefix cache, although the prompts are random: the server "
        "has read them before. Leave --seed out, or restart the server."
    )
    return share, Fault("prefix cache", sentence)


def returning_share(arrivals: Sequence[Arrival]) -> float:
    """Return the share of prompt tokens at the same place of an earlier prompt or answer."""
    prompts: set[tuple[tuple[str, int], ...]] = set()
    returning = 0
    prompt_tokens = 0
    for arrival in arrivals:
        prompt_tokens += arrival.prompt_tokens
        for end in range(1, len(arrival.pieces) + 1):
            if arrival.pieces[:end] in prompts:
                returning += arrival.pieces[end - 1][1]
            prompts.add(arrival.pieces[:end])
        if arrival.answer:
            prompts.add((*arrival.pieces, (arrival.answer, arrival.output_tokens)))
    return returning / prompt_tokens


def hits_of_sessions(
    before: Metrics, after: Metrics, returning: float
) -> tuple[float | None, Fault | None]:
    """Return the share of prompt tokens from the prefix cache, and the fault if prefixes were lost.

    Args:
        returning: share of the prompts' tokens that came before; hits cannot be more.
    """
    share, _ = prefix_hits(before, after)
    if share is None or returning < ENOUGH_TO_RETURN or share >= LOST * returning:
        return share, None
    sentence = (
        f"{returning:.0%} of the prompts' tokens came again in later turns, and {share:.0%} were found in the prefix "
        "cache: a changing line at the start of prompts, a router that sends turns to different servers, or a KV cache "
        "too small for all sessions."
    )
    return share, Fault("prefixes lost", sentence)


def other_requests(before: Metrics, after: Metrics, sent: int) -> Fault | None:
    """Return the fault if the server answered other clients' requests, or was restarted."""
    if before.requests_total is None or after.requests_total is None:
        return None
    answered = after.requests_total - before.requests_total
    if answered < 0:
        return Fault("restarted", "The server was started again during the measurement.")
    if answered < COUNTED * sent:
        sentence = (
            f"The server counted {answered:,.0f} of the {sent:,} requests: it was started again during the measurement, or "
            "another server answered the rest."
        )
        return Fault("restarted", sentence)
    others = round(answered - sent)
    if others > 0:
        sentence = (
            f"The server answered {others} other requests meanwhile: somebody else was using it."
        )
        return Fault("other requests", sentence)
    return None


def slow_client(cpu_share: float | None, rate: float | None, starts_s: list[float]) -> list[Fault]:
    """Return the fault if the client, and not the server, set the pace.

    Args:
        cpu_share: of one core that the client took.
        rate: requests a second that it was asked to send; None without a rate.
        starts_s: when it sent each request.
    """
    if rate is not None and len(starts_s) > 1:
        planned_s = (len(starts_s) - 1) / rate
        taken_s = max(starts_s) - min(starts_s)
        if taken_s > LATE_CLIENT * planned_s + LATE_BY_S:
            sentence = (
                f"The client took {taken_s:.1f} s to send what {rate:g} requests a second would have sent in "
                f"{planned_s:.1f} s: it was slower than the load. Give fewer requests a second, or more clients."
            )
            return [Fault("slow client", sentence)]
    if cpu_share is not None and cpu_share >= BUSY_CLIENT:
        sentence = (
            f"The client took {cpu_share:.0%} of a core, which is all that it can use: it may have been slower than the "
            "server. Run it on another machine, or give fewer requests at once."
        )
        return [Fault("slow client", sentence)]
    return []


def too_short(
    requests: int, arriving_s: float | None, answer_s: float, more: str = ""
) -> list[Fault]:
    """Return the faults of a load that is too short for its percentiles.

    Args:
        requests: how many were answered.
        arriving_s: seconds between the first and the last request of a load with a rate; None with
            a concurrency.
        answer_s: how long nine of ten answers took at most, in seconds.
        more: what gives more requests, where that is not --requests.
    """
    faults = []
    missing = [name for name, fewest in FEWEST_REQUESTS.items() if requests < fewest]
    if missing:
        fewest = max(FEWEST_REQUESTS[name] for name in missing)
        names = " and ".join(missing)
        remedy = f"give --requests {fewest} or more"
        if more:
            remedy = f"give more {more}, for {fewest} requests in all"
        sentence = f"{requests} requests are too few for {names}: {remedy}."
        faults.append(Fault("too short", sentence))
    if arriving_s is not None and arriving_s < FULL_LOAD * answer_s:
        sentence = (
            f"Requests arrived for {arriving_s:.1f} s and an answer took up to {answer_s:.1f} s: the load ended before "
            "the server was as full as it gets. Give more --requests."
        )
        faults.append(Fault("too short", sentence))
    return faults


def of_sending(
    requests: int,
    rate: float | None,
    starts_s: list[float],
    answer_s: float,
    cpu_share: float | None = None,
    more: str = "",
) -> list[Fault]:
    """Return the faults of a slow client, and of a load that is too short.

    Args:
        requests: how many were answered.
        rate: requests a second that were to be sent; None with a concurrency.
        starts_s: when each was sent.
        answer_s: how long nine of ten answers took at most.
        cpu_share: of one core that the client took.
        more: what gives more requests, where that is not --requests.
    """
    arriving_s = None
    if rate is not None and len(starts_s) > 1:
        arriving_s = max(starts_s) - min(starts_s)
    slow = slow_client(cpu_share, rate, starts_s)
    return slow + too_short(requests, arriving_s, answer_s, more)
