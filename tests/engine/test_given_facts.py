"""`workshop reconcile` with what a log does not say: release, share of memory, size of the card."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from workshop.cli.use.reconcile import command
from workshop.engine import log as engine_log
from workshop.engine.reconcile import recording
from workshop.engine.reconcile.case import make_case
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import BadInput

# vllm issue 23278: 0.10.1, which the lines do not say
V1_OF_0_10 = """INFO 08-20 18:04:10 [gpu_model_runner.py:2007] Model loading took 65.9651 GiB and 12.79 seconds
INFO 08-20 18:04:22 [gpu_worker.py:276] Available KV cache memory: 2.14 GiB
"""
NEW = """INFO 11-20 10:00:00 [core.py:114] Initializing a V1 LLM engine (v0.32.0) with config: \
model='/models/NAME', dtype=torch.bfloat16, max_seq_len=8192, tensor_parallel_size=1QUANTIZATION
INFO 11-20 10:00:10 [gpu_model_runner.py:5500] Model loading took SIZE GiB memory and 13.1 seconds
INFO 11-20 10:00:20 [gpu_worker.py:508] Free memory on device (78.84/79.25 GiB) on startup. \
Desired GPU memory utilization is (0.9, 71.32 GiB).
INFO 11-20 10:00:20 [gpu_worker.py:508] Available KV cache memory: 50.00 GiB
"""


def new(name: str = "llama-3.1-8b", size: float = 15.0, quantization: str = "") -> str:
    text = NEW.replace("NAME", name).replace("SIZE", str(size))
    return text.replace("QUANTIZATION", quantization)


def test_the_form_of_its_lines_dates_a_log():
    """It is older than 0.20, whose default is 0.92; its own was 0.9."""
    read = engine_log.parse(V1_OF_0_10)
    assert read.version is None and read.newest_release == "0.18"
    case = make_case(read, "gpt-oss-120b", "h100")
    assert case.base.deployment.settings.gpu_memory_utilization == 0.9
    assert any("0.18 or before" in sentence for sentence in case.assumed)
    assert not any("0.32.0 was assumed" in sentence for sentence in case.assumed)


def test_a_log_of_today_is_not_dated():
    assert engine_log.parse(new()).newest_release is None


def test_given_facts_fill_the_gaps_of_a_log():
    read = engine_log.parse(V1_OF_0_10)
    case = make_case(
        read,
        "gpt-oss-120b",
        "h100",
        vllm_version="0.10.1",
        gpu_memory_utilization=0.98,
        gpu_memory_gib=79.1,
    )
    assert case.log.version == "0.10.1" and read.version is None
    assert case.base.deployment.settings.gpu_memory_utilization == 0.98
    assert case.card.engine_gib == pytest.approx(79.1)


def test_a_start_without_a_version_is_kept_once_the_version_is_given():
    read = engine_log.parse(V1_OF_0_10)
    with pytest.raises(BadInput) as refused:
        recording.kept_run(make_case(read, "gpt-oss-120b", "h100"))
    assert "--vllm-version" in refused.value.remedy
    case = make_case(read, "gpt-oss-120b", "h100", vllm_version="0.10.1")
    assert "0.10.1" in str(recording.kept_run(case))


def test_a_card_without_a_name_is_given_by_its_memory():
    case = make_case(engine_log.parse(V1_OF_0_10), "gpt-oss-120b", None, gpu_memory_gib=79.18)
    assert case.card.title == "card of 79.18 GiB"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (new(), {"vllm_version": "0.31.0"}, "The log is of vLLM 0.32.0, not 0.31.0."),
        (new(), {"vllm_version": "new"}, "--vllm-version new is no release of vLLM."),
        (V1_OF_0_10, {"vllm_version": "0.25.1"}, "of vLLM 0.18 or before, not 0.25.1."),
        (new(), {"gpu_memory_utilization": 0.8}, "--gpu-memory-utilization 0.9, not 0.8."),
        (new(), {"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization 1.5 is no share."),
        (new(), {"gpu_memory_gib": 80}, "The log reports 79.25 GiB on a GPU, not 80."),
    ],
)
def test_what_contradicts_the_log_is_refused_in_one_sentence(text, options, message):
    with pytest.raises(BadInput, match=re.escape(message)):
        make_case(engine_log.parse(text), None, "h100", **options)


def test_what_agrees_with_the_log_is_accepted():
    case = make_case(
        engine_log.parse(new()),
        None,
        "h100",
        vllm_version="v0.32.0",
        gpu_memory_utilization=0.9,
        gpu_memory_gib=79.25,
    )
    assert case.log.version == "0.32.0"


def test_the_command_takes_and_explains_the_options(tmp_path):
    run = CliRunner().invoke
    help_text = run(command, ["--help"]).output
    for flag in ("--vllm-version", "--gpu-memory-utilization", "--gpu-memory GIB"):
        assert flag in help_text
    path = tmp_path / "vllm.log"
    path.write_text(V1_OF_0_10)
    options = ["--vllm-version", "0.10.1", "--gpu-memory-utilization", "0.95"]
    result = run(
        command, [str(path), "--model", "gpt-oss-120b", "--gpu", "h100", *options, "--no-keep"]
    )
    assert result.exit_code == 0 and "0.95 of" in " ".join(result.output.split())


def test_weights_of_bitsandbytes_are_in_four_bits():
    """oumi pull request 1223: Llama 3.2 1B in bitsandbytes took 0.9786 GB, and 2.3185 in 16 bit."""
    text = new("llama-3.2-1b", 0.9786, ", quantization=bitsandbytes")
    result = reconcile(engine_log.parse(text), gpu="h100")
    row = result.row("weights per GPU")
    assert row is not None and abs(row.error_percent or 0) < 5
    assert not any("no formulas" in sentence for sentence in result.assumed)


@pytest.mark.parametrize("name", ["auto-round", "auto_round", "inc", "gptq"])
def test_names_of_one_method_plan_the_same_weights(name):
    """AutoRound's usual checkpoint is GPTQ's layout: 4 bits, groups of 128."""
    case = make_case(engine_log.parse(new(quantization=f", quantization={name}")), None, "h100")
    assert case.stage.weights_gib == pytest.approx(5.3, abs=0.3)
    assert not any("no formulas" in sentence for sentence in case.assumed)


@pytest.mark.parametrize("quantization", ["", ", quantization=None"])
def test_the_name_of_a_checkpoint_says_its_format(quantization):
    """8.49 GiB are Llama 3.1 8B in FP8; --quantization fp8 was advised for it."""
    read = engine_log.parse(new("Meta-Llama-3.1-8B-Instruct-FP8", 8.49, quantization))
    result = reconcile(read, "llama-3.1-8b", "h100")
    row = result.row("weights per GPU")
    assert row is not None and abs(row.error_percent or 0) < 1
    assert "--quantization" not in {item.flag for item in result.advice}


def test_weights_in_16_bit_go_before_the_name_of_the_checkpoint():
    read = engine_log.parse(new("Meta-Llama-3.1-8B-Instruct-FP8", 15.0, ", quantization=None"))
    row = reconcile(read, "llama-3.1-8b", "h100").row("weights per GPU")
    assert row is not None and abs(row.error_percent or 0) < 1


def test_lines_without_the_words_of_the_logger_are_read():
    read = engine_log.parse(
        "[gpu_worker.py:508] Available KV cache memory: 5.98 GiB\n"
        "[kv_cache_utils.py:2146] GPU KV cache size: 567,978 tokens\n"
    )
    assert (read.available_kv_gib, read.kv_cache_tokens) == (5.98, 567978)


def test_one_line_of_another_program_is_no_log():
    with pytest.raises(BadInput, match="not a vLLM log"):
        engine_log.parse("GPU KV cache size: 567,978 tokens\n")
