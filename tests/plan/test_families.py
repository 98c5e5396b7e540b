"""Names of architectures are in the catalog alone; everything else asks for a trait."""

import ast
import re
from pathlib import Path

import inference_planner
import pytest
from inference_planner.catalog import architectures, tower
from inference_planner.split import encoders

import workshop

PLANNER = Path(inference_planner.__file__).parent
CATALOG = PLANNER / "catalog"
MODULES = [
    path
    for folder in (PLANNER, Path(workshop.__file__).parent)
    for path in sorted(folder.rglob("*.py"))
    if CATALOG not in path.parents
]
ARCHITECTURE = re.compile(r"[A-Z]\w*(ForCausalLM|ForConditionalGeneration|LMHeadModel)")


def compared_names(tree: ast.AST) -> list[str]:
    """Return the names of architectures that code compares with, also in a set, a list or an f.startswith("Name")."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare | ast.Set | ast.Match):
            names += [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
        elif isinstance(node, ast.Call) and is_prefix_test_of_architecture(node.func):
            names.append("startswith of an architecture")
    return [
        name
        for name in names
        if isinstance(name, str) and (ARCHITECTURE.fullmatch(name) or " of an arch" in name)
    ]


def is_prefix_test_of_architecture(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Attribute)
        and function.attr in ("startswith", "endswith")
        and isinstance(function.value, ast.Attribute | ast.Name)
        and "architecture" in ast.unparse(function.value)
    )


def test_no_module_but_the_catalog_compares_an_architecture():
    for path in MODULES:
        assert compared_names(ast.parse(path.read_text(encoding="utf-8"))) == [], path


@pytest.mark.parametrize(
    "code",
    [
        'm.architecture == "GptOssForCausalLM"',
        'm.architecture in {"DeepseekV2ForCausalLM"}',
        'architecture.startswith("Gemma3")',
    ],
)
def test_a_comparison_would_be_found(code):
    assert compared_names(ast.parse(code))


def names_of_architectures(source: str) -> list[str]:
    """Return the names of architectures that a module has as texts, also as keys of a table."""
    texts = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and ARCHITECTURE.fullmatch(text)]


def test_no_module_but_the_catalog_names_an_architecture():
    naming = [
        str(path) for path in MODULES if names_of_architectures(path.read_text(encoding="utf-8"))
    ]
    assert not naming


def test_a_table_by_architectures_is_seen():
    assert names_of_architectures('TOWERS = {"MolmoForCausalLM": molmo}') == ["MolmoForCausalLM"]


def test_each_formula_of_an_encoder_has_an_architecture_and_each_architecture_a_formula():
    assert set(architectures.ENCODERS.values()) == set(encoders.FORMULAS)
    assert set(architectures.TOWERS.values()) == set(tower.FORMULAS)
