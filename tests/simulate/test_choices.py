"""What tune makes of what it simulated, by hand: prices, which choice is better, what is tried, what is served."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from workshop.cli import group
from workshop.engine.exact import plan
from workshop.errors import BadInput
from workshop.simulate import choices as tuning
from workshop.simulate.arrivals import drawn
from workshop.simulate.choices import Choice, candidates
from workshop.simulate.load import on_plan
from workshop.simulate.sessions import Sessions, drawn_sessions


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


def search(max_gpus: int = 16, arrivals=(), slo=None) -> tuning._Search:
    return tuning._Search(
        "llama-3.1-8b", "h100", arrivals, slo or {}, None, max_gpus, lambda text: None
    )


def test_a_million_tokens_cost_what_all_gpus_take_meanwhile():
    """Four GPUs at 3 dollars an hour make 3.6 million tokens in it: 12 / 3.6."""
    assert choice(4, price=3.0).usd_per_million_tokens == pytest.approx(12 / 3.6)
    assert choice(4).usd_per_million_tokens is None


@pytest.mark.parametrize(
    ("better", "worse"),
    [
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
    ],
)
def test_which_choice_is_better(better, worse):
    assert better.rank < worse.rank


def test_listed_is_what_no_other_beats_and_of_equals_what_was_tried_first():
    fast, best, again = choice(2, ttft_ms=50), choice(1, 0.96, 200), choice(1, 0.96, 200)
    tried = search()
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

    monkeypatch.setattr(tuning, "on_plan", on_plan)
    few, many = search(4), search()
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


def test_verify_serves_the_best_three_with_a_replicas_share_of_the_load(monkeypatch):
    served = []
    requests = drawn(burst=6, seed=1)
    monkeypatch.setattr(tuning.gpus, "visible", lambda: ["h100", "h100"])
    monkeypatch.setattr(
        tuning, "on_a_new_server", lambda model, flags, load: served.append(load) or {}
    )
    single = {"tensor_parallel_size": 1, "max_model_len": 8192}
    choices = [choice(3, replicas=3, **single), choice(2, **{**single, "tensor_parallel_size": 2})]
    choices += [choice(1, **single)] * 2
    assert len(tuning.verify("llama-3.1-8b", "h100", choices, requests)) == 3
    assert served == [[requests[0], requests[3]], requests, requests]
    monkeypatch.setattr(tuning.gpus, "visible", lambda: ["h100"])
    with pytest.raises(BadInput, match="takes 2 GPUs, and this machine has 1"):
        tuning.verify("llama-3.1-8b", "h100", choices, requests)
    assert len(served) == 3, "before any server starts"


def test_tune_sends_all_turns_of_a_session_to_one_replica():
    """Six sessions on two replicas: a turn on the other replica would compute its history again."""
    options = {"tensor_parallel_size": 1, "max_model_len": 16384}
    load = drawn_sessions(Sessions(sessions=6, turns=(5, 5), think_s=0.5, seed=2))
    # a limit that every request keeps
    choice_of_sessions = search(arrivals=load, slo={"ttft": 60_000.0}).attempt(options, 2)
    assert choice_of_sessions is not None and choice_of_sessions.router == "prefix"
    p = plan("llama-3.1-8b", "h100", **options)
    rates = {}
    for router in ("prefix", "least-busy"):
        simulation = on_plan(p, load, replicas=2, router=router)
        rates[router] = simulation.to_dict()["prefix_hit_rate"]
    tuned = choice_of_sessions.simulation.to_dict()["prefix_hit_rate"]
    assert tuned == rates["prefix"] > rates["least-busy"] + 0.05


def test_tune_sends_single_requests_to_the_least_busy_replica():
    assert search(arrivals=drawn(burst=4)).router == "least-busy"


def test_verify_refuses_sessions_before_anything_is_simulated_or_served(monkeypatch):
    def never(*_, **__):
        raise AssertionError("a server or a simulation was started")

    monkeypatch.setattr(tuning, "on_a_new_server", never)
    monkeypatch.setattr(tuning, "on_plan", never)
    single = choice(1, tensor_parallel_size=1, max_model_len=8192)
    with pytest.raises(BadInput, match="--verify cannot send sessions"):
        tuning.verify("llama-3.1-8b", "h100", [single], drawn_sessions(Sessions(sessions=3)))
    arguments = ["tune", "llama-3.1-8b", "--gpu", "h100", "--sessions", "3", "--slo", "ttft=1s"]
    result = CliRunner().invoke(group, [*arguments, "--verify"])
    assert isinstance(result.exception, BadInput)
    assert "--verify cannot send sessions" in str(result.exception)
    assert "workshop bench --sessions" in result.exception.remedy
