"""Notebook 13's helpers: without vLLM all is recorded and says so; what is recorded is what is simulated today."""

from __future__ import annotations

import json
from types import SimpleNamespace

import needs
import pytest

from workshop import simulate
from workshop.course.notebooks import nb13
from workshop.course.topics import recorded_data
from workshop.errors import BadInput
from workshop.vllm_package import installed

PAGE = """
# TYPE vllm:request_success counter
vllm:request_success_total{{engine="1",finished_reason="length"}} {finished}
vllm:request_success_total{{engine="1",finished_reason="stop"}} 1.0
vllm:request_success_total{{engine="0",finished_reason="length"}} 4.0
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{{engine="1",source="external_kv_transfer"}} {received}
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} 83.0
"""


def test_without_vllm_the_notebook_runs_to_its_end_on_what_was_recorded(run_to_its_end):
    names, printed = run_to_its_end("13_scale_out.ipynb")
    assert printed.count("this row was simulated on another machine") == 3 + 2 + 3 + 2
    assert "What follows is recorded" in printed
    assert [answer["received"] for answer in names["answers"]] == [0, 64, 0, 0]


def test_what_was_not_recorded_is_not_made_up(without_vllm):
    with pytest.raises(BadInput, match="not recorded"):
        nb13.simulated("llama-3.1-8b", "h100", simulate.drawn(burst=3))
    with pytest.raises(BadInput, match="not recorded"):
        nb13.ask(None, "another prompt", [(0, 1)])


LONE_HANDBOOK = simulate.drawn(burst=1, prompt=(6000, 6000), output=(8, 8))
PEOPLE = simulate.drawn(rate=15, seconds=15, prompt=(200, 2000), output=(100, 400))  # notebook 14
REPLICAS = {"replicas": 4, "router": "least-busy", "slo": "ttft=1s,tpot=50ms"}


@pytest.mark.parametrize(
    ("model", "gpu", "load", "how"),
    [
        (
            "llama-3.3-70b",
            "h100",
            LONE_HANDBOOK,
            {"tensor_parallel_size": 4, "max_model_len": 16384},
        ),
        (
            "llama-3.1-8b",
            "l40s",
            PEOPLE,
            {"tensor_parallel_size": 1, "max_model_len": 8192} | REPLICAS,
        ),
    ],
)
def test_what_was_recorded_is_what_is_simulated(model, gpu, load, how):
    if not installed()[0]:
        needs.lacking("vLLM is not installed")
    key = nb13.key_of_load(model, gpu, load, how)
    row = recorded_data.recorded(nb13.RECORDED, "simulated", key)
    assert nb13.simulated(model, gpu, load, **how) == row


def test_questions_share_their_handbook_and_nothing_else():
    load = nb13.handbooks(4, 1000, rate=50, seconds=2)
    handbooks = {((f"handbook {number}", 1000),) for number in range(4)}
    assert {request.pieces for request in load} == handbooks
    assert all(1050 <= request.prompt_tokens <= 1200 for request in load)
    with_two = nb13.handbooks(2, 1000, rate=50, seconds=2)
    assert [request.arrival_s for request in with_two] == [request.arrival_s for request in load]


def test_each_engine_is_counted_and_chosen():
    pages = [PAGE.format(finished=1, received=0), PAGE.format(finished=2, received=64)]
    sent = []

    def complete(prompt, **sampling):
        sent.append(sampling)
        pages.pop(0)
        return SimpleNamespace(choices=[SimpleNamespace(text=" resort")])

    http = SimpleNamespace(get=lambda address: SimpleNamespace(text=pages[0]))
    pair = SimpleNamespace(url="http://a/v1", http=http, complete=complete)
    before = nb13.engines(pair)
    assert before["engine 0"] == {
        "requests": 4,
        "computed": 83,
        "from its own cache": 0,
        "received": 0,
    }
    assert list(before) == ["engine 0", "engine 1"] and before["engine 1"]["requests"] == 2
    [row] = nb13.ask(pair, "a prompt", [(1, 16)])
    assert row["received"] == 64 and row["computed"] == 0 and row["text"] == " resort"
    assert sent[0]["extra_headers"] == {"X-data-parallel-rank": "1"} and sent[0]["max_tokens"] == 16


def test_the_folder_is_empty_before_each_lab(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path))
    (nb13.handed_over() / "old").mkdir()
    flag, setting = nb13.hand_over()
    connector = json.loads(setting)
    assert flag == "--kv-transfer-config" and list(nb13.handed_over().iterdir()) == []
    assert connector["kv_connector_extra_config"]["shared_storage_path"] == str(nb13.handed_over())
    # others' prompts are nobody else's business
    assert nb13.handed_over().stat().st_mode & 0o077 == 0
