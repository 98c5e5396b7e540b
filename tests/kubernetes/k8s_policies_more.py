"""The other policies: addresses, groups, nodes, network, metrics, images, OpenShift."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k8s_policies import policy
from k8s_read import (
    GPU,
    containers,
    env,
    leader_address,
    of,
    serving,
    templates,
    tolerates_gpu_nodes,
    vllm,
)

OWN_NAMESPACE = {"podSelector": {}}
ROUTER = {"namespaceSelector": {"matchLabels": {"policy-group.network.openshift.io/ingress": ""}}}
IMAGE_IS_FOR = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}


@policy
def vllm_knows_its_address_and_no_service_confuses_it(docs, e) -> Iterator[str]:
    for name, template in templates(docs).items():
        if template["spec"].get("enableServiceLinks") is not False:
            yield f"{name}: a Service called vllm would set VLLM_PORT"
        if template["spec"].get("automountServiceAccountToken") is not False:
            yield f"{name} gets a token of the cluster that it does not need"
    for name, template in serving(docs).items():
        ref = env(vllm(template)).get("VLLM_HOST_IP", {}).get("valueFrom", {}).get("fieldRef", {})
        if ref.get("fieldPath") != "status.podIP":
            yield f"{name}: VLLM_HOST_IP must be the pod's"


@policy
def a_group_starts_and_ends_as_one(docs, e) -> Iterator[str]:
    for group in of(docs, "LeaderWorkerSet"):
        if (
            group["spec"]["leaderWorkerTemplate"].get("restartPolicy")
            != "RecreateGroupOnPodRestart"
        ):
            yield "a rank that is gone must take the others along"
        if (
            group["spec"]
            .get("rolloutStrategy", {})
            .get("rollingUpdateConfiguration", {})
            .get("maxSurge")
            != 0
        ):
            yield "there are no spare GPUs for a second group"
    if e.nodes > 1:
        for name, template in serving(docs).items():
            wanted = {
                "--nnodes=$(LWS_GROUP_SIZE)",
                "--node-rank=$(LWS_WORKER_INDEX)",
                "--master-addr=$(LWS_LEADER_ADDRESS)",
            }
            if not wanted <= set(vllm(template)["args"]):
                yield f"{name} does not know its rank or its leader"
            if ("--headless" in vllm(template)["args"]) != (name == "worker"):
                yield "all but the leader are headless"
    for deployment in of(docs, "Deployment"):
        if deployment["spec"].get("strategy") != {"type": "Recreate"}:
            yield "there are no spare GPUs for a second pod"


@policy
def the_leader_is_found_before_it_is_ready(docs, e) -> Iterator[str]:
    if of(docs, "LeaderWorkerSet"):
        address, early = leader_address(docs)
        if not early:
            yield f"{address} resolves once the leader is ready, and it waits for workers that look for it"


@policy
def nothing_moves_a_pod_without_being_asked(docs, e) -> Iterator[str]:
    for name, template in serving(docs).items():
        notes = template["metadata"].get("annotations", {})
        if notes.get("cluster-autoscaler.kubernetes.io/safe-to-evict") != "false":
            yield f"{name}: the cluster autoscaler may evict it"
        if notes.get("karpenter.sh/do-not-disrupt") != "true":
            yield f"{name}: Karpenter may evict it"
        if template["spec"].get("terminationGracePeriodSeconds", 0) < 60:
            yield f"{name}: too little time to end"


@policy
def the_volumes_node_is_preferred(docs, e) -> Iterator[str]:
    if e.nodes > 1 or e.claim:
        return
    for name, other in (("server", "weights"), ("weights", "server")):
        affinity = templates(docs)[name]["spec"].get("affinity", {}).get("podAffinity", {})
        terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        wanted = [term["podAffinityTerm"]["labelSelector"]["matchLabels"] for term in terms]
        labels = templates(docs)[other]["metadata"]["labels"]
        if not wanted or not wanted[0].items() <= labels.items():
            yield f"{name} must prefer the node of {other}: one node at a time mounts the volume"


@policy
def the_download_needs_no_gpu_node(docs, e) -> Iterator[str]:
    """An autoscaler then starts none for it. Where one node at a time mounts the volume, it may join the server."""
    if e.claim:
        return
    spec = templates(docs)["weights"]["spec"]
    if any(
        GPU in container["resources"].get("limits", {}) for container in containers({"spec": spec})
    ):
        yield "the download asks for a GPU"
    if spec.get("nodeSelector") != IMAGE_IS_FOR:
        yield "the download selects nodes by more, or less, than what its image can run on"
    affinity = spec.get("affinity", {}).get("nodeAffinity", {})
    if "requiredDuringSchedulingIgnoredDuringExecution" in affinity:
        yield "the download requires certain nodes"
    preferences = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    avoided = {
        expression["key"]
        for preference in preferences
        for expression in preference["preference"]["matchExpressions"]
        if expression["operator"] == "DoesNotExist"
    }
    if f"{GPU}.present" not in avoided:
        yield "the download does not prefer a node without GPUs"
    if tolerates_gpu_nodes(spec) != (e.nodes == 1):
        yield "the download must reach a server that holds the volume on a GPU node, and needs GPU nodes for nothing else"


@policy
def a_service_reaches_the_server_alone(docs, e) -> Iterator[str]:
    services = of(docs, "Service")
    if len(services) != 1:
        yield "there must be one Service"
        return
    spec, port = services[0]["spec"], services[0]["spec"]["ports"][0]
    for name, template in templates(docs).items():
        chosen = spec["selector"].items() <= template["metadata"]["labels"].items()
        if chosen != (name == "server"):
            yield f"the Service {'selects' if chosen else 'does not select'} {name}"
    ports = {
        entry["name"]: entry["containerPort"]
        for entry in vllm(serving(docs)["server"]).get("ports", [])
    }
    if ports.get(port.get("targetPort")) != port.get("port"):
        yield "the Service's port is not the container's"


@policy
def the_network_is_closed_but_for_the_api(docs, e) -> Iterator[str]:
    rules = of(docs, "NetworkPolicy")
    for name, template in templates(docs).items():
        matching = [
            rule
            for rule in rules
            if rule["spec"]["podSelector"]["matchLabels"].items()
            <= template["metadata"]["labels"].items()
            and "Ingress" in rule["spec"].get("policyTypes", [])
        ]
        if not matching:
            yield f"{name} can be reached on every port"
        for entry in (entry for rule in matching for entry in rule["spec"].get("ingress", [])):
            sources = entry.get("from", [])
            if sources and all(source.get("podSelector") for source in sources):
                continue  # the group's own pods
            if [port.get("port") for port in entry.get("ports", [])] != [8000]:
                yield f"{name}: more than the API is open to others"
            if not sources and not e.way_in:
                yield f"{name}: every pod of the cluster reaches it"
            for source in sources:
                if source in (OWN_NAMESPACE, *([ROUTER] if e.openshift else [])):
                    continue
                labels = source.get("namespaceSelector", {}).get("matchLabels", {})
                if labels.keys() != {"kubernetes.io/metadata.name"}:
                    yield f"{name}: {source} is no namespace by its name"
    if e.nodes > 1 and not any(
        source.get("podSelector")
        for rule in rules
        for entry in rule["spec"].get("ingress", [])
        for source in entry.get("from", [])
    ):
        yield "the pods of a group cannot reach each other"


@policy
def prometheus_brings_the_key(docs, e) -> Iterator[str]:
    for monitor in of(docs, "PodMonitor"):
        for endpoint in monitor["spec"].get("podMetricsEndpoints", [{}]):
            credentials = endpoint.get("authorization", {}).get("credentials", {})
            if credentials != {"name": "vllm-api-key", "key": "metrics-key"}:
                yield "the scraper must have the key that opens /metrics alone"
            if endpoint.get("port") not in {
                port["name"] for port in vllm(serving(docs)["server"]).get("ports", [])
            }:
                yield "the PodMonitor asks a port that the server does not name"
        wanted = monitor["spec"].get("selector", {}).get("matchLabels", {}).items()
        if not wanted or not wanted <= serving(docs)["server"]["metadata"]["labels"].items():
            yield "the PodMonitor does not select the server"


@policy
def images_are_pinned(docs, e) -> Iterator[str]:
    for name, template in templates(docs).items():
        for container in containers(template):
            if not re.fullmatch(r"[\w./-]+:v\d[\w.]*", container["image"]):
                yield f"{name}: {container['name']}: {container['image']} is no version"


@policy
def openshift_lets_people_in_by_https(docs, e) -> Iterator[str]:
    routes = of(docs, "Route")
    if len(routes) != int(e.openshift):
        yield "a Route belongs to OpenShift, and only there"
    for route in routes:
        if route["spec"]["to"]["name"] != of(docs, "Service")[0]["metadata"]["name"]:
            yield "the Route leads nowhere"
        if route["spec"].get("path") != "/v1":
            yield "paths without a key are open to the outside"
        if route["spec"].get("tls", {}).get("insecureEdgeTerminationPolicy") != "Redirect":
            yield "keys may travel unencrypted"
        if "haproxy.router.openshift.io/timeout" not in route["metadata"].get("annotations", {}):
            yield "the router cuts answers after 30 s"
