"""`workshop servers --watch`: one table of what all servers do."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from workshop.cli import group
from workshop.cli.serve import servers
from workshop.engine.metrics import Metrics
from workshop.errors import WorkshopError
from workshop.servers.records import ServerRecord


def record(name: str, state: str = "ready") -> ServerRecord:
    return ServerRecord(
        name=name,
        url=f"http://127.0.0.1/{name}/v1",
        model="m",
        api_key="k",
        where="local",
        host="h",
        state=state,
    )


def look(time: float, tokens: float, count: float = 0.0, sum_s: float = 0.0) -> Metrics:
    told = {
        "requests_running": 3,
        "requests_waiting": 1,
        "kv_cache_usage": 0.257,
        "generation_tokens_total": tokens,
    }
    return Metrics(time, **told, ttft_count=count, ttft_sum_s=sum_s)


def test_a_row_says_what_a_server_does_and_how_fast_since_the_last_look():
    server = record("one")
    before = {server.url: look(10.0, 1000, 2, 1.0)}
    (row,) = servers.table([(server, look(12.0, 4000, 4, 1.5))], before)
    assert row == ["✓ one", "ready", "3", "1", "26%", "1,500", "250 ms"]
    (first,) = servers.table([(server, look(12.0, 4000))], {})
    assert first[2:] == ["3", "1", "26%", "", ""]


def test_one_that_is_silent_or_starting_does_not_hide_the_others():
    rows = servers.table(
        [
            (record("gone"), WorkshopError("it does not answer")),
            (record("new", "starting"), None),
            (record("old"), Metrics(1.0)),
        ],
        {},
    )
    assert [row[1] for row in rows] == ["silent: it does not answer", "starting", "ready"]
    assert rows[2][2:] == [""] * 5, "what a version does not tell stays empty"


def test_watching_ends_with_ctrl_c_and_shows_all(monkeypatch, workshop_home):
    monkeypatch.setattr(servers, "_known", lambda: [record("one"), record("two", "failed")])
    monkeypatch.setattr("workshop.servers.hang.Checks.of", lambda _, records: records)
    monkeypatch.setattr(
        servers, "_look", lambda server: look(1.0, 5) if server.state == "ready" else None
    )
    monkeypatch.setattr(
        servers.time, "sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    done = CliRunner().invoke(servers.command, ["--watch"])
    assert (
        done.exit_code == 0
        and "✓ one" in done.output
        and "✗ two" in done.output
        and "26%" in done.output
    )


@pytest.mark.live
def test_a_running_server_is_in_the_table(server):
    (row,) = servers.table([(server, servers._look(server))], {})
    assert row[1] == "ready" and row[2].isdigit() and row[4].endswith("%")


def test_a_time_that_no_clock_can_wait_is_refused(workshop_home, monkeypatch, subtests):
    for every in ["nan", "inf", "1e300", "0"]:
        with subtests.test(every):
            monkeypatch.setattr(
                servers, "_watch", lambda every_s: pytest.fail(f"it would wait {every_s} s")
            )
            done = CliRunner().invoke(servers.command, ["--watch", "--every", every])
            assert done.exit_code == 2 and "--every" in done.output


def test_of_a_server_that_others_started_their_own_commands_are_named(workshop_home, subtests):
    for command in ["logs", "stop"]:
        with subtests.test(command):
            done = CliRunner().invoke(group, [command, "vllm"])
            assert isinstance(done.exception, WorkshopError)
            assert {"kubectl logs", "journalctl"} == set(
                re.findall("kubectl logs|journalctl", done.exception.remedy)
            )
