"""Decide whether a server hangs: the one rule of batches, commands, widgets and the probe of a pod.

    python3 -P -m workshop.servers.hang PORT      # the probe: exit code 1 if it hangs or is not there

An engine can stop while the API process before it goes on to answer /health, /v1/models and
/metrics. It hangs if requests run and, for a while, none of what it publishes of its work has
moved: prompt_tokens_total, generation_tokens_total and the KV-cache usage, which grows while a long
prompt is computed in chunks. A server on which nothing runs does not hang by that; it is asked for
one token. Each engine of a data parallel server counts for itself.
"""

import argparse
import asyncio
import json
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import httpx

from workshop.engine import http, metrics
from workshop.engine.metrics import EngineWork, Metrics
from workshop.errors import BadInput
from workshop.guard import auth

if TYPE_CHECKING:
    from workshop.servers.records import ServerRecord

READY, HANGS, UNREACHABLE, ASLEEP, BROKEN = "ready", "hangs", "unreachable", "asleep", "broken"
TOKEN_EVERY_S = 30.0  # an idle server is asked for a token at most so often
REACH_S = 10.0  # within which a server answers anything at all
# Within which an engine shows work. On a GPU a step takes less than 2 s. On a processor a chunk of
# 2,048 tokens takes 12 s for 1.5 billion parameters at 0.5 TFLOP/s, and a minute for 8 billion: a
# server whose prompts take long gets STEPS times their mean.
WORK_S = 30.0
STEPS = 3.0
# vLLM itself gives up on a step after that (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS).
LONGEST_STEP_S = 300.0
LOOK_EVERY_S = 0.5
# Behind a balancer the pages of several servers take turns: an old page shows no work.
PAGES_KEPT = 64
# One token of each kind of model; a server answers the first of them that it has.
ONE_TOKEN: Mapping[str, dict] = {
    "/v1/completions": {"prompt": "The", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "The"}], "max_tokens": 1},
    "/v1/embeddings": {"input": "The"},
    "/pooling": {"input": "The"},
    "/classify": {"input": "The"},
    "/score": {"text_1": "The", "text_2": "The"},
}
NOT_THIS_KIND = frozenset({400, 404, 405, 422, 501})
RANK_HEADER = "X-data-parallel-rank"  # vLLM's: the engine that a request is for
SLEEPS = "it was put to sleep; POST /wake_up wakes it"
REMEDY = "Stop it and start it again; what computes in it is lost."


class ServerState(NamedTuple):
    """The state of a server, and what was seen if it is not READY."""

    state: str
    reason: str = ""


@dataclass
class _Seen:
    running: int
    moved_at: float
    pages: deque[tuple[float, ...]]  # the newest values of `Engine.work`, each once


class Movement:
    """The times at which a server last moved, over many looks from `now` on, in s of one clock."""

    def __init__(self, now: float):
        self._moved_at = now
        self._engines: dict[str, _Seen] = {}

    def answered(self, now: float) -> None:
        """Record an answer of the server, or that nobody asks it anything."""
        self._moved_at = now

    def take(self, engines: Mapping[str, EngineWork], now: float) -> None:
        """Record one look at the engines; {}: there was nothing to see."""
        before = self._engines
        self._engines = {}
        for label, engine in engines.items():
            seen = before.get(label)
            if seen is None:
                seen = _Seen(engine.running, now, deque([engine.work], PAGES_KEPT))
            elif engine.work not in seen.pages:
                seen.pages.append(engine.work)
                seen.moved_at = self._moved_at = now
            elif not seen.running or not engine.running:
                seen.moved_at = now
            seen.running = engine.running
            self._engines[label] = seen

    def still_since(self) -> float:
        """Return the time since when the server, or one of its engines that has work, is still."""
        times = [engine.moved_at for engine in self._engines.values() if engine.running]
        return min([self._moved_at, *times])

    def has_moved(self, label: str) -> bool:
        """Return whether an engine has moved since the first look at it."""
        return label in self._engines and len(self._engines[label].pages) > 1

    def still(self, now: float) -> str:
        """Return in words what is still, and for how long."""
        busy = [
            (engine.moved_at, label) for label, engine in self._engines.items() if engine.running
        ]
        if not busy:
            return f"no token came for {now - self._moved_at:.0f} s"
        moved_at, label = min(busy)
        which = f"engine {label} of {len(self._engines)}: " if len(self._engines) > 1 else ""
        count = self._engines[label].running
        noun = "request runs" if count == 1 else "requests run"
        return f"{which}{count} {noun}, and nothing was computed for {now - moved_at:.0f} s"


def of_record(record: "ServerRecord") -> "ServerRecord":
    """Return a record as its server answers now: `state` may be one of this module's, with a reason.

    Records that are not ready, or in doubt, are returned as they are.
    """
    if record.state != READY or record.in_doubt:
        return record
    finding = look(record.url, record.api_key, record.model)
    if finding.state == READY:
        return record
    return replace(record, state=finding.state, reason=finding.reason)


def of_records(records: Iterable["ServerRecord"]) -> list["ServerRecord"]:
    """Return records as `of_record` does; the servers are asked at the same time."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(of_record, records))


class Checks:
    """Looks at servers in the background, each at most every TOKEN_EVERY_S."""

    def __init__(self) -> None:
        self._findings: dict[str, ServerState] = {}
        self._due_at: dict[str, float] = {}

    def of(self, records: Iterable["ServerRecord"]) -> list["ServerRecord"]:
        """Return records as `of_record` does, by what the looks that have ended have found."""
        now = time.monotonic()
        newest = []
        for record in records:
            is_ready = record.state == READY and not record.in_doubt
            if is_ready and now >= self._due_at.get(record.url, now):
                self._due_at[record.url] = math.inf
                threading.Thread(target=self._look, args=(record,), daemon=True).start()
            finding = self._findings.get(record.url)
            if is_ready and finding is not None and finding.state != READY:
                record = replace(record, state=finding.state, reason=finding.reason)
            newest.append(record)
        return newest

    def _look(self, record: "ServerRecord") -> None:
        try:
            self._findings[record.url] = look(record.url, record.api_key, record.model)
        finally:
            self._due_at[record.url] = time.monotonic() + TOKEN_EVERY_S


def look(
    url: str, api_key: str = "", model: str = "", within_s: float | None = None, **options
) -> ServerState:
    """Look at a server until it shows work, or for `within_s`.

    Args:
        url: its address, which ends in /v1.
        within_s: seconds; by default WORK_S, more for a server whose prompts take long.
        **options: those of an httpx client, such as the proxy.
    """
    if api_key:
        options["headers"] = {"Authorization": f"Bearer {api_key}"}
    root = url.rstrip("/").removesuffix("/v1")
    looking = _watch(root, model, within_s, options)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(looking)
    with ThreadPoolExecutor(1, "workshop-look") as thread:  # a notebook has an event loop already
        return thread.submit(asyncio.run, looking).result()


async def _watch(root: str, model: str, within_s: float | None, options: dict) -> ServerState:
    options.setdefault("verify", root.startswith("https:"))  # certificates take 20 ms to load
    options.setdefault("trust_env", False)
    async with httpx.AsyncClient(timeout=None, **options) as client:
        tokens: dict[str, asyncio.Task[int]] = {}
        try:
            return await _finding(client, root, model, within_s, tokens)
        finally:
            for token in tokens.values():
                token.cancel()
            await asyncio.gather(*tokens.values(), return_exceptions=True)


async def _finding(
    client: httpx.AsyncClient,
    root: str,
    model: str,
    within_s: float | None,
    tokens: dict[str, asyncio.Task[int]],
) -> ServerState:
    """Look until the server shows work; `tokens` takes the requests, by the engine's label."""
    began = time.monotonic()
    movement = Movement(began)
    is_reached = has_page = False
    while True:
        try:
            page = await asyncio.wait_for(_page(client, root), REACH_S / 2)
            is_reached, problem = True, ""
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as error:
            page, problem = None, str(error) or f"no answer within {REACH_S:.0f} s"
            if isinstance(error, (httpx.ConnectError, httpx.InvalidURL)) and not is_reached:
                return ServerState(UNREACHABLE, f"{root} does not answer: {problem}")
        now = time.monotonic()
        engines = page.engines if page else {}
        if any(engine.is_asleep for engine in engines.values()):
            return ServerState(ASLEEP, SLEEPS)
        movement.take(engines, now if has_page else began)
        has_page = has_page or bool(engines)
        idle = [label for label, engine in engines.items() if not engine.running]
        for label in idle if engines else [""]:
            if label not in tokens:
                headers = {RANK_HEADER: label} if len(engines) > 1 else {}
                asking = _status_of_a_token(client, root, model, headers)
                tokens[label] = asyncio.create_task(asking)
        pending = [token for token in tokens.values() if not token.done()]
        if pending:
            await asyncio.wait(pending, timeout=LOOK_EVERY_S)
        else:
            await asyncio.sleep(LOOK_EVERY_S)
        statuses = [token.result() for token in tokens.values() if token.done()]
        if any(status >= 500 and status not in NOT_THIS_KIND for status in statuses):
            return ServerState(BROKEN, f"it answers a request for one token with {max(statuses)}")
        if statuses and len(statuses) == len(tokens):
            movement.answered(time.monotonic())
        is_reached = is_reached or bool(statuses)
        silent = []  # engines that were idle, got a request for a token, and show no work
        for label, token in tokens.items():
            if len(engines) > 1 and not token.done() and not movement.has_moved(label):
                silent.append(label)
        if movement.still_since() > began and not silent:
            return ServerState(READY)
        now = time.monotonic()
        if not is_reached and now - began >= REACH_S:
            return ServerState(UNREACHABLE, f"{root} does not answer: {problem}")
        if now - began >= (within_s or _within_s(page)):
            still = movement.still(now)
            if silent:
                still = (
                    f"engine {silent[0]} of {len(engines)}: no token came in {now - began:.0f} s"
                )
            return await _why_still(client, root, still)


async def _page(client: httpx.AsyncClient, root: str) -> Metrics | None:
    """Return what /metrics says; None: it is closed, or no vLLM's."""
    answer, body = await http.request(client, "GET", f"{root}/metrics")
    if answer.status_code != 200:
        return None
    try:
        return metrics.parse(body.decode(errors="replace"))
    except BadInput:
        return None


async def _status_of_a_token(
    client: httpx.AsyncClient, root: str, model: str, headers: dict[str, str]
) -> int:
    """Ask for one token as the model allows; return the HTTP status, 502 for a broken connection."""
    status = 0
    for path, body in ONE_TOKEN.items():
        named = {"model": model, **body} if model else body
        try:
            answer, _ = await http.request(
                client, "POST", f"{root}{path}", json=named, headers=headers
            )
        except httpx.HTTPError:
            return 502
        status = answer.status_code
        if status not in NOT_THIS_KIND:
            break
    return status


def _within_s(page: Metrics | None) -> float:
    """Return within how many seconds the server must show work."""
    if page is None or not page.prefill_count or not page.prefill_sum_s:
        return WORK_S
    return min(max(WORK_S, STEPS * page.prefill_sum_s / page.prefill_count), LONGEST_STEP_S)


async def _why_still(client: httpx.AsyncClient, root: str, still: str) -> ServerState:
    """Return that the server hangs, unless it says that it was paused (vLLM's /is_paused)."""
    try:
        asking = http.request(client, "GET", f"{root}/is_paused")
        answer, body = await asyncio.wait_for(asking, REACH_S / 2)
        if answer.status_code == 200 and json.loads(body) == {"is_paused": True}:
            return ServerState(ASLEEP, "it was paused; POST /resume lets it go on")
    except (TimeoutError, httpx.HTTPError, ValueError):
        pass  # an engine that hangs does not say
    return ServerState(HANGS, still)


def main(arguments: list[str] | None = None) -> int:
    """Look at the server on a port of this machine; return 1 if it hangs or does not answer.

    This is the liveness probe of a pod. The key is the guard's, and the engine may be without work
    for LONGEST_STEP_S, because a restart costs all requests.

    arguments: the port; by default those of the command line.
    """
    parser = argparse.ArgumentParser(prog="python3 -P -m workshop.servers.hang")
    parser.add_argument("port", type=int)
    port = parser.parse_args(arguments).port
    address = f"http://localhost:{port}/v1"  # 127.0.0.1 or ::1
    finding = look(address, auth.read_key().decode(), within_s=LONGEST_STEP_S)
    if finding.state not in (HANGS, UNREACHABLE):
        return 0
    print(f"The server {finding.state}: {finding.reason}.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
