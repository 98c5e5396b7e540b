"""The five overlays: what is expected of each, and their resources, resolved."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from copy import deepcopy
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import k8s_kustomize
import yaml
from inference_planner.answer.parallelism import Plan
from k8s_read import Expected

from workshop.engine.planning import plan
from workshop.servers import kubernetes
from workshop.servers.kubernetes import Options

ROOT = Path(__file__).parents[2]
TREE = ROOT / "kubernetes"
GUARD_IMAGE = "registry.example.org/vllm-workshop:v0.32.0"
# Parameters as published (10**9), two bytes each; GPUs as the seeds of the course have them.
EXPECTED = {
    "mistral-7b": Expected(2 * 7_248_023_552, 1, 2, "Tesla-T4", bfloat16=False),
    "llama-3-8b": Expected(2 * 8_030_261_248, 1, 2, "Tesla-T4", bfloat16=False),
    "falcon-40b": Expected(2 * 41_303_293_952, 1, 8, "NVIDIA-A10G"),
    "llama-3-1-70b": Expected(2 * 70_553_706_496, 1, 4, "NVIDIA-H100-80GB-HBM3"),
    "llama-3-1-405b": Expected(2 * 405_853_388_800, 2, 8, "NVIDIA-H100-80GB-HBM3"),
}
OVERLAYS = [*EXPECTED]


def planned(command: str) -> tuple[Plan, Options, str]:
    """Return the plan, the cluster's options and the folder of a line `workshop plan … --as kubernetes …`."""
    arguments = shlex.split(command)
    assert arguments[:2] == ["workshop", "plan"]
    end = arguments.index("--as")
    assert arguments[end + 1] == "kubernetes"
    model, settings = arguments[2], values_of(arguments[3:end])
    options = values_of(arguments[end + 2 :])
    folder = options.pop("output", "")
    multiple = {field.name for field in fields(Options) if isinstance(field.default, tuple)}
    for name in multiple & options.keys():
        options[name] = tuple(options[name])
    made = plan(model, settings.pop("gpu"), usage="serve", **settings)
    return made, Options(**options), folder


def values_of(arguments: list[str]) -> dict:
    """Return flags and their values by the names of Python; what is there twice is a list."""
    values: dict = {}
    for number, word in enumerate(arguments):
        if not word.startswith("--"):
            continue
        name = word[2:].replace("-", "_")
        following = arguments[number + 1 : number + 2]
        value: object = True
        if following and not following[0].startswith("--"):
            value = int(following[0]) if following[0].isdigit() else following[0]
        if name == "node_selector":
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    return values


def printed(command: str) -> str:
    """Return what a command line prints."""
    made, options, _ = planned(command)
    return kubernetes.render(made, options, command)


def write(command: str, folder: Path) -> None:
    """Write the overlay of a command line, and the components, into a folder."""
    made, options, _ = planned(command)
    kubernetes.write(made, folder, options, command)


def command_of(name: str) -> str:
    """The command line in the overlay's first line."""
    text = (TREE / "overlays" / name / "kustomization.yaml").read_text()
    return text.splitlines()[0].removeprefix("# ")


@cache
def case_of(name: str) -> tuple[Plan, Options]:
    """The plan and the options of an overlay."""
    made, options, folder = planned(command_of(name))
    assert folder == "kubernetes"
    return made, options


@cache
def _resolved(name: str) -> list[dict]:
    return k8s_kustomize.build(TREE / "overlays" / name)


def resolved(name: str) -> list[dict]:
    return deepcopy(_resolved(name))


def rendered(name: str, **more) -> list[dict]:
    """The same model with more options, as they are printed."""
    made, options = case_of(name)
    return kubernetes.manifests(made, Options(**{**vars(options), **more}))


@cache
def _on_openshift(name: str) -> list[dict]:
    made, options = case_of(name)
    with tempfile.TemporaryDirectory() as folder:
        kubernetes.write(made, Path(folder), replace(options, openshift=True))
        return k8s_kustomize.build(Path(folder) / "overlays" / name)


def on_openshift(name: str) -> list[dict]:
    """The resources of an overlay with the component for OpenShift, resolved."""
    return deepcopy(_on_openshift(name))


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
