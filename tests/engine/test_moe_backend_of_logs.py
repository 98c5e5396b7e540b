"""The kernels of experts and the prefix cache that a log names are those of the plan beside it."""

from __future__ import annotations

from workshop.engine import log
from workshop.engine.reconcile.case import make_case
from workshop.engine.reconcile.compare import reconcile
from workshop.engine.reconcile.recording import described

# The figures of tests/data/gpu/records/two_h100_0.32.json, in vLLM 0.32.0's words.
MARLIN = """\
INFO 11-25 10:00:00 [api_utils.py:273] non-default args: {{'model': 'openai/gpt-oss-20b', 'max_model_len': 32768{args}}}
(EngineCore pid=9) INFO 11-25 10:00:10 [core.py:139] Initializing a V1 LLM engine (v0.32.0) with config: \
model='openai/gpt-oss-20b', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=1, pipeline_parallel_size=1, \
quantization=gpt_oss_mxfp4, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, \
kernel_config=KernelConfig(enable_jit_warmup=True, moe_backend={config})
(EngineCore pid=9) INFO 11-25 10:00:12 [mxfp4.py:550] {line}
(EngineCore pid=9) INFO 11-25 10:02:00 [gpu_model_runner.py:5500] Model loading took {weights} GiB memory and 13.1 seconds
(EngineCore pid=9) INFO 11-25 10:02:30 [gpu_worker.py:456] Available KV cache memory: 55.40 GiB
(EngineCore pid=9) INFO 11-25 10:02:31 [kv_cache_utils.py:1700] GPU KV cache size: 1,209,872 tokens
(EngineCore pid=9) INFO 11-25 10:02:31 [kv_cache_utils.py:1705] Maximum concurrency for 32,768 tokens per request: 36.92x
"""


def marlin(
    args: str = "",
    config: str = "'auto'",
    line: str = "Using FLASH_ATTN attention backend.",
    weights: str = "13.80",
) -> str:
    return MARLIN.format(args=args, config=config, line=line, weights=weights)


def test_marlin_is_read_from_arguments_config_or_line(subtests):
    for text in [
        marlin(args=", 'moe_backend': 'marlin'"),
        marlin(config="'marlin'"),
        marlin(line="Using 'MARLIN' Mxfp4 MoE backend."),
        marlin(line="Using 'BATCHED_MARLIN' Mxfp4 MoE backend."),
        marlin(line="Using Marlin backend"),  # up to 0.13
        marlin(line="[get_mxfp4_backend_with_lora] Using Marlin backend"),
    ]:
        with subtests.test(text):
            result = reconcile(log.parse(text), gpu="h100")
            for quantity, most in (("weights per GPU", 0.2), ("KV cache size", 0.3)):
                row = result.row(quantity)
                assert row is not None and row.error_percent is not None
                assert abs(row.error_percent) <= most, row


def test_what_was_taken_goes_before_what_was_asked_for():
    """DGX Spark, Kimi K2.5: `--moe-backend triton`, and the log says Marlin (an issue of 2026-03)."""
    text = marlin(args=", 'moe_backend': 'triton'", line="Using 'MARLIN' Mxfp4 MoE backend.")
    assert log.parse(text).moe_backend == "marlin"


def test_the_usual_kernels_are_no_setting():
    text = marlin(line="Using 'TRITON' Mxfp4 MoE backend.", weights="13.02")
    case = make_case(log.parse(text), None, "h100")
    assert case.settings["moe_backend"] is None


def test_kernels_that_the_card_cannot_have_are_not_counted():
    text = marlin(args=", 'moe_backend': 'flashinfer_trtllm'", weights="13.02")
    case = make_case(log.parse(text), None, "h100")
    assert case.settings["moe_backend"] is None
    assert any("flashinfer_trtllm was not counted" in line for line in case.assumed)


def test_every_release_names_its_kernels_in_its_own_way(subtests):
    for line, backend in [
        (
            "Using FLASHINFER_TRTLLM Fp8 MoE backend out of potential backends: ['A'].",
            "flashinfer_trtllm",
        ),
        ("Using DEEPGEMM Fp8 MoE backend out of potential backends: ['A'].", "deep_gemm"),
        ("Using 'VLLM_CUTLASS' NvFp4 MoE backend out of potential backends: ['A'].", "cutlass"),
        (
            "Using FlashInfer CUTLASS Unquantized MoE backend out of potential backends: ['A'].",
            "flashinfer_cutlass",
        ),
        (
            "Using BATCHED_TRITON Fp8 MoE backend out of potential backends: ['A'].",
            "batched_triton",
        ),
        ("Using ROCm AITER Unquantized MoE backend out of potential backends: ['A'].", "aiter"),
        ("Using 'FLASHINFER_CUTLASS_MXFP4_BF16' Mxfp4 MoE backend.", "flashinfer_cutlass"),
        ("Using Marlin backend for WNA16 MoE (group_size=32, num_bits=4)", "marlin"),
        ("Using Triton backend for FP8 MoE", "triton"),
        ("Using Triton backend on V1 engine.", None),
        ("Using FLASH_ATTN attention backend.", None),
    ]:
        with subtests.test(line):
            assert log.parse(f"INFO 11-25 10:00:12 [fp8.py:550] {line}\n").moe_backend == backend


NEXT = """\
(APIServer pid=1) INFO 11-25 10:00:00 [utils.py:233] vLLM API server version 0.32.0
(APIServer pid=1) INFO 11-25 10:00:00 [utils.py:253] non-default args: {{'model': 'Qwen/Qwen3-Next-80B-A3B-Instruct-FP8', \
'max_model_len': 32768{args}}}
(EngineCore pid=9) INFO 11-25 10:00:10 [core.py:139] Initializing a V1 LLM engine (v0.32.0) with config: \
model='Qwen/Qwen3-Next-80B-A3B-Instruct-FP8', tensor_parallel_size=1, pipeline_parallel_size=1, quantization=fp8, \
kv_cache_dtype=auto, device_config=cuda, enable_prefix_caching={caching}
(EngineCore pid=9) INFO 11-25 10:02:00 [gpu_model_runner.py:5500] Model loading took 74.90 GiB memory and 13.1 seconds
(EngineCore pid=9) INFO 11-25 10:02:30 [gpu_worker.py:456] Available KV cache memory: 50.00 GiB
"""


def test_a_hybrids_prefix_caching_is_the_logs(subtests):
    for args, caching, expected in [
        ("", "True", True),
        ("", "False", False),
        (", 'enable_prefix_caching': False", "False", False),
    ]:
        with subtests.test(args):
            text = NEXT.format(args=args, caching=caching)
            case = make_case(log.parse(text), None, "h200")
            assert case.base.deployment.settings.enable_prefix_caching is expected
            states = [group for group in case.base.fit.layout.groups if group.keeps_states]
            assert {group.blocks_per_request for group in states} == ({2} if expected else {1})
            assert described(case)["extra"]["enable_prefix_caching"] is expected
