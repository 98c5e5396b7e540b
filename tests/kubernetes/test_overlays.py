"""kubernetes/: the committed overlays are what the plan renders, valid by the schemas, and right by every policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from k8s_cases import (
    EXPECTED,
    GUARD_IMAGE,
    OVERLAYS,
    TREE,
    built,
    by_kind,
    case_of,
    command_of,
    on_openshift,
    rendered,
    resolved,
)
from k8s_policies import problems
from k8s_read import Expected, of, serving, templates

from workshop.engine.planning import plan
from workshop.servers import kubernetes

KUBERNETES_VERSION = "1.34"
SCHEMAS = {
    json.loads(path.read_text())["properties"]["kind"]["const"]: json.loads(path.read_text())
    for path in (Path(__file__).parent / "schemas").glob("*.json")
}


def test_there_is_an_overlay_for_each_of_the_five_models():
    assert sorted(path.name for path in (TREE / "overlays").iterdir()) == sorted(OVERLAYS)


def test_the_committed_files_are_byte_for_byte_what_their_command_renders(tmp_path):
    for name in OVERLAYS:
        made, options = case_of(name)
        folder = tmp_path / name
        kubernetes.write(made, folder, options, command_of(name))
        paths = sorted(path.relative_to(folder) for path in folder.rglob("*.yaml"))
        for path in paths:
            committed = TREE / path
            assert committed.exists() and committed.read_bytes() == (folder / path).read_bytes(), (
                f"kubernetes/{path} is not what the plan renders now. Run: {command_of(name)}"
            )
        shared = {path for path in paths if path.parts[0] == "components"}
        assert {path.relative_to(TREE) for path in (TREE / "components").rglob("*.*")} == shared, (
            name
        )


def test_what_is_printed_is_what_the_overlay_resolves_to():
    for name in OVERLAYS:
        assert by_kind(rendered(name)) == by_kind(resolved(name)), name


def test_with_openshift_too():
    for name in OVERLAYS:
        assert by_kind(rendered(name, openshift=True)) == by_kind(on_openshift(name)), name


def test_a_manifest_is_short_enough_to_be_read():
    for name in OVERLAYS:
        made, options = case_of(name)
        guarded = replace(options, guard_image=GUARD_IMAGE)
        for text in (kubernetes.render(made, options), kubernetes.render(made, guarded)):
            assert len(text.splitlines()) < 500, name


def test_kustomize_itself_makes_the_same_where_it_is_at_hand(tmp_path, subtests):
    for name in OVERLAYS:
        with subtests.test(name):
            built(TREE / "overlays" / name)
            made, options = case_of(name)
            kubernetes.write(made, tmp_path, replace(options, openshift=True))
            built(tmp_path / "overlays" / name)


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


def test_every_resource_is_valid_by_the_schemas(subtests):
    for name in OVERLAYS:
        with subtests.test(name):
            validate(resolved(name))
            validate(on_openshift(name))


def test_the_schemas_find_a_mistake(subtests):
    for kind, spoil in [
        ("Deployment", lambda spec: spec.update(replica=1)),
        ("PersistentVolumeClaim", lambda spec: spec.update(accessModes="ReadWriteOnce")),
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
        ("PodMonitor", lambda spec: spec["podMetricsEndpoints"][0].update(interval="often")),
        (
            "ScaledObject",  # KEDA wants texts
            lambda spec: spec["triggers"][0]["metadata"].update(threshold=5),
        ),
        ("HTTPRoute", lambda spec: spec["rules"][0].update(timeouts={"request": "600"})),
    ]:
        with subtests.test(kind):
            docs = on_openshift("llama-3-1-405b" if kind == "LeaderWorkerSet" else "mistral-7b")
            for name in ("monitor/pod-monitor", "keda/scaled-object", "gateway/http-route"):
                docs.append(yaml.safe_load((TREE / f"components/{name}.yaml").read_text()))
            doc = of(docs, kind)[0]
            validate([doc])
            spoil(doc["spec"])
            with pytest.raises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                validate([doc])


def test_every_overlay_holds_to_every_policy():
    for name in OVERLAYS:
        assert problems(resolved(name), EXPECTED[name]) == {}, name
        expected = Expected(**{**vars(EXPECTED[name]), "openshift": True})
        assert problems(on_openshift(name), expected) == {}, name
        guarded = Expected(**{**vars(EXPECTED[name]), "guard": True})
        docs = rendered(name, guard_image=GUARD_IMAGE)
        validate(docs)
        assert problems(docs, guarded) == {}, name


def test_any_other_model_holds_to_them_too(subtests):
    for model, gpu, hardware in [
        ("qwen3-30b-a3b", "h200", {"gpus_per_node": 1}),
        ("llama-3.1-405b-fp8", "h100", {"gpus_per_node": 8}),
        ("deepseek-r1", "h200", {"gpus_per_node": 8, "nodes": 2}),
        ("mixtral-8x7b", "l40s", {"gpus_per_node": 4}),
    ]:
        with subtests.test(model):
            p = plan(model, gpu, usage="serve", max_model_len=8192, **hardware)
            case = kubernetes.KubernetesServer(p)
            expected = Expected(case.weight_bytes, p.nodes, case.gpus_per_pod, case.product)
            docs = kubernetes.manifests(p)
            validate(docs)
            assert problems(docs, expected) == {}


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
