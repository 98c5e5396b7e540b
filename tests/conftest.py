"""Fixtures of the whole suite: a private $WORKSHOP_HOME, one live server for all `live` tests, one Chromium."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import one_import
import pytest
from needs import SEED, lacking

for variable in ("WORKSHOP_URL", "WORKSHOP_API_KEY", "WORKSHOP_SHARED", "WORKSHOP_NOTEBOOKS"):
    os.environ.pop(variable, None)  # the tests bring their own
# Nothing is written into the person's own $WORKSHOP_HOME; a worker of pytest-xdist has its parent's.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["WORKSHOP_HOME"] = tempfile.mkdtemp(prefix="workshop-home-")
    atexit.register(shutil.rmtree, os.environ["WORKSHOP_HOME"], ignore_errors=True)


# With all tests collected, a garbage collection takes a second, and a test that parses modules starts several.
gc.set_threshold(50_000, 20, 50)


def pytest_collection_finish() -> None:
    """Leave the collected tests out of every garbage collection: none of them ends before the run does."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config) -> None:
    """Hypothesis draws with the suite's seed, too, unless the command line gives another."""
    if config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


durations_s: dict[str, float] = {}  # of each test, with its set-up and clean-up


def pytest_runtest_logreport(report) -> None:
    durations_s[report.nodeid] = durations_s.get(report.nodeid, 0.0) + report.duration
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        # Now, not with its traceback at the end: a run that is cut off has said what failed.
        print(f"\nFAILED {report.nodeid} ({report.when})", file=sys.stderr, flush=True)


def pytest_sessionfinish(session) -> None:
    """Write how long each test took, the slowest first, into the file that `make test` names."""
    path = os.environ.get("WORKSHOP_TEST_DURATIONS")
    if not path or hasattr(session.config, "workerinput"):  # a worker of pytest-xdist
        return
    with open(path, "w", encoding="utf-8") as file:
        for test, seconds in sorted(durations_s.items(), key=lambda item: -item[1]):
            file.write(f"{seconds:.2f}\t{test}\n")


@pytest.fixture(scope="module", autouse=True)
def no_widgets_left():
    """Close the widgets of a file's tests: ipywidgets keeps each of a process."""
    yield
    if ipywidgets := sys.modules.get("ipywidgets"):
        ipywidgets.Widget.close_all()


@pytest.fixture(autouse=True)
def own_signals():
    """Undo what `workshop batch` sets for the rest of its process: children would ignore that signal, too."""
    yield
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


@pytest.fixture
def workshop_home(tmp_path, monkeypatch) -> Path:
    """An empty $WORKSHOP_HOME for one test."""
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="session")
def live_home(tmp_path_factory) -> Path:
    """The $WORKSHOP_HOME in which the shared server has its record."""
    return tmp_path_factory.mktemp("live") / "home"


@pytest.fixture(scope="session")
def vllm_is_imported(tmp_path_factory):
    """Let servers and workers be forked from one process: that of `make test`, or one of this run."""
    with one_import.shared(tmp_path_factory.mktemp("vllm") / "log"):
        yield


@pytest.fixture(scope="session")
def server(live_home, vllm_is_imported):
    """The record of one vLLM server with the teaching model, started once for the run and stopped at its end."""
    from workshop.servers import local, records
    from workshop.servers.local import supervise
    from workshop.vllm_package import installed

    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    before = os.environ.get("WORKSHOP_HOME")
    os.environ["WORKSHOP_HOME"] = str(live_home)
    try:
        record = supervise.start(local.prepare())
        yield record
        if records.path_of(record.name).exists():
            supervise.stop(record.name)
    finally:
        if before is None:
            os.environ.pop("WORKSHOP_HOME", None)
        else:
            os.environ["WORKSHOP_HOME"] = before


@pytest.fixture(scope="session")
def client(server):
    """A client of the shared server."""
    from workshop.client.client import Client

    return Client(server)


@pytest.fixture(scope="session")
def browser():
    """One Chromium for the browser tests and the slides' (Playwright's synchronous API can be entered only once)."""
    import lab_page

    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("the browser tests need playwright: make test installs it")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=lab_page.chromium(), args=lab_page.FLAGS
        )
        yield chromium
        chromium.close()


LONGEST = (
    "test_types.py",
    "test_wheels.py",
    "test_still_needed.py",
)  # at the end, one process would wait for the other


def pytest_collection_modifyitems(items) -> None:
    """Run quick tests first, the longest before all, then those on the shared server, then those that start servers."""

    def weight(item) -> int:
        marks = {mark.name for mark in item.iter_markers()}
        if item.path.name in LONGEST:
            return -1
        if "slurm" in marks:
            return 3
        if marks & {"browser", "starts"}:
            return 2
        return 1 if "live" in marks else 0

    items.sort(key=weight)
