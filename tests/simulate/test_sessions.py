"""Prompts made of named pieces, and sessions of agents: what returns in a later prompt is found in the prefix cache."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.errors import BadInput
from workshop.simulate.arrivals import Arrival, read_trace
from workshop.simulate.load import arriving, on_plan
from workshop.simulate.sessions import Sessions, drawn_sessions

HERE = Path(__file__).parent
SYSTEM = ("system", 1024)


def written(folder: Path, *rows: dict) -> Path:
    trace = folder / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    return trace


def test_a_trace_names_the_pieces_of_a_prompt_and_its_answer(tmp_path):
    row = {
        "arrival_s": 0,
        "prompt_tokens": 1900,
        "output_tokens": 40,
        "prefix": [["system", 1024], ["agent 3", 824]],
        "answer": "turn 1 of agent 3",
    }
    (arrival,) = read_trace(written(tmp_path, row))
    assert arrival.pieces == (SYSTEM, ("agent 3", 824))
    assert arrival.answer == "turn 1 of agent 3"


def test_a_piece_that_cannot_be_is_refused_by_its_line(tmp_path):
    rows = [
        ({"prefix": [["system"]]}, r"is not \[name, tokens\]"),
        ({"prefix": [["system", 0]]}, r"is not \[name, tokens\]"),
        ({"prefix": [["", 5]]}, r"is not \[name, tokens\]"),
        ({"prefix": [["system", True]]}, r"is not \[name, tokens\]"),
        ({"prefix": [["system", 60], ["a", 41]]}, "have 101 tokens, its prompt 100"),
        ({"prefix": [["system", 60]], "prefix_tokens": 60}, "prefix_tokens, too"),
        ({"answer": 3}, "The answer of line 1 of .* is not a name"),
    ]
    for more, message in rows:
        row = {"arrival_s": 0, "prompt_tokens": 100, "output_tokens": 4, **more}
        with pytest.raises(BadInput, match=message):
            read_trace(written(tmp_path, row))


def hits(p, *arrivals: Arrival) -> list[int]:
    return [request.hit_tokens for request in on_plan(p, arrivals).requests]


def test_an_agents_own_history_is_found_besides_the_system_prompt_of_all(p8b):
    """Blocks have 16 tokens: of 1,024 + 824 shared tokens 1,840 are whole blocks, of 1,024 all."""
    first = Arrival(0, 1900, 8, pieces=(SYSTEM, ("agent 3", 824)))
    again = replace(first, arrival_s=5)
    other = Arrival(10, 1900, 8, pieces=(SYSTEM, ("agent 4", 824)))
    assert hits(p8b, first, again, other) == [0, 1840, 1024]


def test_an_answer_that_returns_in_the_next_prompt_is_cached_but_for_its_last_token(p8b):
    """160 tokens of prompt and 33 of answer: the last one's KV was never computed, so 192 are 12 whole blocks.

    With 32 of answer 191 were computed, which are 11 blocks, 176 tokens.
    """
    for output, cached in ((33, 192), (32, 176)):
        first = Arrival(0, 160, output, pieces=(("agent", 160),), answer="turn 0")
        second = Arrival(9, 300, 4, pieces=(("agent", 160), ("turn 0", output)))
        unknown = Arrival(18, 300, 4, pieces=(("agent", 160), ("another answer", output)))
        assert hits(p8b, first, second, unknown) == [0, cached, 160]


def test_a_sessions_prompt_grows_by_its_answer_and_what_a_tool_says():
    options = Sessions(sessions=20, turns=(4, 6), system=100, prompt=(30, 50), tool=(5, 9), seed=3)
    load = drawn_sessions(options)
    assert load == drawn_sessions(options) != drawn_sessions(replace(options, seed=4))
    firsts = [arrival for arrival in load if arrival.follows is None]
    assert len(firsts) == 20 and all(130 <= first.prompt_tokens <= 150 for first in firsts)
    for arrival in load:
        if arrival.follows is not None:
            before = load[arrival.follows]
            grown = arrival.prompt_tokens - before.prompt_tokens - before.output_tokens
            assert 5 <= grown <= 9 and before.answer in dict(arrival.pieces)


def test_a_turn_is_sent_when_the_answer_before_it_has_ended_and_was_thought_about(p8b):
    load = drawn_sessions(Sessions(sessions=4, turns=(3, 3), think_s=0.5, output=(20, 40), seed=1))
    requests = on_plan(p8b, load).requests
    for arrival, request in zip(load, requests, strict=True):
        if arrival.follows is not None:
            ended_s = requests[arrival.follows].last_s
            assert request.arrival_s == pytest.approx(ended_s + arrival.think_s)
            assert request.first_s > request.arrival_s
            assert request.hit_tokens >= requests[arrival.follows].prompt_tokens - 16


def test_sessions_that_cannot_be_are_refused():
    rows = [
        ({"turns": (2, 3)}, "Say how many"),
        ({"sessions": 0}, "0 sessions"),
        ({"sessions": 3, "burst": 4}, "cannot be one load"),
        ({"sessions": 3, "trace": "file"}, "cannot be one load"),
        ({"sessions": 3, "think": -1}, "To think"),
        ({"sessions": 3, "turns": (5, 2)}, "turns is 5:2"),
        ({"sessions": 3, "rate": 0}, "0 sessions a second"),
        ({"sessions": 200_000, "turns": (9, 9)}, "more than 200,000 requests"),
    ]
    for options, message in rows:
        with pytest.raises(BadInput, match=message):
            arriving(options)


@pytest.mark.live
def test_prefix_hits_of_agents_are_those_of_a_live_engine_to_the_token():
    ran = subprocess.run(
        [sys.executable, str(HERE / "live_sessions.py")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert answer["simulated"] == answer["live"]
    assert answer["live"][0] == 0 and answer["live"][1] == 64, (
        "2 whole blocks of 32 of the shared 70"
    )
    assert answer["live"][-1] > 200
