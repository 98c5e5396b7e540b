"""Formats of quantized checkpoints: those that vLLM 0.32.0 reads are sized, the others refused in a sentence."""

import json

import pytest
from inference_planner import plan
from inference_planner.errors import BadInput

LLAMA = {  # meta-llama/Llama-3.1-8B
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
GIB = 1 << 30
# of 8.03 billion parameters, 1.05 are the input table and the head, which stay in 16 bits
LINEAR, REST = 6.98e9, 1.05e9


def folder(tmp_path, quantization, **more):
    config = {**LLAMA, "quantization_config": quantization, **more}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def gib(bits):
    return (LINEAR * bits / 8 + REST * 2) / GIB


def torchao(name, **data):
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": name, "_data": data}}}


def quark(dtype, inputs=None, **weight):
    tensors = {"weight": {"dtype": dtype, **weight}, "input_tensors": inputs}
    return {"quant_method": "quark", "global_quant_config": tensors, "exclude": ["lm_head"]}


def compressed(**weights):
    groups = {"group_0": {"targets": ["Linear"], "weights": {"type": "float", **weights}}}
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"], "config_groups": groups}


# quantization_config -> bits of a weight with its share of the scales, bits of an activation
FORMATS = {
    # NF4 in blocks of 64 with a scale in 32 bits: 4 + 32 / 64
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5, 16),
    "bitsandbytes 8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 8.0, 16),
    # groups of 128 with a scale in 16 bits: 4 + 16 / 128
    "auto-round": ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, 4.125, 16),
    "intel": ({"quant_method": "intel/auto-round", "bits": 4, "group_size": 128}, 4.125, 16),
    "inc 8": ({"quant_method": "inc", "bits": 8, "group_size": -1}, 8.0, 16),
    "torchao": (torchao("Int8DynamicActivationInt8WeightConfig"), 8.0, 8),
    "torchao fp8": (torchao("Float8WeightOnlyConfig"), 8.0, 16),
    # a scale in 16 bits and a zero point of 4 for 64 weights
    "torchao 4": (torchao("Int4WeightOnlyConfig", group_size=64), 4.3125, 16),
    "quark": (quark("fp8_e4m3", {"dtype": "fp8_e4m3"}, qscheme="per_tensor"), 8.0, 8),
    # MXFP4: groups of 32 with a scale of 8 bits
    "quark 4": (quark("fp4", qscheme="per_group", group_size=32), 4.25, 16),
    # NVFP4: groups of 16 with a scale of 8 bits
    "modelopt_fp4": ({"quant_method": "modelopt_fp4"}, 4.5, 16),
    "nvfp4": (compressed(num_bits=4, strategy="tensor_group", group_size=16), 4.5, 16),
    "mxfp4": (compressed(num_bits=4, strategy="group", group_size=32), 4.25, 16),
    "mxfp8": ({"quant_method": "mxfp8"}, 8.25, 8),
}


def test_a_checkpoint_is_as_large_as_its_bits_and_scales_say(tmp_path):
    for name in FORMATS:
        quantization, bits, activation_bits = FORMATS[name]
        p = plan(folder(tmp_path, quantization), "h100", tensor_parallel_size=1)
        assert p.weights_gib_per_gpu == pytest.approx(gib(bits), rel=0.01), name
        assert p.deployment.model.quantization.activation_bits == activation_bits, name


def test_a_format_that_vllm_no_longer_has_is_refused_with_those_that_it_has(tmp_path):
    for method in ["hqq", "aqlm", "marlin", "qqq"]:
        # not in QuantizationMethods of 0.32.0, model_executor/layers/quantization/__init__.py
        with pytest.raises(BadInput, match=f"no longer reads {method}") as refused:
            plan(folder(tmp_path, {"quant_method": method}), "h100")
            pytest.fail(f"{method} was taken")
        assert "awq" in refused.value.remedy, method
        with pytest.raises(BadInput, match=f"--quantization {method}"):
            plan("llama-3.1-8b", "h100", quantization=method)
            pytest.fail(f"{method} was taken")


def test_bitsandbytes_needs_a_package_beside_vllm_and_is_not_split(tmp_path):
    # vllm-bnb-plugin since 0.28.0 (pull request 43529); its loader refuses tensor parallelism for such checkpoints
    path = folder(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    p = plan(path, "h100", gpus_per_node=2)
    assert any("vllm-bnb-plugin" in reason for reason in p.reasons)
    with pytest.raises(BadInput, match="does not split"):
        plan(path, "h100", gpus_per_node=2, tensor_parallel_size=2)
    # made while loading
    made = plan("llama-3.1-8b", "h100", quantization="bitsandbytes")
    assert made.fits and "--quantization bitsandbytes" in made.command


@pytest.mark.parametrize("name", ["model-Q4_K_M.gguf", ""])
def test_a_gguf_file_and_its_folder_are_refused_with_what_to_do(tmp_path, name):
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF\\x03\\x00\\x00\\x00")
    with pytest.raises(BadInput, match="GGUF") as refused:
        plan(tmp_path / name if name else tmp_path, "h100")
    assert "vllm-gguf-plugin" in refused.value.remedy and "download" not in refused.value.remedy


def test_a_name_is_passed_on_as_vllm_takes_it():
    for name, flag in [("auto-round", "inc"), ("compressed_tensors", "compressed-tensors")]:
        p = plan("llama-3.1-8b", "h100", quantization=name)
        assert p.command.endswith(f"--quantization {flag}"), (name, flag)


def test_a_torchao_format_without_known_bits_is_named(tmp_path):
    with pytest.raises(BadInput, match="quant_type"):
        plan(folder(tmp_path, torchao("SomethingConfig")), "h100")
