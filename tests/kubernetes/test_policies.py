"""Each policy is needed: it speaks as soon as one word of a manifest that holds to it is another."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import k8s_policies_more  # noqa: F401 (it adds its policies)
import yaml
from k8s_cases import EXPECTED, TREE, on_openshift, resolved
from k8s_policies import POLICIES, problems
from k8s_read import of

MONITOR = yaml.safe_load((TREE / "components/monitor/pod-monitor.yaml").read_text())
SERVER = "Deployment.spec.template"
WORKER, JOB = "LeaderWorkerSet.spec.leaderWorkerTemplate.workerTemplate", "Job.spec.template"
# A wrong word for each policy: (policy, place, word).
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
        f"{SERVER}.spec.containers.0.env.6",
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
    ("there_is_one_server_of_the_planned_size", "Deployment.spec.replicas", 2),
    ("shared_memory_is_memory_with_a_limit", f"{SERVER}.spec.volumes", []),
    ("a_user_without_a_home_can_write_its_caches", f"{SERVER}.spec.containers.0.volumeMounts", []),
    ("the_dtype_is_one_that_the_gpu_has", f"{SERVER}.spec.containers.0.args", ["/models/a"]),
    (
        "vllm_knows_its_address_and_no_service_confuses_it",
        f"{SERVER}.spec.enableServiceLinks",
        True,
    ),
    ("a_group_starts_and_ends_as_one", "LeaderWorkerSet.spec.rolloutStrategy", {}),
    ("nothing_moves_a_pod_without_being_asked", f"{SERVER}.metadata.annotations", {}),
    ("the_volumes_node_is_preferred", f"{JOB}.spec.affinity", {}),
    ("prometheus_brings_the_key", "PodMonitor.spec.selector", {}),
    ("a_job_downloads_and_servers_wait", "Job.spec.backoffLimit", 1),
]


def test_each_policy_speaks_when_a_word_is_wrong(subtests):
    for name, path, word in CHANGED:
        with subtests.test(f"{name} {path}"):
            kind, *keys, last = path.split(".")
            model = "llama-3-1-405b" if kind == "LeaderWorkerSet" else "mistral-7b"
            is_route = kind == "Route"
            docs = [*(on_openshift(model) if is_route else resolved(model)), MONITOR]
            expected = replace(EXPECTED[model], openshift=is_route)
            assert list(POLICIES[name](docs, expected)) == []
            docs = deepcopy(docs)
            holder = of(docs, kind)[0]
            for key in keys:
                holder = holder[int(key) if isinstance(holder, list) else key]
            holder[int(last) if isinstance(holder, list) else last] = word
            assert list(POLICIES[name](docs, expected))


def test_on_openshift_a_user_of_ours_is_found():
    expected = replace(EXPECTED["mistral-7b"], openshift=True)
    assert "pods_are_restricted" in problems(resolved("mistral-7b"), expected)


def test_no_policy_is_untested():
    assert set(POLICIES) == {name for name, _, _ in CHANGED}
