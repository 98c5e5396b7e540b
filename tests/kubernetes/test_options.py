"""What a cluster asks for beside the plan: images of its own, queues, labels, mirrors; and weights before GPUs."""

from __future__ import annotations

import shlex

import jsonschema
import pytest
import yaml
from k8s_cases import OVERLAYS, resolved, run
from k8s_read import GPU, env, of, serving, templates, vllm
from test_overlays import validate

from workshop.engine.exact import plan
from workshop.errors import BadInput
from workshop.servers import kubernetes, vm

NODES = {"one": {"gpus_per_node": 4}, "two": {"gpus_per_node": 2, "nodes": 2}}
ALL = [
    *(
        "--image",
        "registry.example/vllm:v0.25.1",
        "--pull-secret",
        "registry",
        "--hf-endpoint",
        "https://mirror.example",
    ),
    *(
        "--node-selector",
        "pool=h100",
        "--node-selector",
        "example.org/zone=a",
        "--priority-class",
        "course",
    ),
    *("--queue", "gpus", "--ingress", "llm.example.org", "--rdma", "rdma/ib", "--replicas", "2"),
    *("--http-route", "llm.example.org", "--gateway", "edge/public"),
]


@pytest.fixture(params=NODES, scope="module")
def made(request) -> tuple[str, list[dict]]:
    hardware = [
        f"--{name.replace('_', '-')}={value}" for name, value in NODES[request.param].items()
    ]
    text = run(["llama-3.1-70b", "--gpu", "h100", *hardware, "--max-model-len", "8192", *ALL])
    return text, list(yaml.safe_load_all(text))


def test_every_option_is_where_the_cluster_looks_for_it(made):
    docs = made[1]
    validate(docs)
    for template in templates(docs).values():
        spec = template["spec"]
        assert {
            container["image"]
            for container in (*spec["containers"], *spec.get("initContainers", []))
        } == {ALL[1]}
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
    for template in serving(docs).values():
        assert template["spec"]["nodeSelector"] == {"pool": "h100", "example.org/zone": "a"}
    assert (
        env(templates(docs)["weights"]["spec"]["containers"][0])["HF_ENDPOINT"]["value"]
        == "https://mirror.example"
    )
    for template in serving(docs).values():
        assert template["spec"]["priorityClassName"] == "course"
        assert all(
            vllm(template)["resources"][kind]["rdma/ib"] == "1" for kind in ("requests", "limits")
        )
    (server,) = (doc for doc in docs if doc["kind"] in ("Deployment", "LeaderWorkerSet"))
    assert server["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert server["spec"]["replicas"] == 2
    rule = of(docs, "Ingress")[0]["spec"]
    backend = rule["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert rule["tls"][0]["hosts"] == [rule["rules"][0]["host"]] == ["llm.example.org"]
    assert backend["name"] == of(docs, "Service")[0]["metadata"]["name"]
    route = of(docs, "HTTPRoute")[0]["spec"]
    assert route["parentRefs"] == [{"name": "public", "namespace": "edge"}]
    assert route["hostnames"] == ["llm.example.org"]
    service = of(docs, "Service")[0]
    (target,) = route["rules"][0]["backendRefs"]
    assert target == {
        "name": service["metadata"]["name"],
        "port": service["spec"]["ports"][0]["port"],
    }


def test_a_route_has_no_timeouts_which_some_gateways_refuse(made):
    assert "timeouts" not in of(made[1], "HTTPRoute")[0]["spec"]["rules"][0]


def test_ingress_nginx_cuts_neither_long_answers_nor_large_bodies(made):
    """Its own limits are 60 s between two packets and 1 MB (proxy-read-timeout, proxy-body-size)."""
    annotations = of(made[1], "Ingress")[0]["metadata"]["annotations"]
    name = "nginx.ingress.kubernetes.io/proxy"
    assert (
        int(annotations[f"{name}-read-timeout"]) >= 600
        and int(annotations[f"{name}-send-timeout"]) >= 600
    )
    assert int(annotations[f"{name}-body-size"].removesuffix("m")) >= 64
    assert annotations[f"{name}-buffering"] == "off"


@pytest.mark.parametrize(
    ("gpu", "labels", "wanted"),
    [
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
    ],
)
def test_the_download_goes_to_the_place_of_the_gpus_but_to_any_node_there(gpu, labels, wanted):
    p = plan("mistral-7b", gpu, gpus_per_node=1)
    docs = kubernetes.manifests(p, kubernetes.Options(node_selector=labels))
    assert templates(docs)["weights"]["spec"]["nodeSelector"] == wanted


def test_servers_on_several_nodes_get_a_volume_that_several_nodes_mount(made):
    claim = of(made[1], "PersistentVolumeClaim")[0]["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    for template in templates(made[1]).values():
        assert "podAffinity" not in template["spec"].get("affinity", {})


def test_the_command_on_top_makes_the_same_again(made):
    arguments = shlex.split(made[0].splitlines()[0].removeprefix("# "))
    assert run(arguments[2:]) == made[0]


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_weights_can_come_before_any_gpu_is_held(name):
    """`kubectl apply -k … -l app.kubernetes.io/component!=server`, as the README has it."""
    docs = resolved(name)
    first = [
        doc
        for doc in docs
        if doc["metadata"]["labels"].get("app.kubernetes.io/component") != "server"
    ]
    assert {doc["kind"] for doc in first} == {
        "ConfigMap",
        "Job",
        "PersistentVolumeClaim",
        "PodMonitor",
    }
    assert GPU not in str(
        [doc["spec"]["template"]["spec"]["containers"] for doc in of(first, "Job")]
    )


def test_a_long_name_is_cut_to_one_that_a_service_can_have():
    """Cut at 40 characters, this one would end in a dash."""
    p = plan("llama-3.3-nemotron-super-49b", "rtx-6000-ada", gpus_per_node=4, usage="serve")
    assert kubernetes.Case(p).name == "llama-3-3-nemotron-super-49b-4xrtx-6000"


def test_what_is_each_replicas_is_not_said_of_the_server():
    p = plan(
        "llama-3.1-8b",
        "h100",
        gpus_per_node=2,
        data_parallel_size=2,
        tensor_parallel_size=1,
        usage="serve",
    )
    assert "PP 1 × DP 2, in each replica: " in " ".join(kubernetes.header(kubernetes.Case(p)))
    assert "2 × h100, in each of 2 replicas: " in vm.render(vm.Case(p))


@pytest.mark.parametrize(
    "changed",
    [
        {"image": "registry.example/vllm:v0.25.1"},
        {"pull_secret": "registry"},
        {"hf_endpoint": "https://mirror.example"},
        {"node_selector": ("nvidia.com/gpu.product=A", "topology.kubernetes.io/zone=b")},
        {"replicas": 2},
    ],
)
def test_a_download_that_runs_something_else_is_another_job(changed):
    """kubectl refuses to change a Job: "field is immutable"."""
    p = plan("mistral-7b", "a100", gpus_per_node=1)
    (first,) = of(kubernetes.manifests(p), "Job")
    (second,) = of(kubernetes.manifests(p, kubernetes.Options(**changed)), "Job")
    assert first["spec"] != second["spec"]
    assert first["metadata"]["name"] != second["metadata"]["name"]


def test_the_same_download_is_the_same_job():
    p = plan("mistral-7b", "a100", gpus_per_node=1)
    server = kubernetes.Options(
        priority_class="course", ingress="llm.example.org", load_gb_per_s=1.0
    )
    (first,) = of(kubernetes.manifests(p), "Job")
    (second,) = of(kubernetes.manifests(p, server), "Job")
    assert first == second


def test_a_slice_of_a_gpu_says_which_strategy_it_is_for():
    p = plan("mistral-7b", "h100-mig-3g.40gb", gpus_per_node=1, usage="serve", max_model_len=8192)
    assert "MIG strategy single" in " ".join(kubernetes.header(kubernetes.Case(p)))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("image", "vllm/vllm-openai"),
        ("image", "vllm/vllm-openai:latest"),
        ("image", "a b:c"),
        ("image", "{a}:v1"),
        ("image", "&a:v1"),
        ("pull_secret", "Not A Secret"),
        ("hf_endpoint", "mirror.example"),
        ("hf_endpoint", "https://mirror.example/\n- x"),
        ("node_selector", ("pool",)),
        ("node_selector", ("pool=h100", "=a")),
        ("ingress", "https://llm.example.org"),
        ("http_route", "https://llm.example.org"),
        ("gateway", "edge/public/x"),
        ("storage_class", "A B"),
        ("priority_class", "-x"),
        ("queue", "a_b"),
        ("rdma", "ib"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_with_its_form(option, value):
    p = plan("mistral-7b", "a100", gpus_per_node=1)
    with pytest.raises(BadInput, match=f"--{option.replace('_', '-')} .* is not "):
        kubernetes.Case(p, kubernetes.Options(**{option: value}))


@pytest.mark.parametrize("options", [{"http_route": "llm.example.org"}, {"gateway": "public"}])
def test_a_route_needs_its_gateway(options):
    p = plan("mistral-7b", "a100", gpus_per_node=1)
    with pytest.raises(BadInput, match="belong together"):
        kubernetes.Case(p, kubernetes.Options(**options))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda spec: spec["rules"][0].update(timeouts={"request": "600"}),
        lambda spec: spec["rules"][0]["backendRefs"][0].update(port="http"),
        lambda spec: spec.update(hostnames=["https://llm.example.org"]),
        lambda spec: spec["parentRefs"][0].pop("name"),
    ],
)
def test_the_schema_of_the_route_finds_a_mistake(spoil):
    options = kubernetes.Options(http_route="llm.example.org", gateway="public")
    docs = kubernetes.manifests(plan("mistral-7b", "a100", gpus_per_node=1), options)
    validate(docs)
    spoil(of(docs, "HTTPRoute")[0]["spec"])
    with pytest.raises(jsonschema.ValidationError):
        validate(docs)
