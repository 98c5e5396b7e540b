"""What a job runs with the engine's Python, which may be 3.10 where the workshop's own is newer."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from workshop.engine.log import failures
from workshop.servers.slurm.job import job_end

ROOT = Path(__file__).parents[2]
RUN = (
    "servers.vllm_main",
    "guard.auth",
    "guard.keys",
    "guard.fairshare",
    "servers.local.scratch",
    "servers.slurm.job.supervisor",
    "servers.slurm.job.preflight",
    "servers.slurm.job.node",
    "engine.exact.worker",
)
NEWER = {  # since 3.11 or later
    "": {"tomllib"},
    "asyncio": {"TaskGroup", "timeout", "Runner", "Barrier"},
    "datetime": {"UTC"},
    "enum": {"StrEnum", "ReprEnum"},
    "typing": {"Self", "Never", "LiteralString", "assert_never", "assert_type", "override"},
    "itertools": {"batched"},
    "contextlib": {"chdir"},
    "hashlib": {"file_digest"},
}


@pytest.fixture(scope="module")
def sources() -> dict[str, ast.Module]:
    """The modules that these load when they start."""
    loaded = f"import sys, {', '.join(f'workshop.{name}' for name in RUN)}\n"
    loaded += "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'workshop' and m.__file__))"
    output = subprocess.run(
        [sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return {
        path: ast.parse(Path(path).read_text(), feature_version=(3, 10)) for path in output.split()
    }


def at_the_top(tree: ast.Module):
    """Every node but those of functions: what is met when the module is loaded."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def newer(tree: ast.Module) -> set[str]:
    newer_names = set()
    for node in at_the_top(tree):
        if isinstance(node, ast.Import):
            newer_names |= {alias.name for alias in node.names} & NEWER[""]
        if isinstance(node, ast.ImportFrom):
            newer_names |= {alias.name for alias in node.names} & NEWER.get(
                node.module or "", set()
            )
            newer_names |= {node.module} & NEWER[""]
        if isinstance(node, ast.TryStar):
            newer_names.add("except*")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            newer_names |= {node.attr} & NEWER.get(node.value.id, set())
    return newer_names


def test_nothing_newer_is_needed(sources):
    assert len(sources) > 40
    assert not {path: newer_names for path, tree in sources.items() if (newer_names := newer(tree))}


def test_what_is_newer_is_found():
    for text in (
        "import tomllib",
        "from datetime import UTC",
        "import asyncio\ndef f():\n asyncio.timeout(1)",
    ):
        assert newer(ast.parse(text)), text
    assert not newer(ast.parse("def f():\n import tomllib"))


@pytest.mark.parametrize(
    ("absent", "has_reader"),
    [(("tomllib",), True), (("tomllib", "tomli", "pip._vendor.tomli"), False)],
)
def test_a_job_that_ends_has_its_reason_without_a_reader_of_toml(
    tmp_path, monkeypatch, absent, has_reader
):
    monkeypatch.setitem(
        sys.modules, "tomli", tomllib
    )  # pip's own would exchange distutils for all later tests
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    failures.table.cache_clear()
    (tmp_path / "error").write_text("OSError: [Errno 98] Address already in use\n")
    what, _ = job_end.reason(
        "engine", 1, [tmp_path / "reasons", tmp_path / "error", tmp_path / "output"], {}
    )
    failures.table.cache_clear()
    assert what.startswith("Another program already listens") if has_reader else "Errno 98" in what
