"""Two H100 that exchange their sums through the host's memory: predicted figures beside measured ones.

Measured with NCCL_P2P_DISABLE=1 and vLLM's own all-reduce off (tests/data/gpu/records/two_h100_0.32.json).
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from inference_planner import plan
from inference_planner.catalog import load_gpu
from inference_planner.split.communication import node_link

from workshop.simulate.arrivals import Arrival
from workshop.simulate.clock import of
from workshop.simulate.load import on_plan

RECORD = Path(__file__).parents[2] / "tests/data/gpu/records/two_h100_0.32.json"
RUNS = [run for run in json.loads(RECORD.read_text())["runs"] if run["name"].endswith("_pcie")]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_prompts_and_one_stream_over_host_memory(run):
    gpu = replace(load_gpu("h100"), link="PCIe 5.0", link_gb_s=64)
    predicted = plan(
        run["model"],
        gpu,
        usage="llm",
        vllm_version="0.32.0",
        tensor_parallel_size=run["tp"],
        max_model_len=run["max_model_len"],
    )
    measured = run["measured"]
    one_stream = predicted.single_stream_tokens_per_s
    assert one_stream == pytest.approx(measured["single_tok_s"], rel=0.02)
    in_process = of(predicted.deployment, http=False)
    for tokens in (1024, 8192):
        load = [Arrival(0.0, tokens, 1)]
        ttft_ms = on_plan(predicted, load, clock=in_process).of("ttft")["p50"]
        assert ttft_ms == pytest.approx(measured[f"ttft_ms_{tokens}"], rel=0.09)
    assert predicted.kv_cache_tokens == pytest.approx(measured["kv_cache_tokens"], rel=0.025)


def test_a_pair_in_a_workstation_reaches_less_than_one_in_a_server():
    server = node_link(load_gpu("h100-pcie"))
    workstation = node_link(load_gpu("rtx-pro-6000"))
    assert server.reached_gb_s(2) == pytest.approx(0.47 * server.gb_s)
    assert workstation.reached_gb_s(2) == 11.0
