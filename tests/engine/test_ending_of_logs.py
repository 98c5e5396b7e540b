"""What is said of a run that failed, hangs or was cut, with its GPU and without."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from workshop.cli.use.reconcile import command
from workshop.engine import log
from workshop.engine.reconcile import keeping
from workshop.engine.reconcile.compare import reconcile

LOADED = """\
(APIServer pid=1) INFO 09-28 10:00:00 [api_utils.py:339]  version 0.30.0
(APIServer pid=1) INFO 09-28 10:00:00 [api_utils.py:273] non-default args: {'model_tag': 'Qwen/Qwen3-8B', \
'model': 'Qwen/Qwen3-8B', 'max_model_len': 32768}
(APIServer pid=1) INFO 09-28 10:00:05 [model.py:601] Resolved architecture: Qwen3ForCausalLM
(EngineCore pid=7) INFO 09-28 10:01:00 [gpu_model_runner.py:5255] Model loading took 15.3 GiB memory and 10.6 seconds
"""
SIZED = "(EngineCore pid=7) INFO 09-28 10:01:30 [gpu_worker.py:515] Available KV cache memory: 4.2 GiB\n"
COMPILES = (
    "(EngineCore pid=7) INFO 09-28 10:01:10 [backends.py:643] Using cache directory: /root/.cache "
    "for vLLM's torch.compile\n"
)
SERVES = (
    "(APIServer pid=1) INFO:     Application startup complete.\n"
    "(APIServer pid=1) INFO 09-28 10:03:00 [loggers.py:273] Engine 000: Avg prompt throughput: 9.0 "
    "tokens/s, Avg generation throughput: {speed} tokens/s, Running: 1 reqs, Waiting: 0 reqs, "
    "GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%\n"
)
OUT_OF_MEMORY = (
    "(EngineCore pid=7) ERROR 09-28 10:01:40 [core.py:1330] torch.OutOfMemoryError: CUDA out of "
    "memory. Tried to allocate 784.00 MiB.\n"
)
TIMED_OUT = (
    "(EngineCore pid=7) ERROR 09-28 18:01:40 [core.py:1330] TimeoutError: RPC call to "
    "sample_tokens timed out.\n"
)
WAITS = (
    "(EngineCore pid=7) INFO 09-28 10:04:00 [shm_broadcast.py:698] No available shared memory "
    "broadcast block found in 60 seconds.\n"
)
# what follows "Model loading took", and how the failure begins
ENDS = {
    SIZED + OUT_OF_MEMORY: "The start failed. A GPU ran out of memory.",
    TIMED_OUT: "The start failed. A worker did not answer in time",
    SERVES.format(speed=40.0) + TIMED_OUT: "The server started, and ended later. A worker did not",
    2 * WAITS: "The log ends in the middle of a start. The ranks wait",
    SERVES.format(speed=40.0) + 2 * WAITS: "The server started, and hangs. The ranks wait",
    COMPILES: "The log ends in the middle of a start. The engine has not said yet what fits.",
}


def run(path, text: str, *options: str):
    path.write_text(LOADED + text)
    return CliRunner().invoke(command, [str(path), "--no-keep", *options])


@pytest.mark.parametrize("options", [[], ["--gpu", "rtx-5090"], ["--json"]])
def test_a_failure_is_the_first_line_and_the_exit_code(tmp_path, subtests, options):
    for text, failure in ENDS.items():
        with subtests.test(failure):
            result = run(tmp_path / "vllm.log", text, *options)
            assert result.exit_code == 1
            assert result.stderr.startswith(f"✗ {failure}")
            assert "15.3" in result.stdout  # the log's own figure of the weights
            assert "What to change" not in result.stdout


def test_advice_about_memory_does_not_stand_beside_another_failure(subtests):
    for text, failure in ENDS.items():
        with subtests.test(failure):
            assert reconcile(log.parse(LOADED + text), gpu="rtx-5090").advice == []
    too_small = "(EngineCore pid=7) ERROR 09-28 10:01:40 [core.py:1330] ValueError: No available memory for the cache blocks.\n"
    assert reconcile(log.parse(LOADED + SIZED + too_small), gpu="rtx-5090").advice


def test_the_log_of_a_failure_says_its_version():
    assumed = reconcile(log.parse(LOADED + TIMED_OUT), gpu="rtx-5090").assumed
    assert not any("version of vLLM" in line for line in assumed)


def test_a_server_that_answers_again_does_not_hang():
    serves = SERVES.format(speed=40.0)
    assert log.parse(LOADED + serves + WAITS).waits is None  # a minute, such as of a compilation
    assert log.parse(LOADED + serves + 2 * WAITS + serves).waits is None
    stands_still = SERVES.format(speed=0.0).partition("\n")[2]
    assert log.parse(LOADED + serves + WAITS + stands_still + WAITS).waits.key == "ranks-wait"


def test_a_server_that_was_stopped_does_not_hang():
    stopped = "(APIServer pid=1) INFO:     Shutting down\n"
    assert log.parse(LOADED + SERVES.format(speed=40.0) + 2 * WAITS + stopped).waits is None


def test_a_log_without_its_last_lines_says_so_beside_its_comparison():
    result = reconcile(log.parse(LOADED + SIZED), gpu="rtx-5090")
    assert not result.failure and result.advice
    assert any("ends in the middle of a start" in line for line in result.assumed)


def test_what_a_failed_start_measured_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path))
    failed = reconcile(log.parse(LOADED + SIZED + OUT_OF_MEMORY), gpu="rtx-5090")
    assert failed.case and keeping.keep_run(failed.case) is None


# A start of a model that no catalog has, with the figures of the recorded Llama 3.1 8B on an H100
UNKNOWN = """\
(APIServer pid=1) INFO 11-23 01:41:48 [model.py:733] Resolved architecture: NovaForCausalLM
(EngineCore pid=7) INFO 11-23 01:41:48 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='MODEL', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1
(EngineCore pid=7) INFO 11-23 01:42:00 [gpu_model_runner.py:5500] Model loading took 15.0 GiB memory and 13.1 seconds
(EngineCore pid=7) INFO 11-23 01:42:10 [gpu_worker.py:508] Free memory on device (78.66/79.18 GiB) on startup. \
Desired GPU memory utilization is (0.92, 72.85 GiB).
(EngineCore pid=7) INFO 11-23 01:42:10 [gpu_worker.py:538] Available KV cache memory: 55.05 GiB
(EngineCore pid=7) INFO 11-23 01:42:10 [kv_cache_utils.py:2146] GPU KV cache size: 450,976 tokens
(EngineCore pid=7) INFO 11-23 01:42:10 [kv_cache_utils.py:2151] Maximum concurrency for 8,192 tokens per request: 55.05x
(EngineCore pid=7) INFO 11-23 01:42:20 [core.py:330] init engine (profile, create kv cache, warmup model) took 20.1 s
(APIServer pid=1) INFO:     Application startup complete.
"""


@pytest.mark.parametrize(
    "name", ["acme/Nova-9B", "/root/.cache/huggingface/hub/models--acme--Nova-9B/snapshots/0a1b"]
)
def test_a_model_that_nobody_knows_is_told_by_its_own_figures(tmp_path, name):
    """128 KiB a token: 2 · 32 layers · 8 heads · 128 · 2 bytes; 2.80 GiB: 0.92 · 79.18 - 15.0 - 55.05."""
    path = tmp_path / "vllm.log"
    path.write_text(UNKNOWN.replace("MODEL", name))
    result = CliRunner().invoke(command, [str(path), "--json"])
    assert result.exit_code == 0
    rows = {row["quantity"]: row["actual"] for row in json.loads(result.stdout)["rows"]}
    assert rows["weights per GPU"] == 15.0 and rows["available KV cache per GPU"] == 55.05
    assert rows["KV cache size"] == 450976 and rows["maximum concurrency"] == 55.05
    assert rows["KV cache per token and GPU"] == pytest.approx(128, abs=0.01)
    assert rows["overhead per GPU"] == pytest.approx(2.80, abs=0.01)
    get = "hf download acme/Nova-9B config.json --local-dir Nova-9B, then add --model ./Nova-9B"
    assert get in result.stderr


def test_a_given_model_that_nobody_knows_does_not_hide_a_failure():
    result = reconcile(log.parse(LOADED + SIZED + OUT_OF_MEMORY), "acme/Nova-9B")
    assert result.failure.startswith("The start failed. A GPU ran out of memory.")
    assert "hf download acme/Nova-9B" in result.assumed[0]
