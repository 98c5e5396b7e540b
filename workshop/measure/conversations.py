"""Measures sessions of agents.

Each turn is sent when the answer before it has come, after a time to think.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import psutil

from workshop.engine.metrics import Metrics
from workshop.errors import WorkshopError
from workshop.servers import energy
from workshop.servers.record_file import ServerRecord
from workshop.simulate.arrivals import Arrival
from workshop.simulate.bench import checks, points
from workshop.simulate.bench.checks import Fault
from workshop.simulate.bench.points import MEASURES, Point, SessionLoad
from workshop.simulate.bench.prediction import Simulate, figures_of, goodput, times_ms
from workshop.simulate.report import Outcome, parse_slo, percentiles
from workshop.simulate.sessions import Sessions, drawn_sessions

ANSWER_WITHIN_S = 600.0
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
    load = SessionLoad(options, len(arrivals))
    limits = parse_slo(slo)
    fault = checks.other_process(server)
    longest = max(arrivals, key=lambda arrival: arrival.prompt_tokens)
    points.warm_up(server, model, longest.prompt_tokens, longest.output_tokens)
    before = points.metrics_of(server)
    joules_before = points.joules_of(server)
    own = psutil.Process()
    cpu_before_s = sum(own.cpu_times()[:2])
    began = time.perf_counter()
    outcomes = asyncio.run(send(server, model, arrivals))
    seconds = time.perf_counter() - began
    cpu_share = (sum(own.cpu_times()[:2]) - cpu_before_s) / seconds
    joules_after = points.joules_of(server)
    after = points.metrics_of(server)
    faults = [fault] if fault else []
    share = None
    if before is None or after is None:
        faults.append(points.NO_METRICS)
    else:
        share, lost = hits_of_sessions(before, after, returning_share(arrivals))
        others = checks.other_requests(before, after, len(arrivals))
        slow = checks.slow_client(cpu_share, None, [])
        faults += filter(None, (lost, others, slow))
    figures = {name: percentiles(times_ms(outcomes, name)) for name in MEASURES}
    answer_s = (figures["e2el"]["p95"] or 0.0) / 1e3
    faults += checks.too_short(len(arrivals), None, answer_s, "--sessions or --turns")
    output_tokens = sum(outcome.output_tokens for outcome in outcomes)
    return Point(
        load=load,
        seed=options.seed,
        seconds=seconds,
        tokens_per_s=output_tokens / seconds,
        requests_per_s=len(outcomes) / seconds,
        goodput_per_s=goodput(outcomes, limits, seconds),
        figures=figures,
        prefix_hit_share=share,
        client_cpu_share=cpu_share,
        energy=energy.between(joules_before, joules_after, output_tokens),
        faults=faults,
        predicted=predict(simulate, arrivals, limits) if simulate else None,
    )


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


def predict(
    simulate: Simulate, arrivals: Sequence[Arrival], limits: Mapping[str, float]
) -> dict[str, Any]:
    """Return the simulated figures as `prediction.predict` has them, and prefix_hit_share.

    Args:
        limits: of the SLO in ms by name (ttft, tpot, e2el); empty without an SLO.
    """
    outcomes = simulate(arrivals)
    hit_tokens = 0
    prompt_tokens = 0
    for outcome in outcomes:
        hit_tokens += outcome.hit_tokens
        prompt_tokens += outcome.prompt_tokens
    return {**figures_of(outcomes, limits), "prefix_hit_share": hit_tokens / prompt_tokens}


async def send(server: ServerRecord, model: str, arrivals: Sequence[Arrival]) -> list[Outcome]:
    """Send every request at its time, or after the answer that it follows.

    Return the outcomes in the same order.
    """
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    limits = httpx.Limits(max_connections=None, keepalive_expiry=points.IDLE_S)
    async with httpx.AsyncClient(
        base_url=server.url,
        headers=headers,
        timeout=ANSWER_WITHIN_S,
        limits=limits,
        trust_env=False,
    ) as http:
        sender = _Sender(http, model, server.url)
        ended = [asyncio.Event() for _ in arrivals]
        outcomes: list[Outcome | None] = [None] * len(arrivals)

        async def send_arrival(number: int) -> None:
            arrival = arrivals[number]
            if arrival.follows is None:
                await asyncio.sleep(arrival.arrival_s)
            else:
                await ended[arrival.follows].wait()
                await asyncio.sleep(arrival.think_s)
            outcomes[number] = await sender.send(arrival)
            ended[number].set()

        tasks = [asyncio.create_task(send_arrival(number)) for number in range(len(arrivals))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
    return [outcome for outcome in outcomes if outcome is not None]


class _Sender:
    """Sends requests whose prompts consist of named pieces.

    An answer is a piece of later prompts.
    """

    def __init__(self, http: httpx.AsyncClient, model: str, url: str):
        self._http = http
        self._model = model
        self._url = url
        self._dice = random.Random()
        self._texts: dict[str, list[int]] = {}
        self._began = time.perf_counter()

    def _words(self, count: int) -> list[int]:
        return [self._dice.randrange(*points.WARMUP_IDS) for _ in range(count)]

    def _prompt(self, arrival: Arrival) -> list[int]:
        prompt: list[int] = []
        for name, tokens in arrival.pieces:
            if name not in self._texts:
                self._texts[name] = self._words(tokens)
            prompt += self._texts[name]
        return prompt

    async def send(self, arrival: Arrival) -> Outcome:
        """Send one request; return its outcome. Raises WorkshopError: it was not answered."""
        body = {
            "model": self._model,
            "prompt": self._prompt(arrival),
            "temperature": 0,
            "stream": True,
            "max_tokens": arrival.output_tokens,
            "min_tokens": arrival.output_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        sent_s = time.perf_counter() - self._began
        times_s: list[float] = []
        answer: list[int] = []
        try:
            async with self._http.stream("POST", "completions", json=body) as response:
                if response.status_code != 200:
                    refused = (await response.aread()).decode(errors="replace")[:300]
                    raise WorkshopError(
                        f"{self._url} refuses a prompt of {arrival.prompt_tokens:,} tokens: {refused}",
                        "Give fewer --turns or shorter --tool, or check the key.",
                    )
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    choices = json.loads(line[6:]).get("choices") or []
                    if choices:
                        times_s.append(time.perf_counter() - self._began)
                        answer += choices[0].get("token_ids") or []
        except httpx.HTTPError as error:
            raise WorkshopError(
                f"{self._url} does not answer: {error or type(error).__name__}.",
                "Is the server running? `workshop servers` lists those known here.",
            ) from None
        if not times_s:
            raise WorkshopError(f"{self._url} gave an empty answer.", "Look at the server's log.")
        if arrival.answer:  # an older vLLM does not say which tokens it wrote
            self._texts[arrival.answer] = answer or self._words(arrival.output_tokens)
        return Outcome(
            arrival_s=sent_s,
            prompt_tokens=arrival.prompt_tokens,
            first_s=times_s[0],
            last_s=times_s[-1],
            output_tokens=arrival.output_tokens,
        )
