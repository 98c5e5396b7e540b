"""Logs of the V0 engine, of releases without formulas, and of checkpoints whose format is not said.

The figures are those of public logs; each test names its thread.
"""

from __future__ import annotations

import pytest
from inference_planner import plan
from inference_planner.errors import BadInput
from inference_planner.releases import versions

from workshop.engine import log as engine_log
from workshop.engine.reconcile import Reconciliation, reconcile
from workshop.engine.reconcile_case import make_case
from workshop.engine.reconcile_release import outside_words

V0 = """INFO 05-30 06:40:20 [llm_engine.py:243] Initializing a V0 LLM engine (v{version}) with config: model='{model}', \
dtype={dtype}, max_seq_len={length}, tensor_parallel_size={tp}, pipeline_parallel_size=1, quantization=None, \
enforce_eager=False, kv_cache_dtype=auto, device_config=cuda
INFO 05-30 06:40:49 model_runner.py:1115] Loading model weights took {weights} GB
INFO 05-30 06:40:55 worker.py:267] the current vLLM instance can use total_gpu_memory ({total}GiB) x \
gpu_memory_utilization ({share}) = 1.0GiB
INFO 05-30 06:40:55 worker.py:267] model weights take {weights}GiB; non_torch_memory takes {other}GiB; PyTorch activation \
peak memory takes {peak}GiB; the rest of the memory reserved for KV Cache is {available}GiB.
INFO 05-30 06:40:55 executor_base.py:110] # CUDA blocks: {blocks}, # CPU blocks: 512
"""
T4 = V0.format(
    version="0.7.3", model="Qwen/Qwen2.5-1.5B-Instruct", dtype="torch.float16", length=32768, tp=1,
    weights=2.8884, total=14.56, share=0.50, other=0.01, peak=2.02, available=2.36, blocks=5517,
)  # fmt: skip
V100 = V0.format(
    version="0.7.3", model="facebook/opt-6.7b", dtype="torch.float16", length=2048, tp=1,
    weights=12.40, total=15.77, share=0.90, other=0.07, peak=0.38, available=1.33, blocks=170,
)  # fmt: skip
TWO_4090 = V0.format(
    version="0.7.2", model="deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", dtype="torch.bfloat16", length=131072, tp=2,
    weights=13.9476, total=23.55, share=0.98, other=0.25, peak=0.19, available=8.69, blocks=5096,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "gpu", "percent"),
    [
        (T4, "t4", 1),  # was -9 %
        (V100, "v100-16gb", 5),  # was -13.5 %
        (TWO_4090, "rtx-4090", 4),  # vllm issue 13061
    ],
    ids=["t4", "v100", "two-4090"],
)
def test_the_v0_engine_compiles_nothing_in_its_profile_and_sorts_its_logits(text, gpu, percent):
    row = reconcile(engine_log.parse(text), gpu=gpu).row("KV cache size")
    assert row is not None and row.error_percent is not None
    assert abs(row.error_percent) <= percent


def test_a_rank_that_did_not_decide_is_named():
    """Rank 1 of two does not sample: 8.69 GiB were left there, and the 81,536 tokens take 7.5."""
    row = reconcile(engine_log.parse(TWO_4090), gpu="rtx-4090").row("available KV cache per GPU")
    assert row is not None and "a rank decided whose memory it does not print" in row.reason


@pytest.mark.parametrize("text", [T4, V100])
def test_a_release_outside_of_the_formulas_is_said_to_be_outside(text):
    result = reconcile(engine_log.parse(text), gpu="t4" if text is T4 else "v100-16gb")
    assert any("outside" in sentence for sentence in result.assumed)


@pytest.mark.parametrize(
    ("version", "outside"),
    [
        ("0.6.4.post1", True),
        ("0.10.2", True),
        ("0.24.0", True),
        ("0.25.0", False),
        ("0.32.0", False),
    ],
)
def test_releases_before_the_table_are_outside(version, outside):
    log = engine_log.parse(T4.replace("v0.7.3", f"v{version}").replace("a V0 LLM", "a V1 LLM"))
    assert bool(outside_words(log)) is outside


def test_a_log_before_0_4_is_outside():
    """vllm issue 2418: no version in its first line."""
    text = (
        "INFO 01-11 15:51:02 llm_engine.py:70] Initializing an LLM engine with config: model='meta-llama/Llama-2-7b-hf', "
        "dtype=torch.float16, max_seq_len=4096, tensor_parallel_size=1\n"
        "INFO 01-11 15:51:18 llm_engine.py:275] # GPU blocks: 229, # CPU blocks: 512\n"
    )
    result = reconcile(engine_log.parse(text), gpu="rtx-4090")
    assert any("before 0.4" in sentence and "outside" in sentence for sentence in result.assumed)


def advice(result: Reconciliation) -> dict:
    return {item.flag: item.value for item in result.advice}


def test_flags_that_v0_refuses_are_not_advised():
    """Without chunked prefill a batch holds a whole prompt, and fp8 weights begin with an A100."""
    flags = advice(reconcile(engine_log.parse(T4), gpu="t4"))
    assert "--max-num-batched-tokens" not in flags and "--quantization" not in flags
    assert "--enforce-eager" not in flags  # its graphs take no memory from the KV cache


def test_a_v0_row_is_for_logs_and_is_not_among_the_versions_of_a_plan():
    assert not set(versions.ENGINES_V0) & set(versions.TABLE)
    with pytest.raises(BadInput):
        plan("llama-3.1-8b", "h100", vllm_version="0.5.0")


V1_OF_0_7 = """INFO 01-30 03:18:12 gpu_model_runner.py:848] Loading model weights took 67.7229 GB
INFO 01-30 03:19:14 kv_cache_utils.py:395] # GPU blocks: 1381
INFO 01-30 03:19:14 kv_cache_utils.py:398] Maximum concurrency for 2048 tokens per request: 10.79x
"""


def test_weights_of_another_precision_say_which_it_is():
    """vllm pull request 12569: 70B in w8a8, which its log does not say."""
    result = reconcile(engine_log.parse(V1_OF_0_7), "llama-3.1-70b", "h100")
    row = result.row("weights per GPU")
    assert row is not None and row.error_percent == pytest.approx(0, abs=0.5)
    assert any("8 bits" in sentence for sentence in result.assumed)


def test_a_plan_that_does_not_fit_is_no_prediction_of_a_run():
    row = reconcile(engine_log.parse(V1_OF_0_7), "llama-3.1-70b", "h100").row("KV cache size")
    assert row is not None and row.predicted is None and row.error_percent is None
    assert "the log ran" in row.reason


AUTO_ROUND = """(APIServer pid=1) INFO 06-01 09:20:16 [utils.py:278] non-default args: {'model': '/models/q-27b-NAME', \
'dtype': 'float16', 'max_model_len': 262144, 'quantization': 'inc', 'tensor_parallel_size': 2, 'max_num_seqs': 2}
(EngineCore pid=120) INFO 06-01 09:22:30 [kv_cache_utils.py:1733] GPU KV cache size: 620,944 tokens
"""


@pytest.mark.parametrize(
    ("name", "gib"), [("autoround-int4", (8, 11)), ("W8A8", (13, 17)), ("4bit", (8, 11))]
)
def test_a_format_without_a_width_takes_that_of_the_model_s_name(name, gib):
    """27 billion weights over two GPUs: 6.3 GiB in 4 bits and 12.6 in 8, beside embeddings and heads in 16."""
    log = engine_log.parse(AUTO_ROUND.replace("NAME", name))
    case = make_case(log, "qwen3.5-27b", "rtx-3090")
    assert gib[0] < case.stage.weights_gib < gib[1]


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 4080 SUPER", "rtx-4080-super"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA GH200 480GB", "gh200"),
    ],
)
def test_a_word_that_makes_it_another_card_is_not_dropped(name, gpu):
    """The laptop's RTX 4090 has 16 GB; 15.99 GiB are in its log."""
    text = (
        f"INFO 11-20 10:00:00 [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: "
        f"model='meta-llama/Llama-3.2-1B', max_seq_len=8192, tensor_parallel_size=1\n{name}, 560.35\n"
        "INFO 11-20 10:00:10 [gpu_model_runner.py:5500] Model loading took 2.35 GiB memory and 3.1 seconds\n"
    )
    try:
        card_name = make_case(engine_log.parse(text), None, None).card.name
    except BadInput:
        card_name = None
    assert card_name == gpu


def test_no_more_memory_is_advised_than_was_free_at_the_start():
    text = (
        "INFO 11-20 10:00:00 [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: "
        "model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=8192, tensor_parallel_size=1\n"
        "INFO 11-20 10:00:10 [gpu_model_runner.py:5500] Model loading took 15.0 GiB memory and 3.1 seconds\n"
        "INFO 11-20 10:00:20 [gpu_worker.py:508] Available KV cache memory: 36.00 GiB\n"
        "INFO 11-20 10:00:20 [gpu_worker.py:1034] Free memory on device (60.00/79.18 GiB) on startup. Desired GPU memory "
        "utilization is (0.7, 55.43 GiB). Actual usage is 15.8 GiB for consumed memory (weights + non-torch), 1.99 GiB for "
        "peak activation, and 0.45 GiB for CUDAGraph memory.\n"
    )
    flags = advice(reconcile(engine_log.parse(text), gpu="h100"))
    assert 0.7 < flags["--gpu-memory-utilization"] <= 60 / 79.18
