"""What a cluster asks for beside the plan: images of its own, queues, labels, mirrors; and weights before GPUs."""

from __future__ import annotations

import ast
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from k8s_cases import GUARD_IMAGE, OVERLAYS, TREE, built, by_kind, printed, resolved
from k8s_policies import problems
from k8s_read import GPU, Expected, env, of, serving, templates, vllm
from needs import lacking
from test_overlays import validate

from workshop.engine.planning import plan
from workshop.errors import BadInput
from workshop.servers import kubernetes, vm
from workshop.servers.kubernetes.rendering import GUARDED_BY_VLLM
from workshop.servers.local import TEACHING_FOLDER

OWN = {"claim": "shared-models", "model_path": "team/my-llama"}
NODES = {"one": "--gpus-per-node 4", "two": "--gpus-per-node 2 --nodes 2"}
IMAGE = "registry.example/vllm:v0.25.1"
ALL = (
    f"--image {IMAGE} --pull-secret registry --hf-endpoint https://mirror.example "
    "--node-selector pool=h100 --node-selector example.org/zone=a "
    "--ingress llm.example.org --replicas 2"
)


@pytest.fixture(params=NODES, scope="module")
def made(request) -> tuple[str, list[dict]]:
    model = "workshop plan llama-3.1-70b --gpu h100 --max-model-len 8192"
    text = printed(f"{model} {NODES[request.param]} --as kubernetes {ALL}")
    return text, list(yaml.safe_load_all(text))


def test_every_option_is_where_the_cluster_looks_for_it(made):
    docs = made[1]
    validate(docs)
    for template in templates(docs).values():
        spec = template["spec"]
        assert {
            container["image"]
            for container in (*spec["containers"], *spec.get("initContainers", []))
        } == {IMAGE}
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
    for template in serving(docs).values():
        assert template["spec"]["nodeSelector"] == {"pool": "h100", "example.org/zone": "a"}
    assert (
        env(templates(docs)["weights"]["spec"]["containers"][0])["HF_ENDPOINT"]["value"]
        == "https://mirror.example"
    )
    (server,) = (doc for doc in docs if doc["kind"] in ("Deployment", "LeaderWorkerSet"))
    assert server["spec"]["replicas"] == 2
    rule = of(docs, "Ingress")[0]["spec"]
    backend = rule["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert rule["tls"][0]["hosts"] == [rule["rules"][0]["host"]] == ["llm.example.org"]
    assert backend["name"] == of(docs, "Service")[0]["metadata"]["name"]


def test_an_ingress_opens_what_the_key_guards(made):
    (path,) = of(made[1], "Ingress")[0]["spec"]["rules"][0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/v1", "Prefix")


def test_the_download_goes_to_the_place_of_the_gpus_but_to_any_node_there():
    for gpu, labels, wanted in [
        ("a100", (), {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}),
        # its nodes are arm64, others of the cluster may be amd64
        ("gh200", (), {"kubernetes.io/os": "linux"}),
        (
            "a100",
            (
                "nvidia.com/gpu.product=A",
                "topology.kubernetes.io/zone=b",
                "kubernetes.io/arch=arm64",
                "pool=gpu",
            ),
            {
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "arm64",
                "topology.kubernetes.io/zone": "b",
            },
        ),
    ]:
        p = plan("mistral-7b", gpu, gpus_per_node=1)
        docs = kubernetes.manifests(p, kubernetes.Options(node_selector=labels))
        assert templates(docs)["weights"]["spec"]["nodeSelector"] == wanted, gpu


def test_servers_on_several_nodes_get_a_volume_that_several_nodes_mount(made):
    claim = of(made[1], "PersistentVolumeClaim")[0]["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    for template in templates(made[1]).values():
        assert "podAffinity" not in template["spec"].get("affinity", {})


def test_the_weights_can_come_before_any_gpu_is_held():
    """`kubectl apply -k … -l app.kubernetes.io/component!=server`, as the README has it."""
    for name in OVERLAYS:
        docs = resolved(name)
        first = [
            doc
            for doc in docs
            if doc["metadata"]["labels"].get("app.kubernetes.io/component") != "server"
        ]
        assert {doc["kind"] for doc in first} == {"Job", "PersistentVolumeClaim"}, name
        assert GPU not in str(
            [doc["spec"]["template"]["spec"]["containers"] for doc in of(first, "Job")]
        ), name


def test_a_long_name_is_cut_to_one_that_a_service_can_have():
    """Cut at 40 characters, this one would end in a dash."""
    p = plan("llama-3.3-nemotron-super-49b", "rtx-6000-ada", gpus_per_node=4, usage="serve")
    assert kubernetes.KubernetesServer(p).name == "llama-3-3-nemotron-super-49b-4xrtx-6000"


def test_what_is_each_replicas_is_not_said_of_the_server():
    p = plan(
        "llama-3.1-8b",
        "h100",
        gpus_per_node=2,
        data_parallel_size=2,
        tensor_parallel_size=1,
        usage="serve",
    )
    assert "PP 1 × DP 2, in each replica: " in " ".join(
        kubernetes.header(kubernetes.KubernetesServer(p))
    )
    assert "2 × h100, in each of 2 replicas: " in vm.render(vm.VmServer(p))


def test_a_download_that_runs_something_else_is_another_job():
    """kubectl refuses to change a Job: "field is immutable"."""
    for changed in [
        {"image": "registry.example/vllm:v0.25.1"},
        {"pull_secret": "registry"},
        {"hf_endpoint": "https://mirror.example"},
        {"node_selector": ("nvidia.com/gpu.product=A", "topology.kubernetes.io/zone=b")},
        {"replicas": 2},
    ]:
        p = plan("mistral-7b", "a100", gpus_per_node=1)
        (first,) = of(kubernetes.manifests(p), "Job")
        (second,) = of(kubernetes.manifests(p, kubernetes.Options(**changed)), "Job")
        assert first["spec"] != second["spec"], changed
        assert first["metadata"]["name"] != second["metadata"]["name"], changed


def test_the_same_download_is_the_same_job():
    p = plan("mistral-7b", "a100", gpus_per_node=1)
    server = kubernetes.Options(ingress="llm.example.org", load_gb_per_s=1.0)
    (first,) = of(kubernetes.manifests(p), "Job")
    (second,) = of(kubernetes.manifests(p, server), "Job")
    assert first == second


def test_a_slice_of_a_gpu_says_which_strategy_it_is_for():
    p = plan("mistral-7b", "h100-mig-3g.40gb", gpus_per_node=1, usage="serve", max_model_len=8192)
    assert "MIG strategy single" in " ".join(kubernetes.header(kubernetes.KubernetesServer(p)))


def test_what_kubernetes_would_refuse_is_refused_with_its_form(subtests):
    for option, value in [
        ("image", "vllm/vllm-openai"),
        ("image", "vllm/vllm-openai:latest"),
        ("image", "{a}:v1"),
        ("guard_image", "vllm-workshop:latest"),
        ("claim", "Shared Models"),
        ("model_path", "/team/my-llama"),
        ("model_path", "team/../other"),
        ("pull_secret", "Not A Secret"),
        ("hf_endpoint", "https://mirror.example/\n- x"),
        ("node_selector", ("pool=h100", "=a")),
        ("ingress", "https://llm.example.org"),
        ("storage_class", "A B"),
    ]:
        with subtests.test(f"{option} {value}"):
            p = plan("mistral-7b", "a100", gpus_per_node=1)
            with pytest.raises(BadInput, match=f"--{option.replace('_', '-')} .* is not "):
                kubernetes.KubernetesServer(p, kubernetes.Options(**{option: value}))


def test_what_belongs_together_is_asked_for_together(subtests):
    for options in [
        {"claim": "shared-models"},
        {"model_path": "team/my-llama"},
    ]:
        with subtests.test(str(options)):
            p = plan("mistral-7b", "a100", gpus_per_node=1)
            with pytest.raises(BadInput, match="belong together"):
                kubernetes.KubernetesServer(p, kubernetes.Options(**options))


def test_what_contradicts_itself_is_refused(subtests):
    for options, message in [
        ({"image": IMAGE, "guard_image": IMAGE}, "name the same image"),
        ({**OWN, "pvc_size": 50}, "--pvc-size is for a volume of ours"),
        ({**OWN, "storage_class": "fast"}, "--storage-class is for a volume of ours"),
        ({**OWN, "hf_endpoint": "https://mirror.example"}, "--hf-endpoint is for a volume"),
    ]:
        with subtests.test(str(options)):
            p = plan("mistral-7b", "a100", gpus_per_node=1)
            with pytest.raises(BadInput, match=message):
                kubernetes.KubernetesServer(p, kubernetes.Options(**options))


# A model of one's own, in a claim that is there


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The config.json of a model that no Hub has."""
    made = tmp_path_factory.mktemp("models") / "my-llama"
    made.mkdir()
    shutil.copy(TEACHING_FOLDER / "config.json", made)
    return made


def test_a_model_of_ones_own_is_served_from_its_claim(folder):
    p = plan(str(folder), "h100", gpus_per_node=1)
    docs = kubernetes.manifests(p, kubernetes.Options(**OWN))
    validate(docs)
    weight_bytes = kubernetes.KubernetesServer(p, kubernetes.Options(**OWN)).weight_bytes
    expected = Expected(weight_bytes, 1, 1, "NVIDIA-H100-80GB-HBM3", claim="shared-models")
    assert problems(docs, expected) == {}
    assert {doc["kind"] for doc in docs} == {"Deployment", "NetworkPolicy", "Service"}
    args = vllm(serving(docs)["server"])["args"]
    assert args[0] == "/models/team/my-llama" and "--served-model-name=my-llama" in args


def test_a_command_on_top_is_one_line_whatever_is_in_it():
    p = plan("mistral-7b", "a100", gpus_per_node=1)
    command = "workshop plan mistral-7b --hf-overrides '{\n\"a\": 1}' \x1b[31m"
    text = kubernetes.render(p, None, command)
    assert list(yaml.safe_load_all(text)) == kubernetes.manifests(p)
    first, second, *_ = text.splitlines()
    assert first.startswith("# workshop plan mistral-7b ") and first.isprintable()
    assert second == "#" and "the command above" in text
    assert "the command above" not in kubernetes.render(p)


def test_a_hub_model_in_a_claim_keeps_its_hub_id_and_downloads_nothing():
    p = plan("mistral-7b", "a100", gpus_per_node=1)
    docs = kubernetes.manifests(p, kubernetes.Options(**OWN))
    assert not of(docs, "Job") and not of(docs, "PersistentVolumeClaim")
    assert "--served-model-name=mistralai/Mistral-7B-v0.1" in vllm(serving(docs)["server"])["args"]


def test_an_overlay_of_a_claim_has_no_weights_of_its_own(folder, tmp_path):
    p = plan(str(folder), "h100", gpus_per_node=1)
    kubernetes.write(p, tmp_path, kubernetes.Options(**OWN, name="own"))
    assert not (tmp_path / "overlays/own/weights.yaml").exists()
    printed_docs = kubernetes.manifests(p, kubernetes.Options(**OWN, name="own"))
    assert by_kind(built(tmp_path / "overlays/own")) == by_kind(printed_docs)


def test_without_a_claim_the_remedy_is_a_claim(folder):
    with pytest.raises(BadInput, match="has no address on the Hub") as refusal:
        kubernetes.KubernetesServer(plan(str(folder), "h100", gpus_per_node=1))
    assert "--claim NAME --model-path FOLDER" in refusal.value.remedy


# What the key guards


def test_the_first_lines_say_what_vllms_own_key_leaves_open():
    for options, who in [
        ({}, "lets the pods of this namespace alone"),
        ({"openshift": True}, "OpenShift's router"),
        ({"ingress": "llm.example.org"}, "every pod of the cluster reaches them"),
    ]:
        p = plan("mistral-7b", "a100", gpus_per_node=1)
        text = " ".join(
            kubernetes.header(kubernetes.KubernetesServer(p, kubernetes.Options(**options)))
        )
        assert (
            "/invocations" in text and "/tokenize" in text and "/metrics" in text and who in text
        ), options
        guarded = kubernetes.Options(**options, guard_image=GUARD_IMAGE)
        assert "/invocations" not in " ".join(
            kubernetes.header(kubernetes.KubernetesServer(p, guarded))
        ), options


def test_vllms_own_key_guards_the_path_that_a_way_in_opens():
    """The tuple in vLLM 0.32.0's vllm/entrypoints/serve/middleware/authenticate.py."""
    vllm_package = find_spec("vllm")
    if vllm_package is None or not vllm_package.submodule_search_locations:
        lacking("vLLM is not installed: make test installs it on Linux")
    folder = Path(vllm_package.submodule_search_locations[0])
    text = (folder / "entrypoints/serve/middleware/authenticate.py").read_text()
    guarded = ast.literal_eval(re.search(r"^GUARDED_PREFIX = (.*)$", text, re.MULTILINE)[1])
    assert GUARDED_BY_VLLM in guarded
    assert not {"/invocations", "/tokenize", "/metrics"} & {*guarded}


def test_the_dockerfile_is_of_the_version_that_plans_are_for():
    lines = (TREE / "Dockerfile").read_text().splitlines()
    assert len(lines) <= 10
    image = kubernetes.KubernetesServer(plan("mistral-7b", "a100", gpus_per_node=1)).image
    assert [line for line in lines if line.startswith("FROM ")] == [f"FROM {image}"]
