"""Commands that answer at once import nothing heavy. Nothing is timed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from workshop.cli import COMMANDS

HEAVY = {
    "aiohttp",
    "asyncio",
    "httpx",
    "importlib.metadata",
    "ipywidgets",
    "jinja2",
    "matplotlib",
    "numpy",
    "openai",
    "pandas",
    "prometheus_client",
    "psutil",
    "rich",
    "torch",
    "vllm",
    "yaml",
}
# Runs each line of arguments as a command, and prints [arguments, the modules that it imported].
CHILD = """
import contextlib, io, json, sys
from workshop.cli import group
from workshop.errors import WorkshopError

for arguments in json.loads(sys.argv[1]):
    before = set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        with contextlib.suppress(SystemExit, WorkshopError):
            group.main(arguments, standalone_mode=False)
    if "--help" in arguments:
        assert "Usage:" in output.getvalue(), arguments
    print(json.dumps([arguments, sorted(set(sys.modules) - before)]))
"""


def imports_of(commands: list[list[str]]) -> dict[str, set[str]]:
    """Return the modules that each of these commands imports, run one after the other."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, json.dumps(commands)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    imported: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        arguments, modules = json.loads(line)
        imported[" ".join(arguments)] = set(modules)
    return imported


def test_no_help_imports_anything_heavy_or_what_runs_the_command():
    helps = [["--help"], *([name, "--help"] for name in COMMANDS)]
    imported = imports_of(helps)
    assert len(imported) == len(helps)
    what_runs = {"workshop.servers", "workshop.engine", "inference_planner.answer.parallelism"}
    for arguments, modules in imported.items():
        assert modules & (HEAVY | what_runs) == set(), arguments


@pytest.mark.parametrize(
    "arguments",
    [["servers"], ["ask", "What is a KV cache?"], ["plan", "llama-3.1-8b", "--gpu", "h100"]],
    ids=" ".join,
)
def test_a_command_that_asks_no_server_imports_nothing_heavy(arguments, workshop_home):
    (modules,) = imports_of([arguments]).values()
    assert modules & HEAVY == set()


def test_the_table_of_models_is_read_from_the_record(workshop_home):
    (modules,) = imports_of([["models"]]).values()
    # it looks for the vLLM beside us, whose release may not be the recorded one
    assert modules & HEAVY <= {"importlib.metadata"}


def test_what_is_heavy_would_be_seen(workshop_home):
    (modules,) = imports_of([["stop", "no_such_server"]]).values()
    assert modules & HEAVY >= {"psutil", "yaml"}
