"""A closed loop: as many clients as --concurrency, each of which waits for its answer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from workshop import errors
from workshop.cli import group
from workshop.simulate.arrivals import NEXT_ANSWER, Arrival, drawn
from workshop.simulate.load import on_plan, simulate

pytestmark = pytest.mark.usefixtures("vllm")


def most_at_once(result) -> int:
    """Return the most requests that were sent and unanswered at one moment, by their own times."""
    changes = [(request.arrival_s, 1) for request in result.requests]
    changes += [(request.last_s, -1) for request in result.requests]
    unanswered = most = 0
    for _, change in sorted(changes):  # at one moment an answer comes before the next request
        unanswered += change
        most = max(most, unanswered)
    return most


def test_one_client_is_a_single_stream_again_and_again(p8b):
    alone = on_plan(p8b, [Arrival(0.0, 300, 40)], enable_prefix_caching=False)
    load = drawn(concurrency=1, requests=5, prompt=(300, 300), output=(40, 40))
    again = on_plan(p8b, load, enable_prefix_caching=False)
    assert len(again.requests) == 5
    for request in again.requests:
        assert request.ttft_ms == pytest.approx(alone.requests[0].ttft_ms, rel=1e-6)
        assert request.tpot_ms == pytest.approx(alone.requests[0].tpot_ms, rel=1e-6)
    assert again.seconds == pytest.approx(5 * alone.seconds, rel=1e-6)
    ends = [request.last_s for request in again.requests]
    assert [request.arrival_s for request in again.requests[1:]] == pytest.approx(ends[:-1])


def test_never_more_than_its_clients_are_unanswered(p8b):
    for concurrency, requests, replicas in ((8, 8, 1), (8, 50, 2), (50, 64, 1)):
        load = drawn(concurrency=concurrency, requests=requests, seed=3)
        result = on_plan(p8b, load, replicas=replicas, router="least-busy")
        assert most_at_once(result) == concurrency
        curves = result.over_time
        at_once = [sum(pair) for pair in zip(curves["running"], curves["waiting"], strict=True)]
        assert max(at_once) <= concurrency
        for request, arrival in zip(result.requests, load, strict=True):
            assert request.output_tokens == arrival.output_tokens
            assert request.prompt_tokens == arrival.prompt_tokens


def test_the_next_request_waits_for_whichever_answer_ends_first(p8b):
    """The third request follows the short answer and not the long one before it."""
    load = [
        Arrival(0.0, 64, 400),
        Arrival(0.0, 64, 10),
        Arrival(0.0, 64, 10, follows=NEXT_ANSWER),
        Arrival(0.0, 64, 10, follows=NEXT_ANSWER),
    ]
    long, short, third, fourth = on_plan(p8b, load).requests
    assert third.arrival_s == short.last_s
    assert fourth.arrival_s == third.last_s < long.last_s


def test_as_many_requests_as_clients_are_a_burst(p8b):
    lengths = {"prompt": (200, 200), "output": (30, 30)}
    loop = on_plan(p8b, drawn(concurrency=16, requests=16, **lengths))
    burst = on_plan(p8b, drawn(burst=16, **lengths))
    assert [request.last_s for request in loop.requests] == [
        request.last_s for request in burst.requests
    ]


def test_a_loop_that_cannot_be_is_refused():
    rows = [
        ({"concurrency": 4}, "not clear when"),
        ({"requests": 4}, "not clear when"),
        ({"concurrency": 4, "requests": 8, "burst": 3}, "not clear when"),
        ({"concurrency": 4, "requests": 3}, "4 clients with 3 requests"),
        ({"concurrency": 0, "requests": 3}, "0 clients"),
        ({"concurrency": 1, "requests": 1, "trace": "x.jsonl"}, "A trace says itself"),
        ({"concurrency": 1, "requests": 1, "sessions": 2}, "cannot be one load"),
        ({"concurrency": 2, "requests": 4, "prefill_replicas": 1}, "closed loops"),
    ]
    for options, message in rows:
        with pytest.raises(errors.BadInput, match=message):
            simulate("llama-3.1-8b", "h100", max_model_len=8192, **options)


def run(*arguments: str) -> dict:
    done = CliRunner().invoke(group, ["simulate", *arguments, "--json"], catch_exceptions=False)
    return json.loads(done.stdout)


LOAD = ("llama-3.1-8b", "--gpu", "h100", "-tp", "1", "--max-model-len", "8192")


def test_the_command_has_a_loop_and_a_version():
    loop = ("--concurrency", "8", "--requests", "24", "--prompt", "200", "--output", "20")
    today = run(*LOAD, *loop)
    assert today["requests"] == 24 and max(today["over_time"]["running"]) == 8
    older = run(*LOAD, *loop, "--vllm-version", "0.25.1")
    assert older["kv_cache_usage_max"] != today["kv_cache_usage_max"], "another plan"


def test_a_search_serves_the_clients_with_replicas_of_the_least_busy(monkeypatch):
    """The clients are those of all replicas together, and the router is that of other loads."""
    from workshop.simulate import choices

    servers: list[dict] = []

    def simulated(plan, arrivals, **options):
        servers.append(options)
        raise errors.BadInput("enough of this test")

    monkeypatch.setattr(choices, "on_plan", simulated)
    with pytest.raises(errors.BadInput, match="enough"):
        choices.search(
            "llama-3.1-8b", "h100", slo="tpot=50ms", concurrency=4, requests=8, max_model_len=8192
        )
    assert {options["router"] for options in servers} == {"least-busy"}
