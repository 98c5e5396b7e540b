"""`workshop bench`: its checks name each fault that is there and none that is not, on figures and on the real server."""

from __future__ import annotations

import json

import pytest

from workshop.engine.metrics import Metrics
from workshop.errors import BadInput
from workshop.measure import checks, points, results
from workshop.servers import records
from workshop.simulate.arrivals import NEXT_ANSWER
from workshop.simulate.report import Outcome


def snapshot(requests: float) -> Metrics:
    return Metrics(time=0.0, requests_total=requests)


def test_requests_of_others_and_a_restart_are_faults():
    before = snapshot(100)
    assert checks.other_requests(before, snapshot(150), 50) is None
    fault = checks.other_requests(before, snapshot(157), 50)
    assert fault is not None and "7 other requests" in fault.sentence
    fault = checks.other_requests(before, snapshot(20), 50)
    assert fault is not None and fault.kind == "restarted"


def test_loads_are_named_and_refused_in_one_sentence():
    load, _ = points.loads([0.5, 2], [], 100, 64, 16)
    assert (load.name, load.rate) == ("0.5 a second", 0.5)
    with pytest.raises(BadInput, match="-1 requests a second cannot be"):
        points.loads([-1.0], [], 100, 64, 16)


def test_a_rate_takes_as_long_as_it_says_and_a_seed_repeats_its_times():
    load = points.Load(requests=50, prompt_tokens=8, output_tokens=2, rate=4.0)
    times_s = [arrival.arrival_s for arrival in load.arrivals(7)]
    assert times_s == sorted(times_s) and times_s[-1] == pytest.approx(50 / 4)
    assert load.arrivals(7) == load.arrivals(7) != load.arrivals(8)


def one_at_a_time(arrivals):
    """A server that answers one request after the other, in 2 s each."""
    outcomes = []
    free_s = 0.0
    for arrival in arrivals:
        arrival_s = arrival.arrival_s
        if arrival.follows == NEXT_ANSWER:  # of as many answers as requests that followed before
            followed = sum(earlier.follows == NEXT_ANSWER for earlier in arrivals[: len(outcomes)])
            arrival_s = outcomes[followed].last_s
        first_s = max(free_s, arrival_s) + 1.0
        free_s = first_s + 1.0
        outcome = Outcome(arrival_s, arrival.prompt_tokens, first_s, free_s)
        outcome.output_tokens = arrival.output_tokens
        outcomes.append(outcome)
    return outcomes


def test_a_closed_loop_sends_the_next_request_when_one_is_answered():
    load = points.Load(requests=12, prompt_tokens=8, output_tokens=2, concurrency=2)
    predicted = points.figures_of(one_at_a_time(load.simulated_arrivals(0)), {})
    # two requests at once at a server of one place: each waits 2 s, and then 1 s for its first token
    assert predicted["ttft_ms"]["p50"] == pytest.approx(3000)
    assert predicted["tpot_ms"]["p50"] == pytest.approx(1000)
    assert predicted["tokens_per_s"] == pytest.approx(1.0)


def test_goodput_is_predicted_under_the_same_limits():
    load = points.Load(requests=12, prompt_tokens=8, output_tokens=2, concurrency=2)
    # the first request alone does not wait: its first token comes after 1 s, all others' after 3 s
    outcomes = one_at_a_time(load.simulated_arrivals(0))
    predicted = points.figures_of(outcomes, {"ttft": 2000.0})
    assert predicted["goodput_per_s"] == pytest.approx(1 / 24)
    predicted = points.figures_of(outcomes, {"tpot": 1000.0})
    assert predicted["goodput_per_s"] == pytest.approx(12 / 24)
    assert points.figures_of(outcomes, {})["goodput_per_s"] is None


def vllm_result(**more) -> dict:
    return {
        "date": "20261101-120000",
        "model_id": "m",
        "num_prompts": 200,
        "request_rate": 4.0,
        "max_concurrency": None,
        "duration": 52.0,
        "completed": 200,
        "total_input_tokens": 204800,
        "output_throughput": 512.5,
        "median_ttft_ms": 80.0,
        "p99_ttft_ms": 300.0,
        "mean_ttft_ms": 95.0,
        "median_tpot_ms": 9.0,
        **more,
    }


def test_what_a_file_cannot_rule_out_is_named(tmp_path):
    rows = [
        ({"start_times": [number / 4 for number in range(200)]}, False),
        ({}, True),  # without --save-detailed
        ({"request_rate": "inf", "start_times": [0.0] * 200, "max_concurrency": 8}, True),
    ]
    path = tmp_path / "result.json"
    for more, slow_client_unknown in rows:
        path.write_text(json.dumps(vllm_result(**more)))
        (measurement,) = results.read([path])
        sentences = " ".join(results.unknown(measurement))
        assert "Whether another process answered" in sentences
        assert ("Whether the client was slower than its load" in sentences) == slow_client_unknown
        assert "send_times_known" not in measurement.to_dict()
        ttft_ms = {"p50": 80.0, "p95": None, "p99": 300.0, "mean": 95.0}
        assert measurement.figures["ttft"] == ttft_ms


def test_other_files_are_refused_in_one_sentence(tmp_path):
    path = tmp_path / "odd.json"
    for text in ("", "[1]", "{}", "not JSON", '{"benchmarks": [{}]}'):
        path.write_text(text)
        with pytest.raises(BadInput):
            results.read([path])


@pytest.mark.live
def test_the_same_seed_again_is_found_in_the_prefix_cache(server, live_home, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    (record, *_) = [record for record in records.own() if record.state == "ready"]
    load = points.Load(requests=20, prompt_tokens=160, output_tokens=4, concurrency=4)
    first = points.measure(record, record.model, load, seed=987_654)
    again = points.measure(record, record.model, load, seed=987_654)
    assert "prefix cache" not in [fault.kind for fault in first.faults]
    assert first.prefix_hit_share == 0.0
    assert "prefix cache" in [fault.kind for fault in again.faults]
    # whole blocks of each prompt: 160 tokens less the last one, which is always computed
    assert again.prefix_hit_share == pytest.approx(128 / 160, abs=0.11)
    assert first.tokens_per_s > 0 and first.figures["ttft"]["p50"]


@pytest.mark.live
def test_sessions_find_their_conversations_in_the_prefix_cache(server, live_home, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    (record, *_) = [record for record in records.own() if record.state == "ready"]
    options = {"turns": (3, 3), "think_s": 0.1, "system": 256, "prompt": (128, 128)}
    options |= {"tool": (128, 128), "output": (8, 8)}
    (sessions,) = points.session_loads([3], options)
    point = points.measure(record, record.model, sessions)
    assert {fault.kind for fault in point.faults} == {"too short"}  # nine requests
    # prompts of 384, 520 and 656 tokens: 0, 392 and 528 came before (with answers), and 256 in all sessions but one
    returning = (3 * (392 + 528) + 2 * 256) / (3 * (384 + 520 + 656))
    assert point.prefix_hit_share is not None
    assert 0.6 * returning < point.prefix_hit_share <= returning
    assert point.load.requests == 9 and point.tokens_per_s > 0
