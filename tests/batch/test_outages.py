"""Tunnels and proxies whose server is away: rows wait as long as there is patience, and none is refused for it."""

from __future__ import annotations

import dataclasses
import email.utils
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import wire_stub

from workshop import batch
from workshop.batch.send import clock as clock_module
from workshop.batch.send import retries
from workshop.errors import WorkshopError

N = 40
STATUSES = [*range(520, 531), 500, 501, 502, 503, 504, 505, 511, 529, 599, 404, 200]


@pytest.fixture
def path(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"row {number}\n" for number in range(N)))
    return tmp_path / "in.txt"


@pytest.mark.parametrize("status", [*STATUSES, 408, 409, 425, 429])
def test_what_fails_once_is_answered_at_the_second_attempt(status, path, wire, quick):
    seen = set()

    def reply(request):
        if request.text in seen:
            return wire_stub.answer(request)
        seen.add(request.text)
        return wire_stub.html(status)

    summary = batch.run(path, path.with_name("out.jsonl"), url=wire(reply).url, limits=quick)
    assert (summary.exit_code, summary.answered, summary.errors) == (0, N, 0)


@pytest.mark.parametrize("status", [530, 502, 404, 200])
def test_a_tunnel_that_stays_down_ends_the_run_and_refuses_no_row(status, path, wire, quick):
    server = wire(
        lambda request: wire_stub.answer(request) if request.number < 4 else wire_stub.html(status)
    )
    limits = dataclasses.replace(quick, patience_s=1.5)
    with pytest.raises(
        WorkshopError, match=r"has not answered for 2 s; it, .*an HTML page"
    ) as error:
        batch.run(path, path.with_name("out.jsonl"), url=server.url, limits=limits)
    assert status == 200 or str(status) in str(error.value)
    assert not path.with_name("out.jsonl.errors.jsonl").exists()
    assert len(server.asked) < 400  # it is left alone, rather than asked ever again
    summary = batch.run(path, path.with_name("out.jsonl"), url=wire().url, limits=quick)
    assert (summary.exit_code, summary.new) == (0, N - 4)


@pytest.mark.parametrize("models_too", [False, True])
def test_rows_wait_for_a_tunnel_that_comes_back(models_too, path, wire, quick):
    began = []

    def is_down():
        return began and time.monotonic() - began[0] < 1.0

    def reply(request):
        if request.number == 5:
            began.append(time.monotonic())
        return wire_stub.html(530) if is_down() else wire_stub.answer(request)

    server = wire(
        reply, get=lambda request: wire_stub.html(530) if models_too and is_down() else None
    )
    summary = batch.run(path, path.with_name("out.jsonl"), url=server.url, limits=quick)
    assert (summary.exit_code, summary.answered) == (0, N)


def test_one_of_two_servers_behind_a_tunnel_that_is_down_costs_no_row(path, wire, quick):
    down, up = wire(lambda request: wire_stub.html(530)), wire()
    summary = batch.run(
        path, path.with_name("out.jsonl"), url=(down.url, up.url), limits=quick, concurrency=4
    )
    assert (summary.exit_code, summary.answered, len(up.asked)) == (0, N, N)


def test_a_row_that_alone_gets_a_gateways_error_is_refused_with_its_status(
    path, wire, quick, answers
):
    server = wire(
        lambda request: (
            wire_stub.html(524) if request.text == "row 3" else wire_stub.answer(request)
        )
    )
    summary = batch.run(
        path, path.with_name("out.jsonl"), url=server.url, limits=quick, concurrency=2
    )
    assert (summary.answered, summary.errors) == (N - 1, 1)
    (error,) = answers(summary.errors_file)
    assert (
        error["row"] == 3
        and error["response"]["status_code"] == 524
        and "524 (an HTML page" in str(error["error"])
    )


def test_a_refusal_in_html_is_the_rows(path, wire, quick, answers):
    """nginx refuses a request that is too large with a page."""
    server = wire(
        lambda request: (
            wire_stub.html(413) if request.text == "row 3" else wire_stub.answer(request)
        )
    )
    summary = batch.run(path, path.with_name("out.jsonl"), url=server.url, limits=quick)
    assert [line["response"]["status_code"] for line in answers(summary.errors_file)] == [413]


@pytest.mark.parametrize(
    ("status", "headers", "helps"),
    [
        (400, {}, False),
        (404, {}, False),
        (408, {}, True),
        (409, {}, True),
        (422, {}, False),
        (425, {}, True),
        (429, {}, True),
        *((status, {}, True) for status in range(500, 600, 7)),
        (429, {"x-should-retry": "false"}, False),
        (400, {"x-should-retry": "true"}, True),
    ],
)
def test_the_statuses_that_are_asked_again_are_openais(status, headers, helps):
    import httpx2
    import openai

    assert retries.can_help(status, headers) is helps
    if status != 425:  # RFC 8470: sent too early
        client = openai.OpenAI(api_key="x", base_url="http://127.0.0.1:9")
        assert client._should_retry(httpx2.Response(status, headers=headers)) is helps


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "900"}, 900),
        ({"Retry-After": "0"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT"}, None),
        ({"Retry-After": "Sun, 99 Nov 99999 08:49:37 GMT"}, None),
        ({"Retry-After": "1e400"}, retries.LONGEST_PAUSE_S),
        ({"retry-after-ms": "1500", "Retry-After": "9"}, 1.5),
    ],
)
def test_how_long_a_server_asks_to_wait(headers, seconds):
    assert retries.pause_s(headers) == seconds


@pytest.mark.parametrize("in_s", [40, 4000])
def test_a_server_may_ask_to_wait_until_a_date(in_s):
    date = email.utils.formatdate(time.time() + in_s, usegmt=True)
    assert in_s - 3 < retries.pause_s({"Retry-After": date}) <= in_s


def test_a_date_is_kept_to(path, wire, quick):
    times = {}

    def reply(request):
        times.setdefault(request.text, []).append(time.time())
        if len(times[request.text]) == 1 and request.text == "row 3":
            return wire_stub.Reply(
                b"{}", 429, {"Retry-After": email.utils.formatdate(time.time() + 2, usegmt=True)}
            )
        return wire_stub.answer(request)

    assert (
        batch.run(path, path.with_name("out.jsonl"), url=wire(reply).url, limits=quick).exit_code
        == 0
    )
    first, second = times["row 3"]
    assert second - first > 0.9  # dates have whole seconds


def test_a_server_that_is_busy_at_the_start_is_waited_for(path, wire, quick):
    models = iter([wire_stub.Reply(b"{}", 503), wire_stub.html(530), wire_stub.Reply(b"busy", 429)])
    server = wire(
        get=lambda request: next(models, None) if request.path.endswith("/models") else None
    )
    looks = []
    summary = batch.run(
        path, path.with_name("out.jsonl"), url=server.url, limits=quick, report=looks.append
    )
    assert summary.exit_code == 0 and any("it answers 503" in look.message for look in looks)


def test_a_server_that_answers_slowly_at_the_start_is_waited_for(path, wire, quick, monkeypatch):
    monkeypatch.setattr("workshop.batch.online.FIRST_TIMEOUT_S", 0.2)
    models = iter([5.0, 0.3])

    def get(request):
        if not request.path.endswith("/models"):
            return None
        return wire_stub.Reply(b'{"data": [{"id": "stub"}]}', after_s=next(models, 0))

    assert (
        batch.run(path, path.with_name("out.jsonl"), url=wire(get=get).url, limits=quick).exit_code
        == 0
    )


def test_patience_with_a_busy_start_has_an_end(path, wire, quick):
    server = wire(get=lambda request: wire_stub.Reply(b"{}", 503))
    with pytest.raises(WorkshopError, match="it answers 503"):
        batch.run(
            path,
            path.with_name("o.jsonl"),
            url=server.url,
            limits=dataclasses.replace(quick, patience_s=1.0),
        )
    assert 2 <= len(server.gets) < 10


def test_stop_ends_the_wait_for_a_busy_server(path, wire, quick):
    server = wire(get=lambda request: wire_stub.Reply(b"{}", 503))
    limits = dataclasses.replace(quick, patience_s=60.0)
    running = batch.Batch(path, path.with_name("o.jsonl"), url=server.url, limits=limits)
    threading.Timer(0.7, running.stop).start()
    assert running.run().exit_code == 75


def test_time_in_which_the_process_was_stopped_is_no_time():
    times = iter([0.0, 0.1, 0.2, 300.2, 300.3])
    clock = clock_module.RunningClock(lambda: next(times))
    start = clock.now()
    assert clock.now() - start == pytest.approx(0.1)
    assert clock.now() - start == pytest.approx(0.1 + clock_module.LONGEST_STEP_S)
    assert clock.now() - start == pytest.approx(0.2 + clock_module.LONGEST_STEP_S)


def test_a_run_that_was_stopped_for_longer_than_its_patience_goes_on(path, wire, workshop_home):
    """As Ctrl-Z and fg, or a virtual machine that is moved."""
    server = wire(lambda request: dataclasses.replace(wire_stub.answer(request), after_s=0.15))
    command = [
        sys.executable,
        "-P",
        "-m",
        "workshop",
        "batch",
        str(path),
        str(path.with_name("out.jsonl")),
    ]
    options = ["--url", server.url, "--patience", "3", "--concurrency", "2", "--json"]
    running = subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, text=True, env=os.environ
    )
    while len(server.asked) < 6:
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGSTOP)
    time.sleep(5)
    running.send_signal(signal.SIGCONT)
    summary = json.loads(running.communicate(timeout=60)[0])
    assert (summary["exit_code"], summary["answered"], summary["errors"]) == (0, N, 0)
