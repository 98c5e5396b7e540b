"""The design holds: dependencies point one way, pure modules are pure, nothing of one machine stands in the tree."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Container
from pathlib import Path

import cells
import pytest
import tree
import yaml
from needs import shellcheck

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workshop"
MODULES = sorted(PACKAGE.rglob("*.py"))
PLANNER = ROOT / "planner" / "inference_planner"
PLANNER_MODULES = sorted(PLANNER.rglob("*.py"))
# A layer may import itself and those before it (`workshop/__init__.py` names all, and has none).
LAYERS = (
    (
        *(path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("__")),
        "teaching_model",
        "workarounds",
    ),
    ("engine",),
    ("guard",),
    ("servers",),
    ("client",),
    ("simulate",),
    ("measure", "batch", "lab"),
    ("course", "cli"),
)
# The planner's rooms, the same way: what stands beside them on one level comes before or after.
PLANNER_LAYERS = (
    ("errors", "files"),
    ("catalog",),
    ("releases",),
    ("request",),
    ("model",),
    ("split",),
    ("speed",),
    ("memory",),
    ("ground",),
    ("refusals",),
    ("answer",),
    ("tables",),
    ("arguments", "search_path", "cli"),
)
PURE = (
    "engine/log",
    "engine/trace.py",
    "client/sampling",
    "client/logprobs",
    "course/widgets/style",
    "course/drawing/readable_numbers",
    "errors",
    "files",
    "home",
    "lazy",
    "python_process",
    "vllm_package",
)
THEIR_OWN_STANDARD_LIBRARY = set(sys.stdlib_module_names)


def imports(path: Path, modules: Container[str] = ()) -> set[str]:
    """Return what a module imports, also inside functions and by import_module("a.name").

    `from a import b` is a and a.b; it is a.b alone if that is one of `modules`.
    """
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                names |= {name} if name in modules else {node.module, name}
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                names.add(first.value)
    return names


def called(node: ast.Call) -> str:
    """Return the last name of what is called: `write_text` of `path.write_text(…)`."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def layer(layers: tuple, part: str) -> int | None:
    return next((number for number, parts in enumerate(layers) if part in parts), None)


@pytest.mark.parametrize(
    ("package", "layers"),
    [(PACKAGE, LAYERS), (PLANNER, PLANNER_LAYERS)],
    ids=["workshop", "inference_planner"],
)
def test_dependencies_point_one_way(package, layers):
    backwards = []
    for path in sorted(package.rglob("*.py")):
        own_layer = layer(layers, path.relative_to(package).with_suffix("").parts[0])
        for name in imports(path) if own_layer is not None else ():
            parts = name.split(".")
            inside = parts[0] == package.name and len(parts) > 1
            imported_layer = layer(layers, parts[1]) if inside else None
            if imported_layer is not None and imported_layer > own_layer:
                backwards.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not backwards


def test_the_planner_imports_the_standard_library_only():
    for path in PLANNER_MODULES:
        roots = {name.split(".")[0] for name in imports(path)} - {"inference_planner"}
        assert roots <= THEIR_OWN_STANDARD_LIBRARY, path


def test_the_simulation_sends_nothing():
    senders = {"aiohttp", "httpx", "openai", "requests", "workshop.client", "workshop.measure"}
    for path in sorted((PACKAGE / "simulate").glob("*.py")):
        for name in imports(path):
            assert not name.startswith(tuple(senders)), f"{path.name} imports {name}"


def dotted(path: Path, package: Path) -> str:
    """Return the name that imports a module: `workshop.batch` of workshop/batch/__init__.py."""
    name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
    return name.removesuffix(".__init__")


@pytest.mark.parametrize("package", [PACKAGE, PLANNER], ids=lambda path: path.name)
def test_no_module_imports_itself_by_a_way_round(package):
    """Also by imports inside functions and for types, and through front doors (`__init__.py`)."""
    paths = {dotted(path, package): path for path in sorted(package.rglob("*.py"))}
    graph = {name: imports(path, paths) & set(paths) - {name} for name, path in paths.items()}
    if package == PACKAGE:
        graph["workshop.lab.doctor"].discard("workshop")  # it tries `connect`, as notebooks call it
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError with the way


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        (
            "from importlib import import_module\nimport_module('workshop.guard.keys')",
            {"workshop.guard.keys"},
        ),
        ("import importlib\ndef f():\n    importlib.import_module('subprocess')", {"subprocess"}),
        ("__import__('socket')", {"socket"}),
    ],
)
def test_imports_in_strings_are_seen(source, seen, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert seen <= imports(path)


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if str(path.relative_to(PACKAGE)).startswith(PURE)],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_pure_modules_import_the_standard_library_only(path):
    roots = {name.split(".")[0] for name in imports(path)} - {
        "workshop",
        "inference_planner",
        "__future__",
    }
    assert roots <= THEIR_OWN_STANDARD_LIBRARY
    for name in imports(path):
        if name.startswith("workshop."):
            assert name.replace(".", "/").removeprefix("workshop/").startswith(PURE), (
                f"{name} is not pure"
            )


QUESTION = re.compile(r"(How|What|When|Where|Whether|Which|Who|Why)\b")


def test_a_docstring_begins_with_a_verb_or_a_name():
    """A class is "The split and its reasons.", and a function "Return …": no half of a question ("How many …")."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    questions = [
        f"{path.relative_to(ROOT)}: {docstring.splitlines()[0]}"
        for path in (*PLANNER_MODULES, *MODULES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, documented)
        and QUESTION.match(docstring := ast.get_docstring(node) or "")
    ]
    assert not questions


def test_nothing_of_one_machine_stands_in_the_tree():
    # Written in pieces, so that this file does not find itself.
    traces = re.compile(
        "|".join(["/" + "work/(?:main|shared)", "/opt/" + "(?:wheels|pypi)", "/root/" + r"\.pyenv"])
    )
    paths = []
    for path in tree.files():
        if path.suffix in (".safetensors", ".xz", ".png", ".pdf"):
            continue
        if traces.search(path.read_text(encoding="utf-8", errors="ignore")):
            paths.append(str(path.relative_to(ROOT)))
    assert not paths


def test_shell_scripts_wait_by_asking():
    places = ("slurm", "kubernetes")
    waits = [
        str(path.relative_to(ROOT))
        for path in tree.files()
        if path.relative_to(ROOT).parts[0] in places
        and path.suffix in (".sh", ".sbatch")
        and re.search(r"(^|[^a-z_])sleep [0-9]", path.read_text())
    ]
    assert not waits


def test_every_target_of_the_readme_exists_in_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    readme_targets = set(re.findall(r"\bmake ([a-z]+)\b(?!-)", (ROOT / "README.md").read_text()))
    assert readme_targets <= targets


def test_the_readme_lists_every_notebook_with_its_title_and_minutes():
    readme = (ROOT / "README.md").read_text()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        first = cells.cells(path.stem)[0].source
        title = re.match(r"# ((?:\d\. )?[^:\n]+)", first)[1]
        minutes = re.search(r"(\d+) minutes", first)[1]
        row = re.search(
            rf"^\| \[(.+?)\]\(notebooks/{path.name}\) .*\| (\d+) \|", readme, re.MULTILINE
        )
        assert row and (row[1], row[2]) == (title, minutes), path.name


def test_the_readme_and_the_guide_name_the_share_of_cells_that_run_in_a_browser():
    guide = (ROOT / "docs/browser.md").read_text()
    rows = re.findall(r"^\| \w+ \| (\d+) of (\d+) \|", guide, re.MULTILINE)
    assert len(rows) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    running = sum(int(row[0]) for row in rows)
    cells = sum(int(row[1]) for row in rows)
    share = f"{running / cells:.0%}".replace("%", " %")
    assert f"({share} of its cells work there)" in guide
    assert f"({share} of the cells work there: " in (ROOT / "README.md").read_text()


def test_the_map_of_the_rules_has_each_folder_of_the_repository():
    rules = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = re.findall(r"^\| (`.+?`(?:, `.+?`)*) \|", rules, re.MULTILINE)
    mapped = {name.partition("/")[0] for room in rooms for name in re.findall(r"`(.+?)`", room)}
    folders = {path.relative_to(ROOT).parts[0] for path in tree.files() if path.parent != ROOT}
    assert folders <= mapped


def test_the_readme_has_at_most_800_words():
    assert len((ROOT / "README.md").read_text().split()) <= 800


def test_ruff_finds_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--output-format", "concise", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_ruff_would_format_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--check", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_what_the_checks_ask_runs_before_each_commit():
    """ruff, shellcheck and pyright; the last by the test that CI runs."""
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    entries = {hook["id"]: hook["entry"] for hook in local["hooks"]}
    assert {"ruff-format", "ruff-check", "shellcheck", "pyright"} <= set(entries)
    assert entries["pyright"].endswith("pytest -q tests/house/test_types.py")
    (pyright,) = (hook for hook in local["hooks"] if hook["id"] == "pyright")
    assert pyright["pass_filenames"] is False  # the whole of planner and workshop is looked at


def test_no_module_hides_another_from_the_tests():
    """`pythonpath` makes one folder of many: the first of two modules of a name would be imported for both."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    places: dict[str, str] = dict.fromkeys(sys.stdlib_module_names, "Python")
    for folder in settings["pythonpath"]:
        for path in sorted((ROOT / folder).glob("*.py")):
            if path.stem not in ("__init__", "conftest"):
                assert path.stem not in places, f"{folder}/{path.name} and {places[path.stem]}"
                places[path.stem] = f"{folder}/{path.name}"


WRITES_A_PAGE = re.compile(r"write_text")
# These make pages that are not in git.
SITES = ("docs/site/website.py", "slides/build.py")


def test_make_docs_runs_every_script_that_writes_a_page_or_the_rules_name_it():
    import make

    renewed = {command.split()[0] for command in make.GENERATORS}
    rules = (ROOT / "CONTRIBUTING.md").read_text()
    assert "`make docs`" in rules
    for script in renewed:
        assert (ROOT / script).is_file(), script
    for folder in ("benchmarks", "docs", "slides"):
        for path in tree.files(folder, ".py"):
            name, text = str(path.relative_to(ROOT)), path.read_text()
            if '.md"' in text and WRITES_A_PAGE.search(text) and name not in SITES:
                assert name in renewed or path.name in rules, name


def test_the_figures_page_counts_the_loads_as_the_page_of_the_simulation_does():
    """Whose count tests/simulate/test_recorded_loads.py compares with the loads themselves."""
    loads = json.loads((ROOT / "tests/data/simulate/comparison.json").read_text())
    count = re.compile(r"(\d+) of (\d+) figures are within the goals")
    of_all, *_ = count.findall((ROOT / "docs/simulate.md").read_text())
    figures = (ROOT / "docs/figures.md").read_text()
    assert count.findall(figures) == [of_all]
    assert f"of all {len(loads)} loads" in figures


def is_script(path: Path) -> bool:
    return path.exists() and (
        path.suffix in (".sh", ".sbatch") or b"env bash" in path.read_bytes()[:20]
    )


SCRIPTS = [path for path in tree.files() if is_script(path)]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_finds_nothing(script):
    checked = [
        shellcheck(),
        "--shell=bash",
        "--external-sources",
        "--source-path=SCRIPTDIR",
        str(script),
    ]
    done = subprocess.run(checked, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
