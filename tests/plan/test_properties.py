"""Laws that every plan obeys: more GPUs never fit less, more bits never weigh less, capacity falls with context."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inference_planner.catalog import list_gpus, list_models, load_gpu, load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.architectures import overflows_in_float16
from inference_planner.memory.fit import fit, weight_bytes
from inference_planner.model.kv_cache import kv_bytes_for_context, kv_cache_bytes_per_token
from inference_planner.split.deployment import Deployment, partition_layers
from inference_planner.split.ranks import loaded_bytes, ranks, tp_problem
from inference_planner.split.settings import resolve

from workshop.engine.exact import plan
from workshop.errors import BadInput

MODELS = st.sampled_from(list_models())
GPUS = st.sampled_from(list_gpus())
quick = settings(max_examples=60, deadline=None)


@quick
@given(MODELS, GPUS, st.sampled_from([1, 2, 4]))
def test_twice_the_tensor_parallel_size_never_leaves_less_for_the_kv_cache(model, gpu, tp):
    """From two GPUs on: the first step from one also adds NCCL's buffers, so it is compared where that is small."""
    m, g = load_model(model), load_gpu(gpu)
    assume(not tp_problem(m, 2 * tp) and not tp_problem(m, tp))
    d = Deployment(m, g, resolve(m, g))
    before, after = fit(d.split(tp, 1)), fit(d.split(2 * tp, 1))
    assert after.weights[0] <= before.weights[0]
    if before.fits:
        assert after.fits


@quick
@given(MODELS, GPUS, st.integers(1, 3))
def test_more_pipeline_stages_never_fit_less(model, gpu, doublings):
    m, g = load_model(model), load_gpu(gpu)
    pp = 2**doublings
    assume(pp <= m.num_hidden_layers)
    d = Deployment(m, g, resolve(m, g))
    if fit(d.split(1, pp // 2)).fits:
        assert fit(d.split(1, pp)).fits


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
@given(MODELS, GPUS, st.integers(10, 20), st.sampled_from([None, 2048, 8192]))
def test_concurrency_falls_with_the_context(model, gpu, power, batched):
    m, g = load_model(model), load_gpu(gpu)
    length = min(2**power, m.max_position_embeddings)
    d = Deployment(m, g, resolve(m, g, max_model_len=length, max_num_batched_tokens=batched))
    shorter = d.with_settings(max_model_len=max(16, length // 2))
    assert fit(shorter).capacity.max_concurrency >= fit(d).capacity.max_concurrency


@quick
@given(MODELS, GPUS, st.floats(0.1, 0.95), st.floats(0.01, 0.05))
def test_a_larger_share_of_the_gpu_never_holds_fewer_tokens(model, gpu, share, more):
    m, g = load_model(model), load_gpu(gpu)
    d = Deployment(m, g, resolve(m, g, gpu_memory_utilization=share))
    larger = d.with_settings(gpu_memory_utilization=share + more)
    assert fit(larger).capacity.blocks >= fit(d).capacity.blocks


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
    if overflows_in_float16(load_model(model).model_type) and not load_gpu(gpu).has_bfloat16:
        # the GPU has no bfloat16, the model overflows in float16
        with pytest.raises(BadInput, match="float32"):
            plan(model, gpu, max_model_len=1024)
        return
    try:
        p = plan(model, gpu, max_model_len=1024)
    except BadInput as error:  # the GPU has no kernels for the checkpoint, or for its KV cache
        assert (
            any(word in error.message for word in ("needs", "kernels", "KV cache")) and error.remedy
        )
        return
    assert p.gpus == p.tensor_parallel_size * p.pipeline_parallel_size
    assert p.fits == (p.kv_cache_tokens > 0) == (p.max_concurrency >= 1)
    assert p.advice and p.reasons and p.command.startswith("vllm serve ")
