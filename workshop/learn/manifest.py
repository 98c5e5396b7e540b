"""A manifest with five mistakes, and the policies that find them: the exercise of notebook 08.

The manifest is the real one that `workshop plan … --kubernetes` renders, spoiled in five places. A policy is a function
that looks at the manifests as a cluster would see them; it knows nothing of which places were spoiled.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from workshop.launch import kubernetes
from workshop.launch.kubernetes.case import GIB, Case, Options
from workshop.learn.html import alone, div, panel, tag
from workshop.plan.capability import BFLOAT16, capability
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.parallelism import Plan, plan

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
# What the excerpt shows of the container that serves, in this order.
SHOWN = ("image", "args", "env", *PROBES, "securityContext", "resources", "volumeMounts")


@dataclass(frozen=True)
class Manifests:
    """Manifests with the plan that they are meant for; notebooks show the parts that the exercise is about."""

    plan: Plan
    documents: tuple[dict[str, Any], ...]

    def of(self, kind: str) -> dict[str, Any]:
        return next(d for d in self.documents if d["kind"] == kind)

    @property
    def pod(self) -> dict[str, Any]:
        return self.of("Deployment")["spec"]["template"]["spec"]

    @property
    def vllm(self) -> dict[str, Any]:
        return self.pod["containers"][0]

    def argument(self, flag: str) -> str | None:
        """Return the value of a flag of `vllm serve`; None if it is not there."""
        found = [a for a in self.vllm["args"] if a == flag or a.startswith(f"{flag}=")]
        return found[0].partition("=")[2] if found else None

    def excerpt(self) -> str:
        """Return the YAML of what decides: the volume claim and the server's pod."""
        claim, pod, box = self.of("PersistentVolumeClaim"), self.pod, self.vllm
        short = {name: box[name] for name in SHOWN}
        # What is the same in every pod is left out.
        short["env"] = [e for e in box["env"] if e["name"].startswith(("VLLM_HOST", "VLLM_ENGINE", "WORKSHOP_"))]
        short["volumeMounts"] = [v for v in box["volumeMounts"] if v["name"] in ("shm", "key", "models")]
        kept = {name: pod[name] for name in ("securityContext", "nodeSelector", "tolerations")}
        volumes = [v for v in pod["volumes"] if v["name"] in ("shm", "key", "models")]
        parts = [
            {"kind": claim["kind"], "spec": claim["spec"]},
            {"kind": "Deployment", "spec": {"template": {"spec": {**kept, "containers": [short], "volumes": volumes}}}},
        ]
        return "---\n".join(yaml.safe_dump(part, sort_keys=False, width=1000) for part in parts)

    def __repr__(self) -> str:
        return self.excerpt()

    def _repr_html_(self) -> str:
        lines = [div(tag("i", number), line) for number, line in enumerate(self.excerpt().splitlines(), 1)]
        return alone(panel(div(*lines, cls="numbered", tabindex="0", role="region", aria_label="manifest")))


@dataclass(frozen=True)
class Policy:
    """One thing that a manifest must have. test: takes the manifests; returns what is wrong, or an empty string."""

    words: str
    test: Callable[[Manifests], str]


POLICIES: dict[str, Policy] = {}


def policy(words: str) -> Callable:
    """Enter a function among the policies, under its name."""
    return lambda test: POLICIES.setdefault(test.__name__, Policy(words, test))


def sound() -> Manifests:
    """Return Mistral 7B on 2 × T4 as the workshop renders it."""
    p = plan("mistral-7b-v0.3", "t4", gpus_per_node=2, max_model_len=8192, usage="serve")
    return Manifests(p, tuple(kubernetes.manifests(p)))


def spoiled() -> Manifests:
    """Return the same with five mistakes, as they are found in the wild."""
    good = sound()
    bad = Manifests(good.plan, copy.deepcopy(good.documents))
    box = bad.vllm
    box["args"] = [a for a in box["args"] if not a.startswith(("--dtype", "--middleware"))]
    box["args"] += ["--dtype=bfloat16", "--middleware=workshop.launch.auth.RequireKey", "--api-key=sk-mistral-2024"]
    box["startupProbe"]["failureThreshold"] = 6
    box["volumeMounts"] = [m for m in box["volumeMounts"] if m["mountPath"] != "/dev/shm"]
    bad.pod["volumes"] = [v for v in bad.pod["volumes"] if v["name"] != "shm"]
    bad.of("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"] = "10Gi"
    return bad


@policy("the GPU can compute in the dtype that is asked for")
def dtype(m: Manifests) -> str:
    gpu = load_gpu(m.plan.gpu)
    asked = m.argument("--dtype") or "auto"
    used = load_model(m.plan.model).dtype if asked == "auto" else asked
    if capability(gpu) < BFLOAT16 and used == "bfloat16":
        return f"{gpu.title} has no bfloat16: --dtype half"
    return ""


@policy("the pod asks for as many GPUs as vLLM uses")
def gpus(m: Manifests) -> str:
    asked, tp = m.vllm["resources"]["limits"].get("nvidia.com/gpu"), m.argument("--tensor-parallel-size")
    return "" if asked == tp else f"the pod asks for {asked} GPUs, and vLLM wants {tp}"


@policy("the startup probe waits as long as loading may take")
def startup(m: Manifests) -> str:
    probe, needed = m.vllm.get("startupProbe"), Case(m.plan, Options()).start_budget_s
    given = probe["failureThreshold"] * probe["periodSeconds"] if probe else 0
    return "" if given >= needed else f"Kubernetes kills the pod after {given} s, and loading may take {needed} s"


@policy("readiness and liveness probes ask a path that needs no key")
def liveness(m: Manifests) -> str:
    found = [m.vllm[name]["httpGet"]["path"] for name in PROBES[1:] if name in m.vllm]
    return "" if found == ["/health", "/health"] else "readiness and liveness ask /health, which needs no key"


@policy("/dev/shm is memory, and large enough for several ranks")
def shm(m: Manifests) -> str:
    volumes = {v["name"]: v for v in m.pod["volumes"]}
    mounted = [volumes.get(v["name"], {}) for v in m.vllm["volumeMounts"] if v["mountPath"] == "/dev/shm"]
    if m.plan.gpus > 1 and not any(v.get("emptyDir", {}).get("medium") == "Memory" for v in mounted):
        return "two ranks share memory through /dev/shm, and a container's own has 64 MiB"
    return ""


@policy("the API key is in a Secret, never among the arguments")
def key(m: Manifests) -> str:
    if m.argument("--api-key") is not None:
        return "the key stands in the arguments, where everybody who may list pods reads it"
    secret = any("secret" in v for v in m.pod["volumes"])
    return "" if secret and m.argument("--middleware") else "the key comes from a Secret, and the guard asks for it"


@policy("nothing runs as root, or may become it")
def user(m: Manifests) -> str:
    inner = m.vllm.get("securityContext", {})
    ok = m.pod.get("securityContext", {}).get("runAsNonRoot") and inner.get("allowPrivilegeEscalation") is False
    return "" if ok and inner.get("capabilities", {}).get("drop") == ["ALL"] else "the container may become root"


@policy("the volume holds the weights")
def volume(m: Manifests) -> str:
    text = m.of("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    needed = math.ceil(Case(m.plan, Options()).weight_bytes / GIB)
    return "" if int(text.removesuffix("Gi")) >= needed + 1 else f"{text} cannot hold {needed} GiB of weights"


@policy("vLLM is told the pod's own address")
def address(m: Manifests) -> str:
    found = next((e for e in m.vllm["env"] if e["name"] == "VLLM_HOST_IP"), {})
    path = found.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
    return "" if path == "status.podIP" else "VLLM_HOST_IP is not the pod's own address"


@policy("the pod goes to nodes with that GPU, and tolerates their taint (which keeps pods away)")
def node(m: Manifests) -> str:
    tolerated = [t.get("key") for t in m.pod.get("tolerations", [])]
    return "" if "nvidia.com/gpu" in tolerated and m.pod.get("nodeSelector") else "the pod is not for GPU nodes"


def judge(manifests: Manifests) -> dict[str, str]:
    """Return what each policy says: its name to what is wrong, an empty string where nothing is."""
    return {name: each.test(manifests) for name, each in POLICIES.items()}


def faults(manifests: Manifests) -> list[str]:
    """Return the names of the policies that are broken."""
    return [name for name, wrong in judge(manifests).items() if wrong]
