"""Arrivals: drawn with a seed or read from a trace; what cannot be is refused in one sentence."""

from __future__ import annotations

import itertools
import json
import statistics

import pytest

from workshop.errors import BadInput
from workshop.simulate.arrivals import Arrival, drawn, read_trace


def test_the_same_seed_draws_the_same_and_another_draws_others():
    load = {"rate": 10, "seconds": 20, "prompt": (64, 512), "output": (16, 256)}
    assert drawn(**load, seed=1) == drawn(**load, seed=1) != drawn(**load, seed=2)


def test_gaps_between_poisson_arrivals_are_exponential():
    times = [arrival.arrival_s for arrival in drawn(rate=50, seconds=400, seed=3)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    # An exponential distribution's mean and standard deviation are both 1 / rate; 20,000 draws are within 3 %.
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.03)


def test_the_package_of_simulations_has_its_functions_and_is_none_itself():
    from workshop import simulate
    from workshop.simulate import choices, load

    assert simulate.simulate is load.simulate and simulate.search is choices.search
    assert simulate.drawn is drawn and simulate.Arrival is Arrival
    assert not callable(simulate)


def test_a_burst_comes_at_once_and_lengths_stay_in_their_ranges():
    load = drawn(burst=200, prompt=(100, 110), output=(5, 6), prefix=64, seed=0)
    assert len(load) == 200 and {arrival.arrival_s for arrival in load} == {0.0}
    assert {arrival.prompt_tokens for arrival in load} == set(range(100, 111)) and {
        arrival.output_tokens for arrival in load
    } == {5, 6}


def test_a_trace_is_read_in_order_and_from_zero(tmp_path):
    rows = [
        {
            "arrival_s": 12.5,
            "prompt_tokens": 30,
            "output_tokens": 4,
            "prefix": "system",
            "prefix_tokens": 20,
        },
        {"arrival_s": 10, "prompt_tokens": 10, "output_tokens": 2, "prefix": None},
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert read_trace(trace) == [Arrival(0, 10, 2), Arrival(2.5, 30, 4, (("system", 20),))]


def test_a_trace_in_mooncakes_form_is_read(tmp_path):
    """As github.com/kvcache-ai/Mooncake writes it: milliseconds, input_length, output_length, hash_ids."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
        '{"timestamp": 3000, "input_length": 100, "output_length": 5, "hash_ids": [2]}\n'
    )
    assert read_trace(trace) == [Arrival(0, 6758, 500), Arrival(3, 100, 5)]


def test_a_trace_with_a_hole_names_its_line(tmp_path):
    lines = [
        "not json",
        "[]",
        "3",
        "{}",
        '{"arrival_s": 1, "prompt_tokens": 5}',
        '{"arrival_s": 1, "prompt_tokens": 0, "output_tokens": 1}',
        '{"arrival_s": 1, "prompt_tokens": 1.5, "output_tokens": 1}',
        '{"arrival_s": 1, "prompt_tokens": true, "output_tokens": 1}',
        '{"arrival_s": -1, "prompt_tokens": 5, "output_tokens": 1}',
        '{"arrival_s": NaN, "prompt_tokens": 5, "output_tokens": 1}',
        '{"arrival_s": "soon", "prompt_tokens": 5, "output_tokens": 1}',
        '{"timestamp": "soon", "prompt_tokens": 5, "output_tokens": 1}',
        '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 1, "prefix": "a", "prefix_tokens": 6}',
        '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 1, "prefix": ["a"], "prefix_tokens": 2}',
    ]
    trace = tmp_path / "trace.jsonl"
    for line in lines:
        trace.write_text('{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 1}\n' + line + "\n")
        with pytest.raises(BadInput, match=r"line 2 of"):
            read_trace(trace)


def test_a_trace_without_requests_is_refused(tmp_path):
    trace = tmp_path / "trace.jsonl"
    with pytest.raises(BadInput, match="cannot be read"):
        read_trace(trace)
    for content in (b"", b"\n\n", b"\xff\xfe\x00", b"\xc3\n"):
        trace.write_bytes(content)
        with pytest.raises(BadInput, match="The trace"):
            read_trace(trace)


def test_a_load_that_cannot_be_is_refused():
    loads = [
        {},
        {"rate": 4},
        {"seconds": 4},
        {"rate": 4, "seconds": 4, "burst": 4},
        {"rate": 0, "seconds": 4},
        {"rate": float("nan"), "seconds": 4},
        {"rate": float("inf"), "seconds": 4},
        {"rate": 1e9, "seconds": 1e9},
        {"rate": 1e-9, "seconds": 1},
        {"burst": 0},
        {"burst": 10**9},
        {"burst": 1, "prompt": (10, 5)},
        {"burst": 1, "output": (0, 5)},
        {"burst": 1, "prompt": (10, 20), "prefix": 10},
        {"burst": 1, "prefix": -1},
    ]
    for load in loads:
        with pytest.raises(BadInput):
            drawn(**load)
