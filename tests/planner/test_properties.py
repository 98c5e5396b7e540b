"""Laws that every plan obeys: more GPUs never fit less, more bits never weigh less, capacity falls with context."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import list_gpus, list_models, load_gpu, load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.architectures import OVERFLOW_IN_FLOAT16, keeps_no_cache
from inference_planner.memory.loaded import loaded_bytes
from inference_planner.model.attention import main_kind
from inference_planner.model.kv_cache import kv_bytes_for_context, kv_cache_bytes_per_token
from inference_planner.model.weights import weight_bytes
from inference_planner.releases import platforms
from inference_planner.split.deployment import Deployment, partition_layers
from inference_planner.split.ranks import ranks, tp_problem
from inference_planner.split.settings import resolve

from workshop.engine.planning import plan
from workshop.errors import BadInput, WorkshopError

MODELS = st.sampled_from(list_models())
GPUS = st.sampled_from(list_gpus())
quick = settings(max_examples=60, deadline=None)


# A deployment: a model, a GPU, and the settings of its plan.
SETTINGS = st.fixed_dictionaries(
    {
        "tensor_parallel_size": st.sampled_from([1, 2, 4, 8]),
        "pipeline_parallel_size": st.sampled_from([1, 1, 2]),
        "nodes": st.just(4),
        "max_model_len": st.sampled_from([1024, 8192, 65536]),
        "vllm_version": st.sampled_from(["0.25.1", "0.32.0"]),
        "enforce_eager": st.booleans(),
    }
)
# From the value that leaves least memory for the cache to the one that leaves most.
MORE_MEMORY = {
    "gpu_memory_utilization": (0.7, 0.85, 0.95),
    "max_num_seqs": (2048, 256, 16),
    "max_num_batched_tokens": (32768, 8192, 2048),
}
FP8_BUFFER_GIB = 36 / 1024  # the workspace, and two of the 2 MiB to which the allocator rounds


def plans(model: str, gpu: str, settings: dict, changes: Iterable[dict]) -> list[Plan]:
    """Return the plans with each of the changes, without those that cannot be (heads do not divide)."""
    possible: list[Plan] = []
    for change in changes:
        with suppress(WorkshopError):
            made = plan(model, gpu, exact=False, gpus_per_node=8, **{**settings, **change})
            possible.append(made)
    return possible


def tokens(p: Plan) -> int:
    return p.kv_cache_tokens if p.fits else 0


def requests(p: Plan) -> float:
    return p.max_concurrency if p.fits else 0.0


@quick
@given(MODELS, GPUS, SETTINGS, st.sampled_from(sorted(MORE_MEMORY)))
def test_more_memory_for_the_cache_never_holds_less(model, gpu, settings, name):
    changes = ({name: value} for value in MORE_MEMORY[name])
    # more than is free of a memory that the system shares is refused
    possible = [
        p for p in plans(model, gpu, settings, changes) if p.fits or not p.fit.holds_a_request
    ]
    for less, more in pairwise(possible):
        assert more.fits >= less.fits and tokens(more) >= tokens(less)
        assert requests(more) >= requests(less)


@quick
@given(MODELS, GPUS, SETTINGS, st.sampled_from([2048, 8192, 65536]))
def test_a_longer_context_never_lets_more_requests_in(model, gpu, settings, length):
    changes = ({"max_model_len": tokens} for tokens in (length // 2, length))
    for shorter, longer in pairwise(plans(model, gpu, settings, changes)):
        assert longer.fits <= shorter.fits and requests(longer) <= requests(shorter)


@quick
@given(MODELS, GPUS, SETTINGS, st.sampled_from(["tensor", "pipeline"]))
def test_more_gpus_never_hold_less(model, gpu, settings, kind):
    """Beyond the KV heads, tensor parallel ranks keep copies, and hold no more."""
    name = f"{kind}_parallel_size"
    m = load_model(model)
    assume(kind != "tensor" or main_kind(m).copies(m, 2 * settings[name]) == 1)
    for few, many in pairwise(plans(model, gpu, settings, ({}, {name: 2 * settings[name]}))):
        assert many.fits >= few.fits and tokens(many) >= tokens(few)
        assert kind != "tensor" or many.fit.weights[0] <= few.fit.weights[0]


@quick
@given(MODELS, GPUS, SETTINGS)
def test_an_fp8_cache_never_holds_less_but_for_the_buffer_of_its_kernels(model, gpu, settings):
    """Of a hybrid under 0.25.1, DeepGEMM's workspace of 32 MiB comes with FP8 (loads_deep_gemm).

    A request shorter than one block of attention takes a whole block there in either type.
    """
    for usual, small in pairwise(plans(model, gpu, settings, ({}, {"kv_cache_dtype": "fp8"}))):
        if usual.deployment.model.mamba and settings["vllm_version"] == "0.25.1":
            lost_gib = usual.available_kv_gib_per_gpu - small.available_kv_gib_per_gpu
            assert lost_gib <= FP8_BUFFER_GIB + 1e-9
        elif usual.fits:
            assert small.fits and tokens(small) >= tokens(usual)


@quick
@given(MODELS)
def test_more_bits_never_weigh_less(model):
    m = load_model(model)
    assume(m.quantization is None)
    sizes = [weight_bytes(m.with_quantization(quant.from_name(q))) for q in ("gptq", "fp8")] + [
        weight_bytes(m)
    ]
    assert sizes == sorted(sizes)


@quick
@given(MODELS, st.integers(1, 200_000), st.integers(1, 200_000))
def test_kv_bytes_grow_with_the_context_and_the_bounds_hold(model, a, b):
    m = load_model(model)
    least, most = kv_bytes_for_context(m, a)
    assert least <= most == a * kv_cache_bytes_per_token(m)
    assert kv_bytes_for_context(m, a + b)[0] >= least
    half, whole = (kv_cache_bytes_per_token(m, dtype) for dtype in ("fp8", "bfloat16"))
    sparse = m.mla and m.mla.index_heads  # its indexer's keys, scales and positions do not shrink
    assert half * 2 > whole if sparse else half * 2 == whole


@quick
@given(st.integers(1, 200), st.integers(1, 32))
def test_every_layer_belongs_to_exactly_one_stage(layers, stages):
    assume(stages <= layers)
    parts = partition_layers(layers, stages)
    assert [i for part in parts for i in part] == list(range(layers))
    # the last stage, which has lm_head, never gets an extra layer
    assert len(parts[-1]) == layers // stages


@quick
@given(MODELS, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_the_ranks_hold_at_least_all_weights(model, tp, pp):
    m = load_model(model)
    assume(not tp_problem(m, tp) and pp <= m.num_hidden_layers)
    d = Deployment(m, load_gpu("h100"), resolve(m, load_gpu("h100")), tp, pp)
    all_ranks = ranks(d, loaded_bytes(d))
    assert sum(r.weight_bytes for r in all_ranks) >= weight_bytes(m)


@quick
@given(MODELS, GPUS)
def test_a_plan_of_its_own_choice_fits_or_says_what_would(model, gpu):
    if load_model(model).model_type in OVERFLOW_IN_FLOAT16 and not load_gpu(gpu).has_bfloat16:
        # the GPU has no bfloat16, the model overflows in float16
        with pytest.raises(BadInput, match="float32"):
            plan(model, gpu, max_model_len=1024, exact=False)
        return
    length = min(1024, load_model(model).max_position_embeddings)
    try:
        p = plan(model, gpu, max_model_len=length, exact=False)
    except BadInput as error:  # the GPU has no kernels for the checkpoint, or for its KV cache
        assert (
            any(word in error.message for word in ("needs", "kernels", "cannot run", "KV cache"))
            and error.remedy
        )
        return
    assert p.gpus == p.tensor_parallel_size * p.pipeline_parallel_size
    assert p.reasons
    # a platform of a plugin was not asked, so nothing is said to start there
    assert p.command.startswith("vllm serve ") == (not platforms.not_asked(load_gpu(gpu)))
    if keeps_no_cache(load_model(model).architecture):
        assert p.fits == p.fit.holds_a_request and not p.kv_cache_tokens
        return
    assert p.fits == (p.kv_cache_tokens > 0) == (p.max_concurrency >= 1)
    assert p.advice
