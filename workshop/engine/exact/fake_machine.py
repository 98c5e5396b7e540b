"""Monkeypatches that let vLLM build a model without a GPU: fake ranks and kernels, empty packages.

This is not a bug of vLLM: building a model class is not meant to work without the machine that runs
it. A class is only built here, and nothing is computed, so a patch has to give the sizes that a GPU
would have, and need not work otherwise. Each patch names private parts of vLLM 0.32.0 or PyTorch,
and has to be read again with a new release; the recorded builds (benchmarks/exact.py,
tests/engine/exact/test_exact_live.py) show a difference.
"""

import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Packages for images and sound, which the CPU build goes without. Building a class uses none of
# them.
OPTIONAL_PACKAGES = ("torchvision", "torchaudio", "timm", "cv2", "av")


class EmptyName(type):
    """A class with every attribute, which can be called, decorate a function and be inherited from."""

    def __getattr__(cls, name: str) -> "EmptyName":
        if name.startswith("__"):
            raise AttributeError(name)
        return EmptyName(name, (), {})

    def __call__(cls, *args: object, **options: object) -> object:
        if args and callable(args[0]):  # it decorates a function
            return args[0]
        return cls


class EmptyPackage(ModuleType):
    """A package that has every name."""

    __path__: Any = ()
    __version__ = "99.0"

    def __getattr__(self, name: str) -> EmptyName:
        if name.startswith("__"):
            raise AttributeError(name)
        return EmptyName(name, (), {})


class EmptyPackageFinder:
    """An import hook that finds every module of the optional packages that are not installed."""

    def __init__(self) -> None:
        self.missing = {name for name in OPTIONAL_PACKAGES if not importlib.util.find_spec(name)}

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.missing:
            return None
        loader: Any = self  # it has the two methods of a loader
        return importlib.machinery.ModuleSpec(name, loader, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return EmptyPackage(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the package is empty."""


def apply() -> None:
    """Patch vLLM and PyTorch in this process, which can serve no model afterwards."""
    sys.meta_path.append(EmptyPackageFinder())
    from vllm.model_executor.models import registry

    # A process of its own, as vLLM inspects a class in, would not have these patches.
    registry._run_in_subprocess = lambda inspect: inspect()
    fake_ranks()
    fake_platform()
    fake_expert_kernels()
    fake_linear_kernels()
    fake_torch()  # last: vLLM's modules look at the CPU's real features when they are imported


def fake_torch() -> None:
    """Give PyTorch idle CUDA objects, and CPU features that leave the sizes of a GPU unchanged."""
    import torch
    from vllm.v1.worker import workspace

    patched: Any = torch
    idle = type("Idle", (), {"__init__": lambda self, *_, **__: None})
    patched.cuda.Event = patched.cuda.Stream = idle
    patched.accelerator.empty_cache = lambda: None
    patched.nn.Module.to = only_to_the_dtype(torch.nn.Module.to)
    # With this feature, recurrent states would be stored in 32 bit.
    patched.cpu._is_avx512_bf16_supported = lambda: False
    # Without this feature, latent attention would have no prefix caching.
    patched.cpu._is_amx_tile_supported = lambda: True
    workspace.init_workspace_manager(torch.device("meta"))


def fake_ranks() -> None:
    """Let process groups have ranks that do not exist."""
    import torch
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    distributed: Any = torch.distributed
    state: Any = parallel_state
    communicator: Any = CpuCommunicator
    new_group = distributed.new_group
    new_model_group = state.init_model_parallel_group

    def fake_group(ranks=None, **_):
        return new_group(ranks, backend="fake")

    def fake_model_group(*args, **options):
        options["use_message_queue_broadcaster"] = False
        return new_model_group(*args, **options)

    def all_in_one_node(group, *_, **__) -> list[bool]:
        return [True] * group.size()

    distributed.new_group = fake_group
    state.init_model_parallel_group = fake_model_group
    state.in_the_same_node_as = all_in_one_node
    communicator._all_group_ranks_share_shm_group_name = lambda self: False


def fake_platform() -> None:
    """Let the CPU's platform take every quantization, and a GPU's backend for sparse attention."""
    from vllm.platforms import current_platform

    platform: Any = type(current_platform)
    platform.supported_quantization = []  # every one, as nothing is computed
    platform.get_attn_backend_cls = classmethod(
        with_sparse_attention(current_platform.get_attn_backend_cls)
    )


def fake_expert_kernels() -> None:
    """Choose Marlin's kernels for quantized experts, and let all kernels take any activation."""
    from vllm.model_executor.layers.fused_moe import config
    from vllm.model_executor.layers.fused_moe.expert_map_manager import ExpertMapManager
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExpertsBase
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts
    from vllm.model_executor.layers.fused_moe.oracle import int_wna16, mxfp4
    from vllm.platforms import current_platform

    like_cuda = type("Gpu", (type(current_platform),), {"is_cuda_alike": lambda self: True})
    patched_config: Any = config
    patched_config.current_platform = like_cuda()
    for_int: Any = int_wna16
    for_int._get_priority_backends = lambda: [int_wna16.WNA16MoEBackend.MARLIN]
    for_mxfp4: Any = mxfp4

    def mxfp4_backends() -> list:
        return [mxfp4.Mxfp4MoeBackend.CPU, mxfp4.Mxfp4MoeBackend.MARLIN]

    for_mxfp4._get_priority_backends = mxfp4_backends
    for_mxfp4._get_priority_backends_for_gpt_oss = mxfp4_backends

    marlin: Any = MarlinExpertsBase
    marlin._supports_current_device = staticmethod(lambda: True)
    kernels: list[Any] = [marlin]
    for value in vars(cpu_moe).values():
        if isinstance(value, type) and issubclass(value, FusedMoEExperts):
            kernels.append(value)
    takes_all = staticmethod(lambda *_: True)
    for kernel in kernels:
        kernel._supports_activation = takes_all
        kernel._supports_no_act_and_mul = takes_all
    # A line of the log would need the numbers of the map.
    manager: Any = ExpertMapManager
    manager.get_compressed_map_string = lambda self: ""


def fake_linear_kernels() -> None:
    """Choose Marlin's kernels for dense layers in NVFP4 and MXFP8, and take FP8 on every processor."""
    from vllm import _custom_ops
    from vllm.model_executor.kernels import linear
    from vllm.platforms import current_platform

    # The build for processors without AVX-512 has no operator for FP8.
    operators: Any = _custom_ops
    operators._supports_cpu_fp8_w8a16 = True
    choices: list[tuple[Any, Any]] = [
        (linear._POSSIBLE_NVFP4_KERNELS, linear.MarlinNvFp4LinearKernel),
        (linear._POSSIBLE_MXFP8_KERNELS, linear.MarlinMxfp8LinearKernel),
    ]
    for kernels, kernel in choices:
        kernels[current_platform._enum] = [kernel]
        kernel.is_supported = classmethod(lambda cls, *_: (True, None))


def only_to_the_dtype(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Module.to that changes the dtype alone: tensors of the meta device have no data."""
    import torch

    parse: Any = getattr(torch._C, "_nn")._parse_to  # noqa: B009  PyTorch's stubs leave it out

    def to(self, *args, **options):
        dtype = parse(*args, **options)[1]
        if not dtype:
            return self
        return original(self, dtype)

    return to


def with_sparse_attention(choose: Callable[..., Any]) -> Callable[..., Any]:
    """Return the choice of an attention backend, with a GPU's backend for sparse attention."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    def backend_of(cls, selected_backend, attn_selector_config, num_heads=None):
        if attn_selector_config.use_sparse:
            return AttentionBackendEnum.FLASHMLA_SPARSE.get_path()
        return choose(selected_backend, attn_selector_config, num_heads)

    return backend_of
