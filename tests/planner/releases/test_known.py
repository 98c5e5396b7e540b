"""Which version of vLLM has an architecture, and what a plan says where it is another one."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import architectures
from inference_planner.catalog import load_model
from inference_planner.releases.registries import lacks, registries
from inference_planner.releases.versions import numbers
from needs import lacking

from workshop.engine.exact import ask
from workshop.engine.planning import plan


# vLLM's own list _PREVIOUSLY_SUPPORTED_MODELS (0.33.0), and the registry.py of the wheels named
def test_it_says_which_version_has_an_architecture():
    for name, version, message in [
        ("PersimmonForCausalLM", "0.32.0", "0.25.1 was the last"),
        ("MptForCausalLM", "0.32.0+cpu", "0.28.0 was the last"),
        ("MptForCausalLM", "0.28.0", ""),
        ("KimiK3ForConditionalGeneration", "0.25.1", "0.27.0 is the first"),
        ("KimiK3ForConditionalGeneration", "0.32.0", ""),
        ("Step5ForCausalLM", "0.32.0", "0.33.0 is the first"),
        ("LlamaForCausalLM", "0.25.1", ""),
        ("LlamaForCausalLM", "0.99.0", ""),  # newer than what was read
        ("SuperNovaForCausalLM", "0.25.1", "No vLLM from 0.6.0 to"),
    ]:
        assert message in lacks(name, version) and bool(message) == bool(lacks(name, version)), (
            name,
            version,
        )


def test_the_table_is_what_the_installed_registry_says_of_itself():
    """Its architectures are known to its version; what it lists as gone, with the last version, is gone."""
    spec, version = importlib.util.find_spec("vllm"), ask.version()
    if not spec or version not in registries()["versions"]:
        lacking(
            "vLLM is not installed, or its version is not in the table: python benchmarks/architectures.py VERSION"
        )
    text = (Path(spec.origin).parent / "model_executor/models/registry.py").read_text()
    assert not [name for name in architectures.architectures(text) if lacks(name, version)]
    (listed,) = re.findall(
        r"^_PREVIOUSLY_SUPPORTED_MODELS = (\{.*?^\})", text, re.DOTALL | re.MULTILINE
    )
    gone = {
        name: last
        for name, last in ast.literal_eval(listed).items()
        if name in registries()["architectures"]
    }
    assert len(gone) > 30 and all("was the last" in lacks(name, version) for name in gone)
    off = [name for name, last in gone.items() if registries()["architectures"][name][1] != last]
    # its list names the version before in a few cases: their classes are in that wheel, too
    assert len(off) <= 8


def test_versions_are_read_in_any_order():
    read = {"versions": [], "architectures": {}}
    for version, names in (("0.10.0", {"A", "B"}), ("0.9.2", {"A", "C"}), ("0.10.1.1", {"B"})):
        architectures.add(read, version, names)
    assert read["versions"] == ["0.9.2", "0.10.0", "0.10.1.1"]
    assert read["architectures"] == {
        "A": ["0.9.2", "0.10.0"],
        "B": ["0.10.0", "0.10.1.1"],
        "C": ["0.9.2", "0.9.2"],
    }
    assert numbers("0.8.5.post1") > numbers("0.8.5") and numbers("0.10.0") > numbers("0.9.2")


def test_of_a_registry_what_is_served_is_taken():
    text = '_A_MODELS = {"X": ("x", "X")}\n_B_MODELS = {"Y": ("y", "Y"), **_A_MODELS}\n_SPECULATIVE_DECODING_MODELS = {"E": 1}\n'
    assert architectures.architectures(
        text + '_PREVIOUSLY_SUPPORTED_MODELS = {"O": "0.1"}\nother = {"Z": 1}'
    ) == {"X", "Y"}


def test_a_plan_says_that_its_version_does_not_have_the_architecture():
    old, new = (
        plan("kimi-k3", "b300", vllm_version=version, exact=False)
        for version in ("0.25.1", "0.32.0")
    )
    reason = (
        "vLLM 0.25.1 does not have KimiK3ForConditionalGeneration: 0.27.0 is the first that does."
    )
    assert reason in old.reasons and not [r for r in new.reasons if "does not have" in r]


def test_a_refusal_of_exact_planning_names_the_version_that_would_do():
    m = load_model("kimi-k3")
    error = {"error": "Model architectures ['KimiK3'] are not supported for now.", "vllm": "0.25.1"}
    assert "0.27.0 is the first that does" in ask.refusal(m, error).remedy
