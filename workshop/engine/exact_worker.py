"""What vLLM's own model classes say of a model: weights and KV cache of every pipeline stage, without GPU or weights.

    python -m workshop.engine.exact_worker < JOBS.jsonl > RESULTS.jsonl

A process of its own, with an interpreter that has vLLM: plan/exact.py writes the jobs and reads the results. The class
is built on PyTorch's meta device, as one rank of a process group that has no other rank; its attention layers say which
KV cache they keep, and vLLM's own functions group the layers and size a block. No code of a model is ever run.
Source: vLLM 0.32.0, v1/core/kv_cache_utils.py and v1/worker.
"""

import contextlib
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from inference_planner.allocator import Allocator

from workshop.engine.fake_machine import be_no_machine
from workshop.vllm_package import WITHOUT_A_MODEL
from workshop.workarounds import no_gpu_platform

ENVIRONMENT = {**WITHOUT_A_MODEL, "VLLM_DIST_IDENT": "none", "VLLM_KIMI_K3_GEMM_AR": "0"}
# FlashAttention's; what packs layers of different sizes into a block
LAYOUT, PACKED_LAYOUT = "LBNHC", "BLNHC"
PLAIN: set[str] = set()  # model types that are read by their fields alone
GPU_BLOCK = 16  # tokens; the CPU build would take 128
# field of a config -> tokens that its kernels on a GPU take
SPARSE_BLOCKS = {"compress_ratios": 256, "index_topk": 64}


def engine_config(job: dict, folder: str):
    """Return vLLM's configuration of a job as a GPU would have it."""
    from vllm.engine.arg_utils import EngineArgs

    Path(folder, "config.json").write_text(json.dumps(as_plain_fields(job["config"])))
    block = next(
        (size for name, size in SPARSE_BLOCKS.items() if job["config"].get(name)), GPU_BLOCK
    )
    asked = {key: job[key] for key in ("dtype", "max_model_len") if job.get(key)}
    config = EngineArgs(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        load_format="dummy",
        block_size=block,
        enable_prefix_caching=job.get("enable_prefix_caching"),
        allow_deprecated_quantization=True,
        language_model_only=job.get("language_model_only", False),
        **asked,
    ).create_engine_config()
    parallel, cache = config.parallel_config, config.cache_config
    parallel.tensor_parallel_size, parallel.pipeline_parallel_size = job["tp"], job["pp"]
    parallel.data_parallel_size = job.get("dp", 1)
    parallel.enable_expert_parallel = job.get("ep", False)
    parallel.world_size = job["tp"] * job["pp"]
    config.model_config.verify_with_parallel_config(parallel)
    cache.block_size = block
    cache.kv_cache_layout = LAYOUT
    if job.get("kv_cache_dtype", "auto") != "auto":
        cache.cache_dtype = job["kv_cache_dtype"]
    if job.get("max_num_batched_tokens"):
        config.scheduler_config.max_num_batched_tokens = job["max_num_batched_tokens"]
    return config


class Object(dict):
    """An object of a config whose fields are attributes, as a model's own code would make it (Nemotron NAS's blocks)."""

    def __getattr__(self, name: str) -> object:
        if name not in self:
            raise AttributeError(name)
        return Object(self[name]) if isinstance(self[name], dict) else self[name]


def as_plain_fields(raw: dict) -> dict:
    """Have a config whose class only the model's own code has read by its fields alone: that code is never run."""
    from transformers import CONFIG_MAPPING, PretrainedConfig
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    model_type = str(raw.get("model_type"))
    if model_type not in PLAIN:
        if model_type in CONFIG_MAPPING or model_type in _CONFIG_REGISTRY:
            return raw

        class Plain(PretrainedConfig):
            def __getattribute__(self, name):
                value = super().__getattribute__(name)
                return [Object(v) for v in value] if name == "block_configs" else value

        Plain.model_type = model_type
        _CONFIG_REGISTRY[model_type] = Plain
        PLAIN.add(model_type)
    scaling = dict(raw.get("rope_scaling") or {})
    rope = {
        "rope_theta": raw.get("rope_theta") or 10000.0,
        "rope_type": scaling.pop("type", "default"),
        **scaling,
    }
    gone = {"rope_scaling"} | (
        {"sliding_window"} if raw.get("use_sliding_window") is False else set()
    )
    return {
        "rope_parameters": rope,
        **{name: value for name, value in raw.items() if name not in gone},
    }


@contextlib.contextmanager
def rank(config, number: int) -> Iterator[None]:
    """Be one rank of the whole world, for as long as the block runs."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    parallel = config.parallel_config
    parallel.rank, world = number, parallel.world_size
    everybody = world * parallel.data_parallel_size
    torch.distributed.init_process_group(
        "fake", rank=number, world_size=everybody, store=FakeStore()
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


def stage(config, number: int) -> tuple[dict, dict]:
    """Return the weights of one pipeline stage, and the KV-cache spec of each of its layers."""
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    with rank(config, number * config.parallel_config.tensor_parallel_size):
        model = without_memory(config)
        sizes = tensor_sizes(model)
        take_gpu_blocks(config)
        specs = get_kv_cache_spec(config)
        language = (
            tensor_sizes(model.get_language_model())
            if hasattr(model, "get_language_model")
            else sizes
        )
    memory = Allocator()
    for size in sizes.values():
        memory.alloc(size)
    gc.collect()
    facts = {"tensor_bytes": sum(sizes.values()), "loaded_bytes": memory.allocated}
    encoder = sum(size for tensor, size in sizes.items() if tensor not in language)
    return facts | ({"encoder_bytes": encoder} if encoder else {}), specs


def tensor_sizes(model) -> dict[int, int]:
    """Return the bytes of every parameter and buffer, by its identity, and of what loading makes of a latent's."""
    sizes = {id(t): t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers())}
    return sizes | {
        id(module): size for module in model.modules() if (size := unpacked_bytes(module))
    }


def unpacked_bytes(module) -> int:
    """Return the bytes of W_UK and W_UV: decoding multiplies by kv_b_proj in 16 bit, so fewer bits are unpacked once.

    Source: vLLM 0.32.0, layers/attention/mla_attention.py, process_weights_after_loading.
    """
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention

    if (
        not isinstance(module, MLAAttention)
        or min(p.element_size() for p in module.kv_b_proj.parameters()) > 1
    ):
        return 0
    return (
        2 * module.num_heads * (module.qk_nope_head_dim + module.v_head_dim) * module.kv_lora_rank
    )


def without_memory(config):
    """Return the model on the meta device; where its code reads numbers while it builds, only the weights are there."""
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


def take_gpu_blocks(config) -> None:
    """Let kernels take any multiple of 16 tokens, as FlashAttention does, and a hybrid model's blocks hold its states."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backend import MultipleOf

    for backend in current_platform._find_non_ssm_backends(config):
        backend.get_supported_kernel_block_sizes = staticmethod(
            lambda spec=None: [MultipleOf(GPU_BLOCK)]
        )
    current_platform.update_block_size_for_backend(config)  # of hybrid models


def groups_of(config, specs: dict) -> list:
    """Return vLLM's groups of layers; layers of different sizes are packed where pages cannot be made equal."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    try:
        return get_kv_cache_groups(config, dict(specs))
    except NotImplementedError:
        config.cache_config.kv_cache_layout = PACKED_LAYOUT
        return get_kv_cache_groups(config, dict(specs))


def cache(config, stages: list[dict]) -> dict:
    """Return the groups of layers, the bytes of a block on each stage, and the blocks of a request, as vLLM says."""
    from vllm.v1.core import kv_cache_utils as vllm_cache

    merged = {name: spec for specs in stages for name, spec in specs.items()}
    groups = groups_of(config, merged)
    facts = [group_facts(config, group, stages) for group in groups]
    mine = [vllm_cache._project_kv_cache_groups_to_worker(groups, specs) for specs in stages]
    return {
        "groups": facts,
        "pool_bytes_per_block": [
            vllm_cache._pool_bytes_per_block(config, g) if g else 0 for g in mine
        ],
        "blocks_per_request": sum(each["blocks_per_request"] for each in facts),
        "bytes_per_token": sum(token_bytes(config, spec) for spec in merged.values()),
        "max_model_len": config.model_config.max_model_len,
        "max_in_flight_tokens": config.max_in_flight_tokens,
        "layout": config.cache_config.kv_cache_layout,
    }


def group_facts(config, group, stages: list[dict]) -> dict:
    """Return the kind of a group's layers, how many of them each stage holds, and its block."""
    from vllm.utils.math_utils import cdiv
    from vllm.v1.kv_cache_interface import iter_layer_specs

    spec = group.kv_cache_spec
    one = next(iter(iter_layer_specs(spec)))
    return {
        "kind": type(one).__name__,
        "layers": [sum(name in specs for name in group.layer_names) for specs in stages],
        "block_size": one.block_size,
        "page_bytes": one.page_size_bytes,
        "size": getattr(one, "sliding_window", None)
        or getattr(one, "attention_chunk_size", None)
        or 0,
        "blocks_per_request": cdiv(spec.max_memory_usage_bytes(config), spec.page_size_bytes),
    }


def token_bytes(config, spec) -> int:
    """Return the bytes that one token leaves in a layer, over all ranks, copies counted once; 0 for states."""
    from vllm.v1.kv_cache_interface import AttentionSpec, CrossAttentionSpec

    if not isinstance(spec, AttentionSpec) or isinstance(spec, CrossAttentionSpec):
        return 0
    heads = 1 if config.model_config.use_mla else config.model_config.get_total_num_kv_heads()
    return (
        spec.unpadded_page_size_bytes
        // spec.block_size
        * min(config.parallel_config.tensor_parallel_size, heads)
    )


def run(job: dict) -> dict:
    """Return what vLLM says of a job, or why it says nothing."""
    import vllm

    with tempfile.TemporaryDirectory() as folder:
        try:
            config = engine_config(job, folder)
            built = [stage(config, number) for number in range(job["pp"])]
            found = cache(config, [specs for _, specs in built])
        except Exception as error:
            return {
                "error": f"{type(error).__name__}: {error}".rstrip(": ")[:2000],
                "vllm": vllm.__version__,
            }
    facts = {"vllm": vllm.__version__, "architecture": config.model_config.architecture}
    return {**facts, "stages": [weights for weights, _ in built], "kv_cache": found}


def main() -> None:
    """Answer each job of standard input by a line on standard output; what vLLM prints goes to standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.environ.update(ENVIRONMENT)
    no_gpu_platform.apply()
    be_no_machine()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
