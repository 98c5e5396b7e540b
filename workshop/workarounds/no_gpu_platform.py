"""vLLM's build for GPUs cannot be used on a machine without a GPU, not even its scheduler or its model classes.

Without a GPU such a build chooses UnspecifiedPlatform, whose device type is empty, and creating an engine configuration
fails. A login node of a cluster is such a machine, and planning and simulation run there.

Upstream: vllm-project/vllm#23967 (open) is the same fault, met by `vllm bench serve`.
Versions: vLLM 0.25.1 to 0.33.0. Ends when: EngineArgs.create_engine_config() works with UnspecifiedPlatform.
"""

from workshop.workarounds import cpu_package_name


def apply() -> None:
    """Make vLLM's classes and scheduler treat this machine as a CPU. Call it before vLLM's engine is imported."""
    cpu_package_name.apply()  # vLLM cannot tell which platform it is on without it
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms.current_platform = CpuPlatform()
