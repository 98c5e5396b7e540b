"""The front door: few names, light, each with an example that runs; notebooks go through it, and through modules named after them."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import cells
import pytest
from inference_planner.split.settings import Settings

import workshop

pytest.importorskip("ipywidgets")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OF_NOTEBOOKS = sorted((ROOT / "workshop/course/notebooks").glob("nb*.py"))


def example(name: str) -> doctest.DocTest:
    """The example in a name's docstring."""
    text = inspect.getdoc(getattr(workshop, name))
    return doctest.DocTestParser().get_doctest(text, {}, name, f"workshop.{name}", 0)


def asks_a_server(test: doctest.DocTest) -> bool:
    return any("connect()" in statement.source for statement in test.examples)


LIVE = [name for name in workshop.__all__ if asks_a_server(example(name))]
OFFLINE = [name for name in workshop.__all__ if name not in LIVE]


def run(test: doctest.DocTest) -> None:
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=output.append)
    assert test.examples and not runner.failures, "".join(output)


@pytest.mark.parametrize("name", OFFLINE)
def test_the_example_of_a_name_runs(name, workshop_home, monkeypatch, tmp_path):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    monkeypatch.chdir(tmp_path)
    run(example(name))


@pytest.mark.live
@pytest.mark.parametrize("name", LIVE)
def test_the_example_of_a_name_runs_on_a_server(name, server, live_home, monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    monkeypatch.chdir(tmp_path)
    run(example(name))


def test_each_name_teaches():
    for name in workshop.__all__:
        lesson = inspect.getdoc(getattr(workshop, name)).split(">>>")[0]
        assert len(lesson.split()) >= 15, f"{name}: what it shows, in a sentence or two"


def test_names_are_found_by_completion_and_others_are_refused_with_the_choices():
    assert set(workshop.__all__) <= set(dir(workshop))
    with pytest.raises(AttributeError, match="MemorySliders"):
        workshop.MemorySlider  # noqa: B018


def test_type_checkers_see_every_name():
    tree = ast.parse((ROOT / "workshop/__init__.py").read_text())
    hidden = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname or alias.name for node in hidden.body for alias in node.names}
    assert set(workshop.__all__) - {"connect"} <= seen


def test_help_begins_with_an_index_of_all_names():
    first = pydoc.plain(pydoc.render_doc(workshop))[:4000]
    assert [
        name for name in workshop.__all__ if not re.search(rf"^ *{name} +\w", first, re.MULTILINE)
    ] == []


def test_asking_for_a_name_loads_no_more_than_it_needs():
    heavy = ("torch", "vllm", "pandas", "matplotlib", "openai", "ipywidgets")
    source = "import sys\nfrom workshop import errors, plan\nplan('llama-3.1-8b', 'h100')"
    code = f"{source}\nprint([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )


def test_plan_is_a_function_and_the_planner_a_package():
    assert inspect.isfunction(workshop.plan) and workshop.plan("llama-3.1-8b", "h100").fits
    assert workshop.planner is importlib.import_module("inference_planner")
    assert inspect.isfunction(workshop.planner.load_model)


def test_every_setting_of_a_plan_is_spelled_out_with_its_type():
    ours, alone = (
        inspect.signature(function).parameters
        for function in (workshop.plan, workshop.planner.plan)
    )
    assert set(ours) - set(alone) == {"exact"}
    assert all(parameter.annotation is not parameter.empty for parameter in ours.values())
    derived = {"most_graph_tokens", "seqs_given", "fits_length", "draft", "adapters", "compilation"}
    settings = {field.name for field in dataclasses.fields(Settings)} - derived
    assert settings | {"quantization", "network"} <= set(alone)


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [("max_model_length", "max_model_len"), ("tensor_parallel", "tensor_parallel_size")],
)
def test_an_unknown_keyword_of_plan_names_the_nearest(keyword, meant):
    for function in (workshop.plan, workshop.planner.plan):
        with pytest.raises(workshop.errors.BadInput, match=f"{keyword}.*{meant}"):
            function("llama-3.1-70b", "h100", **{keyword: 4})


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_from_the_front_door_and_modules_of_notebooks_alone(notebook):
    code = "\n".join(cells.code(notebook.stem))
    imports = re.findall(
        r"^\s*(?:from (workshop[\w.]*) import (.+)|import (workshop[\w.]*))", code, re.MULTILINE
    )
    modules = {module or whole for module, _, whole in imports}
    rooms = {"workshop", "workshop.course.notebooks", "workshop.course.topics"}
    assert modules <= rooms, "no deeper than `from workshop import …`"
    for module, listed, _ in imports:
        names = {name.strip() for name in listed.split(",")}
        if module == "workshop":
            assert names <= set(workshop.__all__)
        elif module == "workshop.course.topics":
            assert names == {"abstracts"}
        else:
            assert names <= {path.stem for path in OF_NOTEBOOKS}


def example_of_module(path: Path) -> doctest.DocTest:
    """The example in the docstring of a notebook's module."""
    name = f"workshop.course.notebooks.{path.stem}"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return doctest.DocTestParser().get_doctest(text, {}, path.stem, name, 0)


LIVE_MODULES = [path for path in OF_NOTEBOOKS if asks_a_server(example_of_module(path))]
OFFLINE_MODULES = [path for path in OF_NOTEBOOKS if path not in LIVE_MODULES]


@pytest.mark.parametrize("path", OFFLINE_MODULES, ids=lambda path: path.stem)
def test_the_example_of_a_module_of_a_notebook_runs(path, workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    run(example_of_module(path))


@pytest.mark.live
@pytest.mark.parametrize("path", LIVE_MODULES, ids=lambda path: path.stem)
def test_the_example_of_a_module_runs_on_a_server(path, server, live_home, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    run(example_of_module(path))
