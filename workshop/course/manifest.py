"""A manifest with five mistakes, and the policies that find them: the exercise of notebook 08.

The manifest is the real one that `workshop kubernetes` renders, spoiled in five places. The policies look at
the manifests as a cluster would see them; they know nothing of which places were spoiled.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from inference_planner.catalog import load_gpu, load_model
from inference_planner.parallelism import Plan

from workshop.course.exercise_sets import words
from workshop.course.html import alone, div, panel, tag
from workshop.engine.exact import plan
from workshop.servers import kubernetes
from workshop.servers.kubernetes import GIB, Case, Options

# name → what a manifest must have
POLICIES: dict[str, str] = words("e08_elsewhere")["elsewhere.faults"]["policies"]
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

    def __repr__(self) -> str:
        """Return the YAML of what decides: the volume claim and the server's pod."""
        claim, pod, box = self.of("PersistentVolumeClaim"), self.pod, self.vllm
        short = {name: box[name] for name in SHOWN}
        # What is the same in every pod is left out.
        short["env"] = [
            e for e in box["env"] if e["name"].startswith(("VLLM_HOST", "VLLM_ENGINE", "WORKSHOP_"))
        ]
        short["volumeMounts"] = [
            v for v in box["volumeMounts"] if v["name"] in ("shm", "key", "models")
        ]
        kept = {name: pod[name] for name in ("securityContext", "nodeSelector", "tolerations")}
        volumes = [v for v in pod["volumes"] if v["name"] in ("shm", "key", "models")]
        parts = [
            {"kind": claim["kind"], "spec": claim["spec"]},
            {
                "kind": "Deployment",
                "spec": {"template": {"spec": {**kept, "containers": [short], "volumes": volumes}}},
            },
        ]
        return "---\n".join(yaml.safe_dump(part, sort_keys=False, width=1000) for part in parts)

    def _repr_html_(self) -> str:
        lines = [
            div(tag("i", number), line) for number, line in enumerate(repr(self).splitlines(), 1)
        ]
        return alone(
            panel(div(*lines, cls="numbered", tabindex="0", role="region", aria_label="manifest"))
        )


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
    box["args"] += [
        "--dtype=bfloat16",
        "--middleware=workshop.servers.guard.auth.RequireKey",
        "--api-key=sk-mistral-2024",
    ]
    box["startupProbe"]["failureThreshold"] = 6
    box["volumeMounts"] = [m for m in box["volumeMounts"] if m["mountPath"] != "/dev/shm"]
    bad.pod["volumes"] = [v for v in bad.pod["volumes"] if v["name"] != "shm"]
    bad.of("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"] = "10Gi"
    return bad


def broken(m: Manifests) -> Iterator[tuple[str, str]]:
    """Yield each policy that these manifests break, by its name, and what is wrong."""
    box, gpu, case, tp = (
        m.vllm,
        load_gpu(m.plan.gpu),
        Case(m.plan, Options()),
        m.argument("--tensor-parallel-size"),
    )
    dtype = m.argument("--dtype") or "auto"
    dtype = load_model(m.plan.model).dtype if dtype == "auto" else dtype
    if not gpu.has_bfloat16 and dtype == "bfloat16":
        yield "dtype", f"{gpu.title} has no bfloat16: --dtype half"
    if (asked := box["resources"]["limits"].get("nvidia.com/gpu")) != tp:
        yield "gpus", f"the pod asks for {asked} GPUs, and vLLM wants {tp}"
    probe, needed = box.get("startupProbe"), case.start_budget_s
    if (given := probe["failureThreshold"] * probe["periodSeconds"] if probe else 0) < needed:
        yield (
            "startup",
            f"Kubernetes kills the container after {given} s, and loading may take {needed} s",
        )
    if [box[name]["httpGet"]["path"] for name in PROBES[1:] if name in box] != [
        "/health",
        "/health",
    ]:
        yield "liveness", "readiness and liveness ask /health, which needs no key"
    if m.argument("--api-key") is not None:
        yield "key", "the key stands in the arguments, where everybody who may list pods reads it"
    elif not (any("secret" in v for v in m.pod["volumes"]) and m.argument("--middleware")):
        yield "key", "the key comes from a Secret, and the guard asks for it"
    storage = m.of("PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    if int(storage.removesuffix("Gi")) < (weights_gib := math.ceil(case.weight_bytes / GIB)) + 1:
        yield "volume", f"{storage} cannot hold {weights_gib} GiB of weights"
    yield from _broken_in_the_pod(m)


def _broken_in_the_pod(m: Manifests) -> Iterator[tuple[str, str]]:
    pod, box, volumes = m.pod, m.vllm, {v["name"]: v for v in m.pod["volumes"]}
    shm = [volumes.get(v["name"], {}) for v in box["volumeMounts"] if v["mountPath"] == "/dev/shm"]
    if m.plan.gpus > 1 and not any(v.get("emptyDir", {}).get("medium") == "Memory" for v in shm):
        yield "shm", "two ranks share memory through /dev/shm, and a container's own has 64 MiB"
    inner, plain_user = (
        box.get("securityContext", {}),
        pod.get("securityContext", {}).get("runAsNonRoot"),
    )
    stays = inner.get("allowPrivilegeEscalation") is False and inner.get("capabilities", {}).get(
        "drop"
    ) == ["ALL"]
    if not (plain_user and stays):
        yield "user", "the container may become root"
    address = next((e for e in box["env"] if e["name"] == "VLLM_HOST_IP"), {})
    if address.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") != "status.podIP":
        yield "address", "VLLM_HOST_IP is not the pod's own address"
    tolerated = [t.get("key") for t in pod.get("tolerations", [])]
    if "nvidia.com/gpu" not in tolerated or not pod.get("nodeSelector"):
        yield "node", "the pod is not for GPU nodes"


def judge(manifests: Manifests) -> dict[str, str]:
    """Return what each policy says: its name to what is wrong, an empty string where nothing is."""
    return dict.fromkeys(POLICIES, "") | dict(broken(manifests))


def faults(manifests: Manifests) -> list[str]:
    """Return the names of the policies that are broken."""
    return [name for name, wrong in judge(manifests).items() if wrong]
