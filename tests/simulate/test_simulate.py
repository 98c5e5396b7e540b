"""vLLM's scheduler on the plan's clock: the same steps as a live engine, and what recorded loads found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import exact as benchmark
import pytest

from workshop.engine import trace
from workshop.engine.planning import plan
from workshop.errors import BadInput, WorkshopError
from workshop.simulate import engine, process
from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.clock import of
from workshop.simulate.load import on_plan, rules, simulate

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


pytestmark = pytest.mark.usefixtures("vllm")


def without_wall(simulation) -> dict:
    return {key: value for key, value in simulation.to_dict().items() if key != "wall_s"}


def test_its_steps_are_those_of_a_live_engine_request_by_request():
    """24 requests in 40 blocks: chunked prefills, prefix hits and preemptions, as vLLM on this CPU schedules them."""
    done = subprocess.run(
        [sys.executable, str(HERE / "live_steps.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["simulated"] == answer["live"]
    steps = answer["live"]
    assert any(step["preempted"] for step in steps)
    firsts = {}
    for step in steps:
        for name, (_, before) in step["work"].items():
            firsts.setdefault(name, before)
    assert 64 in firsts.values()  # the shared 64 tokens were found in the prefix cache
    # the budget was used up
    assert any(sum(new for new, _ in step["work"].values()) == 256 for step in steps)


def test_the_same_seed_gives_the_same_to_the_last_figure():
    load = {
        "rate": 20,
        "seconds": 3,
        "tensor_parallel_size": 1,
        "max_model_len": 4096,
        "replicas": 2,
    }
    first, again, other = (
        simulate("llama-3.1-8b", "h100", **load, seed=seed) for seed in (5, 5, 6)
    )
    assert without_wall(first) == without_wall(again) != without_wall(other)


def test_a_lone_request_waits_for_its_prefill_and_its_way_alone(p8b):
    clock = of(p8b.deployment)
    simulation = on_plan(p8b, [Arrival(3.0, 100, 3)])
    (only,) = simulation.requests
    way_ms = (clock.arrives_s(0.0, 100) + clock.way_out_s) * 1e3
    before_ms, launch_ms = clock.host_ms([(100, 0)])
    # the next step is scheduled before the host looks for the first's token
    next_ms = sum(clock.host_ms([(1, 100)]))
    first_ms = way_ms + before_ms + max(clock.gpu_ms([(100, 0)]), launch_ms + next_ms)
    assert only.ttft_ms == pytest.approx(first_ms)
    assert only.output_tokens == 3 and simulation.steps == 3
    assert only.tpot_ms == pytest.approx(clock.gpu_ms([(1, 100)]), rel=0.5)


def test_a_shared_prefix_is_computed_once(p8b):
    load = [Arrival(number, 1100, 4, (("system", 1024),)) for number in range(5)]
    simulation = on_plan(p8b, load)
    assert [request.hit_tokens for request in simulation.requests] == [0, 1024, 1024, 1024, 1024]
    assert simulation.requests[1].ttft_ms < simulation.requests[0].ttft_ms / 1.5
    cold = on_plan(p8b, load, enable_prefix_caching=False)
    assert not any(request.hit_tokens for request in cold.requests)


def test_a_slower_host_makes_first_tokens_later(p8b):
    load = drawn(rate=8, seconds=4, seed=2)
    fast, usual, slow = (
        on_plan(p8b, load, clock=of(p8b.deployment, host)).of("ttft")["p50"] for host in (0.5, 1, 2)
    )
    assert fast < usual < slow


def test_too_little_kv_cache_makes_requests_wait_and_preempts(p8b):
    load = drawn(burst=60, prompt=(200, 400), output=(200, 400), seed=0)
    roomy, tight = on_plan(p8b, load), on_plan(p8b, load, num_gpu_blocks=600)
    assert tight.kv_cache_usage_max > 0.9 > roomy.kv_cache_usage_max
    assert (
        sum(request.preempted for request in tight.requests)
        > 0
        == sum(request.preempted for request in roomy.requests)
    )
    assert tight.seconds > roomy.seconds
    assert [request.output_tokens for request in tight.requests] == [
        request.output_tokens for request in load
    ]


def test_steps_say_what_each_request_did(tmp_path, p8b):
    load = drawn(burst=5, prompt=(100, 200), output=(3, 9), seed=1)
    simulation = on_plan(p8b, load, steps=tmp_path / "steps.jsonl")
    steps = trace.read(tmp_path / "steps.jsonl")
    # the last gives blocks back, and does no work
    assert [step.step for step in steps] == list(range(simulation.steps + 1))
    assert sum(bool(step.requests) for step in steps) == simulation.steps
    most: dict[str, int] = {}
    for step, pool in trace.replay(steps):
        assert pool.used_blocks == set(pool.owners)
        assert step.kv_cache_usage == pytest.approx(
            len(pool.used_blocks) / step.num_blocks, abs=1e-6
        )
        for name, blocks in pool.tables.items():
            most[name] = max(most.get(name, 0), len(blocks))
    assert not pool.used_blocks and not pool.waiting
    for number, arrival in enumerate(load):
        rows = [row for step in steps for row in step.requests if row.id == str(number)]
        assert sum(row.prefill_tokens for row in rows) == arrival.prompt_tokens
        assert sum(row.decode_tokens for row in rows) == arrival.output_tokens - 1
        assert most[str(number)] == -(-(arrival.prompt_tokens + arrival.output_tokens - 1) // 16)


def test_each_replica_has_steps_of_its_own(tmp_path, p8b):
    on_plan(p8b, drawn(burst=6, seed=1), replicas=2, steps=tmp_path / "steps")
    first, second = (
        {row.id for step in trace.read(tmp_path / name) for row in step.requests}
        for name in ("steps", "steps.1")
    )
    assert first | second == {str(number) for number in range(6)} and not first & second


def test_more_replicas_wait_less_and_a_router_that_knows_prefixes_computes_fewer_twice(p8b):
    load = drawn(rate=25, seconds=4, prompt=(2000, 2200), output=(16, 32), seed=2)
    named = [
        replace(arrival, pieces=((f"p{number % 3}", 1920),)) for number, arrival in enumerate(load)
    ]
    waits = [on_plan(p8b, load, replicas=n, router="least-busy").of("ttft")["p95"] for n in (1, 3)]
    assert waits[1] < waits[0]
    hits = {
        router: sum(
            request.hit_tokens
            for request in on_plan(p8b, named, replicas=4, router=router).requests
        )
        for router in ("round-robin", "prefix")
    }
    assert hits["prefix"] > hits["round-robin"]


def test_pipeline_stages_work_on_different_steps_at_once():
    p = plan(
        "llama-3.1-8b", "h100", tensor_parallel_size=1, pipeline_parallel_size=2, max_model_len=4096
    )
    load = drawn(burst=64, prompt=(500, 500), output=(2, 2), seed=0)
    both = on_plan(p, load).seconds
    one_by_one = on_plan(p, load, clock=replace(of(p.deployment), stages=1)).seconds
    assert both < 0.75 * one_by_one


def test_hybrid_models_have_a_block_table_for_each_group():
    """gpt-oss: every second layer sees 128 tokens, so its blocks are given back as the answer grows."""
    simulation = simulate(
        "gpt-oss-20b",
        "h100",
        tensor_parallel_size=1,
        max_model_len=16384,
        burst=4,
        prompt=(8000, 8000),
        output=(8, 8),
    )
    assert [request.output_tokens for request in simulation.requests] == [8] * 4


NEW = {*("command-r7b", "ernie-4.5-21b-a3b", "exaone-4-32b", "glm-4-9b-0414", "glm-4.5-air-fp8", "gpt-oss-20b"),
       *("granite-3.1-3b-a800m", "mistral-small-24b", "nemotron-nano-9b-v2", "olmo-3-7b", "olmoe-1b-7b", "qwen3-32b"),
       *("qwen3-next-80b-a3b-fp8", "seed-oss-36b", "smollm3-3b")}  # fmt: skip
FAMILIES = [entry for entry in benchmark.recorded() if entry["name"] in NEW]


def test_what_vllms_classes_said_is_simulated():
    """Fifteen configs of this year, most without formulas: Mamba and sliding windows keep block tables of their own."""
    assert len(FAMILIES) == len(NEW)
    for entry in FAMILIES:
        name = entry["name"]
        p = plan(name, "h200", max_model_len=2048)
        simulation = on_plan(p, drawn(burst=4, prompt=(300, 400), output=(4, 8), seed=0))
        assert all(request.output_tokens >= 4 for request in simulation.requests), name
        assert simulation.basis == p.basis, name
        sizes = (p.tensor_parallel_size, p.pipeline_parallel_size)
        (built,) = (build for build in entry["builds"] if (build["tp"], build["pp"]) == sizes)
        for (kind, size), group in zip(rules(p).groups, built["kv_cache"]["groups"], strict=True):
            assert kind.lower() in group["kind"].lower() and size == group["size"], name


def test_without_cached_prefixes_a_state_takes_one_block_however_long_the_text():
    p = plan("jamba-v0.1", "h200", max_model_len=8192)
    # 4 of 32 layers attend (its config.json)
    assert [kind for kind, _ in rules(p).groups] == ["mamba"] * 7 + ["full"]
    simulations = (on_plan(p, [Arrival(0, n, 2)], enable_prefix_caching=False) for n in (80, 800))
    short, long = (simulation.kv_cache_usage_max * p.num_gpu_blocks for simulation in simulations)
    # nine more blocks of 80 tokens, for attention alone
    assert long - short == pytest.approx(9, abs=1)


def test_a_hybrids_prefixes_are_cached_by_whole_blocks_as_by_its_server():
    """The log of Nemotron Nano 9B v2 under 0.32.0: enable_prefix_caching=True, cache mode align, blocks of 1,312 tokens."""
    p = plan("nemotron-nano-9b-v2", "h200", max_model_len=8192)
    load = [Arrival(float(i), 3500, 2, (("same", 3000),)) for i in range(2)]
    hits = [
        [request.hit_tokens for request in on_plan(p, load, enable_prefix_caching=on).requests]
        for on in (None, False)
    ]
    assert hits == [[0, 2 * 1312], [0, 0]]
    old = plan("nemotron-nano-9b-v2", "h200", max_model_len=8192, vllm_version="0.25.1")
    assert rules(p).enable_prefix_caching and not rules(old).enable_prefix_caching


def test_prefill_apart_keeps_prompts_out_of_the_decoding_steps(p8b):
    """The first token comes from the server that decodes, once the KV cache is there: 131,072 bytes a token (8B)."""
    load = drawn(rate=20, seconds=5, prompt=(1000, 3000), output=(16, 64), seed=0)
    together, apart = on_plan(p8b, load, replicas=2), on_plan(p8b, load, prefill_replicas=1)
    assert apart.gpus == together.gpus == 2
    assert [request.output_tokens for request in apart.requests] == [
        request.output_tokens for request in load
    ]
    assert apart.of("tpot")["p95"] < together.of("tpot")["p95"] / 1.3
    (only,) = on_plan(p8b, [Arrival(0.0, 4000, 2)], prefill_replicas=1).requests
    (before,) = on_plan(p8b, [Arrival(0.0, 4000, 2)]).requests
    sent_ms = 4000 * 131072 / 450e9 * 1e3  # NVLink 4, one way
    assert only.ttft_ms - before.ttft_ms > sent_ms


def test_data_parallel_engines_share_a_load_and_their_experts(p8b):
    wide = plan(
        "qwen3-30b-a3b", "h100", tensor_parallel_size=1, data_parallel_size=2, max_model_len=4096
    )
    simulation = on_plan(wide, drawn(burst=40, seed=0))
    assert simulation.gpus == 2 and simulation.basis == "same generation"
    alone = plan("qwen3-30b-a3b", "h100", tensor_parallel_size=1, max_model_len=4096)
    assert of(wide.deployment).message_ms > 0 == of(alone.deployment).message_ms
    assert simulation.of("ttft")["p95"] < on_plan(alone, drawn(burst=40, seed=0)).of("ttft")["p95"]


@pytest.fixture(scope="module")
def wide():
    return plan(
        "qwen3-30b-a3b", "h100", tensor_parallel_size=1, data_parallel_size=2, max_model_len=16384
    )


def test_engines_that_share_experts_take_each_step_together(wide):
    """One decodes, the other reads 8,000 tokens meanwhile: the first's answer ends so much later (vLLM's dummy rule)."""
    dense = plan(
        "llama-3.1-8b", "h100", tensor_parallel_size=1, data_parallel_size=2, max_model_len=16384
    )
    late = {}
    for p in (wide, dense):
        alone, both = (
            on_plan(p, [Arrival(0.0, 100, 100), Arrival(0.2, 8000, 2)][:n]) for n in (1, 2)
        )
        late[p.model] = (both.requests[0].last_s - alone.requests[0].last_s) * 1e3
        assert both.requests[1].first_s < both.requests[0].last_s
    ticking = of(wide.deployment)
    assert late[wide.model] == pytest.approx(
        ticking.gpu_ms([(8000, 0)]) - ticking.gpu_ms([(1, 100)]), rel=0.05
    )
    assert late[dense.model] == 0  # engines of a dense model know nothing of one another


def test_an_engine_without_work_costs_the_other_nothing(wide):
    """A dummy batch is no longer than a batch of one; alone, a request takes what it takes on one engine."""
    alone = [Arrival(0.0, 300, 20)]
    one_engine = replace(wide, deployment=replace(wide.deployment, dp=1))
    both, single = (on_plan(p, alone, clock=of(wide.deployment)) for p in (wide, one_engine))
    assert both.requests == single.requests and both.steps == single.steps


def test_each_engine_of_data_parallelism_writes_its_steps(tmp_path, wide):
    on_plan(wide, [Arrival(0.0, 50, 3), Arrival(0.0, 60, 3)], steps=tmp_path / "steps")
    ids = [
        {row.id for step in trace.read(tmp_path / name) for row in step.requests}
        for name in ("steps", "steps.1")
    ]
    assert ids == [{"0"}, {"1"}]


def test_what_cannot_be_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(process, "run", lambda *job, **how: pytest.fail("it started"))
    rows = [
        ({"burst": 1, "prompt": (9000, 9000)}, "longer than the context"),
        ({"burst": 1, "replicas": 0}, "replicas"),
        ({"burst": 1, "router": "random"}, "round-robin, least-busy, prefix"),
        ({"burst": 1, "slo": "tpot=1ms"}, "alone, llama-3.1-8b takes"),
        ({"burst": 1, "slo": "ttft=1ms"}, "alone, llama-3.1-8b takes"),
        ({"burst": 1, "slo": "ttft=fast"}, "is not a limit"),
        ({"burst": 1, "slo": "ttft=1s,ttft=2s"}, "is not a limit"),
        ({"burst": 1, "trace": "x.jsonl"}, "A trace says itself"),
        ({}, "not clear when requests arrive"),
    ]
    for options, message in rows:
        settings = {"tensor_parallel_size": 1, "max_model_len": 8192, **options}
        with pytest.raises(BadInput, match=message):
            simulate("llama-3.1-8b", "h100", **settings)


def test_a_model_that_does_not_fit_is_refused_with_what_would():
    with pytest.raises(BadInput, match="does not fit on 1 × h100"):
        simulate("llama-3.1-70b", "h100", tensor_parallel_size=1, burst=1)


def test_without_vllm_or_with_another_version_there_is_a_way_out(monkeypatch):
    monkeypatch.setattr(engine, "installed", lambda: ("", ""))
    with pytest.raises(WorkshopError, match=r"not installed.*make workshop.*WORKSHOP_VLLM_PYTHON"):
        engine.check_installed()
    monkeypatch.setattr(engine, "installed", lambda: ("vllm", "0.99.0"))
    with pytest.raises(WorkshopError, match=r"vLLM 0\.99\.0 is not known.*0\.32\.0"):
        engine.check_installed()


def test_another_python_is_asked_where_one_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_VLLM_PYTHON", str(tmp_path / "none"))
    with pytest.raises(WorkshopError, match=r"WORKSHOP_VLLM_PYTHON=.*cannot be run"):
        process.Worker()
    lame = tmp_path / "python"
    lame.write_text("#!/bin/sh\necho 'no module named vllm' >&2\nexit 1\n")
    lame.chmod(0o755)
    monkeypatch.setenv("WORKSHOP_VLLM_PYTHON", str(lame))
    with pytest.raises(WorkshopError, match="ended early: no module named vllm"):
        process.Worker().run({})


def test_the_plans_number_of_learners_is_what_the_simulation_finds():
    """So many may ask 300 tokens in the same moment and see their first token within 5 s; a third more may not."""
    for model, gpu, tp in (("llama-3.1-8b", "h100", 1), ("llama-3.1-70b", "h100", 4)):
        p = plan(model, gpu, tensor_parallel_size=tp, max_model_len=8192)
        waits = []
        for learners in (p.learners_at_once, p.learners_at_once * 4 // 3):
            burst = drawn(burst=learners, prompt=(300, 300), output=(2, 2))
            waits.append(max(request.ttft_ms for request in on_plan(p, burst).requests))
        assert waits[0] <= 5000 < waits[1], model
