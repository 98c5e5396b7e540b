"""Bytes become KV-cache tokens in one place: the plan and the reconciliation of a log give the same number."""

from __future__ import annotations

from contextlib import suppress

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.architectures import keeps_no_cache
from inference_planner.errors import BadInput
from inference_planner.memory.fit import fit
from inference_planner.releases import versions

from workshop.engine.log.facts import EngineLog
from workshop.engine.planning import plan
from workshop.engine.reconcile.case import LoggedRun

VERSIONS = ("0.25.1", "0.28.0", "0.32.0", versions.ROWS[-1].name)


TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)


def plan_that_fits(model: str, version: str) -> Plan | None:
    """Return the first plan on 1 to 8 B200 of one node that fits; None if the model needs more."""
    length = min(32768, load_model(model).max_position_embeddings)
    for size in TENSOR_PARALLEL_SIZES:
        with suppress(BadInput):
            planned = plan(
                model,
                "b200",
                tensor_parallel_size=size,
                max_model_len=length,
                vllm_version=version,
                exact=False,
            )
            if planned.fits:
                return planned
    return None


def tokens_of_the_log(planned: Plan) -> int:
    """Return the tokens that a reconciliation predicts if a log gives the plan's bytes by --kv-cache-memory-bytes."""
    settings = {
        "tensor_parallel_size": planned.tensor_parallel_size,
        "pipeline_parallel_size": 1,
        "max_model_len": planned.deployment.settings.max_model_len,
        "kv_cache_dtype": "auto",
        "max_num_batched_tokens": planned.deployment.settings.max_num_batched_tokens,
        "vllm_version": planned.deployment.settings.vllm_version,
    }
    available = fit(planned.deployment).available[0]
    return (
        LoggedRun(
            EngineLog(), planned.deployment.model, planned.deployment.gpu, settings, available
        )
        .capacity(available)
        .tokens
    )


def test_plan_and_reconcile_count_the_same_tokens_over_the_catalog():
    """One model of each architecture; what differs between siblings is their numbers alone."""
    of_architecture = {load_model(name).architecture: name for name in list_models()}
    models = [model for name, model in of_architecture.items() if not keeps_no_cache(name)]
    plans = [planned for model in models if (planned := plan_that_fits(model, "0.32.0"))]
    different = {p.model: (p.kv_cache_tokens, tokens_of_the_log(p)) for p in plans}
    assert {name: pair for name, pair in different.items() if pair[0] != pair[1]} == {}
    assert len(plans) > 0.8 * len(models) > 30


def test_sliding_windows_count_the_same_tokens_in_every_version(subtests):
    for version in VERSIONS:
        for model in ["gemma-3-12b", "mistral-7b-v0.1", "gpt-oss-20b"]:
            with subtests.test(f"{version}, {model}"):
                planned = plan_that_fits(model, version)
                assert tokens_of_the_log(planned) == planned.kv_cache_tokens
