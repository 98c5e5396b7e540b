"""Notebooks 08 and 09: the manifest with five mistakes, what OpenShift wants, the three places, and the bits."""

from __future__ import annotations

import copy

import numpy as np
import pytest

pytest.importorskip("ipywidgets")

from check_rows import MANIFEST_FAULTS, TOO_SMALL_MACHINES

from workshop.course.exercises.sets.e08_elsewhere import IDS, too_small
from workshop.course.exercises.sets.e09_fewer_bits import CODES, FOUR, SCALE
from workshop.course.topics import manifest
from workshop.course.widgets.bits.view import BitsExplorer, bits_case, matrix
from workshop.course.widgets.elsewhere import view as elsewhere_view
from workshop.course.widgets.elsewhere.view import ThreePlaces
from workshop.engine.planning import plan
from workshop.servers import kubernetes


def test_the_codes_are_those_of_the_nearest_steps():
    assert tuple(int(np.rint(w / SCALE)) for w in FOUR) == CODES


def test_the_exercises_machines_are_those_that_the_plan_finds_too_small():
    assert too_small() == set(TOO_SMALL_MACHINES)


def test_what_may_stay_on_openshift_is_what_the_workshop_leaves_there():
    p = plan("llama-3.1-70b", "h100", gpus_per_node=4, max_model_len=32768, usage="serve")
    here, there = (
        manifest.Manifests(
            p, tuple(kubernetes.manifests(p, kubernetes.Options(openshift=openshift)))
        )
        for openshift in (False, True)
    )
    assert set(IDS) == set(here.pod["securityContext"])
    assert {name for name, why in IDS.items() if why} == set(there.pod["securityContext"])


def test_what_the_workshop_renders_breaks_no_policy():
    assert manifest.faults(manifest.sound()) == []


def test_the_spoiled_manifest_breaks_five():
    assert sorted(manifest.faults(manifest.spoiled())) == sorted(MANIFEST_FAULTS)


def spoil(change):
    """The sound manifest with one change."""
    good = manifest.sound()
    bad = manifest.Manifests(good.plan, copy.deepcopy(good.documents))
    change(bad)
    return bad


def without(items, **wanted):
    items[:] = [
        item for item in items if not all(item.get(key) == value for key, value in wanted.items())
    ]


def test_each_policy_finds_its_own_mistake_and_no_other(subtests):
    for name, change in [
        ("dtype", lambda m: m.vllm["args"].remove("--dtype=half")),
        ("startup", lambda m: m.vllm.pop("startupProbe")),
        (
            "shm",
            lambda m: next(v for v in m.pod["volumes"] if v["name"] == "shm")["emptyDir"].pop(
                "medium"
            ),
        ),
        ("key", lambda m: m.vllm["args"].append("--api-key=secret")),
        ("key", lambda m: without(m.pod["volumes"], name="key")),
        (
            "volume",
            lambda m: m.of("PersistentVolumeClaim")["spec"]["resources"]["requests"].update(
                storage="14Gi"
            ),
        ),
    ]:
        with subtests.test(name):
            assert manifest.faults(spoil(change)) == [name]


def test_the_manifest_is_shown_as_yaml_that_can_be_read_again():
    yaml = pytest.importorskip("yaml")
    claim, deployment = yaml.safe_load_all(repr(manifest.spoiled()))
    assert claim["spec"]["resources"]["requests"]["storage"] == "10Gi"
    assert "--dtype=bfloat16" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "10Gi" in manifest.spoiled()._repr_html_()


def test_the_three_places_spell_the_same_facts():
    p = plan("llama-3.1-70b", "h100", gpus_per_node=4, max_model_len=32768, usage="serve")
    for place in elsewhere_view.three(p).places:
        facts = {line.fact for line in place.lines} - {""}
        assert facts >= {"gpus", "split", "model", "length", "start", "key"}, place.name
        text = "\n".join(line.text for line in place.lines)
        assert "32768" in text and "4" in text
        assert " --gpu h100 --gpus-per-node 4 --max-model-len 32768" in place.command


def test_two_nodes_are_a_group_on_kubernetes_and_no_vm():
    view = ThreePlaces("llama-3.1-405b", "h100", gpus_per_node=8, nodes=2, max_model_len=8192)
    slurm, kubernetes, vm = view.result.places
    assert "--nodes=2" in "\n".join(line.text for line in slurm.lines)
    assert kubernetes.lines[0].text == "kind: LeaderWorkerSet" and "2 nodes" in vm.problem
    assert vm.problem.split(".")[0] in view.picture.value


def test_a_plan_that_does_not_fit_says_what_would():
    view = ThreePlaces("llama-3.1-405b", "h100", gpus_per_node=1)
    assert all(place.problem for place in view.result.places) and "✗" in view.picture.value


def test_changing_a_control_draws_anew_and_longer_than_the_model_reads_is_cut():
    view = ThreePlaces()
    view.controls["model"].show_all()
    view.controls["model"].value = "falcon-40b"  # reads 2,048 tokens
    assert (
        "2048" in view.picture.value or view.result.plan.deployment.settings.max_model_len == 2048
    )


def test_fewer_bits_make_wider_steps_and_larger_errors():
    errors = [bits_case(bits, "64 inputs", 0).error for bits in (8, 6, 4, 3, 2)]
    assert errors == sorted(errors) and errors[0] < 0.01 < 0.4 < errors[-1]
    assert bits_case(4, "64 inputs", 0).bits_per_weight == 4 + 16 / 64
    assert bits_case(4, "a whole row", 0).bits_per_weight == pytest.approx(4 + 16 / 448)


def test_the_explorer_draws_the_row_that_is_asked_for():
    view = BitsExplorer(bits=4)
    before = view.picture.value
    view.controls["row"].value = 5
    assert view.picture.value != before and np.array_equal(view.result.weights, matrix()[5, :32])
    assert "4.25 bits a weight" in view.picture.value
