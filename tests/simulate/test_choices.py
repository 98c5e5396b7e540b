"""What a search makes of what it simulated, by hand: prices, which choice is better, what is tried."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workshop.errors import BadInput
from workshop.simulate import choices
from workshop.simulate.choices import DECIDED, Choice, candidates, search


def choice(
    gpus: int = 1,
    share: float = 1.0,
    ttft_ms: float = 100,
    *,
    price=None,
    replicas: int = 1,
    **arguments,
) -> Choice:
    times = {"ttft": {"p50": 300 - ttft_ms, "p95": ttft_ms}, "tpot": {"p50": 5, "p95": 10}}
    figures = {
        "gpus": gpus,
        "slo_share": share,
        "replicas": replicas,
        "command": "vllm serve m",
        "tokens_per_s": 1000,
    }
    simulation = SimpleNamespace(of=times.get, **figures)
    return Choice({"quantization": None, "kv_cache_dtype": "auto", **arguments}, simulation, price)


def attempts(max_gpus: int = 16) -> choices._Search:
    return choices._Search("llama-3.1-8b", "h100", [], {}, None, max_gpus, lambda text: None)


def test_a_million_tokens_cost_what_all_gpus_take_meanwhile():
    """Four GPUs at 3 dollars an hour make 3.6 million tokens in it: 12 / 3.6."""
    assert choice(4, price=3.0).usd_per_million_tokens == pytest.approx(12 / 3.6)
    assert choice(4).usd_per_million_tokens is None


def test_which_choice_is_better():
    pairs = [
        (choice(2, 0.95), choice(1, 0.94)),  # 95 % are enough, and less is not
        (choice(1, 0.95), choice(2, 1.0)),  # of enough, fewer GPUs
        (choice(4, 0.60), choice(1, 0.38)),  # of too little, more requests
        # 2 % of the requests are nothing that a simulation knows
        (choice(1, 0.98, 90), choice(1, 1.0, 100)),
        (choice(1, 1.0, 100), choice(1, 1.0, 200)),  # p95
        # no accuracy is given away for latency
        (choice(1, 1.0, 200), choice(1, 1.0, 100, kv_cache_dtype="fp8")),
        (choice(1, 1.0, 200), choice(1, 1.0, 100, quantization="fp8")),
        (choice(1, 1.0, 200), choice(1, 1.0, 100, max_num_seqs=64)),  # nor a flag taken
    ]
    for number, (better, worse) in enumerate(pairs):
        assert better.rank < worse.rank, f"pair {number}"


def test_listed_is_what_no_other_beats_and_of_equals_what_was_tried_first():
    fast, best, again = choice(2, ttft_ms=50), choice(1, 0.96, 200), choice(1, 0.96, 200)
    tried = attempts()
    tried.tried = [choice(2, 0.96, 250), best, again, fast, choice(1, 0.96, 300)]
    assert [id(candidate) for candidate in tried.best()] == [id(best), id(fast)]


def test_as_many_gpus_as_there_are_and_twice_those_that_are_enough_are_tried(monkeypatch):
    """Four GPUs serve this load: eight are of interest, 16 no more; batch settings are tried on as many replicas."""
    seen = []

    def on_plan(p, arrivals, *, replicas, **how):
        seen.append((p.tensor_parallel_size, replicas))
        simulation = choice(
            p.gpus * replicas, min(1.0, p.gpus * replicas / 4), replicas=replicas
        ).simulation
        simulation.command = p.command
        return simulation

    monkeypatch.setattr(choices, "on_plan", on_plan)
    few, many = attempts(4), attempts()
    few.fewest_replicas({"tensor_parallel_size": 2})
    assert seen == [(2, 1), (2, 2)]
    many.fewest_replicas({"tensor_parallel_size": 2})
    for split in (
        {"tensor_parallel_size": 8},
        {"tensor_parallel_size": 8, "pipeline_parallel_size": 2},
    ):
        many.attempt(split, 1)
    assert seen[2:] == [(2, 1), (2, 2), (8, 1)]
    many.refine(many.tried[1])
    assert seen[5:] and {replicas for _, replicas in seen[5:]} == {2}


def test_fp8_is_tried_where_the_gpu_has_it_and_the_weights_are_not_quantized():
    formats = {
        (model, gpu): {
            (arguments["quantization"], arguments["kv_cache_dtype"])
            for arguments in candidates(model, gpu, {})
        }
        for model, gpu in (
            ("llama-3.1-8b", "h100"),
            ("llama-3.1-8b", "a100-80gb"),
            ("glm-4.5-air-fp8", "h100"),
        )
    }
    every, plain, cache = formats.values()
    assert every == {(None, "auto"), (None, "fp8"), ("fp8", "auto"), ("fp8", "fp8")}
    assert plain == {(None, "auto")} and cache == {(None, "auto"), (None, "fp8")}


def test_all_turns_of_a_session_go_to_one_replica_and_other_requests_to_the_least_busy(
    monkeypatch,
):
    """A turn on another replica would compute its history again."""
    routers = []

    def on_plan(p, arrivals, *, replicas, router, slo):
        routers.append(router)
        return choice(p.gpus, replicas=replicas).simulation

    monkeypatch.setattr(choices, "on_plan", on_plan)
    for load, router in (({"sessions": 6}, "prefix"), ({"burst": 4}, "least-busy")):
        search("llama-3.1-8b", "h100", slo="ttft=1s", max_gpus=1, **load)
        assert set(routers) == {router}
        routers.clear()


def test_options_of_the_servers_and_of_the_plan_hold_for_all_candidates(monkeypatch):
    seen = []

    def on_plan(p, arrivals, *, replicas, router, **servers):
        seen.append((servers, p.command))
        return choice(p.gpus, replicas=replicas).simulation

    monkeypatch.setattr(choices, "on_plan", on_plan)
    options = {"enforce_eager": True, "enable_prefix_caching": False}
    search("llama-3.1-8b", "h100", slo="ttft=1s", max_gpus=2, burst=4, **options)
    assert len(seen) > 4
    for servers, command in seen:
        assert servers == {"slo": {"ttft": 1000}, "enable_prefix_caching": False}
        assert "--enforce-eager" in command and "--no-enable-prefix-caching" in command


def test_what_the_search_decides_is_refused():
    for name in DECIDED:
        flag = name.replace("_", "-")
        with pytest.raises(BadInput, match=f"--{flag} and --search cannot go together"):
            search("llama-3.1-8b", "h100", slo="ttft=1s", burst=4, **{name: 2})
