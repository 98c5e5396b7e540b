"""Notebook 14's helpers: sessions as they are sent, and records without vLLM. The notebook itself compares live hits."""

from __future__ import annotations

import json

import pytest

from workshop.course.notebooks import nb14
from workshop.errors import BadInput
from workshop.servers.host import machine


def test_without_vllm_the_notebook_runs_to_its_end_on_what_was_recorded(run_to_its_end):
    _, printed = run_to_its_end("14_agents.ipynb")
    assert "What follows is recorded" in printed
    assert printed.count("this row was simulated on another machine") == 3 + 4


def test_what_was_recorded_was_simulated_to_the_token():
    recorded = json.loads(nb14.RECORDED.read_text())
    assert len(recorded["sessions"]) == 8
    for rows in recorded["sessions"].values():
        assert [row["cached"] for row in rows] == [row["cached_simulated"] for row in rows]


def test_what_was_not_recorded_is_not_made_up(without_vllm):
    with pytest.raises(BadInput, match="not recorded"):
        nb14.converse(None, sessions=2)
    with pytest.raises(BadInput, match="not recorded"):
        nb14.bench(None, seed=17)


def test_each_prompt_is_the_conversation_so_far_and_what_is_new():
    first, second, third = nb14.session_load(sessions=1, turns=3)
    # 480 of the system prompt, 96 new in each turn, 16 of each answer
    assert [first.prompt_tokens, second.prompt_tokens, third.prompt_tokens] == [576, 688, 800]
    assert second.pieces[: len(first.pieces)] == first.pieces
    assert second.pieces[len(first.pieces)] == (first.answer, 16)


def test_the_line_with_the_time_is_new_in_each_prompt_and_never_part_of_the_history():
    at_start = nb14.session_load(sessions=2, turns=2, time_line="start")
    at_end = nb14.session_load(sessions=2, turns=2, time_line="end")
    assert len({load.pieces[0] for load in at_start}) == 4
    assert len({load.pieces[-1] for load in at_end}) == 4
    assert at_end[2].pieces[: len(at_end[0].pieces) - 1] == at_end[0].pieces[:-1]
    assert at_start[2].prompt_tokens == at_end[2].prompt_tokens == 688 + 8


def test_another_place_or_route_is_refused_with_those_there_are(subtests):
    for options, message in [
        ({"time_line": "middle"}, "no place 'middle'"),
        ({"route": "random"}, "no route 'random'"),
    ]:
        with subtests.test(str(options)), pytest.raises(BadInput, match=message):
            nb14.converse(None, **options)


def test_too_little_memory_shows_what_was_recorded(monkeypatch, capsys):
    monkeypatch.setattr(nb14.extra_servers, "installed", lambda: ("vllm", "0.32.0"))
    monkeypatch.setattr(machine, "memory_available_bytes", lambda: 2 * 2**30)
    assert nb14.servers() is None
    assert "Only 2.0 GiB of memory are free" in capsys.readouterr().out
