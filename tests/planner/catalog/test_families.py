"""Names of architectures are in the catalog alone; everything else asks for a trait."""

import ast
import re
from pathlib import Path

import inference_planner
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.families import FAMILIES

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


def is_prefix_test_of_architecture(node: ast.AST) -> bool:
    """Return True for `architecture.startswith(…)`, which asks for a family without its name."""
    return (
        isinstance(node, ast.Attribute)
        and node.attr in ("startswith", "endswith")
        and "architecture" in ast.unparse(node.value)
    )


def names_of_architectures(source: str) -> list[str]:
    """Return the names of architectures in a module's texts, and tests of how such a name begins or ends."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and ARCHITECTURE.fullmatch(str(node.value)):
            names.append(str(node.value))
        elif is_prefix_test_of_architecture(node):
            names.append(ast.unparse(node))
    return names


def test_no_module_but_the_catalog_names_an_architecture():
    naming = [
        str(path) for path in MODULES if names_of_architectures(path.read_text(encoding="utf-8"))
    ]
    assert not naming


def test_a_name_of_an_architecture_would_be_found():
    for code in ('TOWERS = {"MolmoForCausalLM": molmo}', 'architecture.startswith("Gemma3")'):
        assert names_of_architectures(code), code


# Their sizes are read as another's of the same family.
WITHOUT_A_MODEL = {"Gemma3ForConditionalGeneration", "Llama4ForCausalLM"}


def test_a_family_has_a_model_in_the_catalog():
    architectures = {load_model(name).architecture for name in list_models()}
    assert FAMILIES.keys() - architectures == WITHOUT_A_MODEL
