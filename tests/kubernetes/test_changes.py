"""The components, and every patch of kubernetes/README.md: each does what it says, and the result is still valid."""

from __future__ import annotations

import re
import socket
from functools import cache
from pathlib import Path

import k8s_kustomize
import pytest
import yaml
from k8s_cases import TREE, arguments_of, built, run
from k8s_policies import problems
from k8s_read import GPU, Expected, containers, env, of, serving, templates, value, vllm
from test_overlays import validate

from workshop.servers.kubernetes import COMPONENTS

POD = "/spec/template/spec/"
MODEL = ["mistral-7b", "--gpu", "l4", "--gpus-per-node", "1", "--max-model-len", "8192"]
GROUP = [
    *(
        "llama-3.1-70b",
        "--gpu",
        "h100",
        "--gpus-per-node",
        "2",
        "--nodes",
        "2",
        "--max-model-len",
        "8192",
    ),
    *("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"),
]
ONE_NODE = Expected(2 * 7_248_023_552, 1, 1, "NVIDIA-L4")
TWO_NODES = Expected(2 * 70_553_706_496, 2, 2, "NVIDIA-H100-80GB-HBM3")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A kustomize tree with a server behind a route, one behind an Ingress, and one on two nodes."""
    folder = tmp_path_factory.mktemp("kubernetes")
    route = ["--http-route", "llm.example.org", "--gateway", "edge/public"]
    run([*MODEL, *route, "--name", "routed", "--output", str(folder)])
    run([*MODEL, "--ingress", "llm.example.org", "--name", "single", "--output", str(folder)])
    run([*GROUP, *route, "--name", "group", "--output", str(folder)])
    return folder


def build(
    tree: Path, overlay: str, components: tuple[str, ...] = (), patches: list[dict] | None = None
) -> list[dict]:
    """Return the resources of an overlay with changes in a folder beside it, as the README shows; kubectl agrees."""
    own = tree / "mine"
    own.mkdir(exist_ok=True)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../overlays/{overlay}"],
        "components": [f"../components/{component}" for component in components],
        "patches": patches or [],
    }
    (own / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return built(own)


@cache
def readme_patches() -> dict[str, list[dict]]:
    """Return the patches of the README by their headings."""
    section = (TREE / "README.md").read_text().split("## Changes of your own")[1].split("\n## ")[0]
    patches = {}
    for part in section.split("\n### ")[1:]:
        title = part.splitlines()[0]
        (block,) = re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)
        patches[title] = yaml.safe_load(block)
    return patches


def for_a_group(patches: list[dict]) -> list[dict]:
    """Return the patches as the README says that they are for several nodes."""
    changed = []
    for patch in patches:
        kinds = patch["target"]["kind"].split("|")
        steps = yaml.safe_load(patch["patch"])
        if "Job" in kinds:
            changed.append({"target": {"kind": "Job"}, "patch": patch["patch"]})
        if "Deployment" in kinds:
            twice = []
            for part in ("leaderTemplate", "workerTemplate"):
                for step in steps:
                    paths = {key: step[key] for key in ("path", "from") if key in step}
                    place = f"/spec/leaderWorkerTemplate/{part}/"
                    moved = {
                        key: path.replace("/spec/template/", place) for key, path in paths.items()
                    }
                    twice.append({**step, **moved})
            changed.append({"target": {"kind": "LeaderWorkerSet"}, "patch": yaml.safe_dump(twice)})
    return changed


# What each patch must have done, on one node and on several. A function returns what is wrong.


def taints(docs: list[dict]) -> bool:
    return all("sku" in str(template["spec"]["tolerations"]) for template in serving(docs).values())


def cpu_limits(docs: list[dict]) -> bool:
    """As ResourceQuota asks: every container, and none below its request."""
    for template in templates(docs).values():
        for container in containers(template):
            resources = container["resources"]
            if cpus(resources["limits"]["cpu"]) < cpus(resources["requests"]["cpu"]):
                return False
    return True


def cpus(quantity: str) -> float:
    if quantity.endswith("m"):
        return int(quantity[:-1]) / 1000
    return float(quantity)


def slices(docs: list[dict]) -> bool:
    for template in serving(docs).values():
        for part in vllm(template)["resources"].values():
            if GPU in part or "nvidia.com/mig-3g.40gb" not in part:
                return False
    return True


def ingress_class(docs: list[dict]) -> bool:
    return all(ingress["spec"]["ingressClassName"] == "nginx" for ingress in of(docs, "Ingress"))


def download_beside_the_gpus(docs: list[dict]) -> bool:
    return f"{GPU}.product" in templates(docs)["weights"]["spec"]["nodeSelector"]


def another_user(docs: list[dict]) -> bool:
    users = [template["spec"]["securityContext"] for template in templates(docs).values()]
    return all(user["runAsUser"] == user["fsGroup"] == 1234 for user in users)


def proxy_and_certificates(docs: list[dict]) -> bool:
    download = containers(templates(docs)["weights"])[0]
    mounted = {entry["name"]: entry["mountPath"] for entry in download["volumeMounts"]}
    certificates = value(download, "SSL_CERT_FILE")
    return bool(value(download, "HTTPS_PROXY")) and certificates.startswith(
        f"{mounted['site-ca']}/"
    )


def no_mesh(docs: list[dict]) -> bool:
    labels = [template["metadata"]["labels"] for template in templates(docs).values()]
    return all(pod_labels["sidecar.istio.io/inject"] == "false" for pod_labels in labels)


def release_label(docs: list[dict]) -> bool:
    return "release" in of(docs, "PodMonitor")[0]["metadata"]["labels"]


EFFECTS = {
    "Nodes with other taints": taints,
    "A quota on CPU limits": cpu_limits,
    "MIG, strategy mixed": slices,
    "An ingress class": ingress_class,
    "A volume of one zone or node": download_beside_the_gpus,
    "A volume of another user": another_user,
    "A proxy and certificates for the download": proxy_and_certificates,
    "A service mesh": no_mesh,
    "A Prometheus that wants its label": release_label,
}


def test_every_patch_of_the_readme_is_tried():
    assert list(readme_patches()) == list(EFFECTS)


@pytest.mark.parametrize("title", EFFECTS)
def test_a_patch_of_the_readme_does_what_it_says(title, tree):
    before = build(tree, "single")
    assert not without_errors(EFFECTS[title], before), "nothing is left for the patch to do"
    docs = build(tree, "single", patches=readme_patches()[title])
    validate(docs)
    assert EFFECTS[title](docs)
    if not templates_are_patched(readme_patches()[title]):
        return  # the same on several nodes
    group = build(tree, "group", patches=for_a_group(readme_patches()[title]))
    validate(group)
    assert EFFECTS[title](group)


def templates_are_patched(patches: list[dict]) -> bool:
    return any({"Deployment", "Job"} & set(patch["target"]["kind"].split("|")) for patch in patches)


def without_errors(effect, docs: list[dict]) -> bool:
    """Whether the effect is there already; a field that is missing is no effect."""
    try:
        return effect(docs)
    except KeyError:
        return False


def test_the_readmes_own_folder_builds(tmp_path):
    section = (TREE / "README.md").read_text().split("## Changes of your own")[1].split("\n### ")[0]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    arguments = arguments_of("mistral-7b")
    run([*arguments[: arguments.index("--output")], "--output", str(tmp_path / "kubernetes")])
    own = tmp_path / re.match(r"# (\S+)/kustomization.yaml", text)[1]
    own.mkdir()
    (own / "kustomization.yaml").write_text(text.replace("patches:\n", "patches: []\n"))
    kinds = {doc["kind"] for doc in k8s_kustomize.build(own)}
    assert "Deployment" in kinds and "PodMonitor" not in kinds


def test_each_component_is_written_and_in_the_readme():
    folders = {path.name for path in (TREE / "components").iterdir()}
    assert folders == {*COMPONENTS, "openshift"}
    table = (TREE / "README.md").read_text().split("| component | for |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == folders


@pytest.mark.parametrize(
    ("component", "overlay"),
    [
        ("gateway-timeouts", "routed"),
        ("gke-gateway", "group"),
        ("ipv6", "single"),
        ("ipv6", "group"),
        ("drain", "single"),
        ("tenant-server", "single"),
        ("tenant-server", "group"),
    ],
)
def test_with_a_component_every_policy_still_holds(component, overlay, tree):
    docs = build(tree, overlay, (component,))
    validate(docs)
    assert problems(docs, TWO_NODES if overlay == "group" else ONE_NODE) == {}


def test_other_gateways_wait_ten_minutes_by_a_component(tree):
    (route,) = of(build(tree, "routed", ("gateway-timeouts",)), "HTTPRoute")
    assert route["spec"]["rules"][0]["timeouts"] == {"request": "10m"}


@pytest.mark.parametrize("overlay", ["routed", "group"])
def test_gkes_gateway_waits_ten_minutes_and_asks_the_path_without_a_key(tree, overlay):
    docs = build(tree, overlay, ("gke-gateway",))
    (service,) = of(docs, "Service")
    wanted = {"group": "", "kind": "Service", "name": service["metadata"]["name"]}
    (backend,) = of(docs, "GCPBackendPolicy")
    (health,) = of(docs, "HealthCheckPolicy")
    assert backend["spec"] == {"default": {"timeoutSec": 600}, "targetRef": wanted}
    assert health["spec"]["targetRef"] == wanted
    assert health["spec"]["default"]["config"] == {
        "type": "HTTP",
        "httpHealthCheck": {"requestPath": "/health"},
    }
    assert "timeouts" not in str(of(docs, "HTTPRoute"))


@pytest.mark.parametrize("overlay", ["single", "group"])
def test_vllm_listens_on_ipv6_by_a_component(tree, overlay):
    for name, template in serving(build(tree, overlay, ("ipv6",))).items():
        hosts = [word for word in vllm(template)["args"] if word.startswith("--host")]
        assert hosts[-1:] == (["--host=::"] if name == "server" else [])  # argparse takes the last


def test_a_socket_on_the_ipv6_component_answers_both_families():
    """As vLLM opens it: an address with a colon is AF_INET6, and Linux lets such a socket take IPv4 too."""
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as server:
        server.bind(("::", 0))
        server.listen()
        port = server.getsockname()[1]
        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, port), timeout=10).close()


def test_without_the_prometheus_operator_only_the_monitor_is_missing(tree):
    before, after = build(tree, "single"), build(tree, "single", ("no-monitor",))
    assert not of(after, "PodMonitor")
    assert len(after) == len(before) - 1


@pytest.mark.parametrize("overlay", ["single", "group"])
def test_a_volume_is_given_to_the_pods_user_before_the_download(tree, overlay):
    docs = build(tree, overlay, ("volume-owner",))
    validate(docs)
    pod = templates(docs)["weights"]["spec"]
    (owner,) = pod["initContainers"]
    (models,) = owner["volumeMounts"]
    assert owner["command"][0] == "chown" and owner["command"][-2:] == [
        "2000:2000",
        models["mountPath"],
    ]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 2000
    assert owner["securityContext"]["runAsUser"] == 0
    assert owner["image"] == pod["containers"][0]["image"]
    # Pod Security "baseline" allows these, and no other may be added.
    assert set(owner["securityContext"]["capabilities"]["add"]) <= {
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
    }
    assert all("volume-owner" not in str(template) for template in serving(docs).values())


def test_components_go_together(tree):
    docs = build(tree, "routed", ("gke-gateway", "ipv6", "no-monitor", "volume-owner"))
    validate(docs)
    assert {"GCPBackendPolicy", "HealthCheckPolicy"} <= {doc["kind"] for doc in docs}


def test_the_proxy_of_the_patch_reaches_the_download(tree):
    """The names are those that httpx reads."""
    patches = readme_patches()["A proxy and certificates for the download"]
    download = containers(templates(build(tree, "single", patches=patches))["weights"])[0]
    assert {"HTTPS_PROXY", "SSL_CERT_FILE"} <= set(env(download))
