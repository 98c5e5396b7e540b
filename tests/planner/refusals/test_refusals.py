"""No plan that fits breaks what vLLM checks while it starts; vLLM 0.32.0's own words are in tests/planner/refusals/test_vllm_agrees.py."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from inference_planner.answer import report
from inference_planner.answer.builds import choose_with_records, with_records
from inference_planner.catalog import list_gpus, list_models, load_model
from inference_planner.memory.fit import fit
from inference_planner.model.attention import has_states
from inference_planner.refusals import ARGUMENT_CHECKS, MEMORY_CHECKS, check, exceeds_state_blocks
from inference_planner.request import PlanRequest
from inference_planner.split.deployment import Deployment, prepare

from workshop.engine.planning import plan
from workshop.errors import BadInput

CONTEXTS = (4096, 32768, 131072)
NO_SIZES = PlanRequest(gpus_per_node=8)
HYBRID = "qwen3.5-35b-a3b"
DRAFT_MODEL = {
    "speculative_config": {"method": "draft_model", "model": "llama-3.2-1b"},
    "spec_tokens": 2,
}
QWEN_DRAFT = {"method": "draft_model", "model": "qwen2.5-0.5b", "num_speculative_tokens": 3}
EAGLE3 = {"method": "eagle3", "model": "no/such-head", "num_speculative_tokens": 3}
LORA = {"enable_lora": True}
SHARDED = {"fully_sharded_loras": True}


def on(model: str = "llama-3.1-8b", gpu: str = "h100", **settings: object) -> Deployment:
    """A deployment on one GPU, in which nothing is refused yet."""
    return with_records(prepare(model, gpu, **({"max_model_len": 4096} | settings)))


def of_dtype(d: Deployment, dtype: str) -> Deployment:
    return replace(d, model=replace(d.model, dtype=dtype))


CHECKS = (*ARGUMENT_CHECKS, *MEMORY_CHECKS)
# of each check: a deployment that it refuses, a word of what it says, and the flag that avoids it
CASES = (
    (
        lambda: on("kimi-k3", "b300", vllm_version="0.25.1"),
        "does not have KimiK3",
        "",
    ),
    (lambda: of_dtype(on("gemma-3-27b"), "float16"), "overflow", "--dtype bfloat16"),
    (
        lambda: of_dtype(on("gpt-oss-20b"), "float16"),
        "mxfp4 weights are not multiplied in float16",
        "--dtype bfloat16",
    ),
    (
        lambda: on(kv_cache_dtype="float16", vllm_version="0.33.0"),
        "KV cache in float16 is refused for a model that runs in bfloat16",
        "--kv-cache-dtype auto",
    ),
    (
        lambda: replace(on("mixtral-8x7b", "h200", usage="llm"), dp=2),
        "2 replicas in one process",
        "--usage serve",
    ),
    (  # config.json of Qwen2.5-0.5B: 14 heads
        lambda: on("qwen2.5-3b", "l4", speculative_config=QWEN_DRAFT).split(4, 1),
        "of the draft qwen2.5-0.5b, 4 does not divide the 14 attention heads",
        "--tensor-parallel-size 2",
    ),
    (
        lambda: on("gpt-oss-120b", speculative_config=EAGLE3).split(1, 2),
        "does not send them from one pipeline stage to the next",
        "--pipeline-parallel-size 1",
    ),
    (
        lambda: on(**DRAFT_MODEL, **LORA, max_num_batched_tokens=2048),
        "1,024 requests of 3 tokens each: 3,072",
        "--max-num-seqs 682",
    ),
    (
        lambda: replace(on("mixtral-8x7b", "h200", **LORA, **SHARDED), ep=True),
        "cannot be fully sharded",
        "--no-fully-sharded-loras",
    ),
    (
        lambda: on("llama-4-scout", gpu="h200", compilation_config='{"cudagraph_mode": "FULL"}'),
        "no full CUDA graph",
        "--compilation-config.cudagraph_mode=PIECEWISE",
    ),
    (
        lambda: on(gpu_memory_utilization=1.0),
        "asks for 79.19 GiB",
        "--gpu-memory-utilization 0.99",
    ),
    (
        lambda: on("llama-3.1-8b", "l4", max_model_len=2048, kv_cache_memory_bytes=20 << 30),
        "kv_cache_memory_bytes asks for 20.00 GiB",
        "--kv-cache-memory-bytes 4492782554",
    ),
    (lambda: on("llama-3.1-70b"), "weights and overhead need", ""),
    (
        lambda: on("llama-3.1-8b", "l4", max_model_len=131072),
        "one request of 131,072 tokens needs 16.00 GiB",
        "--max-model-len",
    ),
    (
        lambda: on(HYBRID, max_num_seqs=1024),
        "max_num_seqs 1,024 exceeds the ",
        "--max-num-seqs",
    ),
)


EDGES = [
    # models, cards and lengths that do not fit as they are
    ("llama-3.1-8b", "l4", {}),
    ("llama-3.3-70b", "h100", {"tensor_parallel_size": 2}),
    ("qwen3-32b", "a100-40gb", {"gpus_per_node": 2}),
    ("qwen3-30b-a3b", "rtx-5090", {"tensor_parallel_size": 1}),
    ("nemotron-nano-9b-v2", "rtx-4090", {"tensor_parallel_size": 1}),
    ("gpt-oss-120b", "rtx-5080", {}),
]


def test_what_is_advised_starts_at_the_low_end_of_the_memory_too(subtests):
    advised = 0
    for model, gpu, settings in EDGES:
        with subtests.test(f"{model} {gpu}"):
            now = plan(model, gpu, **settings)
            for line in now.advice:
                flags = re.findall(r"--(max-model-len|[a-z]+-parallel-size) (\d+)", line)
                if not flags:
                    continue
                changed = {name.replace("-", "_"): int(value) for name, value in flags}
                if match := re.search(r"on (\d+) node", line):
                    changed["nodes"] = int(match[1])
                if "--max-num-seqs" in line:
                    changed["max_num_seqs"] = int(line.split("--max-num-seqs ")[1].split()[0])
                then = plan(model, gpu, **{**settings, **changed})
                assert then.fits and not then.may_not_start, line
                advised += 1
    assert advised >= 5


def test_a_release_without_the_class_gets_no_advice_on_memory():
    old = plan("minimax-m3", "rtx-5080", vllm_version="0.19.1")
    assert len(old.advice) == 1 and "0.24.0 is the first that does" in old.advice[0]
    small = plan("minimax-m3", "rtx-5080", vllm_version="0.19.1", tensor_parallel_size=1)
    assert not small.fit.holds_a_request
    assert len(small.advice) == 1 and "RTX 5080 hold it" not in small.advice[0]


def test_a_share_that_is_refused_is_not_advised():
    """0.95 of a slice of 5 GB asks for 4.51 GiB, and CUDA leaves 4.38."""
    slice_of_a100 = plan("lfm2-350m", "a100-40gb-mig-1g.5gb")
    assert plan("lfm2-350m", "a100-40gb-mig-1g.5gb", gpu_memory_utilization=0.95).refusals
    assert not any("--gpu-memory-utilization" in line for line in slice_of_a100.advice)


def test_each_check_finds_its_case_and_names_the_flag_that_avoids_it():
    for find, (make, message, flag) in zip(CHECKS, CASES, strict=True):
        deployment = make()
        finding = find(deployment)
        assert finding and message in finding.what and finding in check(deployment), message
        assert finding.flag.startswith(flag) and bool(finding.flag) == bool(flag), message
        assert find(on()) is None, message


def test_the_flag_of_each_check_is_one_with_which_it_finds_nothing():
    """Those that change a setting; the others change the split or the model."""
    settings = {"max_num_seqs": int, "max_model_len": int, "gpu_memory_utilization": float}
    tried = 0
    for find, (make, message, _) in zip(CHECKS, CASES, strict=True):
        deployment = make()
        finding = find(deployment)
        assert finding
        flag, _, value = finding.flag.partition(" ")
        name = flag.removeprefix("--").replace("-", "_")
        if name in settings:
            after = deployment.with_settings(**{name: settings[name](value)})
            assert find(after) is None, message
            tried += 1
    assert tried == 4


def test_an_eagle3_head_needs_a_class_that_sends_hidden_states_between_stages():
    """vLLM 0.32.0: llama.py and qwen2.py have supports_aux_hidden_states_over_pp, gpt_oss.py has not."""
    sizes = {"tensor_parallel_size": 1, "pipeline_parallel_size": 4, "max_model_len": 8192}
    for model, refused in (("gpt-oss-120b", True), ("llama-3.1-70b", False), ("qwen3-32b", False)):
        p = plan(model, "h200", speculative_config=EAGLE3, **sizes)
        assert bool(p.refusals) == refused and p.fits != refused, model


def test_an_eagle_head_with_heads_that_cannot_be_split_is_refused():
    d = on("llama-3.1-70b", "h200", speculative_config=EAGLE3).split(2, 1)
    draft = d.settings.draft
    assert draft and draft.head and not check(d)
    odd = d.with_settings(draft=replace(draft, head=replace(draft.head, heads=25)))
    assert [finding.what for finding in check(odd)] == [
        "2 does not divide the draft's 25 attention heads"
    ]


def test_blocks_are_compared_from_the_release_that_has_the_check():
    """Pull request 38270 of vLLM came after 0.19.0; the row of vllm_version decides."""
    deployment = on(HYBRID, max_num_seqs=1024)
    for version, refused in (("0.25.1", True), ("0.20.0", True), ("0.19.1", False)):
        of_release = deployment.with_settings(vllm_version=version)
        assert exceeds_state_blocks(of_release) and bool(check(of_release)) == refused, version


def test_no_plan_that_fits_breaks_a_refusal():
    """Every model on every ninth GPU, hybrids on every third; the contexts take turns."""
    fitting = 0
    for number, model in enumerate(list_models()):
        config = load_model(model)
        for place, gpu in enumerate(list_gpus()):
            if (number + place) % (3 if has_states(config) else 9):
                continue
            length = min(CONTEXTS[place % 3], config.max_position_embeddings)
            try:
                d = choose_with_records(
                    prepare(model, gpu, max_model_len=length), NO_SIZES
                ).deployment
            except BadInput:
                continue
            if fit(d).holds_a_request:
                fitting += 1
                assert check(d) == [], (model, gpu, length)
            else:
                assert check(d), (model, gpu, length)
    assert fitting > 500


# What vLLM said on public machines: "max_num_seqs (…) exceeds available Mamba cache blocks (N)"
PUBLIC_BLOCKS = [
    # measured here on an H100 with 0.32.0
    ("qwen3.5-27b", "h100", {"max_model_len": 8192}, 357),
    # vllm-project/recipes pull request 551
    ("qwen3.5-27b", "h100", {"quantization": "fp8", "gpu_memory_utilization": 0.95}, 856),
    # log-l40s-qwen3.5-27b-fp8 of benchmarks/accuracy/public_logs.json, vllm-project/vllm issue 49064
    ("qwen3.5-27b", "l40s", {"quantization": "fp8", "max_model_len": 8192}, 184),
    # vllm-project/recipes pull request 831: the next model of the same sizes
    ("qwen3.5-27b", "rtx-pro-6000", {"gpu_memory_utilization": 0.95}, 556),
]


def test_the_max_num_seqs_of_the_command_would_have_started_on_public_machines():
    for model, gpu, settings, blocks in PUBLIC_BLOCKS:
        p = plan(model, gpu, tensor_parallel_size=1, **settings)
        seqs = p.deployment.settings.max_num_seqs
        assert p.fits and p.refusals == [], (gpu, settings)
        assert blocks / 2 < seqs <= blocks * 1.01, (gpu, settings)
        assert f"--max-num-seqs {seqs}" in p.command, (gpu, settings)
        assert any("--max-num-seqs" in reason for reason in p.reasons), (gpu, settings)


def test_the_max_num_seqs_of_a_plan_has_its_blocks_at_the_low_end(subtests):
    for model, gpu, settings in [
        ("nemotron-3-nano-30b-a3b-nvfp4", "rtx-a5000", {"vllm_version": "0.22.0"}),
        ("qwen3.5-27b", "rtx-pro-6000", {"vllm_version": "0.27.1", "max_model_len": 131072}),
        ("qwen3.5-27b", "l40s", {"quantization": "fp8", "max_model_len": 8192}),
    ]:
        with subtests.test(f"{model} {gpu}"):
            p = plan(model, gpu, **{"max_model_len": 32768, **settings})
            chosen = p.deployment.settings.max_num_seqs
            assert p.fits and not p.may_not_start
            assert chosen <= p.intervals["num_gpu_blocks"].low
            high_end = int(p.intervals["num_gpu_blocks"].high)
            more = plan(
                model, gpu, **{"max_model_len": 32768, **settings, "max_num_seqs": high_end}
            )
            assert not more.starts or f"--max-num-seqs {high_end}" in more.command
            assert more.may_not_start or more.refusals


def test_a_default_that_vllm_would_refuse_is_lowered_and_what_follows_is_recomputed():
    p = plan(HYBRID, "h100", tensor_parallel_size=1, max_model_len=32768)
    seqs = p.deployment.settings.max_num_seqs
    refused = plan(HYBRID, "h100", tensor_parallel_size=1, max_model_len=32768, max_num_seqs=1024)
    assert seqs < p.num_gpu_blocks and refused.num_gpu_blocks < 1024
    assert (
        max(p.deployment.settings.graph_sizes)
        <= 2 * seqs
        < max(refused.deployment.settings.graph_sizes)
    )
    assert p.overhead_gib_per_gpu < refused.overhead_gib_per_gpu
    explicit = plan(HYBRID, "h100", tensor_parallel_size=1, max_model_len=32768, max_num_seqs=seqs)
    assert (explicit.kv_cache_tokens, explicit.command) == (p.kv_cache_tokens, p.command)


def test_a_given_max_num_seqs_above_the_blocks_is_a_refusal_with_the_flag_that_avoids_it():
    settings = {"tensor_parallel_size": 1, "max_model_len": 32768}
    p = plan(HYBRID, "h100", **settings, max_num_seqs=1024)
    data = json.loads(report.plan_json(p))
    assert not p.fits and not p.starts and data["fits"] is False
    assert [set(refusal) for refusal in data["refusals"]] == [{"what", "flag"}]
    flag = data["refusals"][0]["flag"]
    assert flag in p.advice[0] and "would refuse to start" in report.plan_text(p)
    assert "✓" not in report.plan_text(p)
    then = plan(HYBRID, "h100", **settings, max_num_seqs=int(flag.split()[1]))
    assert then.fits and then.refusals == []


def test_without_cuda_graphs_vllm_does_not_compare():
    p = plan(HYBRID, "h100", tensor_parallel_size=1, max_model_len=32768, enforce_eager=True)
    assert p.fits and p.deployment.settings.max_num_seqs == 1024


def test_what_is_advised_for_a_hybrid_starts():
    p = plan(HYBRID, "h100", tensor_parallel_size=1)
    assert not p.fits and "--max-num-seqs" in p.advice[0]
    advice_words = p.advice[0].split()
    length, seqs = (
        int(advice_words[advice_words.index(flag) + 1])
        for flag in ("--max-model-len", "--max-num-seqs")
    )
    then = plan(HYBRID, "h100", tensor_parallel_size=1, max_model_len=length, max_num_seqs=seqs)
    assert then.fits and then.refusals == []


def test_a_model_without_states_keeps_vllm_s_default():
    p = plan("llama-3.1-8b", "h100")
    assert p.deployment.settings.max_num_seqs == 1024 and "--max-num-seqs" not in p.command
    assert json.loads(report.plan_json(p))["refusals"] == []


def test_states_are_not_shared_out_by_decode_context_parallelism():
    """vLLM 0.32.0, v1/core/single_type_kv_cache_manager.py: "DCP not support mamba now."."""
    with pytest.raises(BadInput, match="states"):
        plan("qwen3.5-122b-a10b", "h200", tensor_parallel_size=8, decode_context_parallel_size=2)


def test_methods_of_4_bits_run_in_the_dtypes_that_vllm_names():
    """get_supported_act_dtypes of vLLM 0.32.0: mxfp4 in bfloat16 alone, AWQ in both kinds of 16 bits."""
    assert not plan("gpt-oss-20b", "h100", dtype="half").fits
    assert plan("qwen3-32b-awq", "h100", dtype="half").fits
    assert not plan("qwen3-32b-awq", "h100", dtype="float32", max_model_len=4096).fits
