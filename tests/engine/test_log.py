"""Facts read out of real logs. Every number here is printed in the log that is named, so it can be looked up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from workshop.engine import log
from workshop.errors import BadInput

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
DATA = Path(__file__).parent / "data"
# The Namespace line that the course's material shows, shortened.
NAMESPACE_0_6 = (DATA / "format_0.6.4_namespace.log").read_text()
# (log, weights GiB, available KV GiB, KV tokens, max concurrency, CUDA graphs GiB), as the logs print them
H200 = [
    ("llama-3.1-8b_tp1_h200", 15.0, 111.61, 914304, 6.98, 0.99),
    ("mistral-7b_tp1_h200", 13.5, 113.12, 1481492, 45.21, 0.99),
    ("deepseek-v2-lite_tp1_h200", 29.32, 97.42, 3362896, 102.63, 1.20),
    ("qwen3-30b-a3b_tp1_h200", 56.88, 67.65, 738864, 18.04, 0.80),
    ("llama-3.1-70b_tp4_h200", 32.89, 93.79, 1229264, 9.38, 1.22),
    ("llama-3.1-405b-fp8_tp4_h200", 95.54, 29.28, 243696, 14.87, 3.15),
]


def test_h200_logs_give_the_numbers_that_they_print(subtests):
    for name, weights, available, tokens, concurrency, graphs in H200:
        with subtests.test(name):
            read = log.read(LOGS / f"{name}.log")
            assert (read.version, read.platform, read.notes) == ("0.25.1", "gpu", [])
            assert (read.weights_gib, read.available_kv_gib, read.cuda_graph_gib) == (
                weights,
                available,
                graphs,
            )
            assert (read.kv_cache_tokens, read.max_concurrency) == (tokens, concurrency)
            assert read.max_num_batched_tokens == 16384
            assert read.engine_ready and not read.ready and read.error is None


def test_405b_log_tells_four_ranks_apart():
    read = log.read(LOGS / "llama-3.1-405b-fp8_tp4_h200.log")
    assert sorted(read.ranks) == ["Worker_TP0", "Worker_TP1", "Worker_TP2", "Worker_TP3"]
    assert {rank.weights_gib for rank in read.ranks.values()} == {95.54}
    assert (read.tensor_parallel_size, read.quantization, read.dtype) == (4, "fp8", "bfloat16")
    assert read.architecture == "LlamaForCausalLM"


def test_the_gpu_is_found_where_a_moe_kernel_names_it():
    assert log.read(LOGS / "qwen3-30b-a3b_tp1_h200.log").gpu == "NVIDIA H200"
    assert log.read(LOGS / "llama-3.1-8b_tp1_h200.log").gpu is None


def test_cpu_server_log_from_start_to_stop():
    read = log.read(LOGS / "tiny_cpu_server.log")
    assert (read.version, read.platform, read.max_model_len) == ("0.32.0", "cpu", 1024)
    assert (read.kv_cache_tokens, read.max_concurrency, read.requested_kv_gib) == (
        524288,
        512.0,
        1.0,
    )
    assert (read.shards_loaded, read.shards_total, read.enforce_eager) == (1, 1, True)
    assert read.ready and read.error is None  # EngineDeadError after the shutdown is no failure


def test_tensor_and_pipeline_parallel_hold_twice_the_tokens_of_one_rank_on_a_cpu():
    """1 GiB a rank; a token of the tiny model needs 2·4·2·64·2 B = 2,048 B, and half of it on each of two ranks."""
    for name, sizes in (("cpu_tp2", (2, 1)), ("cpu_pp2", (1, 2))):
        read = log.read(LOGS / f"{name}.log")
        assert (read.tensor_parallel_size, read.pipeline_parallel_size) == sizes
        assert read.kv_cache_tokens == 2**30 // 1024


def test_throughput_lines_of_a_cpu_under_load():
    read = log.read(LOGS / "cpu_under_load.log")
    first = read.throughput[0]  # 11-20 11:43:43
    assert (first.prompt_tokens_per_s, first.generation_tokens_per_s) == (51.5, 530.7)
    assert (first.running, first.waiting, first.kv_cache_percent) == (8, 0, 25.4)
    assert read.throughput[-1].running == 0
    assert read.kv_cache_tokens == 8192 and read.args["kv_cache_memory_bytes"] == 16777216


def test_namespace_line_of_0_6_4_gives_every_argument():
    read = log.parse(NAMESPACE_0_6)
    assert (read.version, read.model) == ("0.6.4.post1", "unsloth/Llama-3.3-70B-Instruct")
    assert (read.tensor_parallel_size, read.block_size, read.max_num_seqs) == (2, 16, 256)
    assert read.gpu_memory_utilization == 0.9 and read.max_num_batched_tokens is None
    assert (
        read.args["config_format"] == "<ConfigFormat.AUTO: 'auto'>"
        and read.args["middleware"] == []
    )


def test_ray_workers_are_told_apart_by_node_and_pid():
    line = ("\x1b[36m(RayWorkerWrapper pid={}, ip=10.0.0.{})\x1b[0m INFO 12-25 14:00:09 model_runner.py:1094] "
            "Loading model weights took {} GB")  # fmt: skip
    read = log.parse("\n".join(line.format(pid, ip, gib) for pid, ip, gib in ((7, 2, 40.5), (7, 3, 41.5), (8, 2, 40.5)))
                     + " \x1b[32m [repeated 3x across cluster]\x1b[0m (Ray deduplicates logs by default.)")  # fmt: skip
    assert len(read.ranks) == 3 and read.weights_gib == 41.5


def test_of_several_engines_the_smallest_counts_and_a_log_without_its_beginning_is_read():
    """`--data-parallel-size 2`: vLLM 0.32.0 prints a line an engine."""
    template = "(EngineCore_DP{} pid=7) INFO 11-20 10:02:3{} [kv_cache_utils.py:1731] GPU KV cache size: {} tokens, Maximum concurrency for 8,192 tokens per request: {}x\n"
    for lines in [
        ((0, 1, "451,440", 55.11), (1, 2, "450,000", 54.93)),
        ((0, 1, "450,000", 54.93), (1, 2, "451,440", 55.11)),
    ]:
        read = log.parse("".join(template.format(*line) for line in lines))
        assert (read.kv_cache_tokens, read.max_concurrency, read.max_model_len) == (
            450000,
            54.93,
            8192,
        )
        assert read.last == "11-20 10:02:32"


def test_an_unknown_version_is_read_and_said():
    text = (LOGS / "llama-3.1-8b_tp1_h200.log").read_text().replace("v0.25.1", "v0.99.0")
    read = log.parse(text)
    assert "0.99.0" in read.notes[0]
    assert read.kv_cache_tokens == 914304


def test_keys_never_come_out_of_a_log():
    text = NAMESPACE_0_6.replace("api_key=None", "api_key='sk-very-secret'")
    dictionary = ("(APIServer pid=1) INFO 11-20 10:02:25 [api_utils.py:286] non-default args: "
                  "{'api_key': ['sk-very-secret'], 'model': 'm', 'max_model_len': 8}\n")  # fmt: skip
    for written in (text, dictionary):
        assert "very-secret" not in json.dumps(asdict(log.parse(written)))


def test_a_file_that_is_no_vllm_log_is_refused_by_name(tmp_path, subtests):
    for content, says in [
        ("", "empty"),
        ("Mon Nov 20 kernel: something else\n", "something else"),
        ("INFO:     Application startup complete.\n", "Application startup"),
        ("2026-11-20 10:00:00,000 INFO my.module: vllm is mentioned here\n", "mentioned"),
    ]:
        with subtests.test(content):
            path = tmp_path / "other.log"
            path.write_text(content)
            with pytest.raises(BadInput, match=r"other\.log is not a vLLM log") as refused:
                log.read(path)
            assert says in refused.value.message and "INFO 11-20" in refused.value.remedy


def test_a_folder_a_missing_file_and_a_binary_are_refused(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"\0\1\2\3" * 100)
    names = {"": "is a folder", "none.log": "No such file", "model.bin": "not a text"}
    for path, says in ((tmp_path / name, message) for name, message in names.items()):
        with pytest.raises(BadInput, match=says):
            log.read(path)


def test_reading_a_log_imports_the_standard_library_only():
    code = (
        "import sys; before = set(sys.modules); import workshop.engine.log; "
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    root = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": str(root / "planner")}
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['inference_planner', 'workshop']"


def test_as_dict_is_json_and_the_index_names_every_log():
    index = json.loads((LOGS / "index.json").read_text())["logs"]
    files = {str(path.relative_to(LOGS)) for path in LOGS.rglob("*.log")}
    assert files == set(index)
    for name in files:
        assert json.dumps(asdict(log.read(LOGS / name)))
        assert {"hardware", "vllm_version", "command", "date", "source"} <= set(index[name])


def test_a_pattern_whose_group_is_no_fact_is_refused():
    with pytest.raises(KeyError, match=r"wieghts_gib.*oading took"):
        log.rules._rule(("oading took", "Model loading took <wieghts_gib> Gi?B"))
