"""What `workshop doctor` says where kubectl is: does a cluster answer, and what would the manifests lack there?"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from workshop.launch.checks import NOTE, OK, Check

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
        yield Check(
            "Kubernetes",
            NOTE,
            f"no cluster answers: {said}",
            "kubectl config get-contexts shows the clusters you know; log in to one.",
        )
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
        return Check(
            "GPU nodes",
            NOTE,
            "no node has the label nvidia.com/gpu.product, which the manifests select",
            "Ask for NVIDIA's GPU operator, or change nodeSelector in the overlay.",
        )
    return Check("GPU nodes", OK, ", ".join(products))


def _kubectl(*words: str) -> tuple[int, str, str]:
    """Return (exit code, output, last line of what it said against it)."""
    try:
        done = subprocess.run(
            ["kubectl", f"--request-timeout={TIMEOUT_S:.0f}s", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S + 5,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]
