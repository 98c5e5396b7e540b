"""The accuracy board: its page is of the recorded runs, and the bytes left make the tokens that vLLM printed."""

from __future__ import annotations

import accuracy
import pytest
from inference_planner.memory.fit import fit
from inference_planner.model import kv_cache

from workshop.engine.measured_runs import plan_of, runs


def test_the_page_is_of_the_recorded_runs():
    page = (accuracy.DOCS / "accuracy.md").read_text()
    assert page == accuracy.table(accuracy.rows()), "run: accuracy.py"


def test_tokens_and_concurrency_are_what_vllm_printed():
    """Of the bytes that each rank had left, to the token."""
    compared = [run for run in runs() if "ranks" in run and "kv_cache_tokens" in run]
    assert len(compared) >= 50
    for run in compared:
        deployment, tp = plan_of(run).deployment, run["tp"]
        ranks = [rank["available_kv_bytes"] for rank in run["ranks"]]
        left = [min(ranks[first : first + tp]) for first in range(0, len(ranks), tp)]
        capacity = kv_cache.capacity(
            fit(deployment).layout, deployment.stages, left, run["max_model_len"]
        )
        assert capacity.tokens == run["kv_cache_tokens"], run["name"]
        if "max_concurrency" in run:
            concurrency = pytest.approx(run["max_concurrency"], abs=0.005)
            assert capacity.max_concurrency == concurrency, run["name"]
