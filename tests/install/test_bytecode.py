"""Bytecode is kept: the set-up compiles ahead, and no start compiles vLLM anew."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path
from types import SimpleNamespace

import bytecode
import install
import pytest
from needs import lacking

from workshop import own_packages, python_process, vllm_package
from workshop.lab import doctor
from workshop.servers.checks import NOTE
from workshop.servers.slurm import doctor as slurm_doctor

ROOT = Path(__file__).parents[2]


@pytest.fixture
def vllm() -> None:
    if not vllm_package.installed()[0]:
        lacking("vLLM is not installed: make test installs it")


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package in the place of vLLM, which nobody has imported."""
    source = tmp_path / "packages" / "slow_package" / "core.py"
    source.parent.mkdir(parents=True)
    (source.parent / "__init__.py").touch()
    source.touch()
    monkeypatch.syspath_prepend(str(source.parents[1]))
    monkeypatch.setattr(vllm_package, "IMPORTED_BY_SERVERS", ("slow_package/core.py",))
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    return source


def read_only(monkeypatch) -> None:
    """Let no folder be written: root may write everywhere, whatever the modes say."""
    monkeypatch.setattr(vllm_package.os, "access", lambda path, mode: False)


def compile_it(source: Path) -> None:
    subprocess.run([sys.executable, "-m", "compileall", "-q", source], check=True)


def test_the_set_up_compiles_what_is_listed_and_there_also_where_python_is_told_not_to(tmp_path):
    for name in ("shelf/book.py", "shelf/page.py", "whole/one.py", "whole/two.py", "other/not.py"):
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("VALUE = 1\n")
    (tmp_path / "packages" / "whole" / "broken.py").write_text("def :\n")
    (tmp_path / "list").write_text("shelf book absent\nabsent\nwhole\n")
    program = (
        "import bytecode, pathlib\n"
        f"folder = bytecode.ROOT = pathlib.Path({str(tmp_path)!r})\n"
        "bytecode.PACKAGES = folder / 'packages'\n"
        "bytecode.LIST = folder / 'list'\n"
        "bytecode.compile_imported()\n"
    )
    variables = {"PYTHONPATH": str(ROOT / "locks"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **variables})
    compiled = {path.name.partition(".")[0] for path in tmp_path.rglob("*.pyc")}
    assert compiled == {"book", "one", "two"}


@pytest.mark.usefixtures("vllm")
def test_the_list_has_what_tells_that_vllm_is_compiled_and_fits_what_is_installed():
    listed = {str(path.relative_to(bytecode.PACKAGES)) for path in bytecode.listed_modules()}
    assert set(vllm_package.IMPORTED_BY_SERVERS) <= listed
    folders = [line.split()[0] for line in bytecode.LIST.read_text().splitlines()]
    absent = [folder for folder in folders if not (bytecode.PACKAGES / folder).is_dir()]
    assert len(absent) < len(folders) / 20, "renew it: python -P locks/bytecode.py record"


def test_the_set_up_compiles_beside_each_next_download(monkeypatch, tmp_path):
    steps = []
    monkeypatch.setattr(install, "find_installer", lambda *args: ["uv"])
    monkeypatch.setattr(install, "succeed", lambda command, what, env: steps.append(what))
    monkeypatch.setattr(install, "start_compiling", lambda python: steps.append("compile"))
    monkeypatch.setattr(install.package_sources, "environment", lambda python: {})
    install.install_packages(tmp_path / "bin" / "python", "local")
    assert steps == ["torch.txt", "compile", "local.txt", "compile", "The workshop"]


@pytest.mark.parametrize("wait", [True, False])
def test_an_image_gets_all_bytecode_and_a_person_the_notebook_at_once(
    monkeypatch, tmp_path, capsys, wait
):
    waits = []
    compiling = SimpleNamespace(wait=lambda: waits.append(True))
    monkeypatch.setattr(install, "need_disk", lambda *args: None)
    monkeypatch.setattr(install, "make_venv", lambda venv: None)
    monkeypatch.setattr(install, "install_packages", lambda *args: compiling)
    install.install(tmp_path / "venv", "base", wait=wait)
    assert bool(waits) == wait
    assert ("compiling the modules" in capsys.readouterr().out) == wait


def test_neither_the_set_up_nor_what_we_start_is_told_to_write_no_bytecode(monkeypatch):
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE"):
        monkeypatch.setenv(name, "1")
    variables = dict(os.environ)
    assert install.main(["no-such-set"]) == 1
    assert "PYTHONDONTWRITEBYTECODE" not in os.environ
    assert "PYTHONDONTWRITEBYTECODE" not in python_process.environment(base=variables)
    assert own_packages.for_kernel()["PYTHONDONTWRITEBYTECODE"] == ""  # Python takes that for none


def test_bytecode_goes_to_our_own_folder_only_where_it_cannot_lie_beside_the_packages(
    package, tmp_path, monkeypatch
):
    home = tmp_path / "home"
    monkeypatch.setenv("WORKSHOP_HOME", str(home))
    assert "PYTHONPYCACHEPREFIX" not in python_process.environment(), "it will be written"
    read_only(monkeypatch)
    assert python_process.environment()["PYTHONPYCACHEPREFIX"] == str(home / "bytecode")
    assert home.stat().st_mode & 0o777 == 0o700
    assert "PYTHONPYCACHEPREFIX" not in python_process.environment(python="/opt/python")
    chosen = python_process.environment({"PYTHONPYCACHEPREFIX": "/chosen"})
    assert chosen["PYTHONPYCACHEPREFIX"] == "/chosen"
    compile_it(package)
    assert "PYTHONPYCACHEPREFIX" not in python_process.environment(), "it is there"


def test_a_person_without_any_folder_to_write_to_still_gets_an_environment(
    package, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "file" / "home"))
    read_only(monkeypatch)
    assert "PYTHONPYCACHEPREFIX" not in python_process.environment()


def test_missing_bytecode_is_told_with_the_command_that_makes_it(package, monkeypatch):
    problem, remedy = vllm_package.bytecode_problem()
    assert "first start" in problem
    read_only(monkeypatch)
    problem, remedy = vllm_package.bytecode_problem()
    assert "each process of each start" in problem and "PYTHONPYCACHEPREFIX" in remedy
    compile_it(package)
    assert Path(cache_from_source(str(package))).exists()
    assert vllm_package.bytecode_problem() is None


@pytest.mark.usefixtures("vllm")
def test_doctor_notes_that_vllm_is_not_compiled(monkeypatch):
    monkeypatch.setattr(doctor, "bytecode_problem", lambda: ("not compiled", "compile it"))
    checks = {check.name: check for check in doctor.examine()}
    check = checks["Bytecode of vLLM"]
    assert (check.state, check.found, check.remedy) == (NOTE, "not compiled", "compile it")


@pytest.mark.usefixtures("vllm")
def test_doctor_asks_the_python_of_a_cluster_for_its_bytecode(tmp_path):
    empty = tmp_path / "empty"
    site = tmp_path / "site.sh"
    site.write_text(
        "export PYTHONDONTWRITEBYTECODE=1\n"
        f"workshop_environment() {{ python=({sys.executable}); export PYTHONPYCACHEPREFIX={empty}; }}\n"
    )
    settings = {"WORKSHOP_ALLOW_CPU": "1"}
    environment, check = slurm_doctor._environment(settings, str(site))
    assert environment.found.startswith("vllm")
    assert check.state == NOTE and "first start" in check.found and "compileall" in check.remedy
    assert any(empty.rglob("*.pyc")), "a job keeps what it compiles, whatever the site exports"
