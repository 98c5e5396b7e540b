"""Read which vLLM has which architecture, from the registry of each release, into the catalog.

    python benchmarks/architectures.py 0.33.0 0.34.0

Of each version's wheel only its table of contents and one file are read, over pip's own connection (its indexes,
certificates and proxy) and by the class with which pip reads metadata (--use-feature=fast-deps): about 1 MB of 300.
Versions may be read in any order; those that are there stay.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from zipfile import ZipFile

from inference_planner.releases.registries import REGISTRIES as FILE
from inference_planner.releases.versions import numbers

REGISTRY = "vllm/model_executor/models/registry.py"
NOT_SERVED = ("_SPECULATIVE", "_PREVIOUSLY", "_OOT")  # drafts, what is gone, what a plugin has


def architectures(registry: str) -> set[str]:
    """Return the architectures that a registry.py lists: the keys of its tables _…_MODELS."""
    names = set()
    for node in ast.parse(registry).body:
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if (
            name.endswith("_MODELS")
            and not name.startswith(NOT_SERVED)
            and isinstance(node.value, ast.Dict)
        ):
            names |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    return names


def of_release(version: str) -> str:
    """Return the registry.py of a release."""
    from pip._internal.network.lazy_wheel import LazyZipOverHTTP
    from pip._internal.network.session import PipSession

    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--quiet",
    ]
    done = subprocess.run(
        [*pip, "--only-binary", ":all:", "--report", "-", f"vllm=={version}"],
        capture_output=True,
        check=True,
    )
    url = json.loads(done.stdout)["install"][0]["download_info"]["url"]
    return ZipFile(LazyZipOverHTTP(url, PipSession())).read(REGISTRY).decode()


def add(table: dict, version: str, names: set[str]) -> None:
    """Note that a version has these architectures."""
    table["versions"] = sorted({*table["versions"], version}, key=numbers)
    for name in names:
        seen = {*table["architectures"].get(name, ()), version}
        table["architectures"][name] = [min(seen, key=numbers), max(seen, key=numbers)]


def write(table: dict) -> None:
    """Write one line an architecture, so that a change of one is a change of one line."""
    lines = (
        f'  "{name}": {json.dumps(seen)}' for name, seen in sorted(table["architectures"].items())
    )
    head = "".join(
        f' "{key}": {json.dumps(table[key])},\n' for key in table if key != "architectures"
    )
    body = ",\n".join(lines)
    FILE.write_text(f'{{\n{head} "architectures": {{\n{body}\n }}\n}}\n')


def main() -> None:
    """Read the versions that are named, and write the file."""
    table = json.loads(FILE.read_text()) if FILE.exists() else {"versions": [], "architectures": {}}
    for version in sys.argv[1:]:
        add(table, version, architectures(of_release(version)))
        write(table)
        print(f"{version}: {len(table['architectures'])} architectures in all", flush=True)


if __name__ == "__main__":
    main()
