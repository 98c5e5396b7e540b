"""Traces that are odd or mean harm, and loads that would fill the memory: one sentence each, before the work."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace

import pytest

from workshop.errors import BadInput
from workshop.simulate import arrivals
from workshop.simulate.arrivals import (
    Arrival,
    SimulatedTexts,
    check_size,
    drawn,
    read_trace,
)
from workshop.simulate.worker import Watch, WorkerStates

GOOD = b'{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 1}\n'


def line(**fields: object) -> bytes:
    return json.dumps({"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 1} | fields).encode()


def test_an_odd_line_is_named_in_one_sentence(tmp_path):
    rows = [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        line(arrival_s=10**400),
        line(arrival_s=10**30),
        b'{"arrival_s": ' + b"9" * 5000 + b', "prompt_tokens": 5, "output_tokens": 1}',
        b'{"timestamp": 1' + b"0" * 400 + b', "prompt_tokens": 5, "output_tokens": 1}',
        b'{"timestamp": true, "prompt_tokens": 5, "output_tokens": 1}',
        b'{"arrival_s": 1e999, "prompt_tokens": 5, "output_tokens": 1}',
        line(prompt_tokens=10**400),
        line(output_tokens=10**18),
        line(prompt_tokens="5"),
        line(prefix="a", prefix_tokens=10**400),
        line(prefix="a", prefix_tokens=-1),
        line(prefix={"a": 1}, prefix_tokens=1),
        b"\0" * 100,
        b'"' + b"x" * (2 << 20) + b'"',
        b" " * (2 << 20),
    ]
    for bad in rows:
        (tmp_path / "trace").write_bytes(GOOD + bad + b"\n")
        with pytest.raises(BadInput, match="line 2 of") as caught:
            read_trace(tmp_path / "trace")
        assert len(caught.value.message) < 400, bad[:30]


def test_a_byte_order_mark_and_two_equal_keys_are_read_as_others_do(tmp_path):
    twice = b'{"arrival_s": 9, "arrival_s": 1, "prompt_tokens": 5, "output_tokens": 1}\r\n'
    (tmp_path / "trace").write_bytes(b"\xef\xbb\xbf" + GOOD + twice)
    assert read_trace(tmp_path / "trace") == [Arrival(0, 5, 1), Arrival(0, 5, 1)]


def test_too_many_lines_are_refused_before_all_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals, "MOST_REQUESTS", 10)
    (tmp_path / "trace").write_bytes(GOOD * 11 + b"never read")
    with pytest.raises(BadInput, match="too many requests"):
        read_trace(tmp_path / "trace")


def test_a_load_of_ages_is_refused(tmp_path):
    (tmp_path / "trace").write_bytes(GOOD + line(arrival_s=1e12) + b"\n")
    with pytest.raises(BadInput, match="come over more than"):
        read_trace(tmp_path / "trace")
    with pytest.raises(BadInput, match="cannot be"):
        drawn(rate=1e-298, seconds=1e300)


def common(first: list[int], second: list[int]) -> int:
    """Return how many tokens two texts have in common at their beginning."""
    count = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        count += 1
    return count


def test_prompts_share_the_tokens_of_their_common_pieces_and_nothing_else():
    """A block's hash covers all tokens before it: what counts is where two texts first differ."""
    a, longer_a, b = ("a", 40), ("a", 60), ("b", 10)
    load = [
        Arrival(0, 50, 1, (a,)),
        Arrival(0, 60, 1, (a,)),
        Arrival(0, 60, 1),
        Arrival(0, 70, 1, (longer_a,)),
        Arrival(0, 40, 1, (a,)),
        Arrival(0, 60, 1, (a, b)),
        Arrival(0, 60, 1, (a, b)),
        Arrival(0, 60, 1, (b, a)),
    ]
    texts = SimulatedTexts(load)
    tokens = [texts.prompt(arrival, number) for number, arrival in enumerate(load)]
    assert [len(prompt) for prompt in tokens] == [arrival.prompt_tokens for arrival in load]
    shared = {(5, 6): 50}
    for first, second in combinations(range(len(load)), 2):
        with_a = all(load[number].pieces[:1] in ((a,), (longer_a,)) for number in (first, second))
        expected = shared.get((first, second), 40 if with_a else 0)
        assert common(tokens[first], tokens[second]) == expected, (first, second)


def test_a_load_that_would_fill_the_memory_is_refused():
    """Some hours of long prompts are not: 20,000 requests of 10,000 tokens."""
    check_size([Arrival(float(at), 10_000, 200) for at in range(20_000)])
    rows = [
        (Arrival(0.0, 100_000, 1), 5000, "prompts have 500,000,000 tokens .* memory"),
        (Arrival(0.0, 10, 100_000), 1000, "answers have 100,000,000 tokens .* memory"),
    ]
    for arrival, count, message in rows:
        with pytest.raises(BadInput, match=message):
            check_size([arrival] * count)


def test_the_largest_burst_of_usual_lengths_is_taken():
    usual = Arrival(0.0, (64 + 512) // 2, (16 + 256) // 2)
    check_size([usual] * arrivals.MOST_REQUESTS)


@dataclass(frozen=True)
class Ended:
    """A replica whose last step has ended."""

    ended_s: float


def test_states_are_told_over_time_as_they_were_noted():
    watch = Watch()
    first, second = Ended(4.0), Ended(2.0)
    for replica, began_s, running in (
        (first, 0.0, 1),
        (second, 0.5, 5),
        (first, 1.0, 3),
        (second, 1.5, 2),
    ):
        step = SimpleNamespace(
            began_s=began_s, running=running, waiting=1, kv_cache_usage=running / 10
        )
        watch.seen(replica, [step])
    watch.ended(first)
    watch.ended(second)
    told = watch.over_time()
    assert watch.steps == 4 and told["t_s"][-1] == 4.0
    assert (
        max(told["running"]) == 8 and told["running"][0] == 1 and max(told["kv_cache_usage"]) == 0.5
    )
    assert WorkerStates.WIDTH == 4
