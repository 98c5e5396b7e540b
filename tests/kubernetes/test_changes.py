"""The components, and every patch of kubernetes/README.md: each does what it says, and the result is still valid."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import k8s_kustomize
import pytest
import yaml
from k8s_cases import TREE, built, command_of, write
from k8s_policies import problems
from k8s_read import Expected, containers, env, of, serving, templates, value, vllm
from test_overlays import validate

from workshop.servers import kubernetes
from workshop.servers.kubernetes.rendering import GUARDED_BY_VLLM

MODEL = "workshop plan mistral-7b --gpu l4 --gpus-per-node 1 --max-model-len 8192 --as kubernetes"
GROUP = (
    "workshop plan llama-3.1-70b --gpu h100 --gpus-per-node 2 --nodes 2 --max-model-len 8192 "
    "--tensor-parallel-size 2 --pipeline-parallel-size 2 --as kubernetes"
)
ONE_NODE = Expected(2 * 7_248_023_552, 1, 1, "NVIDIA-L4")
TWO_NODES = Expected(2 * 70_553_706_496, 2, 2, "NVIDIA-H100-80GB-HBM3")


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A kustomize tree: a plain server, one behind an Ingress, one on two nodes."""
    folder = tmp_path_factory.mktemp("kubernetes")
    write(f"{MODEL} --name single", folder)
    write(f"{MODEL} --name ingress --ingress llm.example.org", folder)
    write(f"{GROUP} --name group", folder)
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
                    place = f"/spec/leaderWorkerTemplate/{part}/"
                    twice.append({**step, "path": step["path"].replace("/spec/template/", place)})
            changed.append({"target": {"kind": "LeaderWorkerSet"}, "patch": yaml.safe_dump(twice)})
    return changed


# What each patch must have done, on one node and on several. A function returns what is wrong.


def taints(docs: list[dict]) -> bool:
    return all("sku" in str(template["spec"]["tolerations"]) for template in serving(docs).values())


def priority(docs: list[dict]) -> bool:
    return all(
        template["spec"]["priorityClassName"] == "course" for template in serving(docs).values()
    )


def queue(docs: list[dict]) -> bool:
    (server,) = of(docs, "Deployment") + of(docs, "LeaderWorkerSet")
    return server["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"


def infiniband(docs: list[dict]) -> bool:
    return all(
        vllm(template)["resources"]["limits"]["rdma/ib"] == "1"
        for template in serving(docs).values()
    )


def gateway(docs: list[dict]) -> bool:
    (route,) = of(docs, "HTTPRoute")
    (service,) = of(docs, "Service")
    port = service["spec"]["ports"][0]["port"]
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": port}]
    parents = [{"name": "public", "namespace": "edge"}]
    return route["spec"]["parentRefs"] == parents and route["spec"]["hostnames"] == [
        "llm.example.org"
    ]


def another_namespace(docs: list[dict]) -> bool:
    (rule,) = of(docs, "NetworkPolicy")
    return {"port": 8000} in rule["spec"]["ingress"][-1]["ports"] and "jupyterhub" in str(
        rule["spec"]["ingress"][-1]["from"]
    )


def proxy_and_certificates(docs: list[dict]) -> bool:
    download = containers(templates(docs)["weights"])[0]
    mounted = {entry["name"]: entry["mountPath"] for entry in download["volumeMounts"]}
    certificates = value(download, "SSL_CERT_FILE")
    return bool(value(download, "HTTPS_PROXY")) and certificates.startswith(
        f"{mounted['site-ca']}/"
    )


EFFECTS = {
    "Nodes with other taints": taints,
    "A PriorityClass": priority,
    "A LocalQueue of Kueue": queue,
    "InfiniBand": infiniband,
    "A Gateway": gateway,
    "Pods of another namespace": another_namespace,
    "A proxy and certificates for the download": proxy_and_certificates,
}
COMPONENTS = {"A Gateway": ("gateway",)}  # that a patch is for


def test_every_patch_of_the_readme_is_tried():
    assert list(readme_patches()) == list(EFFECTS)


def test_a_patch_of_the_readme_does_what_it_says(tree):
    for title in EFFECTS:
        before = build(tree, "single", COMPONENTS.get(title, ()))
        assert not without_errors(EFFECTS[title], before), "nothing is left for the patch to do"
        docs = build(tree, "single", COMPONENTS.get(title, ()), readme_patches()[title])
        validate(docs)
        assert EFFECTS[title](docs), title
        if not templates_are_patched(readme_patches()[title]):
            continue  # the same on several nodes
        group = build(tree, "group", patches=for_a_group(readme_patches()[title]))
        validate(group)
        assert EFFECTS[title](group), title


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
    write(command_of("mistral-7b"), tmp_path / "kubernetes")
    own = tmp_path / re.match(r"# (\S+)/kustomization.yaml", text)[1]
    own.mkdir()
    (own / "kustomization.yaml").write_text(text.replace("patches:\n", "patches: []\n"))
    assert {"Deployment", "PodMonitor"} <= {doc["kind"] for doc in k8s_kustomize.build(own)}


def test_each_component_is_written_and_in_the_readme():
    folders = set(kubernetes.components())
    assert folders == {path.name for path in (TREE / "components").iterdir()}
    table = (TREE / "README.md").read_text().split("| component | for |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE)) == folders


def test_with_a_component_every_policy_still_holds(tree):
    for component, overlay in [
        ("drain", "single"),
        ("gateway", "single"),
        ("gateway", "ingress"),
        ("gke-gateway", "group"),
        ("ingress-nginx", "ingress"),
        ("monitor", "single"),
        ("monitor", "group"),
    ]:
        docs = build(tree, overlay, (component,))
        validate(docs)
        expected = TWO_NODES if overlay == "group" else ONE_NODE
        way_in = overlay == "ingress" or component in ("gateway", "gke-gateway")
        assert problems(docs, Expected(**{**vars(expected), "way_in": way_in})) == {}, component


def test_nothing_of_a_vendor_is_there_unless_a_component_is_named(tree):
    """The first `kubectl apply` needs no operator, and nothing but what a plan on several nodes needs."""
    kinds = {doc["kind"] for name in ("single", "ingress") for doc in build(tree, name)}
    assert kinds == {
        *("Deployment", "Ingress", "Job", "NetworkPolicy", "PersistentVolumeClaim", "Service"),
    }
    assert "annotations" not in of(build(tree, "ingress"), "Ingress")[0]["metadata"]


@pytest.mark.parametrize("overlay", ["single", "group"])
def test_the_monitor_lets_prometheus_in_and_nothing_else(tree, overlay):
    before, after = build(tree, overlay), build(tree, overlay, ("monitor",))
    assert len(after) == len(before) + 1
    (rule,) = of(before, "NetworkPolicy")
    (opened,) = of(after, "NetworkPolicy")
    *same, added = opened["spec"]["ingress"]
    assert same == rule["spec"]["ingress"]
    (source,) = added["from"]
    labels = {"kubernetes.io/metadata.name": "monitoring"}
    assert source == {"namespaceSelector": {"matchLabels": labels}}
    assert added["ports"] == [{"port": 8000}]


def test_ingress_nginx_cuts_neither_long_answers_nor_large_bodies(tree):
    """Its own limits are 60 s between two packets and 1 MB (proxy-read-timeout, proxy-body-size)."""
    docs = build(tree, "ingress", ("ingress-nginx",))
    (ingress,) = of(docs, "Ingress")
    annotations = ingress["metadata"]["annotations"]
    name = "nginx.ingress.kubernetes.io/proxy"
    assert int(annotations[f"{name}-read-timeout"]) >= 600
    assert int(annotations[f"{name}-send-timeout"]) >= 600
    assert int(annotations[f"{name}-body-size"].removesuffix("m")) >= 64
    assert annotations[f"{name}-buffering"] == "off"
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert "from" in of(docs, "NetworkPolicy")[0]["spec"]["ingress"][0]


def test_a_route_opens_what_the_key_guards_and_waits_ten_minutes(tree):
    docs = build(tree, "single", ("gateway",))
    (rule,) = of(docs, "HTTPRoute")[0]["spec"]["rules"]
    assert rule["timeouts"] == {"request": "10m"}
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": GUARDED_BY_VLLM}}]
    assert of(docs, "NetworkPolicy")[0]["spec"]["ingress"] == [{"ports": [{"port": 8000}]}]


def test_gkes_gateway_waits_ten_minutes_and_asks_the_path_without_a_key(tree):
    docs = build(tree, "single", ("gke-gateway",))
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
    docs = build(tree, "single", ("gke-gateway", "monitor", "volume-owner"))
    validate(docs)
    assert {"GCPBackendPolicy", "HealthCheckPolicy"} <= {doc["kind"] for doc in docs}


def test_the_proxy_of_the_patch_reaches_the_download(tree):
    """The names are those that httpx reads."""
    patches = readme_patches()["A proxy and certificates for the download"]
    download = containers(templates(build(tree, "single", patches=patches))["weights"])[0]
    assert {"HTTPS_PROXY", "SSL_CERT_FILE"} <= set(env(download))
