"""The plan beside real logs. Actual numbers are those that the logs print; tests/planner tests the predicted ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from inference_planner.answer.parallelism import plan

from workshop.engine import log
from workshop.engine.reconcile.compare import Reconciliation, reconcile
from workshop.errors import BadInput, WorkshopError
from workshop.servers.local import TEACHING_FOLDER

DATA = Path(__file__).parent / "data"
LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
GPU_LOGS = sorted([*LOGS.glob("*_h200.log"), *LOGS.glob("*_h100.log")])
# what the CPU logs are of
TINY, LONG = (LOGS / "configs" / f"{name}-llama.json" for name in ("tiny", "long"))


def gpu_of(path: Path) -> str:
    return path.stem.split("_")[-1]


def test_every_gpu_log_is_compared_line_by_line(subtests):
    for path in GPU_LOGS:
        with subtests.test(path.stem):
            result, read = reconcile(path, gpu=gpu_of(path)), log.read(path)
            names = [row.quantity for row in result.rows]
            assert {
                "weights per GPU",
                "overhead per GPU",
                "available KV cache per GPU",
                "KV cache size",
            } <= set(names)
            assert result.row("KV cache size").actual == read.kv_cache_tokens
            assert result.row("weights per GPU").actual == read.weights_gib
            assert result.row("available KV cache per GPU").actual == read.available_kv_gib
            assert result.row("maximum concurrency").actual == read.max_concurrency
            assert all(row.reason for row in result.rows)
            assert result.failure == "" and result.advice


def test_errors_are_what_the_two_numbers_say(subtests):
    for path in GPU_LOGS:
        with subtests.test(path.stem):
            for row in reconcile(path, gpu=gpu_of(path)).rows:
                if row.predicted is None:
                    assert row.error_percent is None
                else:
                    assert row.error_percent == pytest.approx(
                        (row.predicted / row.actual - 1) * 100, abs=0.1
                    )


def test_weights_and_bytes_a_token_agree_within_half_a_percent_on_every_recorded_run():
    for path in GPU_LOGS:
        result = reconcile(path, gpu=gpu_of(path))
        for quantity in ("weights per GPU", "KV cache per token and GPU"):
            # a stage that is not the tightest does not say what a token takes
            row = result.row(quantity)
            assert row is None or abs(row.error_percent) <= 0.5, f"{path.stem}: {quantity}"
            assert row is None or "more than 1 %" not in row.reason
    other = reconcile(LOGS / "llama-3.1-8b_tp1_h200.log", model="llama-3.2-1b", gpu="h200")
    for quantity in ("weights per GPU", "KV cache per token and GPU"):
        assert "more than 1 % apart" in other.row(quantity).reason


def test_a_cpu_log_says_the_weights_of_all_ranks_where_two_decimals_tell_them(tmp_path):
    """Llama 3.2 1B's model.safetensors has 2,471,645,608 bytes: 2.30 GiB."""
    text = (LOGS / "tiny_cpu_server.log").read_text()
    (path := tmp_path / "vllm.log").write_text(
        text.replace("Checkpoint size: 0.01 GiB", "Checkpoint size: 2.30 GiB")
    )
    row = reconcile(path, model="llama-3.2-1b").row("weights, all ranks")
    assert row.actual == 2.30 and abs(row.error_percent) <= 0.1
    assert reconcile(LOGS / "tiny_cpu_server.log", model=TINY).row("weights, all ranks") is None


def test_a_newer_version_is_planned_with_its_own_formulas(subtests):
    """They follow its source; the logs were recorded after they had been written (then −1.06, +0.18 and +0.46 %)."""
    for path in [path for path in GPU_LOGS if "0.32.0" in path.stem]:
        with subtests.test(path.stem):
            result = reconcile(path, gpu=gpu_of(path))
            assert abs(result.row("KV cache size").error_percent) <= 0.6
            assert (
                result.row("CUDA graphs, reserved").actual == log.read(path).cuda_graph_estimate_gib
            )


def test_the_difference_in_tokens_is_split_into_its_causes():
    """Memory and bytes a token, together, are the whole error: (1 + a)(1 + b) = 1 + e."""
    for path in GPU_LOGS:
        row = reconcile(path, gpu=gpu_of(path)).row("KV cache size")
        if "tightest stage" in row.reason:
            continue
        memory, token = (float(part.split(" % ")[0]) for part in row.reason.split(", "))
        assert (1 + memory / 100) * (1 + token / 100) - 1 == pytest.approx(
            row.error_percent / 100, abs=2e-4
        )


def test_advice_starts_from_the_log_and_more_gpus_come_last():
    """fp8 halves the 128 KiB that a token of Llama 3.1 8B takes."""
    advice = reconcile(LOGS / "llama-3.1-8b_tp1_h200.log", gpu="h200").advice
    fp8 = next(item for item in advice if item.flag == "--kv-cache-dtype")
    assert fp8.value == "fp8" and "tokens of KV cache instead of 914,304 (+100 %)" in fp8.effect
    flags = [item.flag for item in advice]
    assert flags[-1] == "--tensor-parallel-size" and "--gpu-memory-utilization" in flags
    share = next(item for item in advice if item.flag == "--gpu-memory-utilization")
    assert 0.92 < share.value <= 0.95


def test_the_fp8_kv_advice_is_what_a_measured_run_with_it_gave():
    """h200_vllm_runs.json, run 8b-kvfp8: 1,828,096 tokens."""
    advice = reconcile(LOGS / "llama-3.1-8b_tp1_h200.log", gpu="h200").advice
    effect = next(item.effect for item in advice if item.flag == "--kv-cache-dtype")
    assert int(effect.split()[0].replace(",", "")) == pytest.approx(1828096, rel=0.002)


def test_a_longer_context_is_offered_where_the_model_reads_more():
    advice = reconcile(LOGS / "llama-3.1-405b-fp8_tp4_h200.log", gpu="h200").advice
    longer = next(item for item in advice if item.flag == "--max-model-len")
    assert longer.value == 131072 and "1.86 of them at once" in longer.effect  # 243,696 / 131,072


def test_cpu_logs_agree_exactly(subtests):
    for name, tokens, concurrency in [
        ("cpu_tp2", 1048576, 256.0),
        ("cpu_pp2", 1048576, 256.0),
        ("cpu_under_load", 8192, 4.0),
    ]:
        with subtests.test(name):
            result = reconcile(LOGS / f"{name}.log", model=TINY)
            row = result.row("KV cache size")
            assert (row.predicted, row.actual, row.error_percent) == (tokens, tokens, 0)
            assert result.row("maximum concurrency").actual == concurrency
            assert all("--gpu" not in line for line in result.assumed)


def test_cpu_advice_doubles_the_space():
    advice = reconcile(LOGS / "cpu_tp2.log", model=TINY).advice[0]
    assert (advice.flag, advice.value) == (
        "VLLM_CPU_KVCACHE_SPACE",
        2,
    ) and "2,097,152 tokens" in advice.effect
    other = {
        item.flag: item.value for item in reconcile(LOGS / "cpu_under_load.log", model=TINY).advice
    }
    assert other["--kv-cache-memory-bytes"] == 2 * 16777216 and other["--max-model-len"] == 4096


def test_a_start_that_failed_for_its_kv_cache_gets_the_length_that_fits():
    """vLLM says of this start: the estimated maximum model length is 32640."""
    result = reconcile(LOGS / "failures/kv_cache_too_small.log", model=LONG)
    assert "0.25 GiB" in result.failure
    assert (result.advice[0].flag, result.advice[0].value) == ("--max-model-len", 32640)
    assert result.row("KV cache size").actual is None


def test_what_the_log_does_not_say_is_asked_for_in_one_sentence():
    with pytest.raises(BadInput, match="does not name its GPU") as refused:
        reconcile(LOGS / "llama-3.1-8b_tp1_h200.log")
    assert "--gpu" in refused.value.remedy and "h200" in refused.value.remedy
    with pytest.raises(BadInput, match="/models/tiny") as refused:
        reconcile(LOGS / "tiny_cpu_server.log")
    assert "--model" in refused.value.remedy
    with pytest.raises(BadInput, match="The log is of a Qwen3MoeForCausalLM"):
        reconcile(LOGS / "qwen3-30b-a3b_tp1_h200.log", model=TINY)
    assert any(
        "NVIDIA H200" in line for line in reconcile(LOGS / "qwen3-30b-a3b_tp1_h200.log").assumed
    )


def test_a_folder_that_is_here_goes_before_the_catalogs_model_of_its_name(tmp_path):
    (folder := tmp_path / "llama-3.1-8b").mkdir()
    (folder / "config.json").write_text(TINY.read_text())
    (path := tmp_path / "vllm.log").write_text(
        (LOGS / "tiny_cpu_server.log").read_text().replace("/models/tiny", str(folder))
    )
    assert reconcile(path).rows == reconcile(LOGS / "tiny_cpu_server.log", model=TINY).rows


def test_a_log_of_workshop_serve_names_its_gpu_itself(tmp_path):
    """`workshop serve` on an H200 (routes, requests and bars left out), with the teaching model under its own name."""
    served = (DATA / "served_h200.log").read_text()
    result = reconcile(DATA / "served_h200.log", model=TEACHING_FOLDER)
    assert any("NVIDIA H200" in line for line in result.assumed)
    assert (result.row("KV cache size").predicted, result.row("KV cache size").actual) == (
        65536,
        65536,
    )
    small = result.row("weights per GPU")  # 22.8 MiB are 0.02 GiB in the log
    assert (small.predicted, small.actual, small.error_percent) == (
        0.022,
        0.02,
        0,
    ) and "22.8 MiB" in small.reason
    with pytest.raises(BadInput, match="does not name its GPU"):
        path = tmp_path / "unnamed.log"
        path.write_text(served.partition("\n")[2])
        reconcile(path, model=TEACHING_FOLDER)


def test_a_batch_that_is_nearly_done_is_no_single_stream(tmp_path):
    template = (
        "(APIServer pid=5) INFO 11-21 16:49:{:02} [loggers.py:273] Engine 000: "
        "Avg prompt throughput: 40.0 tokens/s, Avg generation throughput: {} tokens/s, Running: {} reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%\n"
    )
    log_of = {
        "batch": [(15911.0, 173), (15911.0, 1), (20.0, 0)],
        "alone": [(9000.0, 3), (190.0, 1), (205.0, 1)],
    }
    rows = {}
    for name, lines in log_of.items():
        path = tmp_path / f"{name}.log"
        path.write_text(
            (LOGS / "llama-3.1-8b_tp1_h200.log").read_text()
            + "".join(template.format(10 + number, *line) for number, line in enumerate(lines))
        )
        rows[name] = reconcile(path, gpu="h200").row("single stream")
    assert rows["batch"] is None and rows["alone"].actual == 205


def test_a_gpu_that_cannot_be_is_refused_and_one_that_is_unlikely_is_doubted():
    """The 8B log has 15.0 GiB of weights and 111.61 GiB of KV cache on one GPU."""
    with pytest.raises(BadInput, match=r"126\.61 GiB on a GPU") as refused:
        reconcile(LOGS / "llama-3.1-8b_tp1_h200.log", gpu="t4")
    assert "h200" in refused.value.remedy and "t4" not in refused.value.remedy
    doubted = reconcile(LOGS / "llama-3.1-8b_tp1_h200.log", gpu="b200").row("overhead per GPU")
    assert "another GPU" in doubted.reason
    right = reconcile(LOGS / "llama-3.1-8b_tp1_h200.log", gpu="h200")
    assert "another GPU" not in right.row("overhead per GPU").reason


def test_a_gpu_start_that_failed_is_told_what_fits():
    """The 8B log cut at its KV cache, with the words and figures of an L4 (24 GB): vLLM estimates 32112 tokens."""
    text = (
        (LOGS / "llama-3.1-8b_tp1_h200.log")
        .read_text()
        .split("(EngineCore pid=3243) INFO 11-20 09:46:48")[0]
    )
    text += ("(EngineCore pid=3243) INFO 11-20 09:46:48 [gpu_worker.py:538] Available KV cache memory: 3.92 GiB\n"
             "ValueError: To serve at least one request with the models's max seq len (131072), (16.0 GiB KV cache "
             "is needed, which is larger than the available KV cache memory (3.92 GiB). Based on the available "
             "memory, the estimated maximum model length is 32112. Try increasing `gpu_memory_utilization` or "
             "decreasing "
             "`max_model_len` when initializing the engine.\n")  # fmt: skip
    result = reconcile(log.parse(text), gpu="l4")
    assert "16.0 GiB" in result.failure and result.row("KV cache size") is None
    assert result.advice[0].flag == "--max-model-len" and 32000 <= result.advice[0].value <= 32112
    assert result.advice[-1].flag == "--tensor-parallel-size"


def test_a_log_that_ends_early_says_why():
    with pytest.raises(WorkshopError, match="damaged or was cut") as ended:
        reconcile(LOGS / "failures/truncated_shard.log")
    assert ended.value.exit_code == 1
    early = log.parse(
        "INFO 11-20 10:02:25 [model.py:733] Resolved architecture: LlamaForCausalLM\n"
    )
    with pytest.raises(WorkshopError, match="ends in the middle of a start"):
        reconcile(early)


def run(*arguments: str):
    from workshop.cli.use.reconcile import command

    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_json_has_the_promised_keys_and_nothing_else():
    result = run(LOGS / "llama-3.1-70b_tp4_h200.log", "--gpu", "H200", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert set(data) == {"rows", "advice"}
    keys = {"quantity", "predicted", "actual", "unit", "error_percent", "reason"}
    assert all(set(row) == keys for row in data["rows"])
    assert all(set(item) == {"flag", "value", "effect"} for item in data["advice"])
    tokens = next(row for row in data["rows"] if row["unit"] == "tokens")
    assert tokens["actual"] == 1229264 and isinstance(tokens["predicted"], int)
    assert "llama-3.1-70b" in result.stderr


def test_the_table_shows_both_numbers_and_the_advice():
    result = run(LOGS / "llama-3.1-8b_tp1_h200.log", "--gpu", "h200", "--model", "llama-3.1-8b")
    assert result.exit_code == 0
    assert (
        "914,304" in result.stdout
        and "What to change" in result.stdout
        and "--kv-cache-dtype fp8" in result.stdout
    )


def test_errors_carry_the_exit_codes_of_the_command_line(tmp_path):
    (tmp_path / "other.log").write_text("something else\n")
    for path, code in (
        (tmp_path / "other.log", 2),
        (tmp_path / "none.log", 2),
        (LOGS / "failures/no_weights.log", 1),
    ):
        assert run(path).exception.exit_code == code


def test_reconciliation_is_plain_data():
    result = reconcile(LOGS / "mistral-7b_tp1_h200.log", gpu="h200")
    assert isinstance(result, Reconciliation) and result.row("no such row") is None
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


GIVEN = "'compilation_config': {{'mode': {mode}, 'backend': '', 'custom_ops': [], 'cudagraph_mode': {graphs}, "
GIVEN += (
    "'cudagraph_capture_sizes': {sizes}, 'max_cudagraph_capture_size': None}}"  # as vLLM prints it
)


def test_the_compilation_config_of_a_log_is_planned_with(tmp_path, subtests):
    """It leaves as much more memory as in a plan, though vLLM prints modes as names of an enumeration."""
    path = DATA / "two_h200" / "llama-3.1-8b_tp2_vllm-0.33.0_h200.log"
    changed = tmp_path / "changed.log"

    def room(log: Path) -> float:
        return reconcile(log, gpu="h200").row("available KV cache per GPU").predicted

    def planned(option: dict | None) -> float:
        settings = {
            "gpus_per_node": 2,
            "tensor_parallel_size": 2,
            "vllm_version": "0.33.0",
            "usage": "llm",
        }
        settings |= {"disable_custom_all_reduce": True, "max_model_len": 16384}  # as in the log
        answer = plan("llama-3.1-8b", "h200", compilation_config=option, **settings)
        return answer.available_kv_gib_per_gpu

    for option, printed in (
        ({"cudagraph_mode": "NONE"}, {"graphs": "<CUDAGraphMode.NONE: 0>"}),
        ({"cudagraph_mode": "PIECEWISE"}, {"graphs": "<CUDAGraphMode.PIECEWISE: 1>"}),
        ({"cudagraph_capture_sizes": [1, 2, 4]}, {"sizes": "[1, 2, 4]"}),
        ({"mode": "NONE"}, {"mode": "<CompilationMode.NONE: 0>"}),
    ):
        with subtests.test(str(option)):
            printed_config = GIVEN.format(
                **{"mode": None, "graphs": None, "sizes": None, **printed}
            )
            text = path.read_text().replace(
                "'max_model_len'", f"{printed_config}, 'max_model_len'", 1
            )
            changed.write_text(text)
            more = room(changed) - room(path)
            assert more > 0.2
            assert more == pytest.approx(planned(option) - planned(None), abs=0.01)
