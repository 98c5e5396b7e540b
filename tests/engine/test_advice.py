"""No advice contradicts the log that it is given for."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workshop.engine import log as engine_log
from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile.compare import Reconciliation, reconcile
from workshop.errors import BadInput

DATA = Path(__file__).parent / "data"
LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
PUBLIC = DATA / "public"
CONFIGS = LOGS / "configs"
# Excerpts of public logs: the GPU of the report, the model where the log does not name it, and what
# else the report says of the run.
PUBLIC_RUNS: dict[str, dict[str, Any]] = {
    "deepseek_v4_gh200.log": {"gpu": "gh200"},
    "gpt_oss_h100.log": {"gpu": "h100", "model": "gpt-oss-120b", "vllm_version": "0.10.1"},
    "mamba_l40s.log": {"gpu": "l40s"},
    "qwen3.6_nvfp4_5090.log": {"gpu": "rtx-5090"},
    # Qwen3.6 27B has the shape of Qwen3.5 27B
    "qwen3.6_autoround_3090.log": {"gpu": "rtx-3090", "model": "qwen3.5-27b"},
    "gemma4_eagle_5090.log": {"gpu": "rtx-5090"},
    "qwen3_next_h200.log": {},
    "deepseek_v3_dp8.log": {"gpu": "h200"},
    "llama_8b_fp8.log": {"gpu": "h100"},
}
START = """INFO 11-20 10:00:00 [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', dtype=torch.bfloat16, max_seq_len={length}, tensor_parallel_size=1, \
pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda
INFO 11-20 10:00:10 [gpu_model_runner.py:5500] Model loading took 14.99 GiB memory and 13.1 seconds
INFO 11-20 10:00:20 [gpu_worker.py:508] Available KV cache memory: {available:.2f} GiB
"""
TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len ({length}), (16.0 GiB KV cache is needed, "
    "which is larger than the available KV cache memory ({available:.2f} GiB). Based on the available memory, the "
    "estimated maximum model length is {most}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` "
    "when initializing the engine.\n"
)
NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.\n"


@lru_cache
def public(name: str) -> tuple[EngineLog, Reconciliation]:
    read = engine_log.read(PUBLIC / name)
    return read, reconcile(read, **PUBLIC_RUNS[name])


def check(read: EngineLog, result: Reconciliation) -> None:
    """Compare each piece of advice with what the log says itself."""
    for item in result.advice:
        if item.flag == "--max-model-len":
            assert item.value <= (read.estimated_max_model_len or read.kv_cache_tokens or 10**9)
            assert read.available_kv_gib is None or read.available_kv_gib > 0
        elif item.flag == "--gpu-memory-utilization":
            assert item.value > (read.gpu_memory_utilization or 0.9)
        elif item.flag == "--max-num-seqs":
            assert item.value <= read.mamba_blocks
        elif item.flag == "--max-num-batched-tokens" and read.max_num_batched_tokens:
            assert item.value < read.max_num_batched_tokens
        elif item.flag == "--kv-cache-dtype":
            assert not (read.kv_cache_dtype or "").startswith("fp8")
        elif item.flag == "--enforce-eager":
            assert not read.enforce_eager
            assert read.cuda_graph_gib is None or read.cuda_graph_estimate_gib is not None
        elif item.flag.endswith("parallel-size") and (read.data_parallel_size or 1) > 1:
            gpus = re.search(r"on (\d+) GPUs", item.effect)
            assert gpus is not None and int(gpus[1]) >= 2 * read.data_parallel_size
        if read.mamba_blocks is not None and item.flag == "--gpu-memory-utilization":
            assert "--max-num-seqs" in item.effect or enough_blocks(read, item.value)


def enough_blocks(read: EngineLog, share: float) -> bool:
    """Return True if blocks for all requests fit into a share of 44.4 GiB, of which 0.92 were used."""
    assert read.available_kv_gib and read.mamba_blocks and read.max_num_seqs
    available_gib = read.available_kv_gib + 44.4 * (share - 0.92)
    return read.mamba_blocks * available_gib / read.available_kv_gib >= read.max_num_seqs


RECORDED = sorted([*LOGS.glob("*_h200.log"), *LOGS.glob("*_h100.log")])


def test_no_advice_contradicts_a_recorded_log(subtests):
    for path in RECORDED:
        with subtests.test(path.stem):
            check(engine_log.read(path), reconcile(path, gpu=path.stem.split("_")[-1]))


def test_no_advice_contradicts_a_log_of_a_cpu(subtests):
    for path in sorted(LOGS.rglob("*.log")):
        with subtests.test(path.stem):
            read = engine_log.read(path)
            for config in sorted(CONFIGS.glob("*.json")):
                if read.platform == "cpu" and read.kv_cache_tokens:
                    check(read, reconcile(read, model=config))


def test_no_advice_contradicts_a_public_log(subtests):
    for name in PUBLIC_RUNS:
        with subtests.test(name):
            check(*public(name))


def test_every_public_log_is_checked():
    not_compared = {"qwen3_npu.log"}  # it ends before its engine has loaded anything
    assert {path.name for path in PUBLIC.glob("*.log")} == {*PUBLIC_RUNS, *not_compared}


@settings(max_examples=40, deadline=None)
@given(
    available=st.floats(-12, 40),
    length=st.integers(1000, 131072),
    gpu=st.sampled_from(["l4", "a100-40gb", "h100", "rtx-4090", "l40s"]),
    end=st.sampled_from(["", "tokens", "too long", "no blocks"]),
)
def test_no_advice_contradicts_a_start_of_any_size(available, length, gpu, end):
    """Llama 3.1 8B keeps 128 KiB a token: 8,192 tokens in a GiB."""
    most = max(0, int(available * 8192))
    text = START.format(length=length, available=available)
    if end == "tokens" and most:
        text += f"INFO 11-20 10:00:20 [kv_cache_utils.py:2146] GPU KV cache size: {most:,} tokens\n"
    elif end == "too long":
        text += TOO_LONG.format(length=length, available=available, most=most)
    elif end == "no blocks":
        text += NO_BLOCKS
    read = engine_log.parse(text)
    try:
        result = reconcile(read, gpu=gpu)
    except BadInput:  # more than this card has
        return
    check(read, result)
    assert available_gib(result) == pytest.approx(available, abs=0.006)


def available_gib(result: Reconciliation) -> float | None:
    row = result.row("available KV cache per GPU")
    return row.actual if row else None


def advice_of(name: str) -> dict[str, Any]:
    return {item.flag: item.value for item in public(name)[1].advice}


def test_the_length_that_vllm_estimates_goes_before_ours():
    """2 GH200, DeepSeek V4 Flash: the log says that 13,528 tokens fit; the advice was 15,000."""
    assert 13000 <= advice_of("deepseek_v4_gh200.log")["--max-model-len"] <= 13528


def test_memory_below_zero_promises_no_length():
    """gpt-oss 120B on an H100 with −2.14 GiB left: the advice was 65,536 tokens."""
    read, result = public("gpt_oss_h100.log")
    assert read.available_kv_gib == -2.14
    assert "--max-model-len" not in advice_of("gpt_oss_h100.log") and result.advice
    assert available_gib(result) == -2.14


def test_too_few_mamba_blocks_are_answered_with_max_num_seqs():
    """One L40S, Qwen3.5 27B in FP8: 256 requests, 184 blocks."""
    read, result = public("mamba_l40s.log")
    assert (read.max_num_seqs, read.mamba_blocks) == (256, 184)
    assert read.error is not None and read.error.key == "too-few-mamba-blocks"
    assert (result.advice[0].flag, result.advice[0].value) == ("--max-num-seqs", 184)
    assert "--max-model-len" not in advice_of("mamba_l40s.log")


def test_utilization_never_falls_where_memory_was_missing():
    """--gpu-memory-utilization 0.98: 0.95 would be less."""
    arguments = (
        "INFO 11-20 09:59:00 [utils.py:278] non-default args: {'gpu_memory_utilization': SHARE}\n"
    )
    advised = {}
    for share in ("0.8", "0.98"):
        text = (
            arguments.replace("SHARE", share) + START.format(length=8192, available=0) + NO_BLOCKS
        )
        result = reconcile(engine_log.parse(text), gpu="rtx-4090")
        advised[share] = "--gpu-memory-utilization" in {item.flag for item in result.advice}
    assert advised == {"0.8": True, "0.98": False}


def test_card_of_another_size_than_the_log_says_is_refused_with_those_that_match():
    """An RTX 4060 with 8.00 GiB was taken for an L4 of 22."""
    memory = "INFO 11-20 10:00:20 [gpu_worker.py:508] Free memory on device (7.60/8.00 GiB) on startup.\n"
    text = START.format(length=8192, available=-1.05) + memory
    with pytest.raises(BadInput, match=r"8\.00 GiB on a GPU, and .*L4.* has") as refused:
        reconcile(engine_log.parse(text), gpu="l4")
    assert re.search(r"\brtx-4060\b", refused.value.remedy)
    assert " l4" not in refused.value.remedy


def test_a_request_takes_what_the_log_says_and_not_what_another_release_would():
    """6.66 GiB for 30,000 tokens in 0.22.0; without the graphs' 2.07 GiB, 5.44 + 2.07 hold 1.13 of them."""
    read, result = public("deepseek_v4_gh200.log")
    assert read.needed_kv_gib == 6.66
    eager = next(item for item in result.advice if item.flag == "--enforce-eager")
    assert "1.13 requests of 30,000 tokens" in eager.effect


def effect_of(name: str, flag: str) -> str:
    return next(item.effect for item in public(name)[1].advice if item.flag == flag)


def test_more_memory_for_mamba_blocks_comes_with_the_requests_that_have_one():
    """44.4 GiB × 0.03 more for 8.82 GiB make 184 blocks 211, and 256 requests were to run."""
    effect = effect_of("mamba_l40s.log", "--gpu-memory-utilization")
    seqs = re.search(r"--max-num-seqs (\d+)", effect)
    assert seqs is not None and 184 < int(seqs[1]) <= 222


def test_graphs_that_were_captured_after_sizing_bring_nothing():
    """Qwen3-Next under 0.10.2: 44.59 GiB for the KV cache, then 2.37 GiB of graphs beside it.

    125.83 GiB less 74.28 of weights, 5.58 of activations and 1.38 of other memory are 44.59.
    """
    read, _ = public("qwen3_next_h200.log")
    assert read.available_kv_gib == pytest.approx(125.83 - 74.28 - 5.58 - 1.38, abs=0.011)
    assert "--enforce-eager" not in advice_of("qwen3_next_h200.log")


def test_more_gpus_for_replicas_are_counted_for_all_of_them():
    effect = effect_of("deepseek_v3_dp8.log", "--tensor-parallel-size")
    assert "on 16 GPUs, 2 for each of the 8 replicas" in effect


def test_a_smaller_batch_shrinks_the_part_of_a_request_that_does_not_grow():
    """The log: 6.66 GiB for 30,000 tokens and 5.44 for 13,528, so 2.22 of the 6.66 grow.

    A smaller batch frees 3.2 GiB by the plan, and 8.7 GiB hold fewer than four times 2.22; the
    advice was 9.04 requests.
    """
    grows = (6.66 - 5.44) / (30000 - 13528) * 30000
    effect = effect_of("deepseek_v4_gh200.log", "--max-num-batched-tokens")
    requests = re.search(r"([\d.]+) requests of 30,000", effect)
    assert requests is not None and float(requests[1]) < (5.44 + 3.3) / grows


def test_a_length_too_short_for_an_image_says_so_and_limits_of_images_are_offered():
    """An image of Qwen2.5-VL 72B may take 16,384 tokens; its weights are those of vllm issue 16570."""
    config, _, memory = START.splitlines(keepends=True)
    config = config.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-VL-72B-Instruct")
    config = config.replace("tensor_parallel_size=1", "tensor_parallel_size=4")
    loaded = "INFO 11-20 10:00:10 [gpu_model_runner.py:5500] Model loading took 34.43 GiB memory\n"
    # 8,192 tokens × 80 layers × 2 × 8 KV heads × 128 × 2 bytes, over four GPUs
    too_long = TOO_LONG.replace("16.0 GiB", "0.62 GiB")
    text = (config + loaded + memory + too_long).format(length=8192, available=0.04, most=512)
    result = reconcile(engine_log.parse(text), gpu="a100-40gb")
    effects = {item.flag: item.effect for item in result.advice}
    assert "too short for a large image" in effects["--max-model-len"]
    assert "--limit-mm-per-prompt" in effects


def test_another_accelerator_is_called_by_its_name():
    read = engine_log.read(PUBLIC / "qwen3_npu.log")
    assert read.error is not None
    assert "NPUs" in read.error.what and "GPU" not in read.error.what


def test_a_machine_with_one_gpu_is_not_told_to_take_two():
    text = START.format(length=8192, available=80.0)
    flags = {item.flag for item in reconcile(engine_log.parse(text), gpu="gb10").advice}
    assert flags and "--tensor-parallel-size" not in flags
