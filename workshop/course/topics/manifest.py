"""A manifest with five mistakes, and the policies that find them: the exercise of notebook 08.

The manifest is the real one that `workshop plan … --as kubernetes` renders, spoiled in five places. The
policies look at the manifests as a cluster would see them.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml
from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.gpus import GIB

from workshop.course.drawing.html import alone, div, panel, tag
from workshop.course.exercises.sets import texts
from workshop.engine.planning import plan
from workshop.servers import kubernetes
from workshop.servers.kubernetes import KubernetesServer, Options

# name → what a manifest must have
POLICIES: dict[str, str] = texts("e08_elsewhere")["elsewhere.faults"]["policies"]
# Made from kubernetes/Dockerfile: the exercise is about the guard's manifest.
GUARD = Options(guard_image="registry.example.org/vllm-workshop:v0.32.0")
# What the excerpt shows of the container that serves, in this order.
SHOWN = (
    "image",
    "args",
    "env",
    "startupProbe",
    "readinessProbe",
    "livenessProbe",
    "securityContext",
    "resources",
    "volumeMounts",
)


@dataclass(frozen=True)
class Manifests:
    """Manifests with the plan that they are meant for.

    Notebooks show the parts that the exercise is about.
    """

    plan: Plan
    documents: tuple[dict[str, Any], ...]

    def of(self, kind: str) -> dict[str, Any]:
        for document in self.documents:
            if document["kind"] == kind:
                return document
        raise LookupError(f"There is no {kind} among the manifests.")

    @property
    def pod(self) -> dict[str, Any]:
        return self.of("Deployment")["spec"]["template"]["spec"]

    @property
    def vllm(self) -> dict[str, Any]:
        return self.pod["containers"][0]

    def argument(self, flag: str) -> str | None:
        """Return the value of a flag of `vllm serve`; None if it is not there."""
        for argument in self.vllm["args"]:
            name, _, value = argument.partition("=")
            if name == flag:
                return value
        return None

    def __repr__(self) -> str:
        """Return the YAML of what decides: the volume claim and the server's pod."""
        claim = self.of("PersistentVolumeClaim")
        pod = self.pod
        container = {name: self.vllm[name] for name in SHOWN}
        # What is the same in every pod is left out.
        container["env"] = list(filter(_decides, container["env"]))
        container["volumeMounts"] = list(filter(_is_own_volume, container["volumeMounts"]))
        spec = {name: pod[name] for name in ("securityContext", "nodeSelector", "tolerations")}
        spec["containers"] = [container]
        spec["volumes"] = list(filter(_is_own_volume, pod["volumes"]))
        parts = [
            {"kind": claim["kind"], "spec": claim["spec"]},
            {"kind": "Deployment", "spec": {"template": {"spec": spec}}},
        ]
        documents = []
        for part in parts:
            documents.append(yaml.safe_dump(part, sort_keys=False, width=1000))
        return "---\n".join(documents)

    def _repr_html_(self) -> str:
        lines = []
        for number, line in enumerate(repr(self).splitlines(), 1):
            lines.append(div(tag("i", number), line))
        return alone(
            panel(div(*lines, cls="numbered", tabindex="0", role="region", aria_label="manifest"))
        )


def _decides(variable: dict[str, Any]) -> bool:
    """Return whether a variable of the container is about this server."""
    return variable["name"].startswith(("VLLM_HOST", "VLLM_ENGINE", "WORKSHOP_"))


def _is_own_volume(volume: dict[str, Any]) -> bool:
    """Return whether a volume, or its mount, is about shared memory, the key or the model."""
    return volume["name"] in ("shm", "key", "models")


def sound() -> Manifests:
    """Return Qwen3 8B on 2 × T4 as the workshop renders it."""
    p = plan("qwen3-8b", "t4", gpus_per_node=2, max_model_len=8192, usage="serve")
    return Manifests(p, tuple(kubernetes.manifests(p, GUARD)))


def spoiled() -> Manifests:
    """Return the same with five mistakes, as they are found in the wild."""
    good = sound()
    bad = Manifests(good.plan, copy.deepcopy(good.documents))
    box = bad.vllm
    arguments = []
    for argument in box["args"]:
        if not argument.startswith(("--dtype", "--middleware")):
            arguments.append(argument)
    box["args"] = [
        *arguments,
        "--dtype=bfloat16",
        "--middleware=workshop.guard.auth.RequireKey",
        "--api-key=sk-qwen-2026",
    ]
    box["startupProbe"]["failureThreshold"] = 6
    box["volumeMounts"] = [
        mount for mount in box["volumeMounts"] if mount["mountPath"] != "/dev/shm"
    ]
    bad.pod["volumes"] = [v for v in bad.pod["volumes"] if v["name"] != "shm"]
    bad.of("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"] = "10Gi"
    return bad


def _dtype(m: Manifests) -> str:
    gpu = load_gpu(m.plan.gpu)
    dtype = m.argument("--dtype") or "auto"
    if dtype == "auto":
        dtype = load_model(m.plan.model).dtype
    if dtype == "bfloat16" and not gpu.has_bfloat16:
        return f"{gpu.title} has no bfloat16: --dtype half"
    return ""


def _startup(m: Manifests) -> str:
    needed_s = KubernetesServer(m.plan, Options()).start_budget_s
    startup = m.vllm.get("startupProbe")
    allowed_s = 0
    if startup:
        allowed_s = startup["failureThreshold"] * startup["periodSeconds"]
    if allowed_s < needed_s:
        problem = f"Kubernetes kills the container after {allowed_s} s"
        return f"{problem}, and loading may take {needed_s} s"
    return ""


def _shared_memory(m: Manifests) -> str:
    volumes = {volume["name"]: volume for volume in m.pod["volumes"]}
    for mount in m.vllm["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        in_memory = volume.get("emptyDir", {}).get("medium") == "Memory"
        if mount["mountPath"] == "/dev/shm" and in_memory:
            return ""
    return "two ranks share memory through /dev/shm, and a container's own has 64 MiB"


def _key(m: Manifests) -> str:
    if m.argument("--api-key") is not None:
        return "the key stands in the arguments, where everybody who may list pods reads it"
    has_secret = any("secret" in volume for volume in m.pod["volumes"])
    if not has_secret or not m.argument("--middleware"):
        return "the key comes from a Secret, and the guard asks for it"
    return ""


def _volume(m: Manifests) -> str:
    weights_gib = math.ceil(KubernetesServer(m.plan, Options()).weight_bytes / GIB)
    storage = m.of("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    if int(storage.removesuffix("Gi")) < weights_gib + 1:
        return f"{storage} cannot hold {weights_gib} GiB of weights"
    return ""


# The five of POLICIES that the spoiled manifest breaks: each returns what is wrong, or "".
JUDGED: dict[str, Callable[[Manifests], str]] = {
    "dtype": _dtype,
    "startup": _startup,
    "shm": _shared_memory,
    "key": _key,
    "volume": _volume,
}


def judge(manifests: Manifests) -> dict[str, str]:
    """Return the policies that these manifests break: their names to what is wrong."""
    broken = {}
    for name, problem_of in JUDGED.items():
        problem = problem_of(manifests)
        if problem:
            broken[name] = problem
    return broken


def faults(manifests: Manifests) -> list[str]:
    """Return the names of the policies that are broken."""
    return list(judge(manifests))
