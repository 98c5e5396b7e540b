"""Test only: a CPU platform whose ranks take Ray's fake GPUs; vLLM's own names no device for Ray, and is refused."""

from __future__ import annotations

from vllm.platforms.cpu import CpuPlatform


class CpuRayPlatform(CpuPlatform):
    ray_device_key = "GPU"  # platforms/interface.py:150 is "" for CPU -> ray_utils.py:572 refuses

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "cpu_ray_shim_comm.NodeAwareCpuCommunicator"
