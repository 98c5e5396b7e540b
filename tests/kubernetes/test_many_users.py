"""Autoscaling, draining and tenants: what keda, drain and tenant make of a server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from k8s_cases import built, write
from k8s_policies import POLICIES
from k8s_read import GPU, Expected, bytes_of, env, of, serving, templates, vllm
from test_changes import MODEL
from test_overlays import validate

from workshop.servers import kubernetes

# A running vLLM 0.32.0, as it answered /metrics.
METRICS = Path(__file__).parents[1] / "engine" / "data" / "metrics_0.32.0_during.txt"
EXPECTED = Expected(2 * 7_248_023_552, 1, 1, "NVIDIA-L4")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kubernetes")
    write(f"{MODEL} --name single", folder)
    return folder


def build(tree: Path, folder: str, kustomization: dict) -> list[dict]:
    """Return what a folder beside the overlays resolves to; kubectl agrees."""
    own = tree / folder
    own.mkdir(exist_ok=True)
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    (own / "kustomization.yaml").write_text(yaml.safe_dump(head | kustomization))
    return built(own)


def server(tree: Path, *components: str) -> list[dict]:
    folders = [f"../components/{component}" for component in components]
    return build(tree, "mine", {"resources": ["../overlays/single"], "components": folders})


# Autoscaling


def test_keda_scales_on_figures_that_vllm_exports_of_this_server_alone(tree):
    docs = server(tree, "keda", "monitor")
    (scaled,) = of(docs, "ScaledObject")
    labels = serving(docs)["server"]["metadata"]["labels"]
    (monitor,) = of(docs, "PodMonitor")
    exported = METRICS.read_text()
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    assert len(queries) == 2 and "waiting" in queries[0] and "running" in queries[1]
    for query in queries:
        metric, label, instance = re.fullmatch(
            r'sum\(([\w:]+)\{(\w+)="([^"]+)"\}\)', query
        ).groups()
        assert re.search(rf"^{metric}\{{", exported, re.MULTILINE)
        # Prometheus' operator writes a pod's label with underscores.
        named = {re.sub(r"\W", "_", name): name for name in monitor["spec"]["podTargetLabels"]}
        assert labels[named[label]] == instance == "single"


def test_keda_alone_says_how_many_servers_there_are(tree):
    docs = server(tree, "keda")
    validate(docs)
    (scaled,) = of(docs, "ScaledObject")
    (deployment,) = of(docs, "Deployment")
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    assert scaled["spec"]["minReplicaCount"] >= 1
    (claim,) = of(docs, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]  # servers on several nodes read it


def test_keda_waits_for_a_start_before_it_adds_or_removes_another_server(tree):
    docs = server(tree, "keda")
    probe = vllm(serving(docs)["server"])["startupProbe"]
    start_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert start_s >= EXPECTED.budget_s
    advanced = of(docs, "ScaledObject")[0]["spec"]["advanced"]
    behavior = advanced["horizontalPodAutoscalerConfig"]["behavior"]
    (up,) = behavior["scaleUp"]["policies"]
    assert up["value"] == 1 and up["periodSeconds"] >= start_s
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= start_s


def test_keda_takes_missing_figures_for_an_error(tree):
    for trigger in of(server(tree, "keda"), "ScaledObject")[0]["spec"]["triggers"]:
        assert trigger["metadata"]["ignoreNullValues"] == "false"


# Draining


def test_a_drained_server_has_time_for_the_proxies_and_for_its_answers(tree):
    docs = server(tree, "drain")
    validate(docs)
    pod = serving(docs)["server"]["spec"]
    program, seconds = vllm(serving(docs)["server"])["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    (timeout,) = [
        int(word.partition("=")[2])
        for word in vllm(serving(docs)["server"])["args"]
        if word.startswith("--shutdown-timeout=")
    ]
    # What a Route, an Ingress and a Gateway of ours wait for an answer.
    assert timeout == 600
    assert pod["terminationGracePeriodSeconds"] >= int(seconds) + timeout + 15


def test_without_drain_vllm_aborts_at_once(tree):
    args = vllm(serving(server(tree))["server"])["args"]
    assert not any(word.startswith("--shutdown-timeout") for word in args)


def test_the_disruption_budget_is_for_servers_alone_and_blocks_no_node(tree):
    docs = server(tree, "drain")
    (budget,) = of(docs, "PodDisruptionBudget")
    chosen = budget["spec"]["selector"]["matchLabels"].items()
    names = [
        name for name, pod in templates(docs).items() if chosen <= pod["metadata"]["labels"].items()
    ]
    assert names == ["server"]
    assert budget["spec"]["maxUnavailable"] == 1 and "minAvailable" not in budget["spec"]


def test_keda_and_drain_go_together(tree):
    docs = server(tree, "keda", "drain", "monitor")
    validate(docs)
    assert {"ScaledObject", "PodDisruptionBudget"} <= {doc["kind"] for doc in docs}


# Tenants


def namespace_of_physics() -> dict:
    """The kustomization on top of the component tenant."""
    text = kubernetes.component("tenant")["kustomization.yaml"]
    (block,) = re.findall(r"(?:^#     .*\n)+", text, re.MULTILINE)
    return yaml.safe_load(block.replace("#     ", ""))


@pytest.fixture
def physics(tree) -> list[dict]:
    """The namespace of a group, and its server there."""
    docs = build(tree, "physics", namespace_of_physics())
    docs += build(tree, "mine", {"namespace": "physics", "resources": ["../overlays/single"]})
    validate(docs)
    return docs


def test_a_group_has_its_own_namespace_and_everything_is_in_it(physics):
    (namespace,) = of(physics, "Namespace")
    assert namespace["metadata"]["name"] == "physics"
    for doc in physics:
        assert doc["kind"] == "Namespace" or doc["metadata"]["namespace"] == "physics"


def test_a_group_has_a_key_of_its_own(physics):
    """The Secret is named without a namespace, so each group's is another one."""
    key = env(vllm(serving(physics)["server"]))["VLLM_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert key["name"] == "vllm-api-key"
    (members,) = of(physics, "RoleBinding")
    assert [subject["name"] for subject in members["subjects"]] == ["physics"]
    assert members["roleRef"]["kind"] == "ClusterRole" and members["roleRef"]["name"] == "edit"


def test_a_server_fits_into_the_quota_of_its_group(physics):
    (quota,) = of(physics, "ResourceQuota")
    hard = quota["spec"]["hard"]
    # A quota of an extended resource knows requests alone.
    assert f"limits.{GPU}" not in hard and GPU not in hard
    gpus = vllm(serving(physics)["server"])["resources"]["requests"][GPU]
    assert int(gpus) <= int(hard[f"requests.{GPU}"])
    (claim,) = of(physics, "PersistentVolumeClaim")
    assert hard["requests.storage"] == "1Ti"
    assert bytes_of(claim["spec"]["resources"]["requests"]["storage"]) <= 2**40


def test_a_servers_pods_hold_to_the_level_that_the_namespace_enforces(physics):
    (namespace,) = of(physics, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert list(POLICIES["pods_are_restricted"](physics, EXPECTED)) == []


def lets_in(docs: list[dict], pod: dict[str, str], namespace: str, port: int) -> bool:
    """Return whether the policies let a pod of a namespace reach this one, as Kubernetes adds them up."""
    chosen = []
    for rule in of(docs, "NetworkPolicy"):
        labels = rule["spec"]["podSelector"].get("matchLabels", {})
        if labels.items() <= pod.items():
            chosen.append(rule)
    if not chosen:
        return True
    for rule in chosen:
        for entry in rule["spec"].get("ingress", []):
            ports = [item["port"] for item in entry.get("ports", [])]
            if ports and port not in ports:
                continue
            if "from" not in entry or any(is_source(peer, namespace) for peer in entry["from"]):
                return True
    return False


def is_source(peer: dict, namespace: str) -> bool:
    if "namespaceSelector" not in peer:
        # an empty podSelector: all pods of the policy's own namespace
        return namespace == "physics"
    return peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}


def test_other_groups_cannot_reach_the_server(physics, tree):
    pod = serving(physics)["server"]["metadata"]["labels"]
    namespaces = ("physics", "chemistry", "ingress-nginx", "monitoring", "default")

    def reached(docs: list[dict], port: int) -> list[str]:
        return [name for name in namespaces if lets_in(docs, pod, name, port)]

    assert reached(physics, 8000) == ["physics"]
    watched = server(tree, "monitor")
    assert reached(watched, 8000) == ["physics", "monitoring"]
    assert reached(watched, 29501) == []


def test_pods_of_the_group_that_serve_nothing_are_closed_to_others(physics):
    assert not lets_in(physics, {"app": "notebook"}, "chemistry", 8888)
    assert lets_in(physics, {"app": "notebook"}, "physics", 8888)
