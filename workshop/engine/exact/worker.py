"""Say what vLLM's own model classes need: weights and KV cache of every pipeline stage, without a GPU or the weights.

    python -m workshop.engine.exact.worker < JOBS.jsonl > RESULTS.jsonl

It runs in a process of its own, with an interpreter that has vLLM. `engine/exact/__init__.py` writes the jobs and reads the
results. The class is built on PyTorch's meta device, as one rank of a process group without other ranks. Its attention
layers state their KV cache, and vLLM's own functions group the layers and size a block. No code of a model is ever run.

Source: vLLM 0.32.0, v1/core/kv_cache_utils.py and v1/worker.
"""

import contextlib
import gc
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference_planner.split.allocator import Allocator

from workshop.engine.exact import fake_machine
from workshop.vllm_package import WITHOUT_A_MODEL
from workshop.workarounds import no_gpu_platform
from workshop.worker_process import Channel, JsonLines

ENVIRONMENT = {**WITHOUT_A_MODEL, "VLLM_DIST_IDENT": "none", "VLLM_KIMI_K3_GEMM_AR": "0"}
LAYOUT = "LBNHC"  # FlashAttention's
PACKED_LAYOUT = "BLNHC"  # packs layers of different sizes into a block
# model types that are read by their JSON fields alone
PLAIN_TYPES: set[str] = set()
LONGEST_ERROR = 2000  # characters
GPU_BLOCK = 16  # tokens; the CPU build would take 128
# field of a config -> tokens that its kernels on a GPU take
SPARSE_BLOCKS = {"compress_ratios": 256, "index_topk": 64}


def engine_config(job: dict[str, Any], folder: str) -> Any:
    """Return vLLM's configuration (VllmConfig) of a job as a GPU would have it. `folder` gets the config.json."""
    from vllm.engine.arg_utils import EngineArgs

    Path(folder, "config.json").write_text(json.dumps(as_plain_fields(job["config"])))
    block_size = GPU_BLOCK
    for field, size in SPARSE_BLOCKS.items():
        if job["config"].get(field):
            block_size = size
            break
    optional: dict[str, Any] = {}
    for name in ("dtype", "max_model_len"):
        if job.get(name):
            optional[name] = job[name]
    config = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        load_format="dummy",
        block_size=block_size,
        enable_prefix_caching=job.get("enable_prefix_caching"),
        allow_deprecated_quantization=True,
        language_model_only=job.get("language_model_only", False),
        **optional,
    ).create_engine_config()
    # Set afterwards: vLLM would refuse more ranks than this machine has devices.
    parallel = config.parallel_config
    parallel.tensor_parallel_size = job["tp"]
    parallel.pipeline_parallel_size = job["pp"]
    parallel.data_parallel_size = job.get("dp", 1)
    parallel.enable_expert_parallel = job.get("ep", False)
    parallel.world_size = job["tp"] * job["pp"]
    config.model_config.verify_with_parallel_config(parallel)
    cache = config.cache_config
    cache.block_size = block_size
    cache.kv_cache_layout = LAYOUT
    if job.get("kv_cache_dtype", "auto") != "auto":
        cache.cache_dtype = job["kv_cache_dtype"]
    if job.get("max_num_batched_tokens"):
        config.scheduler_config.max_num_batched_tokens = job["max_num_batched_tokens"]
    return config


class AttributeDict(dict):
    """A JSON object whose fields are also attributes, as a model's own config code makes it (Nemotron NAS's blocks)."""

    def __getattr__(self, name: str) -> object:
        if name not in self:
            raise AttributeError(name)
        value = self[name]
        return AttributeDict(value) if isinstance(value, dict) else value


def as_plain_fields(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config that vLLM can read without code of the model.

    For a model type that only ships its own config code, a stand-in config class is registered. It reads the JSON
    fields and nothing else: the model's code is never run. Other configs are returned as they are.
    """
    from transformers import CONFIG_MAPPING, PretrainedConfig
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    model_type = str(raw.get("model_type"))
    if model_type not in PLAIN_TYPES:
        if model_type in CONFIG_MAPPING or model_type in _CONFIG_REGISTRY:
            return raw

        class PlainConfig(PretrainedConfig):
            def __getattribute__(self, name: str) -> Any:
                value = super().__getattribute__(name)
                if name == "block_configs":
                    return [AttributeDict(block) for block in value]
                return value

        PlainConfig.model_type = model_type
        _CONFIG_REGISTRY[model_type] = PlainConfig
        PLAIN_TYPES.add(model_type)
    scaling = dict(raw.get("rope_scaling") or {})
    rope_parameters = {
        "rope_theta": raw.get("rope_theta") or 10000.0,
        "rope_type": scaling.pop("type", "default"),
        **scaling,
    }
    fields = {"rope_parameters": rope_parameters, **raw}
    fields.pop("rope_scaling", None)
    if raw.get("use_sliding_window") is False:
        fields.pop("sliding_window", None)
    return fields


@contextlib.contextmanager
def rank(config: Any, number: int) -> Iterator[None]:
    """Let this process be rank `number` of the whole world while the block runs."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    parallel = config.parallel_config
    parallel.rank = number
    world = parallel.world_size
    all_ranks = world * parallel.data_parallel_size
    torch.distributed.init_process_group(
        "fake", rank=number, world_size=all_ranks, store=FakeStore()
    )
    try:
        with set_current_vllm_config(config):
            parallel_state.init_distributed_environment(world, number, "env://", 0, "fake")
            parallel_state.initialize_model_parallel(
                parallel.tensor_parallel_size, parallel.pipeline_parallel_size, backend="fake"
            )
            yield
    finally:
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        config.compilation_config.static_forward_context.clear()


def stage(config: Any, number: int) -> tuple[dict[str, int], dict[str, Any]]:
    """Return the bytes of the weights of one pipeline stage, and the KV-cache spec of each of its layers.

    The bytes are those of the stage's first rank: of the tensors, of what PyTorch's allocator takes for them, and of a
    multimodal model's encoder.
    """
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    with rank(config, number * config.parallel_config.tensor_parallel_size):
        model = without_memory(config)
        sizes = tensor_sizes(model)
        take_gpu_blocks(config)
        specs = get_kv_cache_spec(config)
        language_sizes = sizes
        if hasattr(model, "get_language_model"):
            language_sizes = tensor_sizes(model.get_language_model())
            if hasattr(model, "lm_head"):  # Muse's is beside its language model
                language_sizes |= tensor_sizes(model.lm_head)
    memory = Allocator()
    for size in sizes.values():
        memory.alloc(size)
    gc.collect()
    facts = {"tensor_bytes": sum(sizes.values()), "loaded_bytes": memory.allocated}
    encoder_bytes = 0
    for tensor, size in sizes.items():
        if tensor not in language_sizes:
            encoder_bytes += size
    if encoder_bytes:
        facts["encoder_bytes"] = encoder_bytes
    return facts, specs


def tensor_sizes(model: Any) -> dict[int, int]:
    """Return the bytes of every parameter and buffer, and of what loading adds to latent attention, by identity."""
    sizes = {}
    for tensor in (*model.parameters(), *model.buffers()):
        sizes[id(tensor)] = tensor.numel() * tensor.element_size()
    for module in model.modules():
        size = unpacked_bytes(module)
        if size:
            sizes[id(module)] = size
    return sizes


def unpacked_bytes(module: Any) -> int:
    """Return the bytes of W_UK and W_UV of latent attention that loading unpacks; 0 for other modules.

    Decoding multiplies by kv_b_proj in 16 bit. Weights of fewer bits are unpacked once, when they are loaded.

    Source: vLLM 0.32.0, layers/attention/mla_attention.py, process_weights_after_loading.
    """
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention

    if not isinstance(module, MLAAttention):
        return 0
    if min(parameter.element_size() for parameter in module.kv_b_proj.parameters()) > 1:
        return 0
    per_head = (module.qk_nope_head_dim + module.v_head_dim) * module.kv_lora_rank
    return 2 * module.num_heads * per_head


def without_memory(config: Any) -> Any:
    """Return the model, built on the meta device, where tensors have shapes and no data.

    Some models read numbers of their own tensors while they are built. Of those only the weights are on the meta device.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    class WeightsOnMeta(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.empty:
                return function(*args, **{"device": "meta", **(kwargs or {})})
            return function(*args, **(kwargs or {}))

    with set_default_torch_dtype(config.model_config.dtype):
        try:
            with torch.device("meta"):
                return initialize_model(vllm_config=config)
        except (NotImplementedError, RuntimeError) as error:
            if "meta tensor" not in str(error):
                raise
        config.compilation_config.static_forward_context.clear()
        with WeightsOnMeta():
            return initialize_model(vllm_config=config)


def take_gpu_blocks(config: Any) -> None:
    """Let kernels take blocks of any multiple of 16 tokens, as FlashAttention does, and size a hybrid model's blocks."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backend import MultipleOf

    platform: Any = current_platform
    for backend in platform._find_non_ssm_backends(config):
        backend.get_supported_kernel_block_sizes = staticmethod(
            lambda spec=None: [MultipleOf(GPU_BLOCK)]
        )
    platform.update_block_size_for_backend(config)  # changes hybrid models alone


def groups_of(config: Any, specs: dict[str, Any]) -> list:
    """Return vLLM's groups of layers. Layers of different sizes are packed if their pages cannot be made equal."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    try:
        return get_kv_cache_groups(config, dict(specs))
    except NotImplementedError:
        config.cache_config.kv_cache_layout = PACKED_LAYOUT
        return get_kv_cache_groups(config, dict(specs))


def cache(config: Any, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the groups of layers, the bytes of a block on each stage, and the blocks of a request.

    Args:
        stages: the KV-cache spec of each layer, of each pipeline stage.
    """
    from vllm.v1.core import kv_cache_utils

    specs: dict[str, Any] = {}
    for stage_specs in stages:
        specs.update(stage_specs)
    groups = groups_of(config, specs)
    facts = [group_facts(config, group, stages) for group in groups]
    pool_bytes = []
    for stage_specs in stages:
        stage_groups = kv_cache_utils._project_kv_cache_groups_to_worker(groups, stage_specs)
        block_bytes = 0
        if stage_groups:
            block_bytes = kv_cache_utils._pool_bytes_per_block(config, stage_groups)
        pool_bytes.append(block_bytes)
    return {
        "groups": facts,
        "pool_bytes_per_block": pool_bytes,
        "blocks_per_request": sum(group["blocks_per_request"] for group in facts),
        "bytes_per_token": sum(token_bytes(config, spec) for spec in specs.values()),
        "max_model_len": config.model_config.max_model_len,
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "layout": config.cache_config.kv_cache_layout,
    }


def group_facts(config: Any, group: Any, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the kind of a group's layers, how many of them each stage has, and the size of a block."""
    from vllm.utils.math_utils import cdiv
    from vllm.v1.kv_cache_interface import iter_layer_specs

    spec = group.kv_cache_spec
    layer_spec: Any = next(iter(iter_layer_specs(spec)))
    layers = []
    for stage_specs in stages:
        layers.append(sum(name in stage_specs for name in group.layer_names))
    window = getattr(layer_spec, "sliding_window", None)
    chunk = getattr(layer_spec, "attention_chunk_size", None)
    return {
        "kind": type(layer_spec).__name__,
        "layers": layers,
        "block_size": layer_spec.block_size,
        "page_bytes": layer_spec.page_size_bytes,
        "size": window or chunk or 0,
        "blocks_per_request": cdiv(spec.max_memory_usage_bytes(config), spec.page_size_bytes),
    }


def token_bytes(config: Any, spec: Any) -> int:
    """Return the bytes that one token leaves in a layer, over all ranks without copies; 0 for layers with states."""
    from vllm.v1.kv_cache_interface import AttentionSpec, CrossAttentionSpec

    if not isinstance(spec, AttentionSpec) or isinstance(spec, CrossAttentionSpec):
        return 0
    heads = 1  # the latent
    if not config.model_config.use_mla:
        heads = config.model_config.get_total_num_kv_heads()
    ranks_without_copies = min(config.parallel_config.tensor_parallel_size, heads)
    return spec.unpadded_page_size_bytes // spec.block_size * ranks_without_copies


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's answer to a job, or {"error": why vLLM cannot build the model}.

    Args:
        job: "config" (the fields of a config.json), "tp", "pp", and optionally "dp", "ep", "dtype", "kv_cache_dtype",
            "max_model_len", "max_num_batched_tokens", "enable_prefix_caching" and "language_model_only".
    """
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        try:
            config = engine_config(job, folder)
            stages = [stage(config, number) for number in range(job["pp"])]
            kv_cache = cache(config, [specs for _, specs in stages])
        except Exception as error:
            text = f"{type(error).__name__}: {error}".rstrip(": ")
            return {"error": text[:LONGEST_ERROR], "vllm": vllm.__version__}
    return {
        "vllm": vllm.__version__,
        "architecture": config.model_config.architecture,
        "stages": [weights for weights, _ in stages],
        "kv_cache": kv_cache,
    }


def main() -> None:
    """Answer each line of standard input by a line on standard output. What vLLM prints goes to standard error."""
    channel = Channel(JsonLines())
    os.environ.update(ENVIRONMENT)
    no_gpu_platform.apply()
    fake_machine.apply()
    for job in channel:
        channel.send(run(job))


if __name__ == "__main__":
    main()
