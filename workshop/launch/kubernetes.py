"""`workshop plan … --kubernetes`: the plan as manifests, for kubectl at once or as kustomize base and overlay.

    from workshop.launch import kubernetes
    print(kubernetes.render(plan("llama-3.1-70b", "h100", gpus_per_node=4, usage="serve")))

One pod a node: a Deployment on one node, a LeaderWorkerSet on several. OpenShift: the same, without a user of ours.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import Any

from workshop.errors import WorkshopError
from workshop.launch import kubernetes_pod as pods
from workshop.launch import pod
from workshop.launch.home import cannot_write
from workshop.launch.kubernetes_case import GIB, PORT, Case, Options
from workshop.launch.kubernetes_yaml import dump, dump_all, plain
from workshop.plan.parallelism import Plan

__all__ = ["Case", "Options", "manifests", "overlay", "render", "write"]

PACKAGE = Path(__file__).parents[1]
WIDTH = 108          # of the header's lines


def manifests(plan: Plan, options: Options | None = None) -> list[dict[str, Any]]:
    """Return what `kubectl apply` gets, as plain data: base and overlay in one list.

    Raises:
        BadInput: the plan does not fit, the volume is too small, or the options cannot be.
    """
    case = Case(plan, options or Options())
    found = [code(), monitor(), *weights(case), *server(case)]
    return [plain(each) for each in ([*found, route(case)] if case.options.openshift else found)]


def render(plan: Plan, options: Options | None = None) -> str:
    """Return the same as YAML with comments, for `workshop plan … --kubernetes | kubectl apply -f -`."""
    case = Case(plan, options or Options())
    documents = [*weights(case), *server(case), *([route(case)] if case.options.openshift else []), monitor(), code()]
    return dump_all(documents, header(case))


def header(case: Case) -> list[str]:
    """Return the lines on top: the command that made it, what it is, and what the cluster must have."""
    p = case.plan
    what = (f"{case.hub} on {p.gpus} × {p.gpu}, TP {p.tensor_parallel_size} × PP {p.pipeline_parallel_size}: "
            f"{p.kv_cache_tokens:,} tokens of KV cache, {p.max_concurrency:.2f} requests of {p.max_model_len:,} tokens "
            f"at once, about {p.single_stream_tokens_per_s:.0f} tokens/s for one. Made by the command above; make it "
            "again rather than editing it.")
    needs = [f"the Secrets {pods.KEY_SECRET} and, for gated models, {pods.TOKEN_SECRET}",
             f"nodes labelled {pods.GPU}.product={case.product}"]
    if case.many:
        needs += ['the LeaderWorkerSet controller (without it: no matches for kind "LeaderWorkerSet")',
                  "a storage class for ReadWriteMany"]
    needs.append("the Prometheus operator for the PodMonitor (without it, leave that one out)")
    return [case.command, "", *wrap(what, WIDTH), "", *wrap(f"Needs: {'; '.join(needs)}.", WIDTH)]


def overlay(plan: Plan, options: Options | None = None) -> dict[str, str]:
    """Return {path: text} of a kustomize tree: base/, components/openshift/, overlays/NAME/."""
    case = Case(plan, options or Options())
    here = f"overlays/{case.name}"
    neutral = Case(plan, Options(**{**vars(case.options), "openshift": False}))    # the component changes it back
    extra = {"components": ["../../components/openshift"]} if case.options.openshift else {
        "# OpenShift: make it with --openshift, or add: components: [../../components/openshift]": None}
    kustomization = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                     "resources": ["../../base", "weights.yaml", "server.yaml"], **extra}
    made = [f"{case.command} --output kubernetes", *header(case)[1:]]
    return {**base(), **openshift(), f"{here}/kustomization.yaml": dump_all([kustomization], made),
            f"{here}/weights.yaml": dump_all(weights(neutral)), f"{here}/server.yaml": dump_all(server(neutral))}


def write(plan: Plan, folder: str | Path, options: Options | None = None) -> list[Path]:
    """Write the kustomize tree below `folder`; return the files. An overlay of that name is replaced.

    Raises:
        BadInput: as manifests().
        WorkshopError: the folder cannot be written.
    """
    paths = []
    for name, text in overlay(plan, options).items():
        path = Path(folder).expanduser() / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            message = cannot_write(path, error).message
            raise WorkshopError(message, "Give --output a folder that you may write.") from None
        paths.append(path)
    return paths


def base() -> dict[str, str]:
    """Return the files that all models share."""
    resources = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
                 "resources": ["code.yaml", "monitor.yaml"]}
    return {"base/kustomization.yaml": dump(resources), "base/code.yaml": dump(code()),
            "base/monitor.yaml": dump(monitor())}


def code() -> dict[str, Any]:
    """Return the ConfigMap with the modules that the pods need: vLLM's own image is used, and has no workshop."""
    files = {f"{name.replace('/', '.')}.py": (PACKAGE / f"{name}.py").read_text(encoding="utf-8") for name in pod.CODE}
    return {"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": pods.CODE_MAP, "labels": {"app.kubernetes.io/part-of": pods.PART_OF}},
            "# Copies of workshop/*.py: the guard, the download, the probe of headless workers.": None, "data": files}


def monitor() -> dict[str, Any]:
    """Return the PodMonitor of all servers in the namespace: the guard wants the key for /metrics, too."""
    secret = {"name": pods.KEY_SECRET, "key": pods.KEY_ENTRY}
    return {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor",
            "metadata": {"name": "workshop-vllm", "labels": {"app.kubernetes.io/part-of": pods.PART_OF}},
            "spec": {"selector": {"matchLabels": {"app.kubernetes.io/part-of": pods.PART_OF,
                                                  "app.kubernetes.io/component": "server"}},
                     "podTargetLabels": ["app.kubernetes.io/instance"],
                     "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s",
                                              "authorization": {"type": "Bearer", "credentials": secret}}]}}


def weights(case: Case) -> list[dict[str, Any]]:
    """Return the volume of the weights and the Job that fills it."""
    own = {"name": f"{case.name}-weights", "labels": pods.labels(case, "weights")}
    storage = {"storageClassName": case.options.storage_class} if case.options.storage_class else {
        "# storageClassName: the cluster's default (--storage-class NAME)": None}
    size = f"# {case.weight_bytes / GIB:.1f} GiB of weights"
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": own, "spec": {
        "accessModes": ["ReadWriteMany" if case.many else "ReadWriteOnce"], **storage, size: None,
        "resources": {"requests": {"storage": f"{case.pvc_gib}Gi"}}}}
    return [claim, _job(case, own)]


def _job(case: Case, own: dict) -> dict[str, Any]:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {
        "name": pods.TOKEN_SECRET, "key": pods.TOKEN_ENTRY, "optional": True}}}
    container = {
        "name": "download", "image": case.image,
        "command": ["python3", "-m", "workshop.launch.pod", "download", case.hub, case.folder],
        "env": pods.environment(token), "securityContext": pods.container_security(),
        "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "4Gi"}},
        "volumeMounts": pods.mounts(models_read_only=False)}
    more = {"restartPolicy": "OnFailure"} | ({} if case.many else pods.near("server", case))
    spec = pods.spec(case, {"containers": [container]}, [], **more)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": own, "spec": {
        "# A break costs nothing: the next try goes on at the byte where this one stopped.": None,
        "backoffLimit": 20,
        "# Kept for a day. Applied again after that, it only checks what is there.": None,
        "ttlSecondsAfterFinished": 86400,
        "template": {"metadata": {"labels": pods.labels(case, "weights")}, "spec": spec}}}


def server(case: Case) -> list[dict[str, Any]]:
    """Return the Service, what may reach the pods, and the pods."""
    own = {"name": case.name, "labels": pods.labels(case, "server")}
    mine = {"app.kubernetes.io/instance": case.name}
    serving = {**mine, "app.kubernetes.io/component": "server"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": own, "spec": {
        "selector": serving, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]}}
    return [service, _network(own, mine, case), (_group if case.many else _deployment)(case, own, serving)]


def _network(own: dict, mine: dict, case: Case) -> dict[str, Any]:
    rules: list[dict] = [{"ports": [{"port": PORT}]}]
    words = {"# The API alone can be reached, and asks for the key.": None}
    if case.many:
        words = {"# vLLM's own traffic between the pods asks for no key: nobody else may send any.": None}
        rules.append({"from": [{"podSelector": {"matchLabels": mine}}]})
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": own,
            "spec": {**words, "podSelector": {"matchLabels": mine}, "policyTypes": ["Ingress"], "ingress": rules}}


def _deployment(case: Case, own: dict, serving: dict) -> dict[str, Any]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": own, "spec": {
        "replicas": 1, "revisionHistoryLimit": 2,
        "# The new pod gets the GPUs of the old one: there are no others.": None, "strategy": {"type": "Recreate"},
        "# Longer than a start may take, or the rollout counts as failed.": None,
        "progressDeadlineSeconds": case.start_budget_s + 600,
        "selector": {"matchLabels": serving}, "template": pods.server_pod(case)}}


def _group(case: Case, own: dict, serving: dict) -> dict[str, Any]:
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": own, "spec": {
        "replicas": 1, "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {"type": "RollingUpdate",
                            "rollingUpdateConfiguration": {"maxSurge": 0, "maxUnavailable": 1}},
        "leaderWorkerTemplate": {
            "size": case.plan.nodes,
            "# A rank that is gone cannot come back alone: all pods start anew.": None,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": pods.server_pod(case), "workerTemplate": pods.server_pod(case, headless=True)}}}


def route(case: Case | None) -> dict[str, Any]:
    """Return OpenShift's way in from outside; without a case, the component's, whose name a replacement sets."""
    name = case.name if case else "set-by-the-replacement"
    return {"apiVersion": "route.openshift.io/v1", "kind": "Route",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": pods.PART_OF},
                         "annotations": {"# The router's 30 s would cut a long answer.": None,
                                         "haproxy.router.openshift.io/timeout": "10m"}},
            "spec": {"to": {"kind": "Service", "name": name}, "port": {"targetPort": "http"},
                     "tls": {"termination": "edge", "insecureEdgeTerminationPolicy": "Redirect"}}}


def openshift() -> dict[str, str]:
    """Return the component for OpenShift: a Route, and no user of ours, as the namespace gives one."""
    places = {"Job": ["/spec/template/spec"], "Deployment": ["/spec/template/spec"],
              "LeaderWorkerSet": [f"/spec/leaderWorkerTemplate/{part}Template/spec" for part in ("leader", "worker")]}
    import yaml

    patches = []
    for kind, specs in places.items():
        steps = [{"op": "remove", "path": f"{place}/securityContext/{field}"}
                 for place in specs for field in ("runAsUser", "fsGroup")]
        patches.append({"target": {"kind": kind}, "patch": yaml.safe_dump(steps, sort_keys=False)})
    component = {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "resources": ["route.yaml"],
        "patches": patches, "replacements": [{
            "source": {"kind": "Service", "fieldPath": "metadata.name"},
            "targets": [{"select": {"kind": "Route"}, "fieldPaths": ["metadata.name", "spec.to.name"]}]}]}
    return {"components/openshift/kustomization.yaml": dump(component),
            "components/openshift/route.yaml": dump(route(None))}


