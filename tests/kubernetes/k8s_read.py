"""Reading resolved resources: pod templates, containers, variables, mounts; and what is expected of one model."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Expected:
    """What is right for one model: bytes of its weights, and the GPUs it is planned on."""

    weight_bytes: int
    nodes: int
    gpus_per_node: int
    product: str
    bfloat16: bool = True
    openshift: bool = False
    guard: bool = False
    claim: str = ""
    way_in: bool = False  # an Ingress or a route, from a namespace that nobody can know
    load_bytes_per_s: float = 0.25e9
    allowance_s: int = 900

    @property
    def budget_s(self) -> float:
        return self.weight_bytes / self.load_bytes_per_s + self.allowance_s


def of(docs: list[dict], kind: str) -> list[dict]:
    return [doc for doc in docs if doc["kind"] == kind]


def templates(docs: list[dict]) -> dict[str, dict]:
    """Every pod template by what it is: server, worker, weights."""
    pod_templates = {}
    for doc in docs:
        if doc["kind"] in ("Deployment", "Job"):
            pod_templates["server" if doc["kind"] == "Deployment" else "weights"] = doc["spec"][
                "template"
            ]
        elif doc["kind"] == "LeaderWorkerSet":
            parts = doc["spec"]["leaderWorkerTemplate"]
            pod_templates["server"], pod_templates["worker"] = (
                parts["leaderTemplate"],
                parts["workerTemplate"],
            )
    return pod_templates


def serving(docs: list[dict]) -> dict[str, dict]:
    return {name: template for name, template in templates(docs).items() if name != "weights"}


def containers(template: dict) -> list[dict]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def leader_address(docs: list[dict]) -> tuple[str, bool]:
    """What LWS_LEADER_ADDRESS will be, and whether it resolves before the leader is ready (it needs the workers).

    As LeaderWorkerSet's controller does (CreateHeadlessServiceIfNotExists): it makes a headless Service that publishes
    pods that are not ready, under the set's own name, unless there is a Service of that name already.
    """
    name = of(docs, "LeaderWorkerSet")[0]["metadata"]["name"]
    there = [doc["spec"] for doc in of(docs, "Service") if doc["metadata"]["name"] == name]
    early = all(
        spec.get("clusterIP") == "None" and spec.get("publishNotReadyAddresses") for spec in there
    )
    return f"{name}-0.{name}.default", early


def vllm(template: dict) -> dict:
    return template["spec"]["containers"][0]


def env(container: dict) -> dict[str, dict]:
    return {variable["name"]: variable for variable in container.get("env", [])}


def value(container: dict, name: str) -> str:
    return env(container).get(name, {}).get("value", "")


def tolerates_gpu_nodes(spec: dict) -> bool:
    """Whether a pod may run on nodes with the taint that keeps others off GPUs."""
    tolerations = spec.get("tolerations", [])
    return any(
        toleration.get("key") == GPU and toleration.get("operator") == "Exists"
        for toleration in tolerations
    )


def bytes_of(text: str) -> int:
    return int(text.removesuffix("Gi")) * GIB if text.endswith("Gi") else 0


def mount(container: dict, path: str) -> dict:
    return next(
        (entry for entry in container.get("volumeMounts", []) if entry["mountPath"] == path), {}
    )


def volume(template: dict, name: str | None) -> dict:
    return next((entry for entry in template["spec"]["volumes"] if entry["name"] == name), {})
