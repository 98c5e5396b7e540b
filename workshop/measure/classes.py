"""A simulated class: what a room of learners sends to one server, and how it bears it.

    from workshop.course.classroom import run as classroom
    print(classroom.run(learners=30))

Everybody runs the same cell within a few seconds, as in a class; who has not got all answers yet
goes on later.
"""

import asyncio
import random
import time
from collections.abc import Callable

import aiohttp

from workshop.batch import online, servers
from workshop.course.classroom import http as classroom_http
from workshop.course.classroom import plan as classroom_plan
from workshop.course.classroom.plan import EVERY_S, Ask, Cell
from workshop.course.classroom.report import PEAKS, Criteria, Report, Request
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput, WorkshopError
from workshop.servers.progress import Progress

MOST_LEARNERS = 500
LEAST_S, MOST_S = 10.0, 3600.0
PATIENCE_S = 120.0  # then a learner gives up on an answer
OVERTIME = 2.0  # so many times the seconds may pass before a learner leaves out a cell
TICK_S = 0.5  # between two looks at /metrics
THINK_S = (0.5, 2.0)  # after a cell that took too long, before the next


class Classroom:
    """One class against one server.

    Args:
        learners: 1 to 500.
        seconds: how long; by default one pass through the cells, one every 10 s. Less makes them
            follow faster. Who is late runs the rest of the first pass in up to OVERTIME times as
            long.
        url: ends in /v1; by default the server that `connect()` finds. Key: WORKSHOP_API_KEY.
        name: of a server record.
        report: called twice a second with a Progress, whose fraction is that of the time.

    Raises BadInput: a number that makes no class.
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
            raise BadInput(
                f"A class of {learners:,} learners cannot be simulated.",
                f"Give 1 to {MOST_LEARNERS}.",
            )
        if seconds is not None and not LEAST_S <= seconds <= MOST_S:
            allowed = f"Give {LEAST_S:g} s to {MOST_S / 60:g} min."
            raise BadInput(f"A class of {seconds:g} s cannot be simulated.", allowed)
        self.learners = learners
        self.seconds = seconds or 0.0  # 0: computed from the number of cells when the class begins
        self.seed = seed
        self.report = report
        self.criteria = criteria or Criteria()
        self._url = url
        self._name = name
        self._stopped = ""
        self._in_flight = 0
        self._broken = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Future[list[None]] | None = None

    def run(self) -> Report:
        """Play the class to its end and return what was measured.

        Raises WorkshopError: there is no server, it does not answer, or it refuses the key.
        """
        servers.allow_connections(4 * self.learners)
        with online.runner() as runner:
            self._loop = runner.get_loop()
            return runner.run(self._play())

    def stop(self, why: str = "it was interrupted") -> None:
        """End the simulation now, from a signal handler or another thread.

        `run` then returns what was measured so far.
        """
        self._stopped = self._stopped or why
        if self._loop and self._task:
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _play(self) -> Report:
        urls: tuple[str, ...] = ()
        if self._url:
            urls = (self._url,)
        (server,) = servers.find(urls, name=self._name)
        self._server = server
        server.connect(PATIENCE_S)
        try:
            entry = await classroom_http.meet(server)
            self._model, cells = entry["id"], classroom_plan.course(random.Random(self.seed))
            longest = entry.get("max_model_len")
            self._allowed = await classroom_http.find_limits(server, self._model, longest, cells)
            played = classroom_plan.cut(cells, self._allowed)
            if not played:
                problem = f"{server.url} takes none of the course's requests."
                cause = "Its --max-model-len is too small: the course needs about 100 tokens."
                raise WorkshopError(problem, cause)
            self.seconds = self.seconds or EVERY_S * len(played)
            self.result = Report(
                self.learners, 0.0, self._model, server.url, criteria=self.criteria
            )
            self.result.every_s = min(EVERY_S, self.seconds / len(played))
            self.result.left_out = sorted(_names(cells) - _names(played))
            await self._class()
            tried = {request.cell for request in self.result.requests}
            self.result.untried = [cell.title for cell in played if cell.title not in tried]
        finally:
            await server.close()
        self.result.stopped = self._stopped
        return self.result

    async def _class(self) -> None:
        self._began = time.monotonic()
        learners = asyncio.ensure_future(asyncio.gather(*map(self._learner, range(self.learners))))
        self._task = learners
        watching = asyncio.create_task(self._watch())
        if self._stopped:
            learners.cancel()
        try:
            await learners
        except asyncio.CancelledError:
            if not self._stopped:
                raise
        finally:
            self.result.seconds = self._now()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def _now(self) -> float:
        return time.monotonic() - self._began

    async def _learner(self, number: int) -> None:
        dice = random.Random(f"{self.seed} {number}")
        cells = classroom_plan.cut(classroom_plan.course(dice), self._allowed)
        turns = max(1, round(self.seconds / self.result.every_s))
        for turn, at in enumerate(classroom_plan.starts(turns, self.result.every_s, dice)):
            wait = at - self._now()
            if wait < 0 and turn:
                self.result.late += 1
                wait = dice.uniform(*THINK_S)
            await asyncio.sleep(max(0.0, wait))
            # Whoever is late still runs each cell once: otherwise the last cells get no verdict.
            allowed_s = self.seconds
            if turn < len(cells):
                allowed_s = OVERTIME * self.seconds
            if self._now() > allowed_s:
                self.result.not_reached += turns - turn
                return
            cell = cells[turn % len(cells)]
            places = asyncio.Semaphore(cell.at_once)
            answers = []
            for ask in cell.asks:
                answers.append(self._ask(ask, cell, number, places))
            await asyncio.gather(*answers)

    async def _ask(self, ask: Ask, cell: Cell, number: int, places: asyncio.Semaphore) -> None:
        async with places:
            request = Request(cell.title, self._now(), n=ask.body.get("n", 1))
            self._in_flight += 1
            try:
                sending = classroom_http.send(self._server, self._model, ask, number, request)
                await asyncio.wait_for(sending, PATIENCE_S)
                self._broken = 0
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
        request.e2el_s = self._now() - request.sent_s
        self.result.requests.append(request)

    async def _watch(self) -> None:
        """Look at /metrics and at ourselves as long as the class goes on."""
        first: Metrics | None = None
        due = time.monotonic()
        while True:
            look = await self._server.metrics_now(servers.METRICS_TIMEOUT_S)
            if isinstance(look, Metrics):
                first = first or look
                self._keep_peaks(first, look)
            self.report(Progress(min(1.0, self._now() / self.seconds), self._words(look)))
            due = max(due + TICK_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.result.client_lag_s = max(self.result.client_lag_s, time.monotonic() - due)

    def _keep_peaks(self, first: Metrics, look: Metrics) -> None:
        peaks = look.requests_running, look.requests_waiting, look.kv_cache_usage
        for name, value in zip(PEAKS, peaks, strict=True):
            if value is not None:
                setattr(self.result, name, max(value, getattr(self.result, name) or 0))
        if look.preemptions_total is not None:
            self.result.preemptions = int(look.preemptions_total - (first.preemptions_total or 0))

    def _words(self, look: Metrics | bool | None) -> str:
        requests = len(self.result.requests)
        failed = requests - len(self.result.answered)
        parts = [f"{requests - failed:,} answers", f"{self._in_flight} in flight"]
        if isinstance(look, Metrics):
            parts.append(f"KV cache {look.kv_cache_usage or 0:.0%}")
        if failed:
            parts.append(f"{failed} errors")
        return " · ".join(parts)


def _names(cells: list[Cell]) -> set[str]:
    return {cell.name for cell in cells}


def run(learners: int, seconds: float | None = None, **options) -> Report:
    """Simulate a class and return what was measured; options are those of `Classroom`."""
    return Classroom(learners, seconds, **options).run()
