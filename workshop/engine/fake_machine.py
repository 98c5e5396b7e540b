"""What vLLM's classes ask of a machine while they are built: ranks, kernels and packages that are not there, answered for.

Packages for pictures and sound, which the CPU build goes without, are empty names: building a class uses none of them.
"""

import importlib.machinery
import importlib.util
import sys
from types import ModuleType

PACKAGES = ("torchvision", "torchaudio", "timm", "cv2", "av")


class Name(type):
    """A class that has whatever is asked of it, and can be called, decorate, and be a parent."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(name, (), {})

    def __call__(cls, *args: object, **options: object) -> object:
        return args[0] if args and callable(args[0]) else cls


class Empty(ModuleType):
    """A package in which every name is there."""

    __path__ = ()
    __version__ = "99.0"
    __getattr__ = Name.__getattr__


class Finder:
    """Finds every module of the packages that are not installed."""

    def __init__(self) -> None:
        self.missing = {name for name in PACKAGES if not importlib.util.find_spec(name)}

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.missing:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def be_no_machine() -> None:
    """Answer for the ranks that do not exist, and for this CPU, whose own abilities would change sizes of states."""
    sys.meta_path.append(Finder())
    import torch
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.fused_moe import config as moe
    from vllm.model_executor.layers.fused_moe.expert_map_manager import ExpertMapManager
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExpertsBase
    from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEExperts
    from vllm.model_executor.layers.fused_moe.oracle import int_wna16, mxfp4
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform
    from vllm.v1.worker import workspace

    registry._run_in_subprocess = lambda inspect: inspect()  # which would not have the stand-ins
    torch.cuda.Event = torch.cuda.Stream = type(
        "Idle", (), {"__init__": lambda self, *_, **__: None}
    )
    moe.current_platform = type(
        "Gpu", (type(current_platform),), {"is_cuda_alike": lambda self: True}
    )()
    torch.accelerator.empty_cache = lambda: None
    torch.nn.Module.to = stay_but_for_the_dtype(torch.nn.Module.to)
    workspace.init_workspace_manager(torch.device("meta"))
    new_group, init = torch.distributed.new_group, parallel_state.init_model_parallel_group
    torch.distributed.new_group = lambda ranks=None, **_: new_group(ranks, backend="fake")
    parallel_state.in_the_same_node_as = lambda group, *_, **__: [True] * group.size()
    parallel_state.init_model_parallel_group = lambda *args, **options: init(
        *args, **{**options, "use_message_queue_broadcaster": False}
    )
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False
    # or recurrent states would be kept in 32 bit
    torch.cpu._is_avx512_bf16_supported = lambda: False
    # or latent attention would go without prefix caching
    torch.cpu._is_amx_tile_supported = lambda: True
    type(current_platform).supported_quantization = []  # any: nothing is computed
    type(current_platform).get_attn_backend_cls = classmethod(
        sparse_too(current_platform.get_attn_backend_cls)
    )
    int_wna16._get_priority_backends = lambda: [int_wna16.WNA16MoEBackend.MARLIN]
    of_4_bits = [mxfp4.Mxfp4MoeBackend.CPU, mxfp4.Mxfp4MoeBackend.MARLIN]
    mxfp4._get_priority_backends = mxfp4._get_priority_backends_for_gpt_oss = lambda: list(
        of_4_bits
    )
    for kernels, kernel in (
        (linear._POSSIBLE_NVFP4_KERNELS, linear.MarlinNvFp4LinearKernel),
        (linear._POSSIBLE_MXFP8_KERNELS, linear.MarlinMxfp8LinearKernel),
    ):
        kernels[current_platform._enum] = [kernel]
        kernel.is_supported = classmethod(lambda cls, *_: (True, None))
    experts = [each for each in vars(cpu_moe).values() if isinstance(each, type)]
    for each in (MarlinExpertsBase, *(c for c in experts if issubclass(c, FusedMoEExperts))):
        each._supports_activation = each._supports_no_act_and_mul = staticmethod(lambda *_: True)
    # where the CPU has no experts of 4 bits
    MarlinExpertsBase._supports_current_device = staticmethod(lambda: True)
    # a line of the log, which would need the numbers
    ExpertMapManager.get_compressed_map_string = lambda self: ""


def stay_but_for_the_dtype(move):
    """Return a Module.to that moves nothing: there is nothing that could be."""
    import torch

    def to(self, *args, **options):
        dtype = torch._C._nn._parse_to(*args, **options)[1]
        return move(self, dtype) if dtype else self

    return to


def sparse_too(choose):
    """Return the choice of an attention backend with a GPU's for sparse attention, which a CPU has none for."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    def chosen(cls, selected_backend, attn_selector_config, num_heads=None):
        if attn_selector_config.use_sparse:
            return AttentionBackendEnum.FLASHMLA_SPARSE.get_path()
        return choose(selected_backend, attn_selector_config, num_heads)

    return chosen
