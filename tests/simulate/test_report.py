"""What a simulated load comes to, by hand."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from inference_planner.ground.intervals import of_speed

from workshop.errors import BadInput
from workshop.simulate.choices import Choice
from workshop.simulate.intervals import AT_HOME, of_rate, share_of_time
from workshop.simulate.report import Outcome, Simulation, parse_slo

COMPARISON = Path(__file__).parents[2] / "tests/data/simulate/comparison.json"


def load_of(requests: list[Outcome], **more) -> Simulation:
    names = {field.name for field in fields(Simulation)}
    return Simulation(
        **{
            **dict.fromkeys(names),
            "slo": {},
            "time_share": 0.05,
            "prefill_share": 0.0,
            "gaps_s": [0.1, 0.3],
            "requests": requests,
            **more,
        }
    )


def test_figures_are_those_of_vllm_bench_serve_by_hand():
    """TPOT is (e2el − ttft) / (tokens − 1); a percentile between two values lies on the line from one to the other."""
    slow = Outcome(0.0, 150, first_s=0.5, last_s=1.5, output_tokens=11, hit_tokens=50)
    late = Outcome(1.0, 50, first_s=1.2, last_s=4.0, output_tokens=15, preempted=2)
    s = load_of([slow, late], slo={"ttft": 500.0, "tpot": 150.0})
    assert s.of("ttft") == pytest.approx({"p50": 350, "p95": 485, "p99": 497, "mean": 350})
    assert s.of("tpot") == pytest.approx({"p50": 150, "p95": 195, "p99": 199, "mean": 150})
    assert s.of("e2el") == pytest.approx({"p50": 2250, "p95": 2925, "p99": 2985, "mean": 2250})
    assert s.of("itl")["mean"] == s.to_dict()["itl_ms"]["mean"] == pytest.approx(200)
    assert (s.seconds, s.tokens_per_s, s.slo_share, s.goodput_per_s) == (4.0, 6.5, 0.5, 0.25)
    figures = s.to_dict()
    assert (figures["requests"], figures["preempted"], figures["prefix_hit_rate"]) == (2, 2, 0.25)
    assert load_of([slow, late]).goodput_per_s is None
    single = load_of([Outcome(0.0, 10, first_s=0.25, last_s=0.25, output_tokens=1)], gaps_s=[])
    assert set(single.of("ttft").values()) == {250.0} and set(single.of("tpot").values()) == set(
        single.of("itl").values()
    ) == {None}


def test_a_limit_is_in_ms_or_s_and_above_0():
    assert parse_slo("ttft=500ms, tpot=0.05s,e2el=2s") == {"ttft": 500, "tpot": 50, "e2el": 2000}
    with pytest.raises(BadInput, match="'tpot=0s' is not a limit"):
        parse_slo("tpot=0s")


def test_an_answer_of_one_token_has_no_tpot_that_a_limit_could_be_missed_by():
    one_token, two_tokens = (
        Outcome(0.0, 10, first_s=0.25, last_s=0.5, output_tokens=n) for n in (1, 2)
    )
    assert (
        one_token.meets({"tpot": 50.0})
        and not two_tokens.meets({"tpot": 50.0})
        and two_tokens.tpot_ms == 250
    )


def test_requests_pile_up_where_more_and_more_are_unfinished():
    """Every 50 ms one that takes 10 s: of 20, 17.1 are unfinished in the last quarter, 7.6 in the second."""
    queues = {n: [Outcome(0.05 * i, 1, last_s=10.0) for i in range(n)] for n in (10, 20)}
    assert load_of(queues[10]).keeps_up and not load_of(queues[20]).keeps_up
    assert load_of([Outcome(0.0, 1, last_s=10.0)] * 99).keeps_up, "a burst has no quarters"


def test_every_speed_has_a_low_and_a_high_value():
    request = Outcome(0.0, 150, first_s=0.5, last_s=1.5, output_tokens=11)
    figures = load_of([request], steps=1).to_dict()
    assert figures["tokens_per_s_low"] < figures["tokens_per_s"] < figures["tokens_per_s_high"]
    for measure in ("ttft", "tpot", "itl", "e2el"):
        low, middle, high = (figures[f"{measure}_ms{end}"] for end in ("_low", "", "_high"))
        for name in ("p50", "p95", "p99", "mean"):
            assert low[name] < middle[name] < high[name]


def test_a_rate_that_the_arrivals_set_is_surer_than_one_that_the_engine_sets():
    """Ten seconds of arrivals and one of work after them: an engine that is 5 % slower takes 11.05 s, not 11.55 s."""
    open_loop = of_rate(100.0, 11.0, 10.0, 0.05)
    burst = of_rate(100.0, 11.0, 0.0, 0.05)
    assert open_loop.low == pytest.approx(100 * 11 / 11.05 / 1.035)
    assert burst.low == pytest.approx(100 / 1.05 / 1.035)


def test_the_doubt_of_a_step_counts_less_over_a_load():
    burst = of_rate(100.0, 11.0, 0.0, 0.5)
    assert 100 / 1.5 < burst.low * 1.035 < 100 / 1.3


def test_recorded_loads_that_set_no_width_lie_within():
    """tests/data/simulate/comparison.json: the widths come from the loads of H200; these are those of H100."""
    inside = 0
    judged = 0
    for row in json.loads(COMPARISON.read_text()):
        if not row["record"].startswith("h100"):
            continue
        for measure in ("ttft", "tpot"):
            for figure in ("p50", "p95"):
                key = f"{measure}_ms_{figure}"
                share = share_of_time(measure, figure, AT_HOME)
                interval = of_speed(row["simulated"][key], share)
                judged += 1
                inside += row["measured"][key] in interval
    assert judged > 190 and inside / judged >= 0.88


def test_a_choice_of_a_search_has_low_and_high_speeds_too():
    request = Outcome(0.0, 150, first_s=0.5, last_s=1.5, output_tokens=11)
    load = load_of([request], slo={"ttft": 1000.0}, gpus=1, basis="never measured")
    figures = Choice({}, load, None).to_dict()
    assert figures["basis"] == "never measured"
    assert figures["tokens_per_s_low"] < figures["tokens_per_s"] < figures["tokens_per_s_high"]
    for measure in ("ttft_ms", "tpot_ms"):
        assert figures[f"{measure}_low"]["p95"] < figures[measure]["p95"]
        assert figures[measure]["p95"] < figures[f"{measure}_high"]["p95"]
