"""What a log says of its model, split, quantization and GPU: nothing is assumed without a word."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from workshop.cli.use.reconcile import command
from workshop.engine import log
from workshop.engine.reconcile.case import make_case
from workshop.engine.reconcile.compare import Reconciliation, reconcile
from workshop.errors import BadInput

CONFIG = """\
(EngineCore pid=9) INFO 04-23 10:00:10 [core.py:76] Initializing a V1 LLM engine (v{version}) with config: \
model='{model}', dtype=torch.bfloat16, max_seq_len=8192, {sizes}quantization={quantization}, enforce_eager=False, \
kv_cache_dtype=auto, device_config=cuda
"""
FIGURES = """\
({worker} pid=9) INFO 04-23 10:02:00 [gpu_model_runner.py:5500] Model loading took {weights} GiB memory and 13.1 seconds
({worker} pid=9) INFO 04-23 10:02:30 [gpu_worker.py:456] Available KV cache memory: 20.00 GiB
"""
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8"
ONE_GPU = "tensor_parallel_size=1, pipeline_parallel_size=1, "
# --quantization of vLLM 0.10 to 0.33 (model_executor/layers/quantization/__init__.py)
QUANTIZATIONS = (
    "awq awq_marlin fp8 ptpc_fp8 fbgemm_fp8 fp_quant modelopt modelopt_fp4 modelopt_mxfp8 modelopt_mixed gguf gptq "
    "gptq_marlin compressed-tensors bitsandbytes hqq experts_int8 ipex quark moe_wna16 torchao auto-round auto_round "
    "rtn inc mxfp4 mxfp8 petit_nvfp4 deepspeedfp tpu_int8 fp8_per_tensor fp8_per_block online cpu_awq gpt_oss_mxfp4 "
    "a_name_of_tomorrow"
)


def config(
    model: str = "meta-llama/Llama-3.1-8B",
    quantization: str = "None",
    sizes: str = ONE_GPU,
    version: str = "0.25.1",
) -> str:
    return CONFIG.format(model=model, quantization=quantization, sizes=sizes, version=version)


def figures(weights: float = 15.0, worker: str = "EngineCore") -> str:
    return FIGURES.format(weights=weights, worker=worker)


def weights_gib(result: Reconciliation) -> float:
    row = result.row("weights per GPU")
    assert row is not None and row.predicted is not None
    return row.predicted


@pytest.mark.parametrize("quantization", QUANTIZATIONS.split())
def test_no_name_of_a_quantization_ends_the_comparison(quantization):
    result = reconcile(log.parse(config(quantization=quantization) + figures()), gpu="h100")
    assert result.row("available KV cache per GPU") is not None
    assert any(f"quantization={quantization}" in line for line in result.assumed)


@pytest.mark.parametrize(
    ("model", "gib"), [("meta-llama/Llama-3.1-8B", 8.49), ("Qwen/Qwen3.5-27B", 28.51)]
)
def test_fp8_of_the_log_is_applied_to_models_with_recorded_builds(model, gib):
    """Llama 3.1 8B: 8.49 GiB in our logs; Qwen3.5 27B FP8: 28.51 GiB in a public one."""
    result = reconcile(log.parse(config(model, "fp8") + figures(gib)), gpu="h100")
    assert weights_gib(result) == pytest.approx(gib, rel=0.02)


@pytest.mark.parametrize(
    ("logged_name", "name"),
    [
        ("/models/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        (
            "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/a09a35",
            "qwen2.5-7b",
        ),
        ("/root/.cache/modelscope/hub/models/Qwen/Qwen2___5-7B-Instruct", "qwen2.5-7b"),
        ("C:\\\\models\\\\Qwen3-8B", "qwen3-8b"),
        ("/data/Meta-Llama-3.1-8B-Instruct/", "llama-3.1-8b"),
        ("unsloth/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("/models/Llama-3.2-3B-Instruct/original", "llama-3.2-3b"),
        ("/repository/Qwen3-32B-AWQ", "qwen3-32b-awq"),
        ("RedHatAI/gemma-4-26B-A4B-it-NVFP4", "gemma-4-26B-A4B-it-NVFP4"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "deepseek-r1-distill-qwen-14b"),
        ("/models/Qwen3-8B-SFT/checkpoint-300", "qwen3-8b"),
        ("/models/Qwen3-8B-FP8-dynamic", "Qwen3-8B-FP8-dynamic"),
        ("/mnt/nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "NVIDIA-Nemotron-3-Nano-30B-A3B-FP8"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
    ],
)
def test_model_is_found_under_the_names_that_logs_have_for_it(logged_name, name):
    case = make_case(log.parse(config(logged_name) + figures()), None, "h200")
    assert any(f"taken to be {name}" in line for line in case.assumed)


@pytest.mark.parametrize(("weights", "method"), [(14.25, None), (8.2, "compressed-tensors")])
@pytest.mark.parametrize("model", [None, "qwen2.5-7b"])
def test_weights_in_16_bit_go_before_the_name(weights, method, model):
    """Qwen2.5 7B: 14.25 GiB in 16 bit in our logs."""
    text = config("/models/Qwen2.5-7B-FP8").replace("quantization=None, ", "")
    case = make_case(log.parse(text + figures(weights)), model, "h100")
    quantization = case.model.quantization
    assert (quantization and quantization.method) == method
    assert case.stage.weights_gib == pytest.approx(weights, rel=0.02)


def test_model_that_no_name_of_the_log_fits_is_asked_for():
    for logged_name in ("/models/model", "my-own-model", "/data/checkpoints/step-7000"):
        with pytest.raises(BadInput, match="names its model only as"):
            reconcile(log.parse(config(logged_name) + figures()), gpu="h200")


def test_one_gpu_is_assumed_with_a_word_and_can_be_set():
    read = log.parse(figures(32.9))
    single = reconcile(read, "llama-3.1-70b", "h200")
    assert any("does not say over how many GPUs" in line for line in single.assumed)
    assert weights_gib(single) > 131
    four = reconcile(read, "llama-3.1-70b", "h200", tensor_parallel_size=4)
    assert weights_gib(four) == pytest.approx(32.89, abs=0.01)
    two = reconcile(read, "llama-3.1-70b", "h200", tensor_parallel_size=2, pipeline_parallel_size=2)
    assert weights_gib(two) == pytest.approx(32.9, rel=0.03)
    assert not any("over how many" in line for line in four.assumed)


def test_size_that_the_log_contradicts_is_refused():
    read = log.parse(config() + figures())
    assert weights_gib(reconcile(read, gpu="h200", tensor_parallel_size=1)) > 14
    with pytest.raises(BadInput, match="is of --tensor-parallel-size 1, not 4"):
        reconcile(read, gpu="h200", tensor_parallel_size=4)


@pytest.mark.parametrize(
    "text",
    [
        figures(32.9, "Worker_TP0") + figures(32.9, "Worker_TP3"),
        "".join(figures(32.9, f"RayWorkerWrapper pid={pid}").replace(" pid=9", "") for pid in (5, 6, 7, 8)),
        "INFO 11-20 12:02:33 [parallel_state.py:1942] rank 0 in world size 4 is assigned as DP rank 0, PP rank 0, "
        "PCP rank 0, TP rank 0, EP rank N/A\n" + figures(32.9),
    ],
    ids=["names", "processes of Ray", "world size"],
)  # fmt: skip
def test_size_is_read_from_the_ranks_where_no_argument_names_it(text):
    result = reconcile(log.parse(text), "llama-3.1-70b", "h200")
    assert weights_gib(result) == pytest.approx(32.89, abs=0.01)
    assert any("ranks show tensor parallel 4" in line for line in result.assumed)


def test_data_and_expert_parallel_of_the_log_are_taken():
    """DeepSeek-V3 on 8 ranks, experts spread: 95.8 GiB a rank (docs/exact.md); 628.9 were said."""
    sizes = f"{ONE_GPU}data_parallel_size=8, enable_expert_parallel=True, "
    by_arguments = config("deepseek-ai/DeepSeek-V3", "fp8", sizes) + figures(95.8, "Worker_DP0_EP0")
    sizes = f"{ONE_GPU}data_parallel_size=8, "
    by_name = config("deepseek-ai/DeepSeek-V3", "fp8", sizes) + figures(95.8, "Worker_DP0_EP0")
    for text in (by_arguments, by_name):
        assert weights_gib(reconcile(log.parse(text), gpu="h200")) == pytest.approx(95.8, rel=0.01)


def test_replicas_of_a_dense_model_are_runs_of_their_own():
    text = config(sizes=f"{ONE_GPU}data_parallel_size=8, ") + figures(worker="EngineCore_DP7")
    assert weights_gib(reconcile(log.parse(text), gpu="h200")) == pytest.approx(15.0, abs=0.01)


def test_drafts_architecture_and_length_are_not_the_models():
    """Gemma 4 26B with an EAGLE-3 draft: the second "Resolved architecture" is the draft's."""
    text = (
        "INFO 04-19 15:31:03 [model.py:554] Resolved architecture: Gemma4ForConditionalGeneration\n"
        "INFO 04-19 15:31:03 [model.py:1685] Using max model len 98304\n"
        "INFO 04-19 15:31:10 [model.py:554] Resolved architecture: Eagle3LlamaForCausalLM\n"
        "INFO 04-19 15:31:11 [model.py:1685] Using max model len 262144\n"
        "INFO 04-19 15:31:31 [weight_utils.py:904] Checkpoint size: 15.30 GiB. Available RAM: 55.52 GiB.\n"
        "INFO 04-19 15:31:57 [weight_utils.py:904] Checkpoint size: 1.73 GiB. Available RAM: 55.38 GiB.\n"
    )
    read = log.parse(text)
    assert (read.architecture, read.max_model_len) == ("Gemma4ForConditionalGeneration", 98304)
    assert read.checkpoint_gib == 15.30


@pytest.mark.parametrize(
    ("line", "gpu"),
    [
        ("Config file not found at /opt/configs/E=40,N=512,device_name=NVIDIA_L40S.json", "L40S"),
        ("Using E=8,N=1792,device_name=NVIDIA_H100_80GB_HBM3,dtype=fp8_w8a8.json for MoE", "H100"),
        ("GPU 0: NVIDIA A100-SXM4-80GB", "A100"),
        ("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)", "RTX 4090"),
        ("|   0  NVIDIA H100 80GB HBM3          On  |   00000000:04:00.0 Off |", "H100"),
        ("device_name='NVIDIA H200'", "H200"),
    ],
)
def test_gpu_is_found_in_the_lines_that_name_it(line, gpu):
    read = log.parse(f"INFO 02-13 15:01:40 [a.py:1] {line}\n")
    assert read.gpu is not None and gpu in read.gpu
    small = figures().replace("20.00", "2.00")
    read = log.parse(config() + small + f"INFO 02-13 15:01:40 [a.py:1] {line}\n")
    assert any(gpu in line for line in reconcile(read).assumed)


def test_card_that_is_not_in_the_catalog_is_compared_by_its_memory():
    text = config("Qwen/Qwen3-0.6B") + figures(1.34).replace("20.00", "11.10")
    text += (
        "INFO 03-01 10:30:57 [gpu_worker.py:508] Free memory on device (12.90/13.13 GiB) on startup. Desired GPU "
        "memory utilization is (0.9, 11.8 GiB).\n"
    )
    result = reconcile(log.parse(text))
    assert any("13.13 GiB" in line and "memory alone" in line for line in result.assumed)


def test_weights_that_a_log_leaves_on_the_host_are_not_on_the_gpu():
    """8.03e9 parameters in 16 bits: 14.96 GiB."""
    arguments = "INFO 04-23 10:00:00 [api_utils.py:286] non-default args: {ARGS}\n"

    def reconciled(args: str) -> Reconciliation:
        return reconcile(
            log.parse(arguments.replace("ARGS", args) + config() + figures()), gpu="h100"
        )

    assert weights_gib(reconciled("'seed': 1")) == pytest.approx(14.96, abs=0.05)
    assert weights_gib(reconciled("'cpu_offload_gb': 10.0")) == pytest.approx(4.96, abs=0.05)
    unknown = reconciled("'cpu_offload_gb': 10.0, 'speculative_config': {'method': 'medusa'}")
    assert weights_gib(unknown) == pytest.approx(4.96, abs=0.05)
    (sentence,) = [line for line in unknown.assumed if "not counted" in line]
    assert sentence.startswith("The log's speculative_config was not counted: ")


def test_newer_lines_say_which_part_of_the_overhead_differs():
    """2 H200, Qwen3-Next: 5.58 GiB of activations, 1.38 GiB of other memory (the log's own split)."""
    text = config(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", sizes="tensor_parallel_size=2, ", version="0.10.2"
    )
    text += figures(37.5, "Worker_TP0").replace("20.00", "44.59")
    text += (
        "(Worker_TP1 pid=7) INFO 10-23 15:14:56 [gpu_worker.py:391] Free memory on device (139.21/139.81 GiB) on "
        "startup. Desired GPU memory utilization is (0.9, 125.83 GiB). Actual usage is 74.28 GiB for weight, 5.58 GiB "
        "for peak activation, 1.38 GiB for non-torch memory, and 2.37 GiB for CUDAGraph memory. Current kv cache "
        "memory in use is 47878721024 bytes.\n"
    )
    result = reconcile(log.parse(text), gpu="h200")
    activations, other = result.row("of it activations"), result.row("of it other memory")
    assert activations is not None and activations.actual == 5.58
    assert activations.predicted == pytest.approx(5.58, rel=0.05)
    assert other is not None and other.actual == 1.38
    available = result.row("available KV cache per GPU")
    assert available is not None and "its other memory" in available.reason


def test_consumed_memory_of_0_28_and_later_is_split_into_weights_and_the_rest():
    read = log.parse(
        "INFO 09-16 13:51:51 [gpu_worker.py:876] Free memory on device (46.99/47.37 GiB) on startup. Desired GPU memory "
        "utilization is (0.85, 40.27 GiB). Actual usage is 2.81 GiB for consumed memory (weights + non-torch), 0.57 GiB "
        "for peak activation, and 0.22 GiB for CUDAGraph memory. Current kv cache memory in use is 36.88 GiB.\n"
    )
    assert read.ranks[""].consumed_gib == 2.81 and read.ranks[""].peak_activation_gib == 0.57
    assert (read.available_kv_gib, read.gpu_memory_utilization) == (36.88, 0.85)
    assert read.profile["total_gpu_memory_gib"] == 47.37


def test_hybrids_tokens_of_0_19_and_earlier_are_taken_in_the_measure_of_today():
    """Qwen3-Next under 0.10.2: 973,760 tokens, and 14.77 requests of 262,144."""
    text = config(
        "Qwen/Qwen3-Next-80B-A3B-Instruct", sizes="tensor_parallel_size=2, ", version="0.10.2"
    )
    text = text.replace("max_seq_len=8192", "max_seq_len=262144")
    text += figures(37.5, "Worker_TP0").replace("20.00", "44.59")
    text += (
        "INFO 10-23 15:14:30 [kv_cache_utils.py:1028] GPU KV cache size: 973,760 tokens\n"
        "INFO 10-23 15:14:30 [kv_cache_utils.py:1032] Maximum concurrency for 262,144 tokens per request: 14.77x\n"
    )
    row = reconcile(log.parse(text), gpu="h200").row("KV cache size")
    assert row is not None and row.actual == round(14.77 * 262144) and "973,760" in row.reason


def test_command_takes_the_sizes(tmp_path):
    (path := tmp_path / "vllm.log").write_text(figures(32.9))
    arguments = [
        str(path),
        "--model",
        "llama-3.1-70b",
        "--gpu",
        "h200",
        "--tensor-parallel-size",
        "4",
    ]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0 and "tensor parallel 4" in " ".join(result.output.split())


@pytest.mark.parametrize("end", ["", "-FP8-dynamic"])
@pytest.mark.parametrize("model", ["gemma-3-27b", None])
def test_a_log_of_a_multimodal_gemma_3_is_compared_with_its_encoder(model, end):
    """The publisher counts 423,060,336 parameters more with the encoder than without."""
    sizes = []
    for architecture in ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"):
        text = f"INFO 04-23 10:00:00 [model.py:531] Resolved architecture: {architecture}\n"
        text += config(f"google/gemma-3-27b-it{end}") + figures(27.5 if end else 51.3)
        sizes.append(weights_gib(reconcile(log.parse(text), model, gpu="mi300x")))
    assert sizes[1] - sizes[0] == pytest.approx(2 * 423_060_336 / 2**30, rel=0.03)


@pytest.mark.parametrize("model", ["llama-4-scout", None])
def test_a_log_of_the_text_model_of_an_entry_with_images_is_read(model):
    """Llama 4 Scout without its encoder takes 52.72 GiB on each of four H100 with vLLM 0.33."""
    architecture = "INFO 11-28 00:20:24 [model.py:744] Resolved architecture: Llama4ForCausalLM\n"
    text = config("models/llama-4-scout-text", sizes="tensor_parallel_size=4, ", version="0.33.0")
    result = reconcile(log.parse(architecture + text + figures(52.72)), model, "h100")
    assert weights_gib(result) == pytest.approx(52.72, abs=0.01)


def test_an_entry_with_images_is_not_taken_for_another_text_model():
    architecture = "INFO 11-28 00:20:24 [model.py:744] Resolved architecture: MixtralForCausalLM\n"
    with pytest.raises(BadInput, match="The log is of a MixtralForCausalLM"):
        reconcile(log.parse(architecture + config() + figures()), "llama-4-scout", "h100")
