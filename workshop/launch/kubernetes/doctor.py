"""What `workshop doctor` says where kubectl is: does a cluster answer, and what would the manifests lack there?"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from workshop.launch.checks import NOTE, OK, Check
from workshop.launch.programs import Answer, ask

TIMEOUT_S = 10.0
KINDS = {
    "leaderworkersets.leaderworkerset.x-k8s.io": (
        "LeaderWorkerSet",
        "servers over several nodes cannot be applied",
        "Ask the cluster's administrator for the LeaderWorkerSet controller (OpenShift: Leader Worker Set Operator).",
    ),
    "podmonitors.monitoring.coreos.com": (
        "PodMonitor",
        "Prometheus will not find the servers",
        "Leave monitor.yaml out of kubernetes/base/kustomization.yaml, or install the Prometheus operator.",
    ),
}


def examine() -> Iterator[Check]:
    """Yield the checks; nothing is changed in the cluster. Without kubectl or its settings: nothing to say."""
    config = Path(os.environ.get("KUBECONFIG", "~/.kube/config").split(os.pathsep)[0]).expanduser()
    if not shutil.which("kubectl") or not (config.is_file() or "KUBERNETES_SERVICE_HOST" in os.environ):
        return
    code, _, said = _kubectl("version")
    if code:
        remedy = "kubectl config get-contexts shows the clusters you know; log in to one."
        yield Check("Kubernetes", NOTE, f"no cluster answers: {said}", remedy)
        return
    yield Check("Kubernetes", OK, "a cluster answers")
    yield _gpus()
    for resource, (kind, lack, remedy) in KINDS.items():
        code, _, _ = _kubectl("get", resource, "--output=name")
        yield Check(kind, NOTE if code else OK, lack if code else "the cluster knows it", remedy if code else "")


def _gpus() -> Check:
    code, out, _ = _kubectl(
        "get", "nodes", '--output=jsonpath={range .items[*]}{.metadata.labels.nvidia\\.com/gpu\\.product}{"\\n"}{end}'
    )
    products = sorted({line.strip() for line in out.splitlines() if line.strip()})
    if code or not products:
        found = "no node has the label nvidia.com/gpu.product, which the manifests select"
        return Check("GPU nodes", NOTE, found, "Ask for NVIDIA's GPU operator, or change nodeSelector in the overlay.")
    return Check("GPU nodes", OK, ", ".join(products))


def _kubectl(*words: str) -> Answer:
    return ask("kubectl", f"--request-timeout={TIMEOUT_S:.0f}s", *words, within_s=TIMEOUT_S + 5)
