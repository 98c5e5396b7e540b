"""The design holds: dependencies point one way, pure modules are pure, nothing of one machine stands in the tree."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needs import shellcheck

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workshop"
MODULES = sorted(PACKAGE.rglob("*.py"))
PLANNER = ROOT / "planner" / "inference_planner"
PLANNER_MODULES = sorted(PLANNER.rglob("*.py"))
# A layer may import itself and those before it (errors and the package itself are below all).
LAYERS = (
    ("teaching_model", "workarounds"),
    ("engine",),
    ("servers", "simulate"),
    ("client",),
    ("batch",),
    ("course", "cli"),
)
PURE = (
    "engine/log",
    "engine/trace.py",
    "client/sampling",
    "client/logprobs",
    "course/widgets/style",
    "course/readable_numbers",
    "errors",
    "files",
    "lazy",
    "python_process",
)
THEIR_OWN_STANDARD_LIBRARY = set(sys.stdlib_module_names)


def imports(path: Path) -> set[str]:
    """Return what a module imports, also inside functions and by import_module("a.name")."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.add(first.value)
    return found


def called(node: ast.Call) -> str:
    """Return the last name of what is called: `write_text` of `path.write_text(…)`."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def layer(part: str) -> int | None:
    return next((number for number, parts in enumerate(LAYERS) if part in parts), None)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_dependencies_point_one_way(path):
    mine = layer(path.relative_to(PACKAGE).parts[0])
    if mine is None:
        return
    for name in imports(path):
        parts = name.split(".")
        theirs = layer(parts[1]) if parts[0] == "workshop" and len(parts) > 1 else None
        assert theirs is None or theirs <= mine, f"{path.relative_to(ROOT)} imports {name}"


def test_no_module_imports_itself_by_a_way_round():
    """Also by imports inside functions; the front door (workshop/__init__.py) names all, and is left out."""
    names = {
        f"workshop.{'.'.join(path.relative_to(PACKAGE).with_suffix('').parts)}".removesuffix(
            ".__init__"
        ): path
        for path in MODULES
        if path.parent != PACKAGE
    }
    graph = graphlib.TopologicalSorter(
        {
            name: {
                found
                for found in imports(path)
                if found in names and found != name and path.stem != "__init__"
            }
            for name, path in names.items()
        }
    )
    graph.prepare()  # raises CycleError with the way


NOT_IN_THE_PLANNER = {
    "subprocess",
    "multiprocessing",
    "socket",
    "ssl",
    "urllib.request",
    "http",
    "asyncio",
    "tempfile",
    "shutil.copy",
}
WRITING_CALLS = {
    "write_text",
    "write_bytes",
    "mkdir",
    "unlink",
    "rename",
    "replace_file",
    "touch",
    "symlink_to",
    "makedirs",
}
PROCESS_CALLS = {"system", "popen", "Popen", "fork", "execv", "spawnv", "getenv", "putenv"}


@pytest.mark.parametrize("path", PLANNER_MODULES, ids=lambda path: str(path.relative_to(PLANNER)))
def test_the_planner_needs_the_standard_library_alone(path):
    allowed = set(sys.stdlib_module_names) | {"inference_planner", "__future__"}
    assert {name.split(".")[0] for name in imports(path)} <= allowed


@pytest.mark.parametrize("path", PLANNER_MODULES, ids=lambda path: str(path.relative_to(PLANNER)))
def test_the_planner_starts_nothing_reads_no_environment_and_writes_nothing(path):
    assert not {
        name
        for name in imports(path)
        if name in NOT_IN_THE_PLANNER or name.split(".")[0] in NOT_IN_THE_PLANNER
    }
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("environ", "environb"), (
                f"{path.name}:{node.lineno} reads the environment"
            )
        if isinstance(node, ast.Call):
            assert called(node) not in WRITING_CALLS | PROCESS_CALLS, (
                f"{path.name}:{node.lineno} {called(node)}"
            )
            assert not (called(node) == "open" and opens_for_writing(node)), (
                f"{path.name}:{node.lineno} opens to write"
            )


def opens_for_writing(node: ast.Call) -> bool:
    """Return True if a call of open() or Path.open() has a mode that writes, or one that is computed."""
    modes = [
        argument
        for argument in node.args[:2]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    texts = [mode.value if isinstance(mode, ast.Constant) else "w" for mode in modes]
    return any(set(str(text)) & set("wax+") and len(str(text)) <= 3 for text in texts)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        (
            "from importlib import import_module\nimport_module('workshop.servers.guard.keys')",
            {"workshop.servers.guard.keys"},
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


RELEASE = re.compile(r"v?0\.\d+(\.\d+)?(\.post\d+)?")


@pytest.mark.parametrize(
    "path", [*PLANNER_MODULES, *MODULES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_code_compares_a_version_of_vllm(path):
    """A release is a row of named behaviors (inference_planner/versions.py), and code asks for the behavior."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            compared = [node.left, *node.comparators]
            texts = [
                part.value
                for part in compared
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            assert not any(RELEASE.fullmatch(text) for text in texts), f"{path.name}:{node.lineno}"


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_nothing_of_one_machine_stands_in_the_tree():
    # Written in pieces, so that this file does not find itself.
    traces = re.compile(
        "|".join(["/" + "work/(?:main|shared)", "/opt/" + "(?:wheels|pypi)", "/root/" + r"\.pyenv"])
    )
    found = []
    for path in tracked():
        if path.suffix in (".safetensors", ".xz", ".png", ".pdf") or not path.exists():
            continue
        if traces.search(path.read_text(encoding="utf-8", errors="ignore")):
            found.append(str(path.relative_to(ROOT)))
    assert not found


def test_shell_scripts_wait_by_asking():
    places = ("slurm", "kubernetes")
    waits = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.relative_to(ROOT).parts[0] in places
        and path.suffix in (".sh", ".sbatch")
        and path.exists()
        and re.search(r"(^|[^a-z_])sleep [0-9]", path.read_text())
    ]
    assert not waits


def test_every_target_of_the_readme_exists_in_the_makefile():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set(re.findall(r"\bmake ([a-z]+)\b(?!-)", (ROOT / "README.md").read_text()))
    assert asked <= targets


def test_the_readme_lists_every_notebook_with_its_title_and_minutes():
    readme = (ROOT / "README.md").read_text()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        first = "".join(json.loads(path.read_text())["cells"][0]["source"])
        title = re.match(r"# ((?:\d\. )?[^:\n]+)", first)[1]
        minutes = re.search(r"(\d+) minutes", first)[1]
        row = re.search(
            rf"^\| \[(.+?)\]\(notebooks/{path.name}\) .*\| (\d+) \|", readme, re.MULTILINE
        )
        assert row and (row[1], row[2]) == (title, minutes), path.name


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


def is_script(path: Path) -> bool:
    return path.exists() and (
        path.suffix in (".sh", ".sbatch") or b"env bash" in path.read_bytes()[:20]
    )


SCRIPTS = [path for path in tracked() if is_script(path)]


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
