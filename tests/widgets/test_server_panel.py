"""The panel of notebook 00: what it says of each state, and that its button starts a server once."""

from __future__ import annotations

import threading
import time

import pytest
import wire_stub

from workshop import timestamps
from workshop.course.widgets.server import view as server_panel
from workshop.course.widgets.server.view import ServerPanel, last_lines, log_lines
from workshop.course.widgets.server.view import status as status_html
from workshop.errors import WorkshopError
from workshop.servers import local, records
from workshop.servers.local import supervise
from workshop.servers.local.supervise import TaskProgress
from workshop.servers.records import ServerRecord


@pytest.fixture
def url():
    """The address of a server that answers."""
    with wire_stub.servers() as start:
        yield start().url


def ready(name="a", url="http://127.0.0.1:1/v1") -> ServerRecord:
    return ServerRecord(
        name,
        url,
        "the-model",
        "secret",
        host="elsewhere",
        state="ready",
        started=timestamps.now("milliseconds"),
    )


def test_each_state_says_what_it_is():
    assert "Press the button" in status_html(None)
    starting = status_html(None, TaskProgress(0.42, "loading <weights>"))
    assert "42 %" in starting and 'aria-valuenow="42"' in starting and "&lt;weights&gt;" in starting
    answering = status_html(ready())
    assert "the-model answers" in answering and "secret" not in answering
    failed = status_html(None, error=WorkshopError("It broke.", "Mend it."))
    assert "It broke." in failed and "Mend it." in failed


def test_the_engines_words_are_its_last_lines(tmp_path):
    log = tmp_path / "log"
    assert last_lines(log) == [] and log_lines([]) == ""
    log.write_text("\n".join(f"line {number}" for number in range(50)) + "\rshard 1/2\rshard 2/2\n")
    assert last_lines(log, 3) == ["line 49", "shard 1/2", "shard 2/2"]
    assert "&lt;b&gt;" in log_lines(["<b>"])


def test_the_engines_words_have_no_codes_of_colors(tmp_path):
    """As vLLM 0.32.0 writes them where a notebook's kernel started it (FORCE_COLOR)."""
    log = tmp_path / "log"
    log.write_text(
        "\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-25 16:21:42\x1b[0m Route\n"
    )
    assert last_lines(log) == ["(APIServer pid=1) INFO 11-25 16:21:42 Route"]


def test_a_server_that_is_there_needs_no_button(workshop_home, url):
    records.write(ready(url=url))
    panel = ServerPanel()
    assert panel.button.layout.display == "none" and "the-model answers" in panel.status.value


def test_a_server_that_is_there_and_does_not_work_is_not_said_to_answer(workshop_home):
    records.write(ready())
    panel = ServerPanel()
    assert panel.button.layout.display == "none"
    assert "does not work (unreachable)" in panel.status.value
    assert "the-model answers" not in panel.status.value


def test_of_several_servers_none_is_started_and_one_is_to_be_chosen(workshop_home):
    records.write(ready())
    records.write(ready("b"))
    panel = ServerPanel()
    assert (
        panel.button.layout.display == "none"
        and "Several servers are running: a, b" in panel.status.value
    )
    with pytest.raises(WorkshopError, match="Choose one"):
        panel.connect()


def test_the_button_starts_a_server_once_and_shows_its_progress(
    workshop_home, monkeypatch, tmp_path, url
):
    started, go = [], threading.Event()
    launch = local.Launch("a", "m", "m", "127.0.0.1", 1, [], {}, tmp_path / "log")
    monkeypatch.setattr(server_panel.local, "prepare", lambda model: launch)

    def start(launch, report):
        started.append(launch.name)
        report(TaskProgress(0.5, "half way"))
        go.wait(10)
        records.write(ready(url=url))

    monkeypatch.setattr(supervise, "start", start)
    panel = ServerPanel()
    panel.button.click()
    panel.start()
    deadline = time.monotonic() + 10
    while "half way" not in panel.status.value:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert panel.button.disabled
    go.set()
    panel._worker.join(10)
    assert started == ["a"] and "the-model answers" in panel.status.value


def test_a_start_that_fails_is_shown_and_raised(workshop_home, monkeypatch):
    def refuse(model):
        raise WorkshopError("Port 8000 is taken.", "Give another.")

    monkeypatch.setattr(server_panel.local, "prepare", refuse)
    panel = ServerPanel()
    with pytest.raises(WorkshopError, match="Port 8000"):
        panel.connect()
    assert "Port 8000 is taken" in panel.status.value and not panel.button.disabled
