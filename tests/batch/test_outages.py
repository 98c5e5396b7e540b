"""Tunnels and proxies whose server is away: rows wait as long as there is patience, and none is refused for it."""

from __future__ import annotations

import threading
import time

import httpx2
import openai
import pytest
import wire_stub

from workshop.batch import online
from workshop.batch.send import clock as clock_module
from workshop.batch.send import outage, outcomes, retries, sending, servers
from workshop.errors import WorkshopError

N = 40


@pytest.mark.parametrize("status", [530, 200])
def test_a_tunnel_that_stays_down_ends_the_run_and_refuses_no_row(status, tmp_path, wire, run):
    server = wire(
        lambda request: wire_stub.answer(request) if request.number < 4 else wire_stub.html(status)
    )
    with pytest.raises(
        WorkshopError, match=r"has not answered for 2 s; it, .*an HTML page"
    ) as error:
        run(server, N, patience_s=1.5)
    assert status == 200 or str(status) in str(error.value)
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()
    assert len(server.asked) < 400  # it is left alone, rather than asked ever again
    summary = run(wire(), N)
    assert (summary.exit_code, summary.new) == (0, N - 4)


def test_rows_wait_for_a_tunnel_that_comes_back(wire, run):
    began = []

    def is_down():
        return began and time.monotonic() - began[0] < 1.0

    def reply(request):
        if request.number == 5:
            began.append(time.monotonic())
        return wire_stub.html(530) if is_down() else wire_stub.answer(request)

    def get(request):
        return wire_stub.html(530) if is_down() else None

    summary = run(wire(reply, get=get), N)
    assert (summary.exit_code, summary.answered) == (0, N)


def test_one_of_two_servers_behind_a_tunnel_that_is_down_costs_no_row(wire, run):
    down, up = wire(lambda request: wire_stub.html(530)), wire()
    summary = run((down, up), N, concurrency=4)
    assert (summary.exit_code, summary.answered, len(up.asked)) == (0, N, N)


def test_a_page_that_one_row_alone_gets_is_its_refusal(wire, run, answers):
    pages = {"row 3": 524, "row 5": 413}  # nginx refuses a request that is too large with a page

    def reply(request):
        if request.text in pages:
            return wire_stub.html(pages[request.text])
        return wire_stub.answer(request)

    summary = run(wire(reply), N, concurrency=2)
    assert (summary.answered, summary.errors) == (N - 2, 2)
    errors = {error["row"]: error for error in answers(summary.errors_file)}
    assert {row: error["response"]["status_code"] for row, error in errors.items()} == {
        3: 524,
        5: 413,
    }
    assert "an HTML page" in str(errors[3]["error"])


def test_the_statuses_that_are_asked_again_are_openais():
    client = openai.OpenAI(api_key="x", base_url="http://127.0.0.1:9")
    for status in {*range(400, 600)} - {425}:  # RFC 8470: sent too early
        assert retries.can_help(status) is client._should_retry(httpx2.Response(status)), status
    assert retries.can_help(425)


def test_how_long_a_server_asks_to_wait():
    no_word = dict.fromkeys(("", "0", "-3", "nan", "soon", "Sun, 06 Nov 2094 08:49:37 GMT"))
    for text, seconds in {**no_word, "0.5": 0.5, "1e400": retries.LONGEST_PAUSE_S}.items():
        assert retries.pause_s({"Retry-After": text}) == seconds, text
    assert retries.pause_s({}) is None


def models_first(replies):
    """Return a `get` of the stub: what /v1/models answers at first."""
    return lambda request: next(replies, None) if request.path.endswith("/models") else None


def test_a_server_that_is_busy_at_the_start_is_waited_for(wire, run):
    busy = [wire_stub.Reply(b"{}", 503), wire_stub.html(530), wire_stub.Reply(b"busy", 429)]
    looks = []
    assert run(wire(get=models_first(iter(busy))), N, report=looks.append).exit_code == 0
    assert any("it answers 503" in look.message for look in looks)


def test_a_server_that_answers_slowly_at_the_start_is_waited_for(wire, run, monkeypatch):
    monkeypatch.setattr("workshop.batch.online.FIRST_TIMEOUT_S", 0.2)
    models = b'{"data": [{"id": "stub"}]}'
    slow = (wire_stub.Reply(models, after_s=seconds) for seconds in (5.0, 0.3))
    assert run(wire(get=models_first(slow)), N).exit_code == 0


def test_patience_with_a_busy_start_has_an_end_and_so_has_a_run_that_is_stopped(
    wire, run, new_batch
):
    server = wire(get=lambda request: wire_stub.Reply(b"{}", 503))
    with pytest.raises(WorkshopError, match="it answers 503"):
        run(server, N, patience_s=1.0)
    assert 2 <= len(server.gets) < 10
    running = new_batch(server, N, patience_s=60.0)
    threading.Timer(0.7, running.stop).start()
    assert running.run().exit_code == 75


def test_time_in_which_the_process_was_stopped_is_no_time():
    times = iter([0.0, 0.1, 0.2, 300.2, 300.3])
    clock = clock_module.RunningClock(lambda: next(times))
    start = clock.now()
    assert clock.now() - start == pytest.approx(0.1)
    assert clock.now() - start == pytest.approx(0.1 + clock_module.LONGEST_STEP_S)
    assert clock.now() - start == pytest.approx(0.2 + clock_module.LONGEST_STEP_S)
    for module in (online, outage, outcomes, sending, servers):
        assert module.clock is clock_module.clock, module
