"""Measures sessions of agents.

Each turn is sent when the answer before it has come, after a time to think.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from workshop.client.client import Client
from workshop.engine.metrics import Metrics
from workshop.measure import checks, points, timed
from workshop.measure.checks import Fault
from workshop.measure.points import Point, SessionLoad, Simulate, figures_of
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate.arrivals import Arrival
from workshop.simulate.report import parse_slo
from workshop.simulate.sessions import Sessions, drawn_sessions

LOST = 0.5  # of the prefixes that return: fewer hits mean that something destroys them
ENOUGH_TO_RETURN = 0.1  # of all prompt tokens: below it nothing is to be found


def loads(sessions: Sequence[int], options: Mapping[str, Any]) -> list[Sessions]:
    """Return the sessions to measure, one entry for each number of them.

    Args:
        options: fields of Sessions; None leaves one at its default. Without a seed each entry has
            lengths of its own.

    Raises BadInput: a number out of range.
    """
    fields = {name: value for name, value in options.items() if value is not None}
    result = []
    for count in sessions:
        entry = Sessions(
            sessions=count, **{"seed": secrets.randbelow(points.LARGEST_SEED), **fields}
        )
        drawn_sessions(entry)  # it refuses what cannot be, before anything is sent
        result.append(entry)
    return result


def measure(
    server: ServerRecord,
    model: str,
    options: Sessions,
    *,
    slo: str | None = None,
    simulate: Simulate | None = None,
) -> Point:
    """Send all turns of all sessions after a warm-up, and look for what could spoil the figures.

    Args:
        server: where it is, and its key.
        model: the name that requests give.
        options: of the sessions, the seed of their lengths too. Their texts are random and new.
        slo: limits such as "ttft=500ms,tpot=50ms".
        simulate: predicts the same turns.

    Raises:
        WorkshopError: a request was not answered.
    """
    arrivals = drawn_sessions(options)
    client = Client(server, model)
    longest = max(arrivals, key=lambda arrival: arrival.prompt_tokens)
    points.warm_up(client, longest.prompt_tokens, longest.output_tokens)
    with points.Watch(server) as watch:
        outcomes = timed.run(points.send(client, arrivals))
    faults = watch.faults(len(arrivals))
    share = None
    if watch.before and watch.after:
        share, lost = hits_of_sessions(watch.before, watch.after, returning_share(arrivals))
        if lost:
            faults.append(lost)
        faults += checks.slow_client(watch.cpu_share, None, [])
    point = points.point_of(SessionLoad(options, len(arrivals)), options.seed, watch, outcomes, slo)
    answer_s = (point.figures["e2el"]["p95"] or 0.0) / 1e3
    faults += checks.too_short(len(arrivals), None, answer_s, "--sessions or --turns")
    predicted = figures_of(simulate(arrivals), parse_slo(slo)) if simulate else None
    return replace(point, prefix_hit_share=share, faults=faults, predicted=predicted)


def returning_share(arrivals: Sequence[Arrival]) -> float:
    """Return the share of all prompt tokens that came before in the load.

    An earlier prompt or answer had them at the same place.
    """
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
    share, _ = checks.prefix_hits(before, after)
    if share is None or returning < ENOUGH_TO_RETURN or share >= LOST * returning:
        return share, None
    sentence = (
        f"{returning:.0%} of the prompts' tokens came again in later turns, and {share:.0%} were found in the prefix "
        "cache: a changing line at the start of prompts, a router that sends turns to different servers, or a KV cache "
        "too small for all sessions."
    )
    return share, Fault("prefixes lost", sentence)
