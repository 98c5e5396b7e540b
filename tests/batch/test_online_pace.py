"""How many requests are in flight, at one server or several, and what ends a run early."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import threading
import time
from types import SimpleNamespace

import needs
import pytest

from workshop.batch.send import attempts, outcomes
from workshop.batch.send.outage import Outage
from workshop.batch.send.pace import FIRST_LIMIT, LARGEST_LIMIT, SMALLEST_LIMIT, Pace
from workshop.batch.session import StillReading
from workshop.errors import WorkshopError

# with a server that will not come back: a test waits as long as the batch has patience
PATIENCE_S = 1.5


def test_it_never_waits_for_the_slowest(tmp_path, faulty, run):
    """One slow row among quick ones: all others are done, and on disk, while it lasts."""
    waits = threading.Event()

    def fault(prompt, times):
        return (500, b"{}") if prompt == "row 0" and not waits.is_set() else None

    done = []

    def report(progress):
        done.append(progress.done)
        if progress.done == 199 and (tmp_path / "out.jsonl").read_bytes().count(b"\n") == 199:
            waits.set()

    summary = run(faulty(fault), 200, concurrency=4, report=report, attempts=500)
    assert summary.exit_code == 0 and 199 in done


def close_after(server, requests: int) -> None:
    """Close a server once it was asked so often: it dies in the middle on a slow machine, too."""

    def watch() -> None:
        while len(server.asked) < requests:
            time.sleep(0.005)
        server.close()

    threading.Thread(target=watch, daemon=True).start()


def stop_after(server, running, requests: int, pause_s: float = 0.0) -> None:
    """Stop a batch once its server was asked so often."""

    def watch() -> None:
        while len(server.asked) < requests:
            time.sleep(0.005)
        time.sleep(pause_s)
        running.stop()

    threading.Thread(target=watch, daemon=True).start()


def test_no_more_are_in_flight_than_was_said(faulty, run):
    server = faulty(delay_s=0.02)
    run(server, 100, concurrency=7)
    assert server.most_at_once == 7


def test_a_low_limit_of_open_files_is_raised(faulty, run):
    """Most logins have 1,024, and two servers may get as many requests each; here stub and client share the files."""
    server, (soft, hard) = faulty(delay_s=0.3), resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as open_files:
        for _ in range(300):  # a notebook's kernel has files of its own
            open_files.enter_context(open(os.devnull))
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 50, hard))
        try:
            run(server, 300, concurrency=100)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert server.most_at_once == 100


def test_when_one_of_two_servers_dies_the_other_answers_its_rows(faulty, run, answers):
    dying, lasting = faulty(delay_s=0.02), faulty(delay_s=0.02)
    close_after(dying, 40)
    summary = run((dying, lasting), 400, concurrency=8, patience_s=PATIENCE_S)
    assert summary.exit_code == 0 and len({line["row"] for line in answers(summary.output)}) == 400
    assert dying.asked and lasting.asked


def test_a_server_that_is_gone_ends_the_run_with_what_came_and_refuses_no_row(
    tmp_path, faulty, run, answers
):
    server = faulty(
        lambda prompt, times: (server.server.close(), "drop")[1] if len(server.asked) > 40 else None
    )
    with pytest.raises(WorkshopError, match="has not answered for"):
        run(server, 400, concurrency=4, patience_s=PATIENCE_S)
    assert not (tmp_path / "out.jsonl.errors.jsonl").exists()
    rows = [line["row"] for line in answers(tmp_path / "out.jsonl")]
    assert rows and len(rows) == len(set(rows)) < 400
    summary = run(faulty(), 400)
    assert summary.exit_code == 0 and summary.new == 400 - len(rows)


def test_stop_at_the_last_row_interrupts_nothing(faulty, new_batch):
    server = faulty(lambda prompt, times: running.stop() if prompt == "row 1" else None)
    running = new_batch(server, 2, concurrency=1)
    assert running.run().state == "complete"


def test_stop_does_not_wait_until_a_large_input_is_read(tmp_path, faulty, new_batch):
    (tmp_path / "out.jsonl").write_text("")
    running = new_batch(faulty(), 1_000_000)  # takes 10 s and more
    threading.Timer(0.5, running.stop).start()
    summary = running.run()
    assert summary.exit_code == 75 and summary.seconds < 4 and "still being read" in str(summary)
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl"}
    with pytest.raises(StillReading):  # nor for its checksum
        running.source.sha256()


def test_stop_keeps_what_came(faulty, new_batch, answers):
    server = faulty(delay_s=0.05)
    running = new_batch(server, 2000, concurrency=8)
    stop_after(server, running, 20)
    summary = running.run()
    assert summary.state == "interrupted" and summary.exit_code == 75
    # in flight is waited for
    assert len(answers(summary.output)) == summary.new == len(server.asked) < 2000


def test_a_server_that_fails_every_row_is_not_given_the_whole_input(faulty, new_batch):
    """Rows that wait for another attempt are kept in memory."""
    server = faulty(lambda prompt, times: (500, b"{}"))
    running = new_batch(server, 2000, concurrency=4, backoff_s=60.0, longest_backoff_s=60.0)
    stop_after(server, running, 4 * 4 + 1, pause_s=0.3)
    assert running.run().state == "interrupted"
    assert 4 * 4 < len(server.asked) <= 5 * 4


@pytest.fixture
def refused(monkeypatch):
    """Return a function that refuses a row with (status, Retry-After) again and again: its pauses, and the outage."""
    monkeypatch.setattr(attempts.random, "uniform", lambda *_: 1.0)

    def refuse(refusals, **limits):
        pauses = []
        server = SimpleNamespace(outage=Outage(), pace=Pace())

        async def send():
            asyncio.get_running_loop().call_later = lambda pause, *_: pauses.append(pause)
            queue = attempts.Queue(iter(()), [])
            judge = outcomes.Outcomes(None, queue, "m", attempts.Limits(attempts=20, **limits))
            attempt = attempts.Attempt(row=None)
            for status, retry_after in refusals:
                attempt.requests_sent += 1
                headers = {"Retry-After": retry_after} if retry_after else {}
                take = judge.outage if status == 429 else judge.refused
                take(attempt, server, status, b"{}", headers)

        asyncio.run(send())
        return pauses, server.outage

    return refuse


def test_pauses_double_up_to_the_longest_and_the_server_may_say_how_long(refused):
    headers = (None, None, None, None, "7", "0", "-1", "1e9", "900", "soon")
    refusals = [(500, retry_after) for retry_after in headers]
    pauses, _ = refused(refusals, backoff_s=0.5, longest_backoff_s=3.0)
    day = 24 * 3600.0
    assert pauses == [0.5, 1.0, 2.0, 3.0, 7.0, 3.0, 3.0, day, 900.0, 3.0]


def test_a_row_that_meets_a_quota_often_is_asked_again_before_the_patience_ends(refused):
    """Its pauses double, and one longer than the patience would end the run at the first 429."""
    limits = {"backoff_s": 0.5, "longest_backoff_s": 30.0, "patience_s": 5.0}
    pauses, outage = refused([(429, None)] * 5, **limits)
    assert pauses == [0.5, 1.0, 1.25, 1.25, 1.25] and outage.since
    pauses, outage = refused([(429, None), (500, None)], **limits)
    assert outage.since is None  # it does not refuse every request


def test_a_server_that_is_busy_is_given_less(faulty, run):
    looks = []
    busy = faulty(lambda prompt, times: (429, b"{}") if times == 1 else None)
    assert run(busy, 40, report=looks.append).exit_code == 0 and looks[-1].limit < FIRST_LIMIT


def test_the_pace_doubles_while_the_server_takes_everything_and_backs_off_when_it_preempts():
    pace = Pace()
    for _ in range(10):
        pace.by_metrics(pace.limit, running=pace.limit, waiting=0, kv_cache_usage=0.1, preempted=0)
    assert pace.limit == LARGEST_LIMIT
    pace.by_metrics(1024, running=256, waiting=700, kv_cache_usage=0.5, preempted=0)
    assert 256 < pace.limit < 420  # a queue is kept, so that the engine never lacks work
    before = pace.limit
    pace.by_metrics(before, running=before, waiting=0, kv_cache_usage=0.97, preempted=3)
    assert pace.limit < before
    for _ in range(200):
        pace.by_metrics(pace.limit, running=1, waiting=900, kv_cache_usage=1.0, preempted=1)
    assert pace.limit == SMALLEST_LIMIT
    fixed = Pace(5, fixed=True)
    fixed.by_metrics(5, 5, 0, 0.0, 0)
    assert fixed.limit == 5


def seconds_of(
    pace: Pace, seconds: int, refused_share: float, chance: random.Random, most: float = 1e9
) -> list[int]:
    """Return the limits of a server without /metrics, second by second; it answers in 50 ms, `most` rows a second."""
    limits = []
    for _ in range(seconds):
        sent = int(min(20 * pace.limit, most))
        for _ in range(sent):
            pace.refused() if chance.random() < refused_share else pace.answered()
        pace.by_rate(pace.limit, sent)
        limits.append(pace.limit)
    return limits


def test_a_few_refusals_keep_no_pace_down():
    """It once ended at 4 at once for good, with 0.5 % of 429 (85 instead of 3,023 rows a second)."""
    chance = random.Random(needs.SEED)
    limits = seconds_of(Pace(), 60, refused_share=0.005, chance=chance)
    assert limits[-1] > 500
    capped = seconds_of(Pace(), 60, refused_share=0.005, chance=chance, most=1500)
    assert min(capped) >= FIRST_LIMIT


def test_the_pace_comes_back_after_many_refusals():
    chance, pace = random.Random(needs.SEED), Pace()
    assert seconds_of(pace, 5, refused_share=0.5, chance=chance)[-1] <= 2 * SMALLEST_LIMIT
    assert seconds_of(pace, 10, refused_share=0.0, chance=chance)[-1] >= FIRST_LIMIT
    assert seconds_of(pace, 60, refused_share=0.0, chance=chance)[-1] > 500


def test_a_burst_of_refusals_cuts_the_pace_once_a_round_trip():
    pace = Pace(limit=100)
    for _ in range(100):
        pace.refused()
    assert pace.limit == 75  # what was in flight was sent before


def test_a_fixed_number_at_once_stays():
    pace = Pace(5, fixed=True)
    assert seconds_of(pace, 3, 0.5, random.Random(needs.SEED)) == [5, 5, 5]


def test_where_a_server_takes_so_many_the_pace_stays_near_that():
    """Of more than 40 at once it refuses the rest, as a proxy with a limit does."""
    pace, chance, limits = Pace(), random.Random(needs.SEED), []
    for _ in range(60):
        for _ in range(10):
            refused = max(0, pace.limit - 40)
            outcomes = [True] * refused + [False] * (pace.limit - refused)
            chance.shuffle(outcomes)
            for is_refused in outcomes:
                pace.refused() if is_refused else pace.answered()
        limits.append(pace.limit)
        pace.by_rate(pace.limit, 10 * min(40, pace.limit))
    assert all(20 <= limit <= 64 for limit in limits[5:])
