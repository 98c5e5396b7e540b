"""The planner imports only what is listed here, starts nothing, reads no environment and writes nothing.

The width of the terminal (COLUMNS) and the ~ of a path are all that the environment decides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PLANNER = Path(__file__).parents[2] / "planner" / "inference_planner"
MODULES = sorted(PLANNER.rglob("*.py"))
# Standard modules that can neither start a process nor reach files, the network or the environment.
HARMLESS = {
    "__future__",
    "argparse",
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "decimal",
    "difflib",
    "enum",
    "fnmatch",
    "functools",
    "hashlib",
    "inspect",
    "itertools",
    "json",
    "math",
    "re",
    "reprlib",
    "shlex",
    "stat",
    "textwrap",
    "typing",
}
# Of these modules only the names that are listed may be used.
PARTS = {
    "importlib": {"import_module"},
    "io": {"TextIOWrapper"},
    "os": {
        "O_WRONLY",  # of os.devnull: see _opens_for_writing
        "devnull",
        "dup2",
        "getcwd",
        "name",
        "open",
        "path",
        "stat",
        "stat_result",
    },
    "pathlib": {"Path"},
    "shutil": {"get_terminal_size"},
    "sys": {"argv", "exit", "path", "stderr", "stdout"},
}
# Names that are refused wherever they stand: as a name, or as an attribute of anything.
REFUSED = {
    # the environment
    "environ",
    "environb",
    "expandvars",
    "getenv",
    "getenvb",
    "putenv",
    "unsetenv",
    # processes
    "Popen",
    "execv",
    "execve",
    "fork",
    "forkpty",
    "popen",
    "posix_spawn",
    "spawnv",
    "startfile",
    "system",
    # files that are written, moved or removed
    "chmod",
    "chown",
    "copyfile",
    "copytree",
    "hardlink_to",
    "makedirs",
    "mkdir",
    "mkfifo",
    "remove",
    "removedirs",
    "rename",
    "renames",
    "replace_file",
    "rmdir",
    "rmtree",
    "symlink",
    "symlink_to",
    "touch",
    "truncate",
    "unlink",
    "utime",
    "write_bytes",
    "write_text",
    # code that is not in the source
    "__builtins__",
    "__import__",
    "compile",
    "eval",
    "exec",
}
CODE_OF_RE = {"compile"}  # re.compile makes an expression, no code


def problems(source: str) -> list[str]:
    """Return what a module of the planner may not do: a line and the reason of each."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    allowed_bases: set[int] = set()
    messages: list[str] = []
    for node in ast.walk(tree):
        reasons = _import_problems(node)
        if isinstance(node, ast.Attribute):
            reasons += _attribute_problems(node, aliases, allowed_bases)
        if isinstance(node, ast.Call):
            reasons += _call_problems(node, aliases, allowed_bases)
        messages += [f"line {getattr(node, 'lineno', 0)}: {reason}" for reason in reasons]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        if aliases.get(node.id) in PARTS and id(node) not in allowed_bases:
            messages.append(f"line {node.lineno}: passes the module {node.id} on")
        if node.id in REFUSED:
            messages.append(f"line {node.lineno}: uses {node.id}")
    return messages


def _aliases(tree: ast.AST) -> dict[str, str]:
    """Return the modules that are imported whole, by their name in this module."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = alias.name
    return names


def _import_problems(node: ast.AST) -> list[str]:
    """Return what is wrong with an import statement."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
        return [f"imports {name}" for name in names if not _may_import(name)]
    if not isinstance(node, ast.ImportFrom) or node.level:
        return []
    module = node.module or ""
    names = {alias.name for alias in node.names}
    if not _may_import(module):
        return [f"imports {module}"]
    refused = names & (REFUSED | {"*"})
    if module in PARTS:
        refused |= names - PARTS[module]
    return [f"imports {module}.{name}" for name in sorted(refused)]


def _may_import(module: str) -> bool:
    """Return True for the planner's own modules and those that are listed."""
    return module.split(".")[0] == "inference_planner" or module in HARMLESS or module in PARTS


def _attribute_problems(
    node: ast.Attribute, aliases: dict[str, str], allowed_bases: set[int]
) -> list[str]:
    """Return what is wrong with `value.attribute`, and note a module of which a listed part is used."""
    base = node.value
    module = aliases.get(base.id) if isinstance(base, ast.Name) else None
    if module == "re" and node.attr in CODE_OF_RE:
        return []
    if node.attr in REFUSED or (module and node.attr.startswith("_")):
        return [f"uses .{node.attr}"]
    if module in PARTS:
        allowed_bases.add(id(base))
        if node.attr not in PARTS[module]:
            return [f"uses {module}.{node.attr}"]
    return []


def _call_problems(node: ast.Call, aliases: dict[str, str], allowed_bases: set[int]) -> list[str]:
    """Return what is wrong with a call."""
    name = _called(node)
    is_method = isinstance(node.func, ast.Attribute)
    if name == "getattr" and isinstance(node.args[0], ast.Name):
        return _getattr_problems(node, aliases, allowed_bases)
    if name == "import_module" and not _is_own(node.args[0]):
        return ["imports a module whose name is not the planner's own"]
    if name == "replace" and is_method and len(node.args) == 1 and not node.keywords:
        return ["moves a file: str.replace has two arguments"]
    if name in ("open", "fdopen") and _opens_for_writing(node):
        return ["opens a file to write"]
    return []


def _getattr_problems(
    node: ast.Call, aliases: dict[str, str], allowed_bases: set[int]
) -> list[str]:
    """Return what is wrong with getattr of a module: its name must be a listed one, and constant."""
    base, name = node.args[:2]
    module = aliases.get(base.id) if isinstance(base, ast.Name) else None
    if module not in PARTS:
        return []
    if isinstance(name, ast.Constant) and name.value in PARTS[module]:
        allowed_bases.add(id(base))
        return []
    return [f"takes an attribute of {module} by a computed or unlisted name"]


def _called(node: ast.Call) -> str:
    """Return the last name of what is called: `write_text` of `path.write_text(…)`."""
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_own(name: ast.expr) -> bool:
    """Return True for f"{__name__}.…" and for a constant name in the planner."""
    if isinstance(name, ast.Constant):
        return isinstance(name.value, str) and name.value.split(".")[0] == "inference_planner"
    if not isinstance(name, ast.JoinedStr) or len(name.values) < 2:
        return False
    package, dot = name.values[:2]
    return (
        isinstance(package, ast.FormattedValue)
        and isinstance(package.value, ast.Name)
        and package.value.id == "__name__"
        and isinstance(dot, ast.Constant)
        and str(dot.value).startswith(".")
    )


def _opens_for_writing(node: ast.Call) -> bool:
    """Return True if a call of open(), Path.open() or os.open() may write, or if that is computed."""
    function = node.func
    if ast.unparse(function) == "os.open":
        return ast.unparse(node.args[0]) != "os.devnull"
    is_path = isinstance(function, ast.Attribute) and function.attr == "open"
    modes = list(node.args[:1] if is_path else node.args[1:2])
    modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
    for mode in modes:
        if not isinstance(mode, ast.Constant) or set(str(mode.value)) & set("wax+"):
            return True
    return False


def test_a_module_of_the_planner_is_pure() -> None:
    for path in MODULES:
        assert problems(path.read_text(encoding="utf-8")) == [], path


def test_every_module_is_looked_at() -> None:
    assert len(MODULES) >= 60


def planted() -> Iterator[str]:
    """Yield modules that are not pure, each in another way."""
    for module in (
        "subprocess",
        "socket",
        "ftplib",
        "urllib.request",
        "tempfile",
        "ctypes",
        "numpy",
    ):
        yield f"import {module}"
        yield f"def f():\n    from {module} import anything"
    yield from (
        "from os import environ",
        "from os import *",
        "from os import getenv as read",
        "import os\nos.environ['HOME']",
        "import os as system_calls\nsystem_calls.getenv('HOME')",
        "import os\ngetattr(os, 'environ')",
        "import os\nname = 'env' + 'iron'\ngetattr(os, name)",
        "import os\nparts = vars(os)",
        "import os\nother = os\nother.kill(1, 9)",
        "import os\nos.remove('file')",
        "import os\nos.replace('a', 'b')",
        "import os\nos.write(1, b'')",
        "import os\nos.open('file', os.O_WRONLY)",
        "import os\nos.open('file', 1)",
        "import os\nos.open('file', os.O_CREAT)",
        "import os\nos.fdopen(3, 'wb')",
        "import shutil\nshutil.copyfile('a', 'b')",
        "from shutil import rmtree",
        "from shutil import copyfile as read",
        "import sys\nsys.modules['os']",
        "import argparse\nargparse._sys.modules['os']",
        "import os\nos.link('a', 'b')",
        "import pathlib\npathlib.os.remove('file')",
        "from pathlib import Path\nPath('a').write_text('')",
        "from pathlib import Path\nPath('a').replace('b')",
        "from pathlib import Path\nPath('a').open('w')",
        "from pathlib import Path\nPath('a').open(mode=chosen)",
        "from pathlib import Path\nPath('a').unlink()",
        "open('file', 'a')",
        "open('file', mode)",
        "__import__('socket')",
        "exec('import socket')",
        "from importlib import import_module\nimport_module('subprocess')",
        "from importlib import import_module\nimport_module('workshop.guard.keys')",
        "from importlib import import_module\nimport_module('sub' + 'process')",
        "from importlib import import_module\nimport_module(f'{chosen}.keys')",
        "import importlib\nimportlib.reload(module)",
        "import workshop",
        "from workshop.engine import exact",
    )


def test_what_is_not_pure_is_found() -> None:
    for source in list(planted()):
        assert problems(source), source


def test_what_reads_and_computes_is_let_pass() -> None:
    for source in [
        "import os\nos.open(os.devnull, os.O_WRONLY)",
        "import os\ngetattr(os, 'O_WRONLY', 0)",
        "from importlib import import_module\nimport_module(f'{__name__}.{name}')",
        "from pathlib import Path\nPath('a').read_text()\nPath('a').open()\nPath('a').open('rb')",
        "'a-b'.replace('-', '_')",
        "import re\nre.compile('a')",
    ]:
        assert problems(source) == [], source
