"""Each policy is needed: it speaks as soon as what it asks for is taken away from a manifest that holds to all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import k8s_policies_more  # noqa: F401 (it adds its policies)
import yaml
from k8s_cases import EXPECTED, GUARD_IMAGE, TREE, on_openshift, rendered, resolved
from k8s_policies import POLICIES, problems
from k8s_read import Expected, of

SERVER = "Deployment.spec.template"
WORKER, JOB = "LeaderWorkerSet.spec.leaderWorkerTemplate.workerTemplate", "Job.spec.template"
# For how many parts of the manifests below a policy speaks when they are taken away, or for more. A smaller number:
# the policy asks for less, or what it asks for has gone from the manifests.
LEAST_PARTS = {
    "there_is_one_server_of_the_planned_size": 10,
    "a_start_may_take_its_budget": 39,
    "probes_ask_where_there_is_an_answer": 70,
    "shared_memory_is_memory_with_a_limit": 49,
    "the_volume_holds_the_weights": 109,
    "a_job_downloads_and_servers_wait": 79,
    "keys_come_from_secrets_and_stand_nowhere": 74,
    "pods_are_restricted": 163,
    "a_user_without_a_home_can_write_its_caches": 96,
    "pods_get_the_planned_gpus": 151,
    "the_dtype_is_one_that_the_gpu_has": 3,
    "vllm_knows_its_address_and_no_service_confuses_it": 59,
    "a_group_starts_and_ends_as_one": 28,
    "nothing_moves_a_pod_without_being_asked": 28,
    "the_volumes_node_is_preferred": 36,
    "the_download_needs_no_gpu_node": 52,
    "a_service_reaches_the_server_alone": 40,
    "the_network_is_closed_but_for_the_api": 71,
    "prometheus_brings_the_key": 24,
    "openshift_lets_people_in_by_https": 6,
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
]


def subjects() -> Iterator[tuple[list[dict], Expected]]:
    """Resources that hold to every policy: one server, a group of pods, both behind a guard, one on OpenShift."""
    monitor = yaml.safe_load((TREE / "components/monitor/pod-monitor.yaml").read_text())
    for name in ("mistral-7b", "llama-3-1-405b"):
        yield [*resolved(name), monitor], EXPECTED[name]
        yield rendered(name, guard_image=GUARD_IMAGE), replace(EXPECTED[name], guard=True)
    yield on_openshift("mistral-7b"), replace(EXPECTED["mistral-7b"], openshift=True)


def parts(value: object) -> Iterator[tuple[list | dict, int | str]]:
    """Yield every part of a value, however deep, as (what holds it, its key)."""
    if isinstance(value, list | dict):
        for key in range(len(value)) if isinstance(value, list) else [*value]:
            yield value, key
            yield from parts(value[key])


def test_each_policy_speaks_when_what_it_asks_for_is_taken_away():
    spoken: Counter[str] = Counter()
    for docs, expected in subjects():
        assert problems(docs, expected) == {}
        for holder, key in parts(docs):
            part = holder.pop(key)
            for name, check in POLICIES.items():
                with suppress(Exception):  # so much is gone that there is nothing to read
                    spoken[name] += any(check(docs, expected))
            if isinstance(holder, list):
                holder.insert(key, part)
            else:
                holder[key] = part
    fewer = {name: spoken[name] for name, least in LEAST_PARTS.items() if spoken[name] < least}
    assert fewer == {}


def test_each_policy_speaks_when_a_word_is_wrong(subtests):
    for name, path, word in CHANGED:
        with subtests.test(f"{name} {path}"):
            kind, *keys, last = path.split(".")
            model = "llama-3-1-405b" if kind == "LeaderWorkerSet" else "mistral-7b"
            is_route = kind == "Route"
            docs = on_openshift(model) if is_route else resolved(model)
            holder = of(docs, kind)[0]
            for key in keys:
                holder = holder[int(key) if isinstance(holder, list) else key]
            holder[int(last) if isinstance(holder, list) else last] = word
            assert list(POLICIES[name](docs, replace(EXPECTED[model], openshift=is_route)))


def test_on_openshift_a_user_of_ours_is_found():
    expected = replace(EXPECTED["mistral-7b"], openshift=True)
    assert "pods_are_restricted" in problems(resolved("mistral-7b"), expected)


def test_no_policy_is_untested():
    assert set(POLICIES) == set(LEAST_PARTS) | {name for name, _, _ in CHANGED}
