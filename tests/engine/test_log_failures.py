"""Every recorded failure gets its own explanation; other wordings come from vLLM's sources and users' reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workshop.engine import log
from workshop.engine.log.failures import RANKS, SYMPTOM, diagnose, table

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
RECORDED = {
    name: entry["failure"]
    for name, entry in json.loads((LOGS / "index.json").read_text())["logs"].items()
    if name.startswith("failures/")
}


@pytest.mark.parametrize(("name", "key"), RECORDED.items())
def test_a_recorded_failure_is_explained(name, key):
    error = log.read(LOGS / name).error
    assert error.key == key
    assert error.what.endswith(".") and error.remedy.endswith(".") and "?" not in error.what
    assert error.line in (LOGS / name).read_text() or error.line[:300] in (LOGS / name).read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_a_good_log_has_no_error(name):
    assert log.read(LOGS / name).error is None


def test_the_explanation_has_the_numbers_of_the_log():
    error = log.read(LOGS / "failures/kv_cache_too_small.log").error
    assert "131072" in error.what and "0.25 GiB" in error.what and "0.06 GiB" in error.what
    assert "32640" in error.remedy
    error = log.read(LOGS / "failures/tp_does_not_divide.log").error
    assert error.what == "4 attention heads cannot be divided among 3 GPUs."


# Not provoked here: the words of vLLM 0.25.1 and 0.32.0 (their sources) and of users' reports about 0.2 to 0.9.
WORDS = [
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB. GPU 0 has a total "
        "capacity of 14.74 GiB",
        "gpu-out-of-memory",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` "
        "when initializing the engine.",
        "no-memory-for-kv-cache",
    ),
    (
        "ValueError: The model's max seq len (4096) is larger than the maximum number of tokens that can "
        "be stored in KV cache (3664). Try increasing `gpu_memory_utilization` or decreasing "
        "`max_model_len` when initializing the engine.",
        "kv-cache-too-small",
    ),
    (
        "ValueError: Free memory on device cuda:0 (10.45/79.1 GiB) on startup is less than desired GPU "
        "memory utilization (0.92, 72.77 GiB). Decrease GPU memory utilization or reduce GPU memory used "
        "by other processes.",
        "gpu-memory-in-use",
    ),
    (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your "
        "Tesla T4 GPU has compute capability 7.5. You can use float16 instead",
        "bfloat16-not-supported",
    ),
    (
        "ValueError: The quantization method fp8 is not supported for the current GPU. Minimum "
        "capability: 89. Current capability: 75.",
        "quantization-not-supported",
    ),
    (  # Meta's Llama 3.1 405B FP8 under 0.32.0
        "  Value error, ('The quantization method %s is deprecated and will be removed in future versions of vLLM. To bypass, "
        "set `--allow-deprecated-quantization`.', 'fbgemm_fp8') [type=value_error, input_value=ArgsKwargs(",
        "quantization-deprecated",
    ),
    (
        "ValueError: World size (8) is larger than the number of available GPUs (4) in this node. If this"
        " is intentional and you are using:",
        "too-few-gpus",
    ),
    (
        "ValueError: Cannot provide a placement group requiring 16 GPUs (placement_group_specs=[]) within"
        " 1800 seconds.",
        "ray-too-few-gpus",
    ),
    (
        "Exception: The current node timed out during startup. This could happen because some of the raylet "
        "failed to startup or the GCS has become overloaded.",
        "ray-node-late",
    ),
    (
        "RuntimeError: No node info found matching attributes: '' when trying to resolve node to connect to.",
        "ray-node-late",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: "
        "../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled system error",
        "nccl",
    ),
    ("OSError: [Errno 28] No space left on device", "disk-full"),
    (
        "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`",
        "no-gpu",
    ),
    (
        "RuntimeError: unable to open shared memory object </torch_123> in read-write mode: No space left"
        " on device (28)",
        "shared-memory-full",
    ),
    (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=42.0. Some of the step tasks have been OOM Killed.",
        "host-out-of-memory",
    ),
    (
        "slurmstepd: error: *** JOB 42 ON node01 CANCELLED AT 2026-11-20T10:00:00 DUE TO TIME LIMIT ***",
        "time-limit",
    ),
    (
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying "
        "to connect to (10.0.0.1, 29500).",
        "rendezvous",
    ),
    (
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)",
        "gated-model",
    ),
    (
        "NotImplementedError: Pipeline parallelism is not supported for this model. Supported models "
        "implement the `SupportsPP` interface.",
        "pipeline-not-supported",
    ),
    ("PermissionError: [Errno 13] Permission denied: '/scratch/hf/hub'", "permission"),
    # The words of users' reports: each row of failures.toml names its source.
    (
        "(EngineCore pid=7) ERROR 09-28 10:01:40 [core.py:1330] ValueError: FP8 KV cache is not supported "
        "by the Triton attention backend on NVIDIA A100-SXM4-80GB (compute capability 8.0); native FP8 "
        "(fp8e4nv) requires SM89+. Re-run with --kv-cache-dtype bfloat16.",
        "fp8-kv-cache-not-supported",
    ),
    (
        "ValueError: Free memory on device cuda:0 (101.34/121.69 GiB) on startup is less than desired GPU "
        "memory utilization (0.87, 105.87 GiB). Decrease GPU memory utilization or reduce GPU memory used "
        "by other processes.",
        "shared-memory-of-cpu-and-gpu",
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
        "address. port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "rendezvous-port-in-use",
    ),
    (
        "ImportError: libcudart.so.13: cannot open shared object file: No such file or directory",
        "cuda-libraries-missing",
    ),
    (
        "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist",
        "no-cuda-compiler",
    ),
    ("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'", "ptxas-too-old"),
    (
        "RuntimeError: Assertion error (/workspace/.deps/deepgemm-src/csrc/apis/hyperconnection.hpp:56): "
        "Unsupported architecture",
        "deep-gemm-not-for-this-gpu",
    ),
    (
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/'
        'CUDACachingAllocator.cpp":1154, please report a bug to PyTorch.',
        "nvml-on-mig",
    ),
    ("TimeoutError: RPC call to sample_tokens timed out.", "worker-timeout"),
    (
        "node:3663:4044 [0] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-Ewjreo (size 33030528), error: No space left on device (28)\n"
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp",
        "shared-memory-full",
    ),
]


@pytest.mark.parametrize(("line", "key"), WORDS, ids=[key for _, key in WORDS])
def test_other_failures_are_known_by_their_words(line, key):
    read = log.parse(
        f"INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n{line}\n"
    )
    assert read.error.key == key and "?" not in read.error.what


def test_numbers_of_a_full_gpu_are_in_the_sentence():
    line = next(text for text, key in WORDS if key == "gpu-memory-in-use")
    assert diagnose(line).what.startswith("Only 10.45 of the GPU's 79.1 GiB are free")


def test_a_cause_replaces_its_symptom_and_the_first_cause_stays():
    start = "INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
    symptom = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    cause, later = (
        "torch.OutOfMemoryError: CUDA out of memory.\n",
        "OSError: [Errno 28] No space left on device\n",
    )
    assert log.parse(start + symptom).error.rank == SYMPTOM
    assert log.parse(start + symptom + cause + later).error.key == "gpu-out-of-memory"
    assert log.parse(start + later + cause).error.key == "disk-full"


def test_what_is_often_survived_gives_way_to_the_error_that_ended_the_start():
    text = (LOGS / "failures/no_tokenizer.log").read_text()
    early = "'[Errno -2] Name or service not known' thrown while requesting HEAD https://huggingface.co/m\n"
    assert log.parse(early + text).error.key == "no-tokenizer"


def test_an_unknown_exception_is_quoted():
    line = "(EngineCore pid=7) ERROR 11-20 10:02:25 [core.py:1] RuntimeError: the flux capacitor is empty\n"
    error = log.parse(line).error
    assert error.key == "unexplained" and "the flux capacitor is empty" in error.what


def test_a_wrong_request_to_a_running_server_is_no_failure():
    good = (LOGS / "cpu_tp2.log").read_text().split("[shutdown]")[0]
    start = f"{good}\n(APIServer pid=1) ERROR 11-20 11:50:00 "
    assert (
        log.parse(
            f"{start}[serving.py:1] ValueError: This model's maximum context length is 4096\n"
        ).error
        is None
    )
    fatal = f"{start}[async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore\n"
    assert log.parse(fatal).error.key == "engine-core-died"


def test_an_error_that_did_not_stop_the_start_is_a_note():
    text = (LOGS / "cpu_tp2.log").read_text()
    early = "'[Errno -2] Name or service not known' thrown while requesting HEAD https://huggingface.co/m\n"
    read = log.parse(early + text)
    assert read.ready and read.error is None
    assert any("cannot be reached" in note for note in read.notes)


def test_source_code_quoted_by_a_traceback_is_no_error():
    text = ('INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n'
            'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
            '    raise OSError("[Errno 28] No space left on device")\nKeyError: \'lm_head\'\n')  # fmt: skip
    assert log.parse(text).error.key == "unexplained"


def test_every_row_of_the_table_can_be_told_in_words():
    for row, pattern in table()[0]:
        assert not pattern.search(""), f"{row['key']} matches an empty line"
        assert row["what"] and row["remedy"].endswith(".") and row.get("rank", "likely") in RANKS
        assert row.keys() <= {"key", "says", "what", "remedy", "rank", "fatal"}, (
            "a name that nobody reads"
        )


START = "INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
WAITS = (
    "(EngineCore pid=7) INFO 09-28 10:02:00 [shm_broadcast.py:698] No available shared memory broadcast "
    "block found in 60 seconds. This typically happens when some processes are hanging\n"
)


def test_ranks_that_wait_at_the_end_of_a_start_are_named():
    read = log.parse(START + 2 * WAITS)
    assert read.error is None  # a start that compiles says so as well
    assert read.waits.key == "ranks-wait"


def test_ranks_that_went_on_are_not_named():
    loaded = "INFO 11-20 10:09:25 [gpu_model_runner.py:5] Model loading took 15.3 GiB memory and 10.6 seconds\n"
    assert log.parse(START + 2 * WAITS + loaded).waits is None


def test_a_server_that_ends_after_hours_had_started():
    throughput = (
        "INFO 11-20 10:09:25 [loggers.py:273] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: "
        "0.0%, Prefix cache hit rate: 0.0%\n"
    )
    ended = (
        "ERROR 11-20 18:01:40 [core.py:1330] TimeoutError: RPC call to sample_tokens timed out.\n"
    )
    read = log.parse(START + throughput + ended)
    assert read.ready and read.error.key == "worker-timeout"
