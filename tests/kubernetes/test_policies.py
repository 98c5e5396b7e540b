"""Each policy is needed: it speaks as soon as what it asks for is taken away from a manifest that holds to all."""

from __future__ import annotations

import k8s_policies_more  # noqa: F401 (it adds its policies)
import yaml
from k8s_cases import EXPECTED, GUARD_IMAGE, TREE, on_openshift, rendered, resolved
from k8s_policies import POLICIES, problems
from k8s_read import Expected, of

SERVER, LEADER = (
    "Deployment.spec.template",
    "LeaderWorkerSet.spec.leaderWorkerTemplate.leaderTemplate",
)
WORKER, JOB = "LeaderWorkerSet.spec.leaderWorkerTemplate.workerTemplate", "Job.spec.template"
# What is taken away, by the policy that must then speak: of one pod, what each of them must have.
REMOVED = {
    "there_is_one_server_of_the_planned_size": [
        "Deployment",
        "Deployment.spec.replicas",
        "LeaderWorkerSet.spec.leaderWorkerTemplate.size",
    ],
    "a_start_may_take_its_budget": [
        f"{LEADER}.spec.containers.0.startupProbe",
        f"{SERVER}.spec.containers.0.startupProbe.failureThreshold",
        "Deployment.spec.progressDeadlineSeconds",
        f"{SERVER}.spec.containers.0.env[VLLM_ENGINE_READY_TIMEOUT_S]",
    ],
    "probes_ask_where_there_is_an_answer": [
        f"{SERVER}.spec.containers.0.readinessProbe",
        f"{LEADER}.spec.containers.0.livenessProbe.timeoutSeconds",
        f"{SERVER}.spec.containers.0.startupProbe.httpGet",
        f"guard:{SERVER}.spec.containers.0.livenessProbe.exec",
    ],
    "shared_memory_is_memory_with_a_limit": [
        f"{SERVER}.spec.volumes[shm]",
        f"{LEADER}.spec.volumes[shm].emptyDir.medium",
        f"{WORKER}.spec.volumes[shm].emptyDir.sizeLimit",
        f"{SERVER}.spec.containers.0.volumeMounts[shm]",
    ],
    "the_volume_holds_the_weights": [
        "PersistentVolumeClaim",
        "PersistentVolumeClaim.spec.resources",
        "PersistentVolumeClaim.spec.accessModes",
        f"{SERVER}.spec.volumes[models]",
        f"{JOB}.spec.volumes[models]",
        f"{SERVER}.spec.containers.0.volumeMounts[models].readOnly",
    ],
    "a_job_downloads_and_servers_wait": [
        "Job",
        "Job.spec.backoffLimit",
        "Job.spec.ttlSecondsAfterFinished",
        f"{SERVER}.spec.initContainers",
        f"{WORKER}.spec.initContainers.0.command.2",
        f"{JOB}.spec.containers.0.command.1",
        f"{SERVER}.spec.containers.0.args.0",
        f"{SERVER}.spec.containers.0.env[HF_HUB_OFFLINE]",
    ],
    "keys_come_from_secrets_and_stand_nowhere": [
        f"{LEADER}.spec.containers.0.env[VLLM_API_KEY].valueFrom.secretKeyRef.key",
        f"guard:{SERVER}.spec.volumes[key].secret.defaultMode",
        f"guard:{SERVER}.spec.containers.0.volumeMounts[key]",
        f"guard:{SERVER}.spec.containers.0.env[WORKSHOP_API_KEY_FILE]",
        f"guard:{SERVER}.spec.containers.0.env[WORKSHOP_METRICS_KEY_FILE]",
        f"guard:{LEADER}.spec.containers.0.args.-1",
        f"{JOB}.spec.containers.0.env[HF_TOKEN].valueFrom.secretKeyRef.optional",
    ],
    "pods_are_restricted": [
        f"{SERVER}.spec.securityContext",
        f"{LEADER}.spec.securityContext.runAsNonRoot",
        f"{WORKER}.spec.securityContext.runAsUser",
        f"{JOB}.spec.securityContext.fsGroup",
        f"{SERVER}.spec.securityContext.seccompProfile",
        f"{WORKER}.spec.containers.0.securityContext.allowPrivilegeEscalation",
        f"{SERVER}.spec.initContainers.0.securityContext.capabilities",
    ],
    "a_user_without_a_home_can_write_its_caches": [
        f"{SERVER}.spec.containers.0.env[HOME]",
        f"{WORKER}.spec.containers.0.env[USER]",
        f"{SERVER}.spec.volumes[scratch]",
        f"{JOB}.spec.containers.0.volumeMounts[scratch]",
    ],
    "pods_get_the_planned_gpus": [
        f"{LEADER}.spec.nodeSelector",
        f"{WORKER}.spec.tolerations",
        f"{SERVER}.spec.containers.0.resources.requests.nvidia_com/gpu",
        f"{SERVER}.spec.containers.0.resources.limits.nvidia_com/gpu",
        f"{SERVER}.spec.containers.0.resources.limits.memory",
        f"{SERVER}.spec.containers.0.resources.requests.cpu",
    ],
    "the_dtype_is_one_that_the_gpu_has": [f"{SERVER}.spec.containers.0.args(--dtype=half)"],
    "vllm_knows_its_address_and_no_service_confuses_it": [
        f"{SERVER}.spec.enableServiceLinks",
        f"{JOB}.spec.automountServiceAccountToken",
        f"{WORKER}.spec.containers.0.env[VLLM_HOST_IP]",
    ],
    "a_group_starts_and_ends_as_one": [
        "LeaderWorkerSet.spec.leaderWorkerTemplate.restartPolicy",
        "LeaderWorkerSet.spec.rolloutStrategy",
        "Deployment.spec.strategy",
        f"{WORKER}.spec.containers.0.args(--headless)",
        f"{WORKER}.spec.containers.0.args(--node-rank=$(LWS_WORKER_INDEX))",
        f"{LEADER}.spec.containers.0.args(--master-addr=$(LWS_LEADER_ADDRESS))",
        f"{LEADER}.spec.containers.0.args(--nnodes=$(LWS_GROUP_SIZE))",
    ],
    "nothing_moves_a_pod_without_being_asked": [
        f"{SERVER}.metadata.annotations",
        f"{WORKER}.metadata.annotations.karpenter_sh/do-not-disrupt",
        f"{LEADER}.metadata.annotations.cluster-autoscaler_kubernetes_io/safe-to-evict",
        f"{SERVER}.spec.terminationGracePeriodSeconds",
    ],
    "the_volumes_node_is_preferred": [f"{SERVER}.spec.affinity", f"{JOB}.spec.affinity"],
    "the_download_needs_no_gpu_node": [
        f"{JOB}.spec.nodeSelector",
        f"{JOB}.spec.tolerations",
        f"{JOB}.spec.affinity.nodeAffinity",
    ],
    "a_service_reaches_the_server_alone": [
        "Service",
        "Service.spec.selector.app_kubernetes_io/component",
        f"{SERVER}.spec.containers.0.ports",
    ],
    "the_network_is_closed_but_for_the_api": [
        "NetworkPolicy",
        "NetworkPolicy.spec.policyTypes.0",
        "NetworkPolicy.spec.ingress.0.ports",
        "NetworkPolicy.spec.ingress.0.from",
        "NetworkPolicy.spec.ingress.1",
    ],
    "prometheus_brings_the_key": [
        "PodMonitor.spec.podMetricsEndpoints.0.authorization.credentials.key",
        "PodMonitor.spec.selector.matchLabels",
        "PodMonitor.spec.podMetricsEndpoints.0.port",
    ],
    "openshift_lets_people_in_by_https": [
        "Route",
        "Route.spec.tls",
        "Route.spec.path",
        "Route.metadata.annotations",
    ],
}
# What is no lack but a wrong word: (policy, place, word).
CHANGED = [
    ("no_program_is_in_a_manifest", "Service.kind", "ConfigMap"),
    (
        "no_program_is_in_a_manifest",
        f"{SERVER}.spec.containers.0.livenessProbe",
        {"exec": {"command": ["python3", "-c", "import urllib.request"]}},
    ),
    (
        "no_program_is_in_a_manifest",
        f"{JOB}.spec.containers.0.command",
        ["sh", "-c", "if a\nthen b\nfi"],
    ),
    (
        "probes_ask_where_there_is_an_answer",
        f"{WORKER}.spec.containers.0.livenessProbe",
        {"httpGet": {"path": "/health", "port": 8000}},
    ),
    (
        "keys_come_from_secrets_and_stand_nowhere",
        f"{SERVER}.spec.containers.0.env[VLLM_API_KEY]",
        {"name": "VLLM_API_KEY", "value": "abc"},
    ),
    (
        "the_network_is_closed_but_for_the_api",
        "NetworkPolicy.spec.ingress.0.from",
        [{"namespaceSelector": {}}],
    ),
    ("images_are_pinned", f"{SERVER}.spec.containers.0.image", "vllm/vllm-openai:latest"),
    ("pods_are_restricted", f"{SERVER}.spec.hostIPC", True),
    ("pods_are_restricted", f"{SERVER}.spec.securityContext.runAsUser", 0),
    ("pods_get_the_planned_gpus", f"{SERVER}.spec.containers.0.resources.limits.memory", "2Gi"),
    (
        "the_download_needs_no_gpu_node",
        f"{JOB}.spec.nodeSelector",
        {"nvidia.com/gpu.product": "Tesla-T4"},
    ),
    (
        "the_download_needs_no_gpu_node",
        f"{JOB}.spec.containers.0.resources.limits",
        {"nvidia.com/gpu": "1"},
    ),
    (
        "the_download_needs_no_gpu_node",
        f"{JOB}.spec.affinity.nodeAffinity",
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}},
    ),
    (
        "keys_come_from_secrets_and_stand_nowhere",
        f"{SERVER}.spec.containers.0.args.1",
        "--api-key=abc",
    ),
    (
        "the_volume_holds_the_weights",
        "PersistentVolumeClaim.spec.resources.requests.storage",
        "10Gi",
    ),
    (
        "a_start_may_take_its_budget",
        f"{SERVER}.spec.containers.0.startupProbe.failureThreshold",
        60,
    ),
    ("a_service_reaches_the_server_alone", "Service.spec.ports.0.port", 80),
    ("the_leader_is_found_before_it_is_ready", "LeaderWorkerSet.metadata.name", "llama-3-1-405b"),
    ("openshift_lets_people_in_by_https", "Route.spec.to.name", "another"),
]


def step(value, key: str):
    """One step of a path: a key (a dot in it is written as _), a number, or [name] of a list of named things."""
    if isinstance(value, list):
        return int(key)
    return key if key in value else key.replace("_", ".")


def walk(docs: list[dict], path: str) -> tuple[object, object]:
    """Return (what holds it, its key): `Kind.a.b`, `list.0`, `list[name]`, `args(word)`."""
    kind, *keys = (
        path.replace("[", ".[").replace("(", ".(", 1).split(".")
        if "(" not in path
        else [*path[: path.index("(")].split("."), path[path.index("(") :]]
    )
    holder, key = docs, docs.index(of(docs, kind)[0])
    for name in keys:
        holder = holder[key]
        if name.startswith("["):
            key = next(i for i, entry in enumerate(holder) if entry["name"] == name[1:-1])
        elif name.startswith("("):
            key = holder.index(name[1:-1])
        else:
            key = step(holder, name)
    return holder, key


def subject(path: str) -> tuple[list[dict], Expected]:
    """The resources that have what is named: the group's, OpenShift's, the guard's, or the smallest model's."""
    kind = path.partition(":")[2] or path
    is_group = kind.startswith(("LeaderWorkerSet", "NetworkPolicy.spec.ingress.1"))
    name = "llama-3-1-405b" if is_group else "mistral-7b"
    expected = vars(EXPECTED[name])
    if path.startswith("guard:"):
        return rendered(name, guard_image=GUARD_IMAGE), Expected(**{**expected, "guard": True})
    if kind.startswith("Route"):
        return on_openshift(name), Expected(**{**expected, "openshift": True})
    docs = resolved(name)
    if kind.startswith("PodMonitor"):
        docs.append(yaml.safe_load((TREE / "components/monitor/pod-monitor.yaml").read_text()))
    return docs, EXPECTED[name]


def test_each_policy_speaks_when_what_it_asks_for_is_taken_away(subtests):
    for name, path in [(name, path) for name, paths in REMOVED.items() for path in paths]:
        with subtests.test(f"{name} {path}"):
            docs, expected = subject(path)
            assert not list(POLICIES[name](docs, expected))
            holder, key = walk(docs, path.removeprefix("guard:"))
            del holder[key]
            try:
                lines = list(POLICIES[name](docs, expected))
            except (KeyError, IndexError, ValueError, StopIteration):
                # so much is gone that there is nothing to read
                lines = ["it cannot even be read"] if "." not in path else []
            assert lines


def test_each_policy_speaks_when_a_word_is_wrong(subtests):
    for name, path, word in CHANGED:
        with subtests.test(f"{name} {path}"):
            docs, expected = subject(path)
            holder, key = walk(docs, path)
            holder[key] = word
            assert list(POLICIES[name](docs, expected))


def test_on_openshift_a_user_of_ours_is_found():
    expected = Expected(**{**vars(EXPECTED["mistral-7b"]), "openshift": True})
    assert "pods_are_restricted" in problems(resolved("mistral-7b"), expected)


def test_no_policy_is_untested():
    assert set(POLICIES) == set(REMOVED) | {name for name, _, _ in CHANGED}
