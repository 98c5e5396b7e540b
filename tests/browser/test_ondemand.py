"""A session of OpenOnDemand: JupyterLab behind a proxy's path, the course's kernel, one CPU, 4 GB, no GPU.

The memory is measured, not limited: a container mostly may not make a cgroup of its own, and RLIMIT_AS counts what is
only reserved. PSS of the server, JupyterLab and the kernel together stays below what SLURM would kill the job for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import threading
import time

import ondemand_app
import psutil
import pytest
from lab_page import Page
from widget_page import CUT, SILENT, Widget, write_notebook

pytestmark = [pytest.mark.browser, pytest.mark.live]
MEMORY_BYTES = 4 * 2**30
START = """from workshop.course.widgets.server.view import ServerPanel
panel = ServerPanel()
panel"""
EXPLORE = """from workshop.course.widgets.sampling.view import SamplingExplorer
llm = panel.connect()
SamplingExplorer(llm)"""
WORK = """from workshop.course.topics import timeline
from workshop.course.widgets.metrics.view import MetricsPanel
watching = MetricsPanel(llm, every_s=0.5)
watching.look()
display(timeline.draw(timeline.ask(llm, ["Boston is a"] * 8, at_once=4, max_tokens=[40] * 8)))
watching.look()
watching"""


def one_cpu() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Watch:
    """The processes of a session, told by their HOME: the most memory (PSS) that they took together, and their CPUs."""

    def __init__(self, home):
        self.home, self.peak_bytes, self.cpus, self.names = str(home), 0, set(), set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(0.5):
            total = 0
            for process in self._processes():
                with contextlib.suppress(psutil.Error):
                    total += process.memory_full_info().pss
                    self.cpus |= set(process.cpu_affinity())
                    self.names.add(process.name())
            self.peak_bytes = max(self.peak_bytes, total)

    def _processes(self) -> set[psutil.Process]:
        """Those whose HOME it is, and their children: the engine's write their title over their environment."""
        processes = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == self.home:
                    processes |= {process, *process.children(recursive=True)}
        return processes

    def stop(self) -> None:
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def proxy(port: int):
    """Stand for OnDemand's /node proxy: another address, the whole path passed on, web sockets too; yield its port."""

    async def pump(reader, writer) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def pass_on(reader, writer) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def hang_up(listening) -> None:
        listening.close()
        connections = asyncio.all_tasks() - {asyncio.current_task()}
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    loop = asyncio.new_event_loop()  # of its own thread: Playwright's runs in this one
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(
        asyncio.start_server(pass_on, "127.0.0.1", 0), loop
    ).result(10)
    yield listening.sockets[0].getsockname()[1]
    asyncio.run_coroutine_threadsafe(hang_up(listening), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def log_in(context, site: str, session) -> Page:
    """Press the button on OnDemand's page, which opens JupyterLab in another tab."""
    dashboard = context.new_page()
    dashboard.route(
        f"{site}/pun/**", lambda route: route.fulfill(body=session.page, content_type="text/html")
    )
    dashboard.goto(f"{site}/pun/sys/dashboard/batch_connect/sessions")
    deadline = time.monotonic() + 120
    while "is running at" not in session.log.read_text():
        assert time.monotonic() < deadline, session.log.read_text()[-3000:]
        time.sleep(0.3)
    with context.expect_page() as opened:
        dashboard.get_by_role("button", name="Open the workshop").click()
    return Page(opened.value)


def test_the_course_runs_in_an_ondemand_session_of_one_cpu_and_4_gb(browser, tmp_path):
    home = tmp_path / "home"
    write_notebook(
        home / "workshop-notebooks" / "ondemand.ipynb", START, EXPLORE, WORK, kernel="vllm-workshop"
    )
    subprocess.run(
        [sys.executable, "-m", "workshop", "kernel", "install"],
        check=True,
        capture_output=True,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "WORKSHOP_NOTEBOOKS": str(home / "workshop-notebooks"),
        },
    )
    context = browser.new_context(viewport={"width": 900, "height": 1200})
    watch = Watch(home)
    with ondemand_app.session(tmp_path, one_cpu) as session, proxy(session.port) as front:
        page = None
        site, path = f"http://127.0.0.1:{front}", f"/node/127.0.0.1/{session.port}/"
        try:
            page = log_in(context, site, session)
            # leave a notebook that is not saved
            page.page.on("dialog", lambda dialog: dialog.accept())
            outside = []
            page.page.on(
                "request",
                lambda request: (
                    outside.append(request.url)
                    if request.url.startswith("http") and not request.url.startswith(site + path)
                    else None
                ),
            )
            page.page.locator(
                ".jp-RenderedMarkdown", has_text="You will be able to"
            ).first.wait_for(timeout=90_000)
            assert not page.page.locator(".jp-toast-message, .Toastify__toast").count(), (
                "no question about news"
            )
            page.shot("ondemand_start")
            page.open(f"{site}{path}lab/tree/ondemand.ipynb?reset")
            page.page.keyboard.press("Control+b")
            start_the_server(page)
            use_the_widgets(page)
            page.shot("ondemand_widgets")
            assert not page.page.evaluate(CUT) and not page.page.evaluate(SILENT)
            assert not outside, "all that the page asks for is below the proxy's path"
            assert not page.elsewhere and not page.errors
        finally:
            if page:
                page.shot("end_of_ondemand")
            watch.stop()  # what follows is ours, not the session's
            subprocess.run(
                [sys.executable, "-m", "workshop", "stop", "teaching-model"],
                capture_output=True,
                env={"PATH": os.environ["PATH"], "HOME": str(home)},
            )
            context.close()
    print(f"peak {watch.peak_bytes / 2**30:.2f} GiB of {', '.join(sorted(watch.names))}")
    assert any("VLLM" in name for name in watch.names), "the engine was counted"
    assert len(watch.cpus) == 1
    assert 2**29 < watch.peak_bytes < MEMORY_BYTES, f"{watch.peak_bytes / 2**30:.2f} GiB"


def start_the_server(page: Page) -> None:
    """Run the first cell, press its button, and watch the bar until the server answers."""
    page.page.locator(".jp-CodeCell").first.click()
    page.page.keyboard.press("Shift+Enter")
    page.page.get_by_role("button", name="Start the server").click(timeout=60_000)
    bar = page.page.locator(".jp-OutputArea [role=progressbar]")
    bar.wait_for(timeout=60_000)
    first = int(bar.get_attribute("aria-valuenow"))
    page.page.wait_for_function(
        "first => { const bar = document.querySelector('.jp-OutputArea [role=progressbar]');"
        " return !bar || Number(bar.getAttribute('aria-valuenow')) > first; }",
        arg=first,
        timeout=120_000,
    )
    page.shot("ondemand_server_starts")
    page.page.get_by_text("teaching-model answers").wait_for(timeout=400_000)


def use_the_widgets(page: Page) -> None:
    """Run all cells; a slider moves the bars, a button samples a token, the metrics and the timeline are there."""
    page.run_all()
    assert not page.failures()
    explorer = Widget(page.page, "Next token")
    explorer.step("temperature", "ArrowLeft")
    explorer.press("Sample a token")
    explorer.write("prompt", "The king said")
    assert page.page.get_by_label(re.compile("^Timeline of 8 requests")).count() == 1
    assert page.page.get_by_label(re.compile("^Server metrics, now: running")).count() == 1
