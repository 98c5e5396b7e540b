"""What a load asks of a plan, by hand; that it runs is test_simulate's."""

from __future__ import annotations

import pytest

from workshop.engine.planning import plan
from workshop.errors import BadInput
from workshop.simulate import load
from workshop.simulate.arrivals import Arrival
from workshop.simulate.load import BeyondReach, kv_transfer, on_plan

ONE = [Arrival(0.0, 192, 64)]
NOTHING = {
    "requests": [],
    "gaps_s": [],
    "steps": 0,
    "over_time": {},
    "kv_cache_usage_max": 0.0,
    "wall_s": 0.0,
}


@pytest.fixture
def worker_jobs(monkeypatch):
    """Return what the worker is asked, which simulates nothing."""
    jobs: list[dict] = []

    def run(*job: object, **how: object) -> dict:
        jobs.append(how)
        return NOTHING

    monkeypatch.setattr(load.process, "run", run)
    return jobs


def test_a_kv_cache_takes_its_bytes_over_the_link_and_55_ms():
    """131,072 bytes a token of Llama 3.1 8B; 55 ms as fitted (docs/simulate.md, prefill-apart)."""
    apart = {"tensor_parallel_size": 1, "gpus_per_node": 1, "network": "ethernet-100g"}
    rows = [
        ({"tensor_parallel_size": 1}, 450e9, 10),  # NVLink 4, one way
        ({"tensor_parallel_size": 4}, 4 * 450e9, 10),  # each rank sends its quarter
        # two such servers are two nodes: InfiniBand NDR, 400 Gbit/s
        ({"tensor_parallel_size": 8}, 8 * 50e9, 20),
        (apart, 12.5e9, 60),
        # eight ranks share the one port of their node
        ({"tensor_parallel_size": 8, "network": "ethernet-100g"}, 12.5e9, 60),
    ]
    for place, bytes_per_s, latency_us in rows:
        handed = kv_transfer(plan("llama-3.1-8b", "h100", max_model_len=8192, **place), 3)
        assert handed["replicas"] == 3
        assert handed["token_s"] == pytest.approx(131_072 / bytes_per_s), place
        assert handed["wait_s"] == pytest.approx(0.055 + latency_us / 1e6), place


def test_engines_of_one_server_are_balanced_as_vllm_does_and_servers_by_the_router(worker_jobs):
    """Engines of a dense model are replicas; those that share experts are one."""
    dense, experts = (
        plan(m, "h200", max_model_len=4096, data_parallel_size=2)
        for m in ("llama-3.1-8b", "olmoe-1b-7b")
    )
    for p, servers in ((dense, 1), (dense, 3), (experts, 1), (experts, 3)):
        on_plan(p, ONE, replicas=servers)
    layouts = [(how["replicas"], how["engines"], how["router"]) for how in worker_jobs]
    assert layouts == [
        (2, 1, "least-busy"),
        (6, 1, "round-robin"),
        (1, 2, "least-busy"),
        (3, 2, "round-robin"),
    ]


def test_what_just_fits_is_taken_and_one_more_is_not(worker_jobs):
    alone, two = (
        plan("llama-3.1-8b", "h100", max_model_len=256, data_parallel_size=n) for n in (1, 2)
    )
    on_plan(alone, ONE, replicas=64)  # 192 + 64 tokens in a context of 256
    on_plan(two, ONE, replicas=32, prefill_replicas=32)
    assert len(worker_jobs) == 2
    for p, arrivals, how in (
        (alone, [Arrival(0.0, 193, 64)], {}),
        (two, ONE, {"replicas": 33}),
        (alone, ONE, {"prefill_replicas": 65}),
    ):
        with pytest.raises(BadInput):
            on_plan(p, arrivals, **how)
    assert len(worker_jobs) == 2


def test_a_limit_below_what_one_request_takes_alone_is_refused(worker_jobs):
    """A token takes a step of one request; the first one its way in and out by HTTP as well, 4.8 ms."""
    p, least = plan("llama-3.1-8b", "h100", max_model_len=256), {}
    for name in ("tpot", "ttft", "e2el"):
        with pytest.raises(BeyondReach) as refused:
            on_plan(p, ONE, slo={name: 1.0})
        least[name] = refused.value.least_ms
        with pytest.raises(BeyondReach):
            on_plan(p, ONE, slo={name: 0.99 * least[name]})
        on_plan(p, ONE, slo={name: 1.01 * least[name]})
    assert least["ttft"] - least["tpot"] == pytest.approx(4.8) and least["e2el"] == least["ttft"]
    assert (
        least["tpot"] == pytest.approx(1e3 / p.single_stream_tokens_per_s, rel=0.05)
        and len(worker_jobs) == 3
    )
