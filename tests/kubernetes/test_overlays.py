"""kubernetes/: the committed overlays are what the plan renders, valid by the schemas, and right by every policy."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import jsonschema
import k8s_kustomize
import kubernetes_validate
import pytest
import yaml
from k8s_cases import EXPECTED, OVERLAYS, TREE, arguments_of, by_kind, on_openshift, resolved, run
from k8s_policies import problems
from k8s_read import Expected, of, serving, templates

from workshop.engine.exact import plan
from workshop.servers import kubernetes
from workshop.servers.kubernetes import code
from workshop.servers.kubernetes.rendering import make

KUBERNETES_VERSION = "1.34"
SCHEMAS = {
    json.loads(path.read_text())["properties"]["kind"]["const"]: json.loads(path.read_text())
    for path in (Path(__file__).parent / "schemas").glob("*.json")
}


def test_there_is_an_overlay_for_each_of_the_five_models():
    assert sorted(path.name for path in (TREE / "overlays").iterdir()) == sorted(OVERLAYS)


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_committed_files_are_byte_for_byte_what_their_command_renders(name, tmp_path):
    arguments = arguments_of(name)
    run([*arguments[: arguments.index("--output")], "--output", str(tmp_path)])
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.yaml"))
    made.remove(Path("code/kustomization.yaml"))  # elsewhere with copies, here without
    for path in made:
        committed = TREE / path
        assert committed.exists() and committed.read_bytes() == (tmp_path / path).read_bytes(), (
            f"kubernetes/{path} is not what the plan renders now. Run: workshop kubernetes {shlex.join(arguments)}"
        )
    shared = {path for path in made if path.parts[0] != "overlays"}
    assert {
        path.relative_to(TREE)
        for part in ("base", "components")
        for path in (TREE / part).rglob("*.*")
    } == shared


@pytest.mark.parametrize("name", OVERLAYS)
def test_what_is_printed_is_what_the_overlay_resolves_to(name):
    arguments = arguments_of(name)
    printed = list(yaml.safe_load_all(run(arguments[: arguments.index("--output")])))
    assert by_kind(printed) == by_kind(resolved(name))


@pytest.mark.parametrize("name", OVERLAYS)
def test_with_openshift_too(name, tmp_path):
    arguments = arguments_of(name)
    printed = list(
        yaml.safe_load_all(run([*arguments[: arguments.index("--output")], "--openshift"]))
    )
    assert by_kind(printed) == by_kind(on_openshift(name, tmp_path))


@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_itself_makes_the_same_where_it_is_at_hand(name, tmp_path):
    folder = TREE / "overlays" / name
    ours = by_kind(resolved(name))
    tool = shutil.which("kubectl")
    theirs = (
        ours
        if tool is None
        else list(
            yaml.safe_load_all(
                subprocess.run(
                    [tool, "kustomize", str(folder)], capture_output=True, text=True, check=True
                ).stdout
            )
        )
    )
    assert by_kind(theirs) == ours
    ours = by_kind(on_openshift(name, tmp_path))
    theirs = (
        ours
        if tool is None
        else list(
            yaml.safe_load_all(
                subprocess.run(
                    [tool, "kustomize", str(tmp_path / "overlays" / name)],
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
        )
    )
    assert by_kind(theirs) == ours


def validate(docs: list[dict]) -> None:
    for doc in docs:
        if doc["kind"] in SCHEMAS:
            jsonschema.validate(doc, SCHEMAS[doc["kind"]])
        else:
            kubernetes_validate.validate(doc, KUBERNETES_VERSION, strict=True)
    for template in templates(docs).values():  # also those inside a LeaderWorkerSet
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": "x"},
            "spec": template["spec"],
        }
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_resource_is_valid_by_the_schemas(name, tmp_path):
    validate(resolved(name))
    validate(on_openshift(name, tmp_path))


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("Deployment", lambda spec: spec.update(replica=1)),
        ("PersistentVolumeClaim", lambda spec: spec.update(accessModes="ReadWriteOnce")),
        ("PodMonitor", lambda spec: spec["podMetricsEndpoints"][0].update(interval="often")),
        ("Route", lambda spec: spec["tls"].update(termination="http")),
        (
            "LeaderWorkerSet",
            lambda spec: spec["leaderWorkerTemplate"].update(restartPolicy="Always"),
        ),
        (
            "LeaderWorkerSet",
            lambda spec: spec["leaderWorkerTemplate"]["workerTemplate"]["spec"].update(
                container=[]
            ),
        ),
    ],
)
def test_the_schemas_find_a_mistake(kind, spoil, tmp_path):
    docs = on_openshift("llama-3-1-405b" if kind == "LeaderWorkerSet" else "mistral-7b", tmp_path)
    spoil(of(docs, kind)[0]["spec"])
    with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
        validate(docs)


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_holds_to_every_policy(name, tmp_path):
    assert problems(resolved(name), EXPECTED[name]) == {}
    expected = Expected(**{**vars(EXPECTED[name]), "openshift": True})
    assert problems(on_openshift(name, tmp_path), expected) == {}


@pytest.mark.parametrize(
    ("model", "gpu", "hardware"),
    [
        ("qwen3-30b-a3b", "h200", {"gpus_per_node": 1}),
        ("llama-3.1-405b-fp8", "h100", {"gpus_per_node": 8}),
        ("deepseek-r1", "h200", {"gpus_per_node": 8, "nodes": 2}),
        ("mixtral-8x7b", "l40s", {"gpus_per_node": 4}),
    ],
)
def test_any_other_model_holds_to_them_too(model, gpu, hardware):
    p = plan(model, gpu, usage="serve", max_model_len=8192, **hardware)
    case = kubernetes.Case(p)
    expected = Expected(case.weight_bytes, p.nodes, case.gpus_per_pod, case.product)
    docs = kubernetes.manifests(p)
    validate(docs)
    assert problems(docs, expected) == {}


def test_the_pods_code_is_the_packages_and_fits_into_a_config_map():
    data = of(resolved("mistral-7b"), "ConfigMap")[0]["data"]
    assert len(data) == len(code.MODULES)
    # kubectl apply keeps a copy in an annotation of 256 KiB
    assert sum(map(len, data.values())) < 250_000
    for name in code.MODULES:
        folder = TREE.parent / ("planner" if name.startswith("inference_planner/") else "")
        text = "" if name.endswith("__init__") else (folder / f"{name}.py").read_text()
        assert data[f"{name.replace('/', '.')}.py"] == text


def test_a_tree_elsewhere_has_the_same_code_as_copies(tmp_path):
    arguments = arguments_of("mistral-7b")
    run([*arguments[: arguments.index("--output")], "--output", str(tmp_path)])
    copies = {path.relative_to(tmp_path / "code") for path in tmp_path.rglob("*.py")}
    assert copies == {Path(f"{name}.py") for name in code.MODULES}
    here = of(resolved("mistral-7b"), "ConfigMap")
    assert of(k8s_kustomize.build(tmp_path / "overlays/mistral-7b"), "ConfigMap") == here


def test_a_tree_in_the_checkout_has_no_copies_and_points_to_the_packages():
    assert code.is_in_checkout(TREE) and not list(TREE.rglob("*.py"))
    committed = (TREE / "code/kustomization.yaml").read_text()
    assert committed == make("code", in_checkout=True)


def test_no_python_stands_in_the_committed_manifests():
    for path in TREE.rglob("*.yaml"):
        assert "import " not in path.read_text(), path


def test_the_readmes_table_has_the_overlays_own_figures():
    rows = {
        cells[0].strip("` "): cells[1:]
        for line in (TREE / "README.md").read_text().splitlines()
        if line.startswith("| `") and len(cells := line.strip("|").split("|")) == 6
    }
    assert sorted(rows) == sorted(OVERLAYS)
    for name, cells in rows.items():
        docs = resolved(name)
        probe = serving(docs)["server"]["spec"]["containers"][0]["startupProbe"]
        claim = of(docs, "PersistentVolumeClaim")[0]["spec"]["resources"]["requests"]["storage"]
        minutes = -(-probe["periodSeconds"] * probe["failureThreshold"] // 60)
        weights = EXPECTED[name].weight_bytes / 1e9
        assert [cell.strip() for cell in cells[1:4]] == [
            f"{weights:.1f} GB",
            claim.replace("Gi", " GiB"),
            f"{minutes} minutes",
        ], name
