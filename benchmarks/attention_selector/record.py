"""Ask vLLM's attention selector which backend it takes, for all GPUs, without a GPU.

    pip download --no-deps -d wheels vllm==0.32.0 flashinfer-python==0.7.0.post1
    for wheel in wheels/*.whl; do python -m zipfile -e $wheel unpacked; done
    python benchmarks/attention_selector/record.py unpacked

The CUDA wheels are unpacked, not installed: their Python files are imported, under a platform that
answers for a compute capability. FlashAttention counts as there in the versions whose files the
wheel holds. vLLM's get_valid_backends gives the backends in its own order, and the class that
computes with the first of them is built, because some checks are made only there.

What could not be asked without a GPU is recorded as "not asked", never as a refusal.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.metadata
import itertools
import json
import os
import sys
import types
from collections.abc import Collection
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planner"))
from inference_planner.releases.attention_backends import FILE

CAPABILITIES = (
    "7.0",
    "7.5",
    "8.0",
    "8.6",
    "8.7",
    "8.9",
    "9.0",
    "10.0",
    "10.3",
    "11.0",
    "12.0",
    "12.1",
)
CACHE_DTYPES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla")
HEADS = (32, 64, 80, 96, 112, 120, 128, 160, 192, 256, 512)
LATENTS = (320, 512, 576)
# The kinds of attention: arguments of vLLM's selector, and the sizes of heads to ask for.
KINDS: dict[str, tuple[dict[str, bool], tuple[int, ...]]] = {
    "heads": ({}, HEADS),
    "window": ({"has_sliding_window": True}, HEADS),
    "sinks": ({"has_sink": True}, (64, 128)),
    "image prefix": ({"use_mm_prefix": True}, HEADS),
    "latent": ({"use_mla": True}, LATENTS),
    "sparse latent": ({"use_mla": True, "use_sparse": True}, LATENTS),
}
NOT_ASKED = "not asked"
DEEPSEEK_V4 = "deepseek v4"
CLASSES_OF_DEEPSEEK_V4 = ("DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration")
CUDA_PACKAGES = ("cuda", "pynvml", "cudnn")


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules that this machine cannot load, whose functions no question calls."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names

    def find_spec(
        self, fullname: str, path: object, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self.names or fullname.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = mock.MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__ = spec, [], spec.name
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


def prepare(folder: Path) -> Any:
    """Make this process import the unpacked wheels, and return the class of the platform.

    Its `version` is the compute capability for which it answers.
    """
    compiled = (file.relative_to(folder) for file in folder.rglob("*.so"))
    names = {".".join((*file.parent.parts, file.name.split(".")[0])) for file in compiled}
    sys.meta_path.insert(0, StandIns(names))
    sys.meta_path.append(StandIns(CUDA_PACKAGES))  # where the package is not installed
    version = importlib.metadata.version
    wheels = {d.name: d.version for d in importlib.metadata.distributions(path=[str(folder)])}
    importlib.metadata.version = lambda name: wheels.get(name) or version(name)
    import vllm.platforms as platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    class Answering(cuda.CudaPlatformBase):
        version = DeviceCapability(9, 0)

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return cls.version

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "GPU"

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

    def backend_class(backend: Any) -> Any:
        try:
            return backend.get_class()
        except Exception as error:  # it wants a GPU while it is imported
            raise ImportError(str(error)) from error

    cuda._get_attn_backend_class = backend_class
    platforms._current_platform = Answering()
    return Answering


def forget() -> None:
    """Clear vLLM's caches, in which an answer for another GPU may lie."""
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper):
            module = getattr(thing, "__module__", "") or ""
            if module.startswith("vllm."):
                thing.cache_clear()


def answers(platform: Any, capability: str) -> list[dict[str, Any]]:
    """Return what one compute capability answers to every question."""
    import torch
    from vllm.config import CacheConfig, VllmConfig, set_current_vllm_config
    from vllm.v1.attention.selector import AttentionSelectorConfig

    forget()
    platform.version = type(platform.version)(*map(int, capability.split(".")))
    result: list[dict[str, Any]] = []
    dtype = torch.bfloat16 if float(capability) >= 8 else torch.float16
    torch.set_default_dtype(dtype)
    config = VllmConfig()
    config.cache_config = CacheConfig()
    for kind, (arguments, sizes) in KINDS.items():
        for cache_dtype, size in itertools.product(CACHE_DTYPES, sizes):
            question = AttentionSelectorConfig(
                head_size=size,
                dtype=dtype,
                kv_cache_dtype=cache_dtype,
                block_size=None,
                **arguments,
            )
            config.cache_config.cache_dtype = cache_dtype
            with set_current_vllm_config(config, check_compile=False):
                candidates, reasons = platform.get_valid_backends(platform.version, question, 32)
                start = built(candidates[0].backend_class, question) if candidates else ""
            row: dict[str, Any] = {
                "kind": kind,
                "kv_cache_dtype": cache_dtype,
                "head_size": size,
                "capability": capability,
                "backends": [candidate.backend.name for candidate in candidates],
                "not_asked": [
                    backend.name for backend, (_, why) in reasons.items() if is_absent(why)
                ],
                "start": start,
            }
            result.append(row)
    return result


def answers_of_deepseek_v4(platform: Any, capability: str) -> list[dict[str, Any]]:
    """Return what DeepSeek V4's own classes answer, which do not ask the selector.

    The model picks the class of its attention by the compute capability alone; that class names the
    capabilities of its backend, and keeps one layout of the KV cache.
    """
    from types import SimpleNamespace

    from vllm.models.deepseek_v4.attention import _resolve_dsv4_kv_cache_dtype
    from vllm.models.deepseek_v4.nvidia.model import _select_dsv4_attn_cls

    forget()
    platform.version = type(platform.version)(*map(int, capability.split(".")))
    no_backend = SimpleNamespace(attention_config=SimpleNamespace(backend=None))
    attention = _select_dsv4_attn_cls(no_backend)
    backend = attention.backend_cls
    result: list[dict[str, Any]] = []
    for cache_dtype in CACHE_DTYPES:
        start = ""
        try:
            _resolve_dsv4_kv_cache_dtype(attention.use_fp8_ds_mla_layout, cache_dtype, None)
        except ValueError as error:
            start = str(error).split(". Please")[0]
        if not backend.supports_compute_capability(platform.version):
            start = f"{backend.get_name()}: compute capability not supported"
        row = {
            "kind": DEEPSEEK_V4,
            "kv_cache_dtype": cache_dtype,
            "head_size": backend.get_supported_head_sizes()[0],
            "capability": capability,
            "backends": [backend.get_name()],
            "not_asked": [],
            "start": start,
        }
        result.append(row)
    return result


def is_absent(reasons: list[str]) -> bool:
    """Return True if a backend could not be imported here."""
    return reasons[0].startswith(("ImportError", "OSError", "ModuleNotFoundError"))


def built(backend: Any, question: Any) -> str:
    """Build the class that computes with a backend: "", what it raises, or that it was not asked."""
    import torch
    from vllm.model_executor.layers.attention import mla_attention
    from vllm.v1.attention.backend import AttentionType

    options: dict[str, Any] = {}
    cache_dtype = question.kv_cache_dtype
    if question.use_sparse:  # the layer rewrites it once it knows the backend
        cache_dtype = mla_attention._canonicalize_sparse_mla_kv_cache_dtype(backend, cache_dtype)
    if question.has_sink:
        options["sinks"] = torch.zeros(32)
    if question.use_mla:
        options.update(
            q_lora_rank=None,
            kv_lora_rank=question.head_size - 64,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            qk_head_dim=192,
            v_head_dim=128,
            kv_b_proj=mock.MagicMock(),
        )
    try:
        backend.get_impl_cls()(
            32,
            question.head_size,
            1.0,
            1 if question.use_mla else 8,
            None,
            None,
            cache_dtype,
            None,
            AttentionType.DECODER,
            None,
            **options,
        )
    except (ValueError, NotImplementedError) as error:
        return str(error)
    except Exception as error:
        return f"{NOT_ASKED}: {type(error).__name__}: {error}"
    return ""


def image_prefix(model_types: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the model types whose images see both ways, with the fields that decide it.

    vLLM's own answer is taken for each type, without the field of Gemma 4 and with it.
    """
    from types import SimpleNamespace

    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    result: dict[str, dict[str, str]] = {}
    for model_type in sorted(model_types):
        convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(model_type, ModelArchConfigConvertorBase)
        for fields in ({}, {"use_bidirectional_attention": "vision"}):
            config = SimpleNamespace(model_type=model_type, **fields)
            this = SimpleNamespace(hf_config=config, hf_text_config=config)
            if convertor.is_mm_prefix_lm(this, True):
                result[model_type] = fields
                break
    return result


def others() -> dict[str, Any]:
    """Return what does not depend on the GPU: graphs of chunked attention, and image prefixes."""
    from transformers import CONFIG_MAPPING
    from vllm.model_executor.layers.attention.chunked_local_attention import (
        create_chunked_local_attention_backend,
    )
    from vllm.transformers_utils.model_arch_config_convertor import MODEL_ARCH_CONFIG_CONVERTORS
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    flash = AttentionBackendEnum.FLASH_ATTN.get_class()
    chunked = create_chunked_local_attention_backend(flash, 8192)
    support = chunked.get_builder_cls().get_cudagraph_support(None, None).name
    types = {*CONFIG_MAPPING, *MODEL_ARCH_CONFIG_CONVERTORS, "bagel", "molmo2", "moondream3"}
    return {
        "graphs": {"chunked": support},
        "classes": {name: [DEEPSEEK_V4, 512] for name in CLASSES_OF_DEEPSEEK_V4},
        "image_prefix": image_prefix(types),
    }


def table(rows: list[dict[str, Any]], general: dict[str, Any], wheels: str) -> dict[str, Any]:
    """Return the table: equal answers of several sizes and capabilities are one row."""
    by_answer: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    for row in rows:
        refusal = row["start"].split(" on GPU")[0].rstrip(".")
        if not row["backends"] and not row["not_asked"]:
            refusal = "No valid attention backend found"
        if refusal.startswith(NOT_ASKED):
            refusal = ""
        names = ("kind", "kv_cache_dtype", "backends", "not_asked")
        key = (*(json.dumps(row[name]) for name in names), refusal)
        by_answer.setdefault(key, {}).setdefault(row["capability"], []).append(row["head_size"])
    result: list[dict[str, Any]] = []
    for (kind, dtype, backends, not_asked, refusal), sizes in by_answer.items():
        same: dict[tuple[int, ...], list[str]] = {}
        for capability, of_it in sizes.items():
            same.setdefault(tuple(of_it), []).append(capability)
        for heads, capabilities in same.items():
            result.append(
                {
                    "kind": json.loads(kind),
                    "kv_cache_dtype": json.loads(dtype),
                    "head_sizes": heads,
                    "capabilities": capabilities,
                    "backends": json.loads(backends),
                    "not_asked": json.loads(not_asked),
                    "refusal": refusal,
                }
            )
    return {
        "source": f"benchmarks/attention_selector/record.py with {wheels}",
        "capabilities": sorted({row["capability"] for row in rows}, key=float),
        **general,
        "rows": result,
    }


def write(data: dict[str, Any]) -> None:
    """Write the table with a line for each row, so that a change of one is a change of one line."""
    head = "".join(f' "{k}": {json.dumps(data[k])},\n' for k in data if k != "rows")
    body = ",\n".join(f"  {json.dumps(row)}" for row in data["rows"])
    FILE.write_text(f'{{\n{head} "rows": [\n{body}\n ]\n}}\n', encoding="utf-8")


def main() -> None:
    """Ask for every compute capability, and write the table."""
    os.environ.update(VLLM_HAS_FLASHINFER_CUBIN="1", CUDA_VISIBLE_DEVICES="")
    sys.path.insert(0, sys.argv[1])
    import xgrammar  # noqa: F401  before CUDA's packages have stand-ins

    platform = prepare(Path(sys.argv[1]))
    general = others()
    rows = [row for capability in CAPABILITIES for row in answers(platform, capability)]
    for capability in CAPABILITIES:
        rows += answers_of_deepseek_v4(platform, capability)
    wheels = importlib.metadata.distributions(path=[sys.argv[1]])
    names = " and ".join(sorted(f"{wheel.name} {wheel.version}" for wheel in wheels))
    write(table(rows, general, names))


if __name__ == "__main__":
    main()
