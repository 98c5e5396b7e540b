"""The accuracy board: its page is of the recorded runs, and our planner passes the vectors that it offers to others."""

from __future__ import annotations

import json

import accuracy
import pytest
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.read import from_dict
from inference_planner.model import kv_cache
from inference_planner.split.deployment import partition_layers

VECTORS = json.loads(accuracy.VECTORS.read_text())
CLASSES = [
    vector for vector in VECTORS["classes"] if vector["config"]["architectures"][0] in FAMILIES
]


def test_the_page_and_the_vectors_are_of_the_recorded_runs():
    assert (accuracy.DOCS / "accuracy.md").read_text() == accuracy.table(accuracy.rows()), (
        "run: accuracy.py"
    )
    assert accuracy.VECTORS.read_text() == accuracy.lines(accuracy.vectors()), "run: accuracy.py"


def test_tokens_and_concurrency_are_what_vllm_printed():
    """Of the bytes that each rank had left, to the token."""
    for vector in VECTORS["runs"]:
        m, pp, tp, length = (
            from_dict(vector["config"], name="v"),
            vector["pp"],
            vector["tp"],
            vector["max_model_len"],
        )
        lay = kv_cache.layout(
            m, tp, vector["kv_cache_dtype"], length, vector["max_num_batched_tokens"]
        )
        left = [min(vector["available_kv_bytes"][i * tp : (i + 1) * tp]) for i in range(pp)]
        capacity = kv_cache.capacity(lay, partition_layers(m.num_hidden_layers, pp), left, length)
        assert capacity.tokens == vector["kv_cache_tokens"], vector["config"]["model_type"]
        if "max_concurrency" in vector:
            assert capacity.max_concurrency == pytest.approx(
                vector["max_concurrency"], abs=0.005
            ), vector["config"]["model_type"]


def test_blocks_and_bytes_are_what_vllms_classes_say():
    for vector in CLASSES:
        m = from_dict(vector["config"], name=vector["model"])
        lay = kv_cache.layout(
            m, vector["tp"], "auto", vector["max_model_len"], vector["max_in_flight_tokens"]
        )
        stages = partition_layers(m.num_hidden_layers, vector["pp"])
        assert [kv_cache.pool_bytes_per_block(lay, stage) for stage in stages] == vector[
            "pool_bytes_per_block"
        ], vector["model"]
        assert kv_cache.kv_cache_bytes_per_token(m) == vector["bytes_per_token"], vector["model"]
        if not m.mamba:  # of which 0.32.0 keeps a further state a request
            assert kv_cache.blocks_per_request(lay) == vector["blocks_per_request"], vector["model"]
