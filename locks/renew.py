"""Renew the locks: `make lock`. Resolves pyproject.toml for Python ≥ 3.11 on every system, with hashes.

base.txt (light: no torch), local.txt (base, vLLM on the CPU, lm-eval) and dev.txt (and what the tests need) are of one
resolution. torch.txt is PyTorch's CPU build, whose index is its own. uv.txt installs the rest, where it can be had.
All are installed with `--no-deps`, so what stands in LEFT_OUT is never downloaded:

- inference-planner is in this repository;
- torch comes from torch.txt;
- torchvision, torchaudio, torchcodec: their usual builds are CUDA ones, and fail to import beside a CPU torch.
  A text model needs none of them;
- triton (1 GB) compiles kernels for GPUs, and vLLM on the CPU does without; opencv is for pictures and videos;
- httptools: without it uvicorn reads HTTP with h11, which limits the size of headers; httptools does not;
- fastapi-cli and what it alone needs are the command `fastapi`, which deploys to a cloud and reports crashes
  (sentry-sdk). vLLM asks for fastapi[standard], and uses none of it;
- scikit-learn and the rest are for metrics of lm-eval that our tasks do not use (ROUGE, BLEURT, F1), and for its cache.
  transformers imports scikit-learn wherever it finds it, which makes each start of vLLM a tenth slower; rouge-score,
  word2number and sqlitedict exist as sources alone, which would have to be built.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from install import TORCH_INDEX

HERE = Path(__file__).parent
LEFT_OUT = (
    "inference-planner",
    "torch",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "triton",
    "opencv-python-headless",
    "httptools",
    "fastapi-cli",
    "fastapi-cloud-cli",
    "agent-detector",
    "detect-installer",
    "fastar",
    "rich-toolkit",
    "rignore",
    "sentry-sdk",
    "scikit-learn",
    "joblib",
    "threadpoolctl",
    "narwhals",
    "nltk",
    "rouge-score",
    "absl-py",
    "word2number",
    "evaluate",
    "sqlitedict",
)
LEFT_OUT_OF = {"local": ("scipy",)}  # scikit-learn's alone there; the tests use it
LOCAL = ("--extra", "local", "--extra", "eval")
SETS = {"dev": (*LOCAL, "--extra", "dev"), "local": LOCAL, "base": ()}
# The package itself is installed with --no-build-isolation: what builds it is locked as well.
BUILD = "hatchling\neditables\n"
LOCK = (
    "--universal",
    "--generate-hashes",
    "--python-version",
    "3.11",
    "--quiet",
    "--no-header",
    "--no-annotate",
)


def compile_lock(name: str, extras: tuple[str, ...], torch: str) -> None:
    """Write locks/NAME.txt; the smaller sets take the versions of the largest."""
    (HERE / "build.in").write_text(BUILD)
    # lm-eval's tables (typepy) ask for python-dateutil below 3, and work with 4 as well (tests/measure/test_evaluate.py).
    (HERE / "overrides.in").write_text(
        f"{torch}; sys_platform == 'linux'\npython-dateutil>=2.8.2\n"
    )
    constraints = () if name == "dev" else ("--constraint", str(HERE / "dev.txt"))
    left_out: list[str] = []
    for package in (*LEFT_OUT, *LEFT_OUT_OF.get(name, ())):
        left_out += ["--no-emit-package", package]
    compile_with_uv(
        "pyproject.toml",
        "locks/build.in",
        *extras,
        "--override",
        "locks/overrides.in",
        *constraints,
        *left_out,
        "--upgrade",
        "--output-file",
        f"locks/{name}.txt",
    )
    for scrap in ("build.in", "overrides.in"):
        (HERE / scrap).unlink()


def compile_alone(name: str, requirement: str, *options: str) -> None:
    """Write locks/NAME.txt for one package, with the hashes for every Python and processor."""
    (HERE / f"{name}.in").write_text(f"{requirement}\n")
    files = f"locks/{name}.in", "--output-file", f"locks/{name}.txt"
    compile_with_uv(*files, "--no-deps", "--upgrade", *options)
    (HERE / f"{name}.in").unlink()


def compile_with_uv(*args: str) -> None:
    """Resolve with uv."""
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", *LOCK, *args], cwd=HERE.parent, check=True
    )


if __name__ == "__main__":
    pinned = re.search(r'"(torch==[\d.]+)', (HERE.parent / "pyproject.toml").read_text())[1]
    torch = f"{pinned}+cpu"
    compile_alone("uv", "uv")
    try:
        compile_alone("torch", f"{torch} ; sys_platform == 'linux'", "--index-url", TORCH_INDEX)
    except subprocess.CalledProcessError:
        print(f"locks/torch.txt is left as it is: {TORCH_INDEX} cannot be reached.")
        (HERE / "torch.in").unlink()
    for name, extras in SETS.items():
        compile_lock(name, extras, torch)
        packages = re.findall(
            r"^[\w.-]+(?:\[.*\])?==", (HERE / f"{name}.txt").read_text(), re.MULTILINE
        )
        print(f"locks/{name}.txt: {len(packages)} packages")
