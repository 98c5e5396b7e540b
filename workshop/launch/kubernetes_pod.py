"""The pods: what every one of them has, the server's container, and the probes."""

from __future__ import annotations

from typing import Any

from workshop.launch import pod
from workshop.launch.auth import KEY_FILE_VARIABLE
from workshop.launch.kubernetes_case import MASTER_PORT, MODELS, PORT, PROBE_EVERY_S, START_ALLOWANCE_S, Case

CODE_MAP, CODE_FOLDER = "workshop-code", "/opt/workshop"
KEY_SECRET, KEY_ENTRY, KEY_FOLDER = "vllm-api-key", "api-key", "/etc/workshop/key"
TOKEN_SECRET, TOKEN_ENTRY = "hf-token", "token"
SCRATCH = "/scratch"            # HOME and every cache: a user that the cluster chooses has no folder of its own
USER = 2000                     # the user `vllm` of the image, which runs as root unless told otherwise
GPU = "nvidia.com/gpu"
PART_OF = "distributed-inference-workshop"
GUARD = "workshop.launch.auth.RequireKey"


def labels(case: Case, component: str) -> dict[str, str]:
    """Return the labels of a pod: component is server, worker or weights."""
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": case.name,
            "app.kubernetes.io/component": component, "app.kubernetes.io/part-of": PART_OF}


def spec(case: Case, containers: dict[str, list[dict]], volumes: list[dict], **more: Any) -> dict[str, Any]:
    """Return a pod's spec: allowed by OpenShift's restricted-v2, on nodes with the planned GPU."""
    return {
        **more,
        "automountServiceAccountToken": False,
        "# A Service called vllm would set VLLM_PORT in every pod, and vLLM would listen there.": None,
        "enableServiceLinks": False,
        "securityContext": _pod_security(case),
        "nodeSelector": {f"{GPU}.product": case.product},
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        **containers,
        "volumes": [*volumes, {"name": "scratch", "emptyDir": {"sizeLimit": "20Gi"}},
                    {"name": "tmp", "emptyDir": {"sizeLimit": "20Gi"}}, _code_volume(),
                    {"name": "models", "persistentVolumeClaim": {"claimName": f"{case.name}-weights"}}],
    }


def _pod_security(case: Case) -> dict[str, Any]:
    # On OpenShift the namespace's range gives the user and the group; a number of ours would be refused.
    fixed = {} if case.options.openshift else {"runAsUser": USER, "fsGroup": USER}
    return {"runAsNonRoot": True, **fixed, "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> dict[str, Any]:
    """Return what each container gives up."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _code_volume() -> dict[str, Any]:
    items = [{"key": f"{name.replace('/', '.')}.py", "path": f"workshop/{name}.py"} for name in pod.CODE]
    return {"name": "code", "configMap": {"name": CODE_MAP, "items": items}}


def mounts(*more: dict, models_read_only: bool = True) -> list[dict]:
    """Return the mounts of every container: models, code, and what may be written."""
    return [{"name": "models", "mountPath": MODELS, "readOnly": models_read_only},
            {"name": "code", "mountPath": CODE_FOLDER, "readOnly": True},
            {"name": "scratch", "mountPath": SCRATCH}, {"name": "tmp", "mountPath": "/tmp"}, *more]


def environment(*more: dict) -> list[dict]:
    """Return the variables of every container; USER, because Python asks for the name of a user that has none."""
    return [{"name": "HOME", "value": SCRATCH}, {"name": "USER", "value": "vllm"},
            {"name": "XDG_CACHE_HOME", "value": f"{SCRATCH}/cache"},
            {"name": "PYTHONPATH", "value": CODE_FOLDER}, *more]


def server_pod(case: Case, *, headless: bool = False) -> dict[str, Any]:
    """Return the template of the pod that serves, or of one that only works for it (headless)."""
    waits = {"name": "weights", "image": case.image,
             "command": ["python3", "-m", "workshop.launch.pod", "wait", case.folder],
             "securityContext": container_security(), "env": environment(),
             "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
             "volumeMounts": mounts()}
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{case.shm_gib}Gi"}}]
    if not headless:
        volumes.append({"name": "key", "secret": {"secretName": KEY_SECRET, "defaultMode": 0o440}})
    more = {"terminationGracePeriodSeconds": 60} | ({} if case.many else near("weights", case))
    return {
        "metadata": {"labels": labels(case, "worker" if headless else "server"),
                     "annotations": {"# A start takes long: autoscalers must not move the pod to save a node.": None,
                                     "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                                     "karpenter.sh/do-not-disrupt": "true"}},
        "spec": spec(case, {"initContainers": [waits], "containers": [_vllm(case, headless)]}, volumes, **more),
    }


def near(component: str, case: Case) -> dict[str, Any]:
    """Prefer the other's node: one node at a time mounts the volume, and neither should wait for the other."""
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {
        "app.kubernetes.io/instance": case.name, "app.kubernetes.io/component": component}}}
    return {"# One node at a time mounts the volume: prefer the one where it is mounted already.": None,
            "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": term}]}}}


def _vllm(case: Case, headless: bool) -> dict[str, Any]:
    gpus = str(case.gpus_per_pod)
    key = [] if headless else [{"name": "key", "mountPath": KEY_FOLDER, "readOnly": True}]
    ports = {} if headless else {"ports": [{"name": "http", "containerPort": PORT}]}
    size = {"cpu": str(case.cpus), "memory": f"{case.memory_gib}Gi", GPU: gpus}
    return {
        "name": "vllm", "image": case.image, "command": ["vllm", "serve"], "args": arguments(case, headless),
        "env": _server_environment(case, headless), **ports, **(_worker_probes if headless else _http_probes)(case),
        "securityContext": container_security(),
        "resources": {"requests": size, "limits": {name: size[name] for name in ("memory", GPU)}},
        "volumeMounts": mounts({"name": "shm", "mountPath": "/dev/shm"}, *key),
    }


def arguments(case: Case, headless: bool = False) -> list[str]:
    """Return the arguments of `vllm serve`: the plan's, the model's folder, and what makes one server of the pods."""
    args = [case.folder, *(f"{flag}={value}" if value else flag for flag, value in case.flags.items())]
    if case.many:
        args += ["--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)", "--master-addr=$(LWS_LEADER_ADDRESS)",
                 f"--master-port={MASTER_PORT}"]
    if headless:
        return [*args, "--headless"]
    # The guard: vLLM's own --api-key leaves paths open, and would stand in the arguments.
    return [*args, f"--served-model-name={case.hub}", "--host=0.0.0.0", f"--port={PORT}", f"--middleware={GUARD}"]


def _server_environment(case: Case, headless: bool) -> list[dict]:
    # vLLM itself gives up on an engine that takes more than 600 s, whatever the probes say.
    more = [{"name": "VLLM_ENGINE_READY_TIMEOUT_S", "value": str(case.start_budget_s)}]
    more += [{"name": "VLLM_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "VLLM_CACHE_ROOT", "value": f"{SCRATCH}/vllm"},
            {"name": "TRITON_CACHE_DIR", "value": f"{SCRATCH}/triton"},
            {"name": "TORCHINDUCTOR_CACHE_DIR", "value": f"{SCRATCH}/inductor"},
            {"name": "HF_HUB_OFFLINE", "value": "1"}, {"name": "VLLM_NO_USAGE_STATS", "value": "1"}]
    key = [] if headless else [{"name": KEY_FILE_VARIABLE, "value": f"{KEY_FOLDER}/{KEY_ENTRY}"}]
    return environment(*more, *key)


def _http_probes(case: Case) -> dict[str, Any]:
    """/health needs no key. The start may take its budget; only then do the other two begin."""
    ask = {"httpGet": {"path": "/health", "port": "http"}}
    return {**_budget_words(case), "startupProbe": _start(case, ask),
            "readinessProbe": {**ask, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
            "livenessProbe": {**ask, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6}}


def _worker_probes(case: Case) -> dict[str, Any]:
    """A headless vLLM listens nowhere: ask the pod whether its workers live."""
    ask = {"exec": {"command": ["python3", "-m", "workshop.launch.pod", "workers", str(case.gpus_per_pod)]}}
    return {"# Headless: no port to ask, so the probes look for vLLM's worker processes.": None,
            "startupProbe": {**_start(case, ask), "timeoutSeconds": 10},
            "readinessProbe": {**ask, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 3},
            "livenessProbe": {**ask, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6}}


def _start(case: Case, ask: dict) -> dict[str, Any]:
    return {**ask, "periodSeconds": PROBE_EVERY_S, "timeoutSeconds": 5,
            "failureThreshold": case.start_budget_s // PROBE_EVERY_S}


def _budget_words(case: Case) -> dict[str, None]:
    speed, whole = case.options.load_gb_per_s, case.weight_bytes / 1e9
    return {f"# Budget of a start: {whole:.1f} GB of weights at {speed:g} GB/s (--load-gb-per-s), and": None,
            f"# {START_ALLOWANCE_S:.0f} s to compile and to capture CUDA graphs: {case.start_budget_s} s.": None}
