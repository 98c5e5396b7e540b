"""A batch against a server that hangs, or refuses everything, ends; one with long answers does not."""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
import time

import pytest
import wire_stub
from command_line import run_arguments

from workshop import batch
from workshop.batch.send import servers
from workshop.cli.use import batch as batch_command
from workshop.engine.metrics import EngineWork
from workshop.errors import WorkshopError
from workshop.servers import hang

N = 12
NEVER_S = 600.0
COUNTERS = (
    'vllm:num_requests_running{{engine="0"}} {0}\n'
    'vllm:num_requests_waiting{{engine="0"}} 0\n'
    'vllm:kv_cache_usage_perc{{engine="0"}} 0.1\n'
    'vllm:prompt_tokens_total{{engine="0"}} 5\n'
    'vllm:generation_tokens_total{{engine="0"}} {1}\n'
)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "in.txt").write_text("".join(f"row {number}\n" for number in range(N)))
    return tmp_path / "in.txt"


@pytest.fixture
def limits(quick):
    return dataclasses.replace(quick, patience_s=2.0)


def counters(tokens):
    """Return a `get` of the stub: /metrics with so many tokens after so many seconds."""
    began = time.monotonic()

    def get(request):
        if request.path != "/metrics":
            return None
        return wire_stub.Reply(COUNTERS.format(4, tokens(time.monotonic() - began)).encode())

    return get


def slow(seconds: float, token_s: float = 0.0):
    """Return a `reply`: rows take so long, and the one token that is asked for beside them `token_s`."""

    def reply(request):
        is_row = "row" in request.text
        return dataclasses.replace(
            wire_stub.answer(request), after_s=seconds if is_row else token_s
        )

    return reply


def no_metrics(request):
    return None


def tokens_of(server):
    """Return the requests for a token beside the rows."""
    return [request for request in server.asked if "row" not in request.text]


def run(path, server, limits, **options):
    return batch.run(path, path.with_name("out.jsonl"), url=server.url, limits=limits, **options)


def test_answers_that_take_longer_than_the_patience_are_waited_for_while_counters_move(
    path, wire, limits
):
    server = wire(slow(5.0), get=counters(lambda seconds: 10 * seconds))
    summary = run(path, server, limits, concurrency=N)
    assert (summary.exit_code, summary.answered) == (
        0,
        N,
    ) and summary.seconds > 2 * limits.patience_s
    assert len(server.asked) == N  # none was asked twice, and no token beside them


def test_without_metrics_the_token_beside_the_rows_counts(path, wire, limits):
    server = wire(slow(5.0), get=no_metrics)
    summary = run(path, server, limits, concurrency=N, chat=True)
    assert (summary.exit_code, summary.answered) == (
        0,
        N,
    ) and summary.seconds > 2 * limits.patience_s
    tokens = tokens_of(server)
    assert 2 <= len(tokens) <= 5 / (limits.patience_s / 3)
    assert tokens[0].path == "/v1/chat/completions"  # as the rows
    assert tokens[0].json == {"model": "stub", **hang.ONE_TOKEN["/v1/chat/completions"]}


@pytest.mark.parametrize(
    ("get", "answered"),
    [
        (counters(lambda seconds: 5), 4),
        (no_metrics, 0),
        (
            lambda request: (
                wire_stub.Reply(after_s=NEVER_S) if request.path == "/metrics" else None
            ),
            4,
        ),
    ],
    ids=["counters stand", "no metrics", "metrics never come"],
)
def test_a_server_that_hangs_ends_the_run_after_its_patience(get, answered, path, wire, limits):
    def reply(request):
        if request.number < answered:
            return wire_stub.answer(request)
        return wire_stub.Reply(after_s=NEVER_S)

    server = wire(reply, get=get)
    began = time.monotonic()
    with pytest.raises(WorkshopError, match=r"hangs since \d\d:\d\d:\d\d") as error:
        run(path, server, limits, concurrency=4)
    assert limits.patience_s < time.monotonic() - began < limits.patience_s + 10
    assert server.url in error.value.message and "--patience" in error.value.remedy
    assert not path.with_name("out.jsonl.errors.jsonl").exists()
    assert all(token.path == "/v1/completions" for token in tokens_of(server))
    server.reply, server.get = wire_stub.answer, no_metrics
    summary = run(path, server, limits)
    assert (summary.exit_code, summary.new) == (0, N - answered)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_rows_of_a_server_that_hangs_are_answered_by_the_other(is_frozen, path, wire, limits):
    """/v1/models of the first goes on to answer, or nothing does: it gets no rows until it answers a token."""
    still = counters(lambda seconds: 5)

    def get(request):
        if is_frozen and hung.asked:
            return wire_stub.Reply(after_s=NEVER_S)
        return still(request)

    hung = wire(lambda request: wire_stub.Reply(after_s=NEVER_S), get=get)
    well = wire(slow(0.3), get=counters(lambda seconds: 10 * seconds))
    summary = batch.run(
        path, path.with_name("out.jsonl"), url=(hung.url, well.url), limits=limits, concurrency=2
    )
    assert (summary.exit_code, summary.answered, summary.errors) == (0, N, 0)
    assert len([request for request in hung.asked if "row" in request.text]) == 2


def test_answers_of_one_engine_do_not_count_for_another_that_hangs():
    movement = hang.Movement(0.0)
    for now in (0.0, 9.0):
        movement.take(
            {"0": EngineWork(2, (5, now, 0.1), False), "1": EngineWork(2, (5, 7, 0.1), False)}, now
        )
        movement.answered(now)
    assert movement.still_since() == 0.0
    assert "engine 1 of 2: 2 requests run" in movement.still(9.0)


def test_a_server_that_goes_on_within_the_patience_is_waited_for(path, wire, limits):
    server = wire(slow(1.5), get=counters(lambda seconds: 5))
    summary = run(path, server, limits, concurrency=N)
    assert (summary.exit_code, summary.answered) == (0, N)


def quota(retry_after: str | None, message="You exceeded 60 requests per minute"):
    headers = {"Retry-After": retry_after} if retry_after else {}
    body = json.dumps({"error": {"message": message}}).encode()
    return wire_stub.Reply(body, 429, headers)


def test_a_quota_ends_the_run_by_its_name_and_refuses_no_row(path, wire, limits):
    server = wire(lambda request: quota(None))
    began = time.monotonic()
    with pytest.raises(WorkshopError, match="for want of quota") as error:
        run(path, server, limits)
    assert limits.patience_s < time.monotonic() - began < limits.patience_s + 4
    assert "You exceeded 60 requests per minute" in error.value.message
    assert not path.with_name("out.jsonl.errors.jsonl").exists()


def test_a_server_is_left_alone_for_as_long_as_it_asks(path, wire, quick):
    """Many rows at once; then nothing for 2 s, which all of them were told to wait."""
    limits = dataclasses.replace(quick, patience_s=5.0)
    times = []

    def reply(request):
        times.append(time.monotonic())
        return quota("2") if times[-1] - times[0] < 1.5 else wire_stub.answer(request)

    summary = run(path, wire(reply), limits, concurrency=N)
    assert (summary.exit_code, summary.errors) == (0, 0)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) > 1.4


def test_a_quota_that_opens_again_and_again_answers_every_row(path, wire, limits):
    """Two requests a second, for longer than the patience: no row is given up, whatever its tries."""
    window = [0.0, 0]

    def reply(request):
        now = time.monotonic()
        if now - window[0] > 1.0:
            window[:] = [now, 0]
        window[1] += 1
        return wire_stub.answer(request) if window[1] <= 2 else quota(None)

    summary = run(path, wire(reply), limits)
    assert (summary.exit_code, summary.answered, summary.errors) == (0, N, 0)
    assert summary.seconds > limits.patience_s  # six seconds for twelve rows


def test_one_row_that_alone_meets_a_quota_is_no_error(path, wire, limits):
    """As OpenAI refuses a prompt that is larger than the tokens of a minute."""
    server = wire(
        lambda request: quota("7200") if request.text == "row 3" else wire_stub.answer(request)
    )
    with pytest.raises(WorkshopError, match="for want of quota"):
        run(path, server, limits)
    assert not path.with_name("out.jsonl.errors.jsonl").exists()
    assert path.with_name("out.jsonl").read_text().count("\n") == N - 1


def test_the_command_says_how_far_it_is_without_a_terminal(path, wire, workshop_home, monkeypatch):
    monkeypatch.setattr(batch_command, "LINE_S", 0.3)
    monkeypatch.setattr(servers, "QUIET_S", 1.0)
    server = wire(lambda request: wire_stub.Reply(after_s=NEVER_S), get=counters(lambda s: 5))
    output = str(path.with_name("out.jsonl"))
    done = run_arguments("batch", str(path), output, "--url", server.url, "--patience", "3")
    assert done.code == 1
    assert f"0/{N}" in done.err and "has shown no work for" in done.err
    assert "hangs since" in done.err and "it goes on" in done.err


def test_stop_ends_a_run_whose_server_hangs(path, wire, quick):
    server = wire(lambda request: wire_stub.Reply(after_s=NEVER_S), get=no_metrics)
    limits = dataclasses.replace(quick, patience_s=60.0)
    running = batch.Batch(path, path.with_name("o.jsonl"), url=server.url, limits=limits)
    threading.Timer(1.0, running.stop).start()
    assert running.run().exit_code == 75
