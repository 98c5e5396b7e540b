"""Logs that are too old, of releases without formulas, and of checkpoints whose format is not said.

The figures are those of public logs; each test names its thread.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from workshop.cli.use.reconcile import command
from workshop.engine import log as engine_log
from workshop.engine.reconcile.case import make_case
from workshop.engine.reconcile.compare import Reconciliation, reconcile
from workshop.errors import BadInput

V1 = """INFO 05-30 06:40:20 [core.py:69] Initializing a V1 LLM engine (v{version}) with config: \
model='facebook/opt-6.7b', dtype=torch.float16, max_seq_len=2048, tensor_parallel_size=1
INFO 05-30 06:40:49 [gpu_model_runner.py:1791] Model loading took 12.4000 GiB and 9.1 seconds
"""
# What no V1 engine of 0.10 or later prints, each without a version.
OLD_LINES = {
    "before 0.4": "Initializing an LLM engine with config: model='facebook/opt-6.7b'",
    "V0 by its name": "Initializing a V0 LLM engine with config: model='facebook/opt-6.7b'",
    "blocks of V0": "# CUDA blocks: 170, # CPU blocks: 512",
    "blocks of V1 up to 0.7": "# GPU blocks: 1381",
    "GB": "Model loading took 12.40 GB and 9.1 seconds",
    "memory of V0": "model weights take 12.40GiB; non_torch_memory takes 0.07GiB; PyTorch activation "
    "peak memory takes 0.38GiB; the rest of the memory reserved for KV Cache is 1.33GiB.",
    "too few blocks under V0": "ValueError: The model's max seq len (4096) is larger than the maximum "
    "number of tokens that can be stored in KV cache (3664).",
}


def assert_refused(text: str, what: str, **options: str) -> None:
    log = engine_log.parse(text)
    for run in (reconcile, make_case):
        with pytest.raises(BadInput) as refused:
            run(log, "opt-6.7b", "v100-16gb", **options)
        assert f"is of {what}: only logs of vLLM 0.10 and later" in refused.value.message
        assert "V1 engine" in refused.value.message and refused.value.remedy


@pytest.mark.parametrize("version", ["0.4.0", "0.6.4.post1", "0.9.2rc2.dev1+g1"])
def test_a_release_before_0_10_is_refused(version):
    assert_refused(V1.format(version=version), f"vLLM {version}")


@pytest.mark.parametrize("version", ["0.8.3", "0.10.2"])
def test_the_v0_engine_is_refused_in_every_release(version):
    text = V1.format(version=version).replace("a V1 LLM", "a V0 LLM")
    assert_refused(text, f"vLLM {version} with the V0 engine")


@pytest.mark.parametrize("line", OLD_LINES.values(), ids=OLD_LINES)
def test_a_line_that_is_not_printed_since_0_10_is_enough(line):
    text = f"INFO 05-30 06:40:50 [worker.py:1] {line}\n" + V1.splitlines()[-1]
    what = "vLLM's V0 engine" if "V0 LLM" in line else "vLLM 0.9 or before, or of its V0 engine"
    assert_refused(text, what)
    assert_refused(text, what, vllm_version="0.32.0")


def test_an_old_release_may_not_be_given():
    assert_refused(V1.splitlines()[-1], "vLLM 0.7", vllm_version="0.7")


def test_an_old_log_is_wrong_use(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(V1.format(version="0.7.3"))
    for options in ([], ["--json"], ["--no-keep"]):
        error = CliRunner().invoke(command, [str(path), *options]).exception
        assert isinstance(error, BadInput) and error.exit_code == 2
        assert "vLLM 0.7.3" in error.message


def test_an_old_log_that_failed_has_its_cause():
    cause = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."
    log = engine_log.parse(V1.format(version="0.8.1") + cause)
    with pytest.raises(BadInput, match="The start failed") as refused:
        reconcile(log, "opt-6.7b", "v100-16gb")
    assert "vLLM 0.8.1" in refused.value.message
    assert "no C compiler" in refused.value.message and "gcc" in refused.value.remedy


def test_an_old_log_is_read_as_far_as_its_lines_are_those_of_today():
    log = engine_log.parse(V1.format(version="0.9.2"))
    assert (log.version, log.model, log.weights_gib) == ("0.9.2", "facebook/opt-6.7b", 12.4)
    assert any("0.10 to 0.33" in note for note in log.notes)


@pytest.mark.parametrize(
    ("version", "outside"),
    [("0.10.0", True), ("0.10.2", True), ("0.24.0", True), ("0.25.0", False), ("0.32.0", False)],
)
def test_releases_before_the_table_are_outside(version, outside):
    log = engine_log.parse(V1.format(version=version))
    assumed = make_case(log, "opt-6.7b", "v100-16gb").assumed
    assert any("outside" in sentence for sentence in assumed) is outside


def test_a_build_without_tags_names_no_release():
    log = engine_log.parse(V1.format(version="0.1.dev11+g4b7f5ea1a"))
    assert log.version is None
    case = make_case(log, "opt-6.7b", "v100-16gb", vllm_version="0.12.0")
    assert case.settings["vllm_version"] == "0.12.0"


def advice(result: Reconciliation) -> dict:
    return {item.flag: item.value for item in result.advice}


# The figures of vllm pull request 12569 (70B in w8a8), in the words of V1 of 0.10.
W8A8 = """INFO 01-30 03:18:12 [gpu_model_runner.py:1791] Model loading took 67.7229 GiB and 9.1 seconds
INFO 01-30 03:19:14 [kv_cache_utils.py:716] GPU KV cache size: 22,096 tokens
INFO 01-30 03:19:14 [kv_cache_utils.py:720] Maximum concurrency for 2,048 tokens per request: 10.79x
"""


def test_weights_of_another_precision_say_which_it_is():
    result = reconcile(engine_log.parse(W8A8), "llama-3.1-70b", "h100")
    row = result.row("weights per GPU")
    assert row is not None and row.error_percent == pytest.approx(0, abs=0.5)
    assert any("8 bits" in sentence for sentence in result.assumed)


def test_a_plan_that_does_not_fit_is_no_prediction_of_a_run():
    row = reconcile(engine_log.parse(W8A8), "llama-3.1-70b", "h100").row("KV cache size")
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
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
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
