"""vLLM 0.32.0 really refuses what refusals.py says, and has the modes and kernels of our tables: asked without a GPU."""

from __future__ import annotations

import json

import pytest
import run_code
from inference_planner.answer.command import DEPRECATED
from inference_planner.catalog.architectures import EAGLE3_OVER_STAGES, OVERFLOW_IN_FLOAT16
from inference_planner.catalog.quantization import METHODS
from inference_planner.refusals import ACTIVATION_DTYPES, BOTH_16_BITS
from inference_planner.releases import moe_backends
from inference_planner.split import compilation
from inference_planner.split.capability import LEAST
from needs import lacking

from workshop.engine.exact import ask

VLLM = "0.32.0"
# Builds the case of each refusal from vLLM's own classes and functions, and prints what they raise.
PROGRAM = r"""
import dataclasses
import json
from importlib import import_module
from types import SimpleNamespace as Fake
from workshop.vllm_package import installed  # vLLM's own name for the CPU's distribution
import torch
from vllm import LLM
from vllm.config.compilation import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.config.kernel import MoEBackend
from vllm.config.model import _FLOAT16_NOT_SUPPORTED_MODELS, _check_valid_dtype
from vllm.model_executor.layers.fused_moe.oracle import mxfp4
from vllm.model_executor.layers.quantization import (
    DEPRECATED_QUANTIZATION_METHODS, QUANTIZATION_METHODS, get_quantization_config,
)
from vllm.model_executor.models import (
    deepseek_v2, gpt_oss, granite, llama, mimo, mistral, qwen2, qwen3, qwen3_moe,
)
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.core.kv_cache_utils import _check_enough_kv_cache_memory
from vllm.v1.worker.gpu.spec_decode.eagle.eagle3_utils import (
    verify_supports_aux_hidden_states_over_pp,
)
from vllm.v1.worker.utils import request_memory

GIB = 1 << 30
said = {}

def attempt(name, function, *arguments, **keywords):
    try:
        function(*arguments, **keywords)
        said[name] = ""
    except Exception as error:
        said[name] = str(error)

def graphs(mode):
    cache = Fake(has_mamba_layers=True, num_blocks=192)
    resolve = CompilationConfig(cudagraph_mode=mode).resolve_cudagraph_mode_and_sizes
    resolve(AttentionCGSupport.ALWAYS, "", kv_cache_config=cache, max_num_reqs=1024)

def whole(mode):
    resolve = CompilationConfig(cudagraph_mode=mode).resolve_cudagraph_mode_and_sizes
    resolve(AttentionCGSupport.NEVER, "FLASH_ATTN")

attempt("full graphs", whole, CUDAGraphMode.FULL)
attempt("state blocks", graphs, CUDAGraphMode.FULL_AND_PIECEWISE)
attempt("state blocks with --enforce-eager", graphs, CUDAGraphMode.NONE)
attempt("memory", _check_enough_kv_cache_memory, 0, lambda: 1, 8192, lambda size: 0)
attempt("one request", _check_enough_kv_cache_memory, GIB, lambda: 2 * GIB, 8192, lambda size: 4096)
card = Fake(total_memory=80 * GIB, free_memory=79 * GIB, device_="cuda:0")
attempt("free memory", request_memory, card, Fake(gpu_memory_utilization=1.0))
attempt("float16", _check_valid_dtype, "gemma3", torch.float16)
attempt("offline replicas", LLM, model="none", data_parallel_size=2)

attempt("draft over stages", verify_supports_aux_hidden_states_over_pp, Fake(model=Fake()), "eagle3")
decoders = {
    "DeepseekV3ForCausalLM": deepseek_v2.DeepseekV2Model,
    "GptOssForCausalLM": gpt_oss.GptOssModel,
    "GraniteForCausalLM": granite.GraniteModel,
    "LlamaForCausalLM": llama.LlamaModel,
    "MiMoForCausalLM": mimo.MiMoModel,
    "MistralForCausalLM": mistral.MistralModel,
    "Qwen2ForCausalLM": qwen2.Qwen2Model,
    "Qwen3ForCausalLM": qwen3.Qwen3Model,
    "Qwen3MoeForCausalLM": qwen3_moe.Qwen3MoeModel,
}
over_stages = {
    name: bool(getattr(decoder, "supports_aux_hidden_states_over_pp", False))
    for name, decoder in decoders.items()
}

def dtypes(kind):
    names = kind.get_supported_act_dtypes
    try:
        return names()
    except TypeError:
        return names(kind)

quantization = {}
for name in METHODS:
    kind = get_quantization_config(name)
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes(kind)]
    quantization[name] = [kind.get_min_capability() / 10, names]

fields = [field.name for field in dataclasses.fields(CompilationConfig) if field.init]
names = {mode: name.lower() for name, mode in CUDAGraphMode.__members__.items()}
graph_modes = {
    mode.name: (names[mode.decode_mode()], names[mode.mixed_mode()]) for mode in CUDAGraphMode
}
uncompiled = {
    mode.name: names[mode.without_piecewise().decode_mode()] for mode in CUDAGraphMode
}
oracles = {}
for module, function in ORACLES:
    oracle = import_module(f"vllm.model_executor.layers.fused_moe.oracle.{module}")
    accepted = []
    for backend in BACKENDS:
        try:
            getattr(oracle, function)(backend)
        except ValueError:
            continue
        accepted.append(backend)
    oracles[module] = accepted
rounded = {}
for backend in ROUNDED:
    kind = mxfp4.map_mxfp4_backend(backend)[0]
    rounded[backend] = mxfp4.mxfp4_round_up_hidden_size_and_intermediate_size(kind, 2880, 2880)
print(json.dumps({
    "said": said,
    "quantization": quantization,
    "methods": QUANTIZATION_METHODS,
    "deprecated": DEPRECATED_QUANTIZATION_METHODS,
    "over_stages": over_stages,
    "float16": sorted(_FLOAT16_NOT_SUPPORTED_MODELS),
    "fields": fields,
    "modes": {mode.name: mode.value for mode in CompilationMode},
    "graph_modes": graph_modes,
    "uncompiled": uncompiled,
    "backends": list(MoEBackend.__args__),
    "oracles": oracles,
    "rounded": rounded,
}))
"""


ORACLES = {  # weights -> module of vLLM's choice, and its function
    moe_backends.BITS_16: ("unquantized", "map_unquantized_backend"),
    moe_backends.FP8: ("fp8", "map_fp8_backend"),
    moe_backends.FP8_BLOCKS: ("fp8", "map_fp8_backend"),
    moe_backends.INT8: ("int8", "map_int8_backend"),
    moe_backends.WEIGHT_ONLY: ("int_wna16", "map_wna16_backend"),
    moe_backends.MXFP4: ("mxfp4", "map_mxfp4_backend"),
    moe_backends.NVFP4: ("nvfp4", "map_nvfp4_backend"),
}
ROUNDED = ("triton", "marlin", "flashinfer_trtllm", "flashinfer_cutlass", "emulation")


@pytest.fixture(scope="module")
def answers(vllm_is_imported) -> dict:
    if ask.version() != VLLM:
        lacking(f"vLLM {VLLM} is not installed: make workshop installs it")
    tables = {
        "METHODS": [*LEAST, *ACTIVATION_DTYPES],
        "ORACLES": [*ORACLES.values()],
        "BACKENDS": [*moe_backends.BACKENDS],
        "ROUNDED": ROUNDED,
    }
    program = "\n".join(f"{name} = {table!r}" for name, table in tables.items()) + PROGRAM
    return json.loads(run_code.run(program).splitlines()[-1])


MESSAGES = {
    "state blocks": "max_num_seqs … exceeds available Mamba cache blocks",
    "memory": "No available memory for the cache blocks",
    "one request": "To serve at least one request with the model's max seq len …",
    "free memory": "Free memory on device … on startup is less than desired GPU memory utilization",
    "float16": "The model type … does not support float16",
    "offline replicas": "LLM(data_parallel_size=…) is not supported for single-process usage",
    "draft over stages": "… does not support eagle3 with pipeline parallelism",
    "full graphs": "CUDAGraphMode.FULL is not supported with … backend "
    "(support: AttentionCGSupport.NEVER)",
}


def test_vllm_raises_what_a_refusal_stands_for(answers):
    """The docstrings of refusals.py have the same words."""
    for name, sentence in MESSAGES.items():
        message = " ".join(answers["said"][name].split())
        for part in sentence.split("…"):
            assert part.strip() in message, (name, message)


def test_vllm_does_not_compare_blocks_without_cuda_graphs(answers):
    assert answers["said"]["state blocks with --enforce-eager"] == ""


def test_least_capability_and_dtypes_of_each_quantization_are_vllm_s(answers):
    for method, (capability, dtypes) in answers["quantization"].items():
        if method in LEAST:
            assert LEAST[method] == capability, method
        ours = ACTIVATION_DTYPES.get(method, BOTH_16_BITS)
        assert set(ours) == {name for name in dtypes if "float8" not in name}, method


def test_vllm_has_each_method_and_loads_the_deprecated_ones_only_when_told(answers):
    assert set(METHODS) <= set(answers["methods"])
    assert set(METHODS) & set(answers["deprecated"]) == set(DEPRECATED)


def test_the_decoders_that_send_hidden_states_between_stages_are_vllm_s(answers):
    for name, sends in answers["over_stages"].items():
        assert (name in EAGLE3_OVER_STAGES) == sends, name


def test_the_models_that_overflow_in_float16_are_vllm_s(answers):
    assert sorted(OVERFLOW_IN_FLOAT16) == answers["float16"]


def test_the_fields_and_modes_of_compilation_are_those_of_the_release(answers):
    assert {*compilation.COMPUTED, *compilation.HARMLESS} <= set(answers["fields"])
    assert answers["modes"] == compilation.MODES
    graph_modes = {name: tuple(graphs) for name, graphs in answers["graph_modes"].items()}
    assert graph_modes == compilation.GRAPH_MODES
    for name, decode_graphs in answers["uncompiled"].items():
        checked = compilation.checked({"mode": 0, "cudagraph_mode": name})
        assert checked.decode_graphs == decode_graphs, name


def test_every_backend_of_vllm_has_a_name_here(answers):
    """vllm/config/kernel.py: the values of MoEBackend."""
    assert set(answers["backends"]) - {moe_backends.AUTO} == set(moe_backends.BACKENDS)


def test_vllm_maps_the_same_backends(answers):
    """vLLM's own map_*_backend take those that a plan takes for such weights, and refuse the others."""
    for weights, (module, _) in ORACLES.items():
        assert set(moe_backends.ACCEPTED[weights]) == set(answers["oracles"][module]), weights


def test_vllm_rounds_mxfp4_experts_up_to_the_same_sizes(answers):
    """mxfp4_round_up_hidden_size_and_intermediate_size, for gpt-oss' 2,880 and 2,880."""
    for backend, sizes in answers["rounded"].items():
        of_hidden, of_width = moe_backends.PADDINGS[backend]
        ours = [-(-2880 // of_hidden) * of_hidden, -(-2880 // of_width) * of_width]
        assert ours == sizes, backend
