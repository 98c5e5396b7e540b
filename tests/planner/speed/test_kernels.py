"""Which kernel vLLM takes, and what it was measured to reach: read from vLLM 0.32.0's own choice, and from runs."""

from __future__ import annotations

import pytest
from inference_planner import plan
from inference_planner.catalog import list_gpus, load_gpu, load_model
from inference_planner.catalog.quantization import from_name
from inference_planner.catalog.read import from_dict
from inference_planner.speed import kernels
from inference_planner.speed import roofline as speed
from inference_planner.split.communication import all_reduce_ms, node_link
from inference_planner.split.deployment import prepare

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def model(name: str, quantization: str | None):
    config = load_model(name)
    if quantization == "blocks":
        return from_dict({**config.raw, "quantization_config": BLOCKS}, name=name)
    if quantization is None:
        return config
    return config.with_quantization(from_name(quantization))


def test_a_step_that_takes_too_long_is_made_smaller_for_first_tokens():
    """Falcon 180B reads 8,192 tokens on an H20 (148 TFLOP/s) in more than 5 s, and 300 in a part of it."""
    slow = plan("falcon-180b", "h20", vllm_version="0.32.0")
    assert 0 < slow.learners_at_once < slow.deployment.settings.max_num_batched_tokens // 300


def test_dense_weights_have_the_kernel_of_their_generation():
    for gpu, quantization, kernel in [
        ("h100", None, "cuBLAS"),
        ("mi300x", None, "hipBLASLt"),
        ("h100", "awq", "Machete"),  # machete.py: compute capability 9.0 alone
        ("a100-80gb", "awq", "Marlin"),
        ("rtx-4090", "gptq", "Marlin"),
        ("b200", "awq", "Marlin"),
        ("v100-32gb", "gptq", "Exllama"),
        ("h100", "fp8", "CUTLASS"),
        ("a100-80gb", "fp8", "Marlin"),  # no FP8 units: weights are unpacked
        ("l4", "blocks", "Triton"),
        ("h100", "blocks", "DeepGEMM"),
        ("rtx-pro-6000", "blocks", "CUTLASS"),  # DeepGEMM: Hopper and Blackwell's data center cards
    ]:
        assert (
            kernels.dense_kernel(model("qwen3-32b", quantization), load_gpu(gpu)).name == kernel
        ), (gpu, quantization)


def test_experts_have_the_kernel_of_their_generation():
    for gpu, quantization, kernel in [
        ("h100", None, "Triton"),  # unquantized.py: FlashInfer goes to the end on Hopper
        ("h100", "fp8", "CUTLASS"),
        ("h100", "blocks", "Triton"),  # fp8.py: "prefer Triton for TP"
        ("a100-80gb", "fp8", "Marlin"),
        ("rtx-pro-6000", "blocks", "Triton"),
        ("b200", "blocks", "DeepGEMM"),
        ("h100", "awq", "Marlin"),
    ]:
        used = kernels.experts_kernel(model("qwen3-30b-a3b", quantization), load_gpu(gpu))
        assert used is not None and used.name == kernel, (gpu, quantization)


def test_every_kind_of_weights_has_a_kernel_on_every_card():
    stored = (
        kernels.BITS_16,
        kernels.FP8,
        kernels.FP8_BLOCKS,
        kernels.INT8,
        kernels.WEIGHT_ONLY,
        kernels.NVFP4,
        kernels.MXFP4,
    )
    for name in list_gpus():
        for part in (kernels.DENSE, kernels.EXPERTS):
            for weights in stored:
                used = kernels.kernel(part, weights, load_gpu(name))
                assert used.name and 0 < used.bandwidth_share <= 1
        assert kernels.kernel(kernels.EXPERTS, kernels.FP4, load_gpu(name)).name


def test_one_stream_of_4_bit_weights_on_an_h100_is_what_machete_reaches():
    """78.8 tokens/s were measured of Qwen3-32B AWQ (h100_qwen3-32b-awq_0.32); 118.9 were said of the whole bandwidth."""
    p = plan("qwen3-32b", "h100", tensor_parallel_size=1, quantization="awq", max_model_len=40960)
    assert p.single_stream_tokens_per_s == pytest.approx(78.8, rel=0.02)


def test_one_stream_of_fp8_experts_on_two_h100_is_what_cutlass_reaches():
    """139.9 tokens/s were measured of GLM-4.5-Air, one scale a channel (h100_glm-4.5-air-fp8_tp2_0.32); 171.6 said."""
    config = load_model("glm-4.5-air-fp8")
    quantized = from_name("compressed-tensors")
    d = prepare(config.with_quantization(quantized), "h100", max_model_len=32768).split(2, 1)
    assert kernels.experts_kernel(d.model, d.gpu).name == "CUTLASS"
    assert speed.decode_tokens_per_s(d) == pytest.approx(139.9, rel=0.03)


def test_what_was_never_measured_says_so():
    never = kernels.kernel(kernels.DENSE, kernels.WEIGHT_ONLY, load_gpu("a100-80gb"))
    measured = kernels.kernel(kernels.DENSE, kernels.WEIGHT_ONLY, load_gpu("h100"))
    assert never.to_dict()["measured"] == "never measured" and not never.measured
    assert (
        "never measured on this kind of GPU: 75% of the memory bandwidth is assumed"
        in kernels.sentence(never)
    )
    assert "Machete kernels, which read them at 83% of" in kernels.sentence(measured)


def test_a_streams_speed_on_an_a100_is_a_published_one():
    """87 tokens/s, Llama 3.1 8B (benchmarks/accuracy/public_points.json), within what SXM and PCIe differ by."""
    p = plan("llama-3.1-8b", "a100-80gb", tensor_parallel_size=1, max_model_len=131072)
    assert p.single_stream_tokens_per_s == pytest.approx(87, rel=0.05)


def test_an_all_reduce_over_pcie_has_a_step_for_each_rank_and_the_bandwidth_of_its_messages():
    """A ring has 2·(n-1) steps and sends 2·(n-1)/n of its bytes. Two RTX PRO 6000 said 7 to 13 GB/s, four about 20.

    10.5 MB are a prompt of 1,024 tokens of Qwen3 32B.
    """
    link = node_link(load_gpu("rtx-pro-6000"))
    small = [all_reduce_ms(1, ranks, link) for ranks in (2, 4, 8)]
    assert small[1] == pytest.approx(3 * small[0], rel=1e-3)
    assert small[2] == pytest.approx(7 * small[0], rel=1e-3)
    pair = 10.5e6 / (all_reduce_ms(10_500_000, 2, link) - small[0]) / 1e6
    four = 1.5 * 10.5e6 / (all_reduce_ms(10_500_000, 4, link) - small[1]) / 1e6
    assert 7 <= pair <= 13 and 15 <= four <= 25


def test_an_all_reduce_over_nvlink_takes_longer_on_eight_gpus_alone():
    """6.6 µs, fitted to runs on one to four H200, and 3 µs more by the public points of eight."""
    link = node_link(load_gpu("h200"))
    assert all_reduce_ms(0, 2, link) == all_reduce_ms(0, 4, link) == pytest.approx(0.0066)
    assert all_reduce_ms(0, 8, link) == pytest.approx(0.0096)
    assert node_link(load_gpu("v100-32gb")).all_reduce_us == 6.6, "NVLink 2 is NVLink"
    assert node_link(load_gpu("mi300x")).step_us == 0


def test_one_dense_stream_over_pcie_slows_down_with_its_ranks():
    """Qwen3 32B on two RTX PRO 6000: 37.9 tokens/s are published (1,000 / 26.38 ms)."""
    for tp in [2, 4, 8]:
        d = prepare("qwen3-32b", "rtx-pro-6000", max_model_len=32768).split(tp, 1)
        (message,) = [term for term in speed.decode_terms(d) if term.name == "all-reduce"]
        assert message.ms == pytest.approx(2 * 64 * 0.007 * 2 * (tp - 1), rel=0.1), tp
        if tp == 2:
            assert speed.decode_tokens_per_s(d) == pytest.approx(37.9, rel=0.03), tp


def test_a_plan_names_its_kernels_in_words_and_in_json():
    p = plan("qwen3-32b", "h100", tensor_parallel_size=1, quantization="awq")
    (used,) = p.to_dict()["kernels"]
    assert (used["name"], used["weights"], used["bandwidth_share"]) == ("Machete", "4 bit", 0.827)
    assert used["measured"].startswith("AWQ: Qwen3 32B on an H100")
    assert any("with Machete kernels" in reason for reason in p.reasons)
    common = plan("llama-3.1-8b", "h100", tensor_parallel_size=1, max_model_len=8192)
    assert not any("kernels" in reason for reason in common.reasons)


def test_deepseek_v4_has_experts_in_four_bits_beside_fp8():
    """config.json: expert_dtype fp4, moe_quant_algo NVFP4; select_deepseek_v4_mxfp4_moe_backend of 0.32.0."""
    for model, gpu, weights, name in (
        ("deepseek-v4-flash", "h200", "FP4", "Marlin"),
        ("deepseek-v4-pro", "b200", "FP4", "DeepGEMM"),
        ("deepseek-v4-flash-nvfp4", "b200", "NVFP4", "CUTLASS"),
    ):
        experts = kernels.experts_kernel(load_model(model), load_gpu(gpu))
        assert experts and (experts.weights, experts.name) == (weights, name), (model, gpu)
