"""A simulated class: what a room of learners sends to one server, and how it bears it.

    from workshop.classroom import run as classroom
    print(classroom.run(learners=30))

Everybody runs the same cell within a few seconds, as in a class; who has not got all answers yet goes on later.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from workshop.batch import servers
from workshop.classroom import http as classroom_http
from workshop.classroom import plan as classroom_plan
from workshop.classroom.plan import Allowed, Ask, Cell
from workshop.classroom.report import Criteria, Peaks, Report, Request
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput, WorkshopError

MOST_LEARNERS = 500
EVERY_S = 10.0  # between two cells, where the time is not given
LEAST_S, MOST_S = 10.0, 3600.0
PATIENCE_S = 120.0  # then a learner gives up on an answer
TICK_S = 0.5  # between two looks at /metrics
THINK_S = (0.5, 2.0)  # after a cell that took too long, before the next


@dataclass(frozen=True)
class Progress:
    """One look at the class: `fraction` of its time from 0 to 1, and what happens, in words."""

    fraction: float
    message: str


class Classroom:
    """One class against one server.

    Args:
        learners: 1 to 500.
        seconds: how long; by default one pass through the cells, one every 10 s. Less makes them follow faster.
        url: ends in /v1; by default the server that `connect()` finds. Key: WORKSHOP_API_KEY.
        name: of a server record.
        report: called with a Progress twice a second.

    Raises:
        BadInput: a number that makes no class.
    """

    def __init__(
        self,
        learners: int,
        seconds: float | None = None,
        *,
        url: str | None = None,
        name: str | None = None,
        seed: int = 0,
        criteria: Criteria | None = None,
        report: Callable[[Progress], None] = lambda progress: None,
    ):
        if not 1 <= learners <= MOST_LEARNERS:
            raise BadInput(f"A class of {learners:,} learners cannot be simulated.", f"Give 1 to {MOST_LEARNERS}.")
        if seconds is not None and not LEAST_S <= seconds <= MOST_S:
            raise BadInput(
                f"A class of {seconds:g} s cannot be simulated.", f"Give {LEAST_S:g} s to {MOST_S / 60:g} min."
            )
        self.learners, self.seconds, self.seed, self.report = learners, seconds, seed, report
        self.criteria, self._url, self._name = criteria or Criteria(), url, name
        self.requests: list[Request] = []
        self.peaks, self.late, self.not_reached, self.lag_s = Peaks(), 0, 0, 0.0
        self._stopped, self._in_flight, self._broken = "", 0, 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task | None = None

    def run(self) -> Report:
        """Play the class to its end and return what was measured.

        Raises:
            WorkshopError: there is no server, it does not answer, or it refuses the key.
        """
        from workshop.batch.online import _runner

        _allow_connections(4 * self.learners + 64)
        with _runner() as runner:
            self._loop = runner.get_loop()
            return runner.run(self._play())

    def stop(self, why: str = "it was interrupted") -> None:
        """End it now, from a signal handler or another thread; `run` returns what was measured so far."""
        self._stopped = self._stopped or why
        if self._loop and self._task:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _play(self) -> Report:
        server = self._server()
        server.connect(PATIENCE_S)
        try:
            entry = await classroom_http.meet(server)
            cells = classroom_plan.course(random.Random(self.seed))
            allowed = await classroom_http.find_limits(server, entry["id"], entry.get("max_model_len"), cells)
            played = classroom_plan.cut(cells, allowed)
            if not played:
                raise WorkshopError(
                    f"{server.url} takes none of the course's requests.",
                    "Its --max-model-len is too small: the course needs about 100 tokens.",
                )
            self.seconds = self.seconds or EVERY_S * len(played)
            self.every_s = min(EVERY_S, self.seconds / len(played))
            took_s = await self._class(server, entry["id"], allowed)
        finally:
            await server.session.close()
        left_out = {cell.name for cell in cells} - {cell.name for cell in played}
        return Report(
            self.learners,
            took_s,
            entry["id"],
            server.url,
            self.requests,
            self.peaks,
            self.criteria,
            self.every_s,
            tuple(sorted(left_out)),
            self.late,
            self.not_reached,
            self.lag_s,
            self._stopped,
        )

    def _server(self) -> servers.Server:
        if self._url:
            return servers.find((self._url,), None)[0]
        from workshop.use import client

        return servers.of(client.find(self._name))

    async def _class(self, server: servers.Server, model: str, allowed: Allowed) -> float:
        """Let every learner play; return how long it took in seconds."""
        self._began = time.monotonic()
        everybody = asyncio.gather(*(self._learner(number, server, model, allowed) for number in range(self.learners)))
        self._task = asyncio.ensure_future(everybody)
        watching = asyncio.create_task(self._watch(server))
        if self._stopped:
            self._task.cancel()
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._stopped:
                raise
        finally:
            took_s = self._now()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        return took_s

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _learner(self, number: int, server: servers.Server, model: str, allowed: Allowed) -> None:
        dice = random.Random(f"{self.seed} {number}")
        cells = classroom_plan.cut(classroom_plan.course(dice), allowed)
        turns = max(1, round(self.seconds / self.every_s))
        for turn, at in enumerate(classroom_plan.starts(turns, self.every_s, dice)):
            wait = at - self._now()
            if wait < 0 and turn:
                self.late += 1
                wait = dice.uniform(*THINK_S)
            await asyncio.sleep(max(0.0, wait))
            if self._now() > self.seconds:
                self.not_reached += turns - turn
                return
            await self._run_cell(cells[turn % len(cells)], number, server, model)

    async def _run_cell(self, cell: Cell, number: int, server: servers.Server, model: str) -> None:
        places = asyncio.Semaphore(cell.at_once)

        async def one(ask: Ask) -> None:
            async with places:
                await self._ask(ask, f"{cell.notebook} {cell.name}".strip(), number, server, model)

        await asyncio.gather(*(one(ask) for ask in cell.asks))

    async def _ask(self, ask: Ask, cell: str, number: int, server: servers.Server, model: str) -> None:
        request = Request(cell, self._now(), n=ask.body.get("n", 1))
        began = time.monotonic()
        self._in_flight += 1
        try:
            await asyncio.wait_for(classroom_http.send(server, model, ask, number, request), PATIENCE_S)
            self._broken = 0
        except asyncio.CancelledError:  # the class was ended: this request is nobody's fault
            raise
        except TimeoutError:
            request.error = f"no answer in {PATIENCE_S:.0f} s"
        except (aiohttp.ClientError, OSError) as error:
            request.error = f"connection: {type(error).__name__}"
            self._broken += 1
            if self._broken > max(20, self.learners):
                self.stop("the server does not answer any more")
        except classroom_http.Refused as error:
            request.error = str(error)
        finally:
            self._in_flight -= 1
        request.e2el_s = time.monotonic() - began
        self.requests.append(request)

    async def _watch(self, server: servers.Server) -> None:
        """Look at /metrics and at ourselves as long as the class goes on."""
        first: Metrics | None = None
        due = time.monotonic()
        while True:
            look = await server.metrics_now()
            if isinstance(look, Metrics):
                first = first or look
                self._keep_peaks(first, look)
            self.report(Progress(min(1.0, self._now() / self.seconds), self._words(look)))
            due = max(due + TICK_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.lag_s = max(self.lag_s, time.monotonic() - due)

    def _keep_peaks(self, first: Metrics, look: Metrics) -> None:
        peaks = self.peaks
        for name, value in (
            ("running", look.requests_running),
            ("waiting", look.requests_waiting),
            ("kv_cache_usage", look.kv_cache_usage),
        ):
            if value is not None:
                setattr(peaks, name, max(value, getattr(peaks, name) or 0))
        if look.preemptions_total is not None:
            peaks.preemptions = int(look.preemptions_total - (first.preemptions_total or 0))

    def _words(self, look: Metrics | bool | None) -> str:
        failed = sum(bool(one.error) for one in self.requests)
        parts = [f"{len(self.requests) - failed:,} answers", f"{self._in_flight} in flight"]
        if isinstance(look, Metrics):
            parts.append(f"KV cache {look.kv_cache_usage or 0:.0%}")
        return " · ".join([*parts, *([f"{failed} errors"] if failed else [])])


def _allow_connections(count: int) -> None:
    """Raise this process's limit of open files, as far as the system lets it."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard < 0 else min(count, hard), hard))


def run(learners: int, seconds: float | None = None, **options) -> Report:
    """Simulate a class and return what was measured; options are those of `Classroom`."""
    return Classroom(learners, seconds, **options).run()
