"""The one rule for a server that hangs: requests run, and nothing that it computes has moved."""

from __future__ import annotations

import functools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import small_server
import wire_stub
from click.testing import CliRunner

from workshop.cli.serve import servers as servers_command
from workshop.engine import metrics
from workshop.engine.metrics import EngineWork
from workshop.lab import doctor
from workshop.servers import hang, records

COUNTERS = (
    'vllm:num_requests_running{{engine="{0}",model_name="m"}} {1}\n'
    'vllm:kv_cache_usage_perc{{engine="{0}",model_name="m"}} {3}\n'
    'vllm:prompt_tokens_total{{engine="{0}",model_name="m"}} {2}\n'
    'vllm:generation_tokens_total{{engine="{0}",model_name="m"}} {2}\n'
)
NEVER_S = 600.0
MODEL_KINDS = list(hang.ONE_TOKEN)


def page(*engines: tuple[int, float] | tuple[int, float, float]) -> str:
    """The /metrics of engines, each as (requests running, tokens, KV-cache usage)."""
    parts = []
    for label, (running, tokens, *usage) in enumerate(engines):
        parts.append(COUNTERS.format(label, running, tokens, *(usage or (0.1,))))
    return "".join(parts)


class Vllm:
    """A server whose counters and tokens a test decides.

    `pages` takes the seconds since the first look and returns /metrics, a Reply, or None for 404.
    `token` takes a request for one token.
    """

    def __init__(self, start, pages=lambda seconds: page((0, 5)), token=wire_stub.answer):
        self._began: float | None = None
        self.tokens: list[wire_stub.Asked] = []
        self._pages, self._token = pages, token
        self.stub = start(self._ask_token, get=self._get)
        self.url = self.stub.url

    def _ask_token(self, request):
        self.tokens.append(request)
        return self._token(request)

    def _get(self, request):
        if request.path in MODEL_KINDS:
            return self._ask_token(request)
        if request.path != "/metrics":
            return None
        self._began = self._began or time.monotonic()
        shown = self._pages(time.monotonic() - self._began)
        if isinstance(shown, str):
            return wire_stub.Reply(shown.encode())
        return shown


def never(request) -> wire_stub.Reply:
    """No answer while a test lasts."""
    return wire_stub.Reply(after_s=NEVER_S)


@pytest.fixture
def vllm():
    """Return a function that starts such a server."""
    with wire_stub.servers() as start:
        yield lambda *args, **kwargs: Vllm(start, *args, **kwargs)


def looks(servers: list[Vllm], *arguments: str, within_s: float) -> list[hang.ServerState]:
    """Look at all servers, side by side: most looks wait for `within_s`."""
    with ThreadPoolExecutor(len(servers)) as pool:
        futures = [
            pool.submit(hang.look, server.url, *arguments, within_s=within_s) for server in servers
        ]
        return [future.result() for future in futures]


def moving(seconds: float) -> str:
    return page((3, 10 * seconds))


def test_a_server_hangs_if_requests_run_and_nothing_moves(vllm, subtests):
    rows = [
        # tokens come; the next of a slow step comes after one look and more
        (moving, never, "ready", ""),
        (lambda s: page((3, 5 + (s > 1.2))), never, "ready", ""),
        # the counters of a server that was started anew
        (lambda s: page((3, 500 if s < 0.3 else 5)), never, "ready", ""),
        # a long prompt is counted at its end; until then the KV cache grows
        (lambda s: page((1, 5, round(s, 3) / 100)), never, "ready", ""),
        (lambda s: page((2, 5)), never, "hangs", "2 requests run, and nothing was computed"),
        (lambda s: page((1, 5)), wire_stub.answer, "hangs", "1 request runs"),
        # the engine was stopped while nothing ran, so its own word is that nothing runs
        (lambda s: page((0, 5)), never, "hangs", "no token came"),
        (lambda s: page((0, 5)), wire_stub.answer, "ready", ""),
        # another's request begins while the token waits
        (lambda s: page((int(s > 0.2), 5 + int(s > 0.7))), never, "ready", ""),
        # one of two engines
        (lambda s: page((3, 10 * s), (2, 7)), never, "hangs", "engine 1 of 2: 2 requests run"),
        (lambda s: page((3, 10 * s), (2, 10 * s)), never, "ready", ""),
        # the second was stopped while nothing ran on it
        (lambda s: page((3, 10 * s), (0, 7)), never, "hangs", "engine 1 of 2: no token came"),
        (lambda s: page((3, 10 * s), (0, 7)), wire_stub.answer, "ready", ""),
        (lambda s: page((3, 7), (0, 7)), wire_stub.answer, "hangs", "engine 0 of 2: 3 requests"),
        # a balancer shows the pages of two servers in turn
        (lambda s: page((2, 5)) if int(4 * s) % 2 else page((2, 9)), never, "hangs", "2 requests"),
        # no counters: closed, a proxy's page, vLLM's --disable-log-stats
        (lambda s: None, wire_stub.answer, "ready", ""),
        (lambda s: None, never, "hangs", "no token came"),
        (lambda s: "litellm_requests_metric_total 5\n", never, "hangs", "no token came"),
        (lambda s: 'vllm:num_requests_running{engine="0"} 3\n', wire_stub.answer, "ready", ""),
        # what it refuses, it answers
        (lambda s: None, lambda request: wire_stub.Reply(status=401), "ready", ""),
        (lambda s: None, lambda request: wire_stub.Reply(status=429), "ready", ""),
        (lambda s: None, lambda request: wire_stub.Reply(status=500), "broken", "with 500"),
        # /metrics comes late, and the token at once
        (
            lambda s: wire_stub.Reply(page((0, 5)).encode(), after_s=1.0),
            wire_stub.answer,
            "ready",
            "",
        ),
    ]
    servers = [vllm(pages, token) for pages, token, _, _ in rows]
    findings = looks(servers, "secret", "m", within_s=2.0)
    for (pages, token, state, says), finding in zip(rows, findings, strict=True):
        with subtests.test(f"{pages} {token}"):
            assert finding.state == state and says in finding.reason


def test_a_server_that_works_is_not_waited_for(vllm):
    for pages in (moving, lambda seconds: page((0, 5))):
        server = vllm(pages)
        began = time.monotonic()
        assert hang.look(server.url, "secret", "m").state == "ready"
        assert time.monotonic() - began < 2


def test_a_token_is_asked_for_only_where_nothing_runs_and_once(vllm):
    busy, idle = vllm(moving), vllm(token=never)
    hang.look(busy.url, "secret", "m")
    hang.look(idle.url, "secret", "m", within_s=2.0)
    assert not busy.tokens
    (token,) = idle.tokens
    assert token.json == {"model": "m", "prompt": "The", "max_tokens": 1}
    assert token.headers["authorization"] == "Bearer secret"


def test_a_model_of_each_kind_gets_a_request_of_its_own(vllm):
    for kind in MODEL_KINDS:

        def token(request, kind=kind):
            return wire_stub.Reply(status=200 if request.path == kind else 404)

        server = vllm(token=token)
        assert hang.look(server.url, within_s=2.0).state == "ready", kind
        assert server.tokens[-1].path == kind and "model" not in server.tokens[-1].json, kind


def test_a_model_of_each_kind_that_hangs_is_seen(vllm):
    def token(request, kind):
        return never(request) if request.path == kind else wire_stub.Reply(status=400)

    servers = [vllm(token=functools.partial(token, kind=kind)) for kind in MODEL_KINDS]
    assert {finding.state for finding in looks(servers, within_s=1.0)} == {"hangs"}


def test_each_idle_engine_is_asked_for_a_token_of_its_own(vllm):
    """vLLM's header names the engine that a request is for; engine 1 hangs."""

    def token(request):
        rank = request.headers["x-data-parallel-rank"]
        return never(request) if rank == "1" else wire_stub.answer(request)

    server = vllm(lambda seconds: page((0, 5 + seconds), (0, 5)), token)
    finding = hang.look(server.url, "secret", "m", within_s=1.5)
    assert finding.state == "hangs" and "engine 1 of 2: no token came in" in finding.reason
    assert len(server.tokens) == 2


SLEEPS = 'vllm:engine_sleep_state{engine="0",sleep_state="%s"} 1.0\n'


def test_a_server_that_sleeps_or_is_paused_does_not_hang(vllm, monkeypatch):
    asleep = vllm(lambda seconds: page((0, 5)) + SLEEPS % "weights_offloaded", never)
    awake = vllm(lambda seconds: page((0, 5)) + SLEEPS % "awake")
    assert hang.look(asleep.url).state == "asleep" and not asleep.tokens
    assert hang.look(awake.url, model="m").state == "ready"
    paused = vllm(lambda seconds: page((2, 5)))
    answer_get = paused.stub.get
    paused.stub.get = lambda request: (
        wire_stub.Reply(b'{"is_paused": true}')
        if request.path == "/is_paused"
        else answer_get(request)
    )
    finding = hang.look(paused.url, within_s=1.0)
    assert finding.state == "asleep" and "paused" in finding.reason


def test_nobody_there_and_nothing_answered_are_unreachable(vllm, monkeypatch):
    monkeypatch.setattr(hang, "REACH_S", 0.6)
    nobody = small_server.record().url
    assert hang.look(nobody).state == "unreachable"
    stopped = vllm(never, never)  # SIGSTOP of the whole process: the system takes connections
    finding = hang.look(stopped.url)
    assert finding.state == "unreachable" and "does not answer" in finding.reason


def test_a_server_whose_prompts_take_long_is_given_more_time():
    prefill = 'vllm:request_prefill_time_seconds_{}{{engine="0"}} {}\n'

    def within_s(sum_s: float, count: float) -> float:
        return hang._within_s(
            metrics.parse(
                page((1, 5)) + prefill.format("sum", sum_s) + prefill.format("count", count)
            )
        )

    assert within_s(10.0, 100) == hang.WORK_S
    assert within_s(4000.0, 100) == 120.0
    assert within_s(1e9, 1) == hang.LONGEST_STEP_S
    assert within_s(0.0, 0) == hang.WORK_S


def test_time_without_work_to_do_does_not_count():
    """An hour in which nothing runs, then a request: it has as long as any other."""
    movement = hang.Movement(0.0)
    movement.take({"0": EngineWork(0, (5, 5, 0.0), False)}, 0.0)
    movement.take({"0": EngineWork(0, (5, 5, 0.0), False)}, 3600.0)
    movement.answered(3600.0)
    movement.take({"0": EngineWork(1, (5, 5, 0.0), False)}, 3601.0)
    movement.take({"0": EngineWork(1, (5, 5, 0.0), False)}, 3611.0)
    assert movement.still_since() == 3600.0
    movement.take({"0": EngineWork(1, (5, 6, 0.0), False)}, 3612.0)
    assert movement.still_since() == 3612.0


def test_requests_are_named_though_the_engine_stopped_before_the_first_look_at_it():
    movement = hang.Movement(0.0)
    movement.take({"0": EngineWork(4, (5, 5, 0.0), False)}, 1.0)
    movement.take({"0": EngineWork(4, (5, 5, 0.0), False)}, 9.0)
    assert movement.still_since() == 0.0
    assert movement.still(9.0) == "4 requests run, and nothing was computed for 8 s"


def test_an_engine_that_is_no_longer_shown_does_not_count():
    movement = hang.Movement(0.0)
    movement.take({"0": EngineWork(1, (5, 5, 0.0), False)}, 0.0)
    movement.take({}, 50.0)
    movement.answered(60.0)
    assert movement.still_since() == 60.0


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(hang, "WORK_S", 1.0)


@pytest.fixture
def two_servers(workshop_home, vllm, hasty):
    """Records of a server that works, and of one that hangs."""
    records.write(small_server.record("works", url=vllm().url, pid=None, where="given"))
    hung = vllm(lambda seconds: page((2, 5)))
    records.write(small_server.record("stands", url=hung.url, pid=None, where="given"))


def test_servers_and_doctor_say_which_hangs(two_servers):
    listed = CliRunner().invoke(servers_command.command, [])
    assert "✓ works" in listed.output and "✗ stands" in listed.output
    assert "hangs: 2 requests run, and nothing was computed for 1 s" in listed.output
    assert "workshop stop stands" in listed.output
    as_json = json.loads(CliRunner().invoke(servers_command.command, ["--json"]).stdout)
    assert {entry["name"]: entry["state"] for entry in as_json} == {
        "works": "ready",
        "stands": "hangs",
    }
    checks = {check.name: check for check in doctor._servers()}
    assert checks["Server works"].state == "ok"
    assert checks["Server stands"].state == "lack" and "hangs" in checks["Server stands"].found
    assert "workshop stop stands" in checks["Server stands"].remedy


def test_the_record_itself_stays_as_it_was(two_servers):
    CliRunner().invoke(servers_command.command, [])
    assert {record.state for record in records.own()} == {"ready"}


def test_doctor_looks_at_the_server_of_the_environment(workshop_home, vllm, hasty, monkeypatch):
    server = vllm(token=never)
    monkeypatch.setenv("WORKSHOP_URL", server.url)
    monkeypatch.setenv("WORKSHOP_API_KEY", "secret")
    (check,) = doctor._servers()
    assert check.state == "lack" and "hangs" in check.found


def test_looks_in_the_background_say_it_once_they_have_ended(two_servers):
    checks = hang.Checks()
    first = {record.name: record.state for record in checks.of(records.own())}
    assert first == {"works": "ready", "stands": "ready"}
    deadline = time.monotonic() + 20
    while {record.state for record in checks.of(records.own())} == {"ready"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    now = {record.name: record.state for record in checks.of(records.own())}
    assert now == {"works": "ready", "stands": "hangs"}


def test_looks_in_the_background_are_as_seldom_as_tokens_may_be(workshop_home, vllm):
    server = vllm()
    record = small_server.record(url=server.url)
    checks = hang.Checks()
    for _ in range(20):
        checks.of([record])
        time.sleep(0.02)
    assert len(server.tokens) == 1


def test_a_pods_probe_fails_where_the_engine_hangs_alone(vllm, tmp_path, monkeypatch):
    (tmp_path / "key").write_text("secret")
    monkeypatch.delenv("WORKSHOP_RECORD", raising=False)
    monkeypatch.setenv("WORKSHOP_API_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setattr(hang, "LONGEST_STEP_S", 1.0)
    working, hung = vllm(), vllm(lambda seconds: page((2, 5)))
    draining = vllm(token=lambda request: wire_stub.Reply(status=500))

    def exit_code(server: Vllm) -> int:
        return hang.main([str(server.stub.port)])

    assert (exit_code(working), exit_code(hung), exit_code(draining)) == (0, 1, 0)
    assert working.tokens[0].headers["authorization"] == "Bearer secret"


def test_a_look_works_inside_an_event_loop(vllm):
    """A notebook's main thread has one."""
    import asyncio

    server = vllm()

    async def cell() -> str:
        return hang.look(server.url, model="m").state

    assert asyncio.run(cell()) == "ready"
    assert threading.active_count() < 50
