"""Renew the locks: `make lock`. Resolves pyproject.toml for Python ≥ 3.11 on every system, with hashes.

Three files, all of one resolution: base.txt (light: no torch), local.txt (base and vLLM on the CPU), dev.txt (and
what the tests need). They are installed with `--no-deps`, so what stands in LEFT_OUT is never downloaded:

- torch is installed on its own, before the rest, in its CPU build (see workshop/install.py);
- torchvision, torchaudio, torchcodec: their usual builds are CUDA ones, and fail to import beside a CPU torch.
  A text model needs none of them;
- triton (1 GB) compiles kernels for GPUs, and vLLM on the CPU does without; opencv is for pictures and videos.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec", "triton", "opencv-python-headless")
SETS = {"dev": ("--extra", "local", "--extra", "dev"), "local": ("--extra", "local"), "base": ()}
# The package itself is installed with --no-build-isolation: what builds it is locked as well.
BUILD = "hatchling\neditables\n"


def compile_lock(name: str, extras: tuple[str, ...]) -> None:
    """Write locks/NAME.txt; the smaller sets take the versions of the largest."""
    torch = re.search(r'"torch==([\d.]+)', (HERE.parent / "pyproject.toml").read_text())[1]
    (HERE / "build.in").write_text(BUILD)
    (HERE / "overrides.in").write_text(f"torch=={torch}+cpu; sys_platform == 'linux'\n")
    constraints = () if name == "dev" else ("--constraint", str(HERE / "dev.txt"))
    left_out = [part for package in LEFT_OUT for part in ("--no-emit-package", package)]
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "locks/build.in", *extras, "--universal",
         "--generate-hashes", "--python-version", "3.11", "--override", "locks/overrides.in", *constraints, *left_out,
         "--quiet", "--upgrade", "--no-header", "--no-annotate", "--output-file", f"locks/{name}.txt"],
        cwd=HERE.parent, check=True)
    for scrap in ("build.in", "overrides.in"):
        (HERE / scrap).unlink()


if __name__ == "__main__":
    for name, extras in SETS.items():
        compile_lock(name, extras)
        packages = re.findall(r"^[\w.-]+(?:\[.*\])?==", (HERE / f"{name}.txt").read_text(), re.MULTILINE)
        print(f"locks/{name}.txt: {len(packages)} packages")
