"""One planner: sliders, explorer, SLURM, Kubernetes and the VM page say what `plan` says, for every model and GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest
from inference_planner.answer import advise, choose
from inference_planner.answer.builds import with_records
from inference_planner.answer.command import command_of
from inference_planner.answer.plan_result import Plan
from inference_planner.catalog import list_gpus, list_models, load_gpu, load_model
from inference_planner.memory.fit import fit
from inference_planner.split.deployment import prepare

from workshop.course.widgets.memory import case as sliders
from workshop.course.widgets.parallelism import case as explorer
from workshop.engine import planning
from workshop.errors import BadInput, WorkshopError
from workshop.servers import kubernetes, vm

CONTEXTS = (4096, explorer.CONTEXT, 65536)

# What sliders and explorers show at once: vLLM's own classes take half a minute to ask.
plan = partial(planning.plan, exact=False)


def length(model: str, context: int) -> int:
    return min(context, load_model(model).max_position_embeddings)


@pytest.fixture(scope="module")
def plans() -> dict[tuple[str, str, int], Plan | BadInput]:
    """Every model on one GPU or two, every GPU with three models or four, and the contexts in turn: its plan or refusal."""
    made: dict[tuple[str, str, int], Plan | BadInput] = {}
    for place, gpu in enumerate(list_gpus()):
        for number, model in enumerate(list_models()[place % 60 :: 60]):
            context = CONTEXTS[(place + number) % len(CONTEXTS)]
            try:
                made[model, gpu, context] = plan(model, gpu, max_model_len=length(model, context))
            except BadInput as refused:
                made[model, gpu, context] = refused
    return made


def test_the_sliders_verdict_and_command_are_the_plans(plans):
    for (model, gpu, context), p in plans.items():
        if isinstance(p, BadInput):
            with pytest.raises(BadInput, match=re.escape(p.message[:20])):
                sliders.memory(sliders.MemoryCase(model, gpu, context=context))
                pytest.fail(f"the sliders take {model} on {gpu}")
            continue
        if p.gpus not in sliders.GPU_COUNTS:
            continue
        # A card that shares its memory with the system has a default of its own.
        share = p.deployment.settings.gpu_memory_utilization
        case = sliders.MemoryCase(
            model, gpu, p.gpus, context=context, requests=1, gpu_memory_utilization=share
        )
        shown = sliders.memory(case)
        assert (shown.state == "fits") == p.fits, (model, gpu, context)
        if (shown.fit.tp, shown.fit.pp) == (p.tensor_parallel_size, p.pipeline_parallel_size):
            same_tokens = shown.fit.capacity.tokens == p.kv_cache_tokens
            # an encoder has no cache: the plan says so, its memory alone can be filled
            assert same_tokens or not p.fits or not p.fit.has_cache, (model, gpu, context)
            command = command_of(shown.deployment).split(" --nnodes")[0]
            assert command == p.command.split(" --nnodes")[0], (model, gpu, context)


def test_the_explorers_verdict_and_traffic_are_the_plans(plans):
    for (model, gpu, context), p in plans.items():
        if context != explorer.CONTEXT:
            continue
        if isinstance(p, BadInput):
            with pytest.raises(BadInput):
                explorer.layout(explorer.ChosenSplit(model, gpu, tp=1, pp=1))
                pytest.fail(f"the explorer takes {model} on {gpu}")
            continue
        sizes = (
            p.nodes,
            p.deployment.gpus_per_node,
            p.tensor_parallel_size,
            p.pipeline_parallel_size,
        )
        drawn = explorer.layout(explorer.ChosenSplit(model, gpu, *sizes))
        assert (drawn.state == "fits") == p.fits, (model, gpu)
        assert list(drawn.messages) == p.communication and list(drawn.ranks) == p.ranks, (
            model,
            gpu,
        )


def test_manifests_and_units_take_the_plans_flags(plans):
    compared = 0
    for (model, gpu, _), p in plans.items():
        if isinstance(p, BadInput) or not load_gpu(gpu).kubernetes_product:
            continue
        try:
            case = kubernetes.KubernetesServer(p)
        except WorkshopError:
            continue
        compared += 1
        arguments = p.command.split()
        for flag, value in case.flags.items():
            assert flag in arguments, (model, gpu)
            if value:
                assert arguments[arguments.index(flag) + 1].strip("'") == value, (model, gpu)
        flags = {word for word in arguments if word.startswith("--")}
        assert flags - {"--nnodes", "--node-rank", "--master-addr"} == set(case.flags), (model, gpu)
        if p.nodes == 1:
            unit = " ".join(vm.VmServer(p).flags)
            assert unit.startswith(" ".join(arguments[2:]).replace("'", "")), (model, gpu)
    assert compared > 30


def test_the_fewest_gpus_are_the_fewest():
    """Three H100 as three stages hold 70B and 65,536 tokens; four are the fewest for tensor parallelism alone."""
    fewest = choose.fewest(prepare("llama-3.3-70b", "h100", max_model_len=65536))
    assert (fewest.tp, fewest.pp) == (1, 3)
    assert plan(
        "llama-3.3-70b",
        "h100",
        tensor_parallel_size=1,
        pipeline_parallel_size=3,
        max_model_len=65536,
    ).fits


def test_fewest_misses_no_smaller_split():
    for gpus in range(1, 18):
        d = prepare("llama-3.1-405b-fp8", "h100", max_model_len=4096)
        fewest = choose.fewest(d)
        if gpus < fewest.gpus:
            assert not any(fit(split).holds_a_request for split in choose.splits(d, gpus)), gpus


def test_what_is_advised_can_be_done_on_that_gpu():
    """Each change of the table is a deployment that plan() accepts, with the numbers that were promised."""
    for model, gpu in [
        *((m, g) for m in ("llama-3.1-8b", "qwen3.5-27b") for g in ("a100-80gb", "h100")),
        ("llama-3.1-8b", "t4"),
    ]:
        d = with_records(prepare(model, gpu, max_model_len=2048))
        for rule in (
            advise.kv_fp8,
            advise.weights_fp8,
            advise.utilization,
            advise.small_batch,
            advise.eager,
        ):
            for change in rule(d):
                s = change.after.settings
                again = plan(
                    model,
                    gpu,
                    max_model_len=2048,
                    quantization=change.after.quantization,
                    tensor_parallel_size=1,
                    kv_cache_dtype=s.kv_cache_dtype,
                    enforce_eager=s.enforce_eager,
                    gpu_memory_utilization=s.gpu_memory_utilization,
                    max_num_seqs=s.max_num_seqs,
                    max_num_batched_tokens=s.max_num_batched_tokens,
                )
                assert fit(again.deployment).capacity == fit(change.after).capacity, rule.__name__
        assert (gpu == "t4") == (not list(advise.kv_fp8(d))), (
            model,
            gpu,
        )  # attention on a T4 reads no FP8


def test_a_t4_gets_half_precision_from_the_sliders_too():
    shown = sliders.memory(sliders.MemoryCase("llama-3.2-1b", "t4", context=4096, requests=1))
    assert "--dtype half" in command_of(shown.deployment)


def test_a_deployment_never_changes():
    d = prepare("llama-3.1-8b", load_gpu("h100"))
    assert replace(d) == d and hash(replace(d)) == hash(d)
    assert d.split(2, 1) != d and (d.tp, d.pp) == (1, 1)
