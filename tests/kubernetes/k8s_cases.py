"""The five overlays: what is expected of each, and their resources, resolved."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from copy import deepcopy
from functools import cache
from pathlib import Path

import k8s_kustomize
import yaml
from click.testing import CliRunner
from k8s_read import Expected

from workshop.cli.kubernetes import command

ROOT = Path(__file__).parents[2]
TREE = ROOT / "kubernetes"
# Parameters as published (10**9), two bytes each; GPUs as the seeds of the course have them.
EXPECTED = {
    "mistral-7b": Expected(2 * 7_248_023_552, 1, 2, "Tesla-T4", bfloat16=False),
    "llama-3-8b": Expected(2 * 8_030_261_248, 1, 2, "Tesla-T4", bfloat16=False),
    "falcon-40b": Expected(2 * 41_303_293_952, 1, 8, "NVIDIA-A10G"),
    "llama-3-1-70b": Expected(2 * 70_553_706_496, 1, 4, "NVIDIA-H100-80GB-HBM3"),
    "llama-3-1-405b": Expected(2 * 405_853_388_800, 2, 8, "NVIDIA-H100-80GB-HBM3"),
}
OVERLAYS = [*EXPECTED]


def arguments_of(name: str) -> list[str]:
    """The command line in the overlay's first line, without `workshop kubernetes`."""
    first = (TREE / "overlays" / name / "kustomization.yaml").read_text().splitlines()[0]
    arguments = shlex.split(first.removeprefix("# "))
    assert arguments[:2] == ["workshop", "kubernetes"]
    return arguments[2:]


def run(arguments: list[str]) -> str:
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@cache
def _resolved(name: str) -> list[dict]:
    return k8s_kustomize.build(TREE / "overlays" / name)


def resolved(name: str) -> list[dict]:
    return deepcopy(_resolved(name))


def on_openshift(name: str, folder: Path) -> list[dict]:
    arguments = arguments_of(name)
    run([*arguments[: arguments.index("--output")], "--openshift", "--output", str(folder)])
    return k8s_kustomize.build(folder / "overlays" / name)


def built(folder: Path) -> list[dict]:
    """Return what a folder's kustomization resolves to; kubectl, where it is installed, agrees."""
    docs = k8s_kustomize.build(folder)
    tool = shutil.which("kubectl")
    if tool:
        done = subprocess.run([tool, "kustomize", str(folder)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert by_kind(list(yaml.safe_load_all(done.stdout))) == by_kind(docs)
    return docs


def by_kind(docs: list[dict]) -> list[dict]:
    return sorted(docs, key=lambda doc: (doc["kind"], doc["metadata"]["name"]))
