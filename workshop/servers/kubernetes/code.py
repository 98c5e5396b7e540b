"""The Python modules that pods need: vLLM's own image is used, and has no workshop.

They reach a pod by the ConfigMap `workshop-code`. kustomize makes it from files; what is printed
for `kubectl apply -f -` has it written out.
"""

from pathlib import Path

import inference_planner

# What a pod runs: the guard in front of vLLM, the download, the probe; and whatever these import.
MODULES = (
    "inference_planner/__init__",
    "inference_planner/errors",
    "inference_planner/files",
    "inference_planner/json_values",
    "workshop/__init__",
    "workshop/errors",
    "workshop/files",
    "workshop/home",
    "workshop/servers/__init__",
    "workshop/guard/__init__",
    "workshop/guard/asgi",
    "workshop/guard/auth",
    "workshop/servers/host/__init__",
    "workshop/servers/host/disk",
    "workshop/servers/hang",
    "workshop/servers/kubernetes/__init__",
    "workshop/servers/kubernetes/pod",
    "workshop/servers/host/programs",
    "workshop/servers/progress",
    "workshop/engine/__init__",
    "workshop/engine/http",
    "workshop/engine/metrics",
    "workshop/servers/weights/__init__",
    "workshop/servers/weights/prefetch",
    "workshop/servers/weights/hub",
    "workshop/servers/weights/check",
)
PACKAGES = {
    "workshop": Path(__file__).parents[2],
    "inference_planner": Path(inference_planner.__file__).parent,
}


def key(module: str) -> str:
    """Return the ConfigMap's key for a module: workshop/servers/kubernetes/pod → workshop.servers.kubernetes.pod.py."""
    return f"{module.replace('/', '.')}.py"


def source(module: str) -> str:
    """Return the text of a module. Packages are empty in a pod: what theirs offer is not there."""
    if module.endswith("__init__"):
        return ""
    package, _, path = module.partition("/")
    return (PACKAGES[package] / f"{path}.py").read_text(encoding="utf-8")


def config_map() -> dict[str, str]:
    """Return {key: text}: the data of the ConfigMap."""
    return {key(module): source(module) for module in MODULES}


def is_in_checkout(folder: Path) -> bool:
    """Return True if a folder for manifests lies beside this package, as in the repository.

    There kustomize takes the modules from the packages, whose kustomization.yaml files list them:
    no copies are needed. Anywhere else it needs copies, because it reads no file outside a
    kustomization's own folder.
    """
    return (folder.resolve().parent / "workshop").resolve() == PACKAGES["workshop"].resolve()


def copies() -> dict[str, str]:
    """Return {path: text} of the modules, as they lie in a folder that kustomize reads."""
    return {f"{module}.py": source(module) for module in MODULES}
