"""No Python that the workshop starts takes code from the folder it is started in, which may be anybody's."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inference_planner.catalog import load_model
from needs import lacking
from planted_files import Planted
from stand_ins import stand_in

from workshop import preloaded, python_process
from workshop.batch import offline
from workshop.engine.exact import ask
from workshop.engine.planning import plan
from workshop.lab import jupyter
from workshop.servers import local, vm
from workshop.vllm_package import installed

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workshop"
WORKSHOP = Path(sys.executable).with_name("workshop")
# Asks for planted names in a process and in one that it starts, as vLLM does with its classes.
IMPORTS = """
import importlib, subprocess, sys
for name in ("json", "numpy", "flashinfer", "planted_plugin"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
"""
PROBE = f"{IMPORTS}\nsubprocess.run([sys.executable, '-c', {IMPORTS!r}], check=True)\n"


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Planted:
    """Be in a folder of planted files, with a PYTHONPATH whose entries name it without its path."""
    planted_files = Planted(tmp_path)
    monkeypatch.chdir(planted_files.folder)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(["", ".", f"..{os.sep}{planted_files.folder.name}"])
    )
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "home"))
    return planted_files


def outside(monkeypatch) -> dict[str, str]:
    """The environment of a person who has no PYTHONPATH: the command itself is theirs to start."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return dict(os.environ)


def test_the_planted_files_would_run(planted):
    subprocess.run(
        [sys.executable, "-m", "json.tool"], stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    )
    assert "sitecustomize" in planted.ran and "json" in planted.ran.split()


class Start:
    """What a start hands to the system: command, environment, folder."""

    def __init__(self, command, **options):
        self.command = [str(argument) for argument in command]
        self.options = options
        raise Started(self)


class Started(Exception):
    pass


def of_serve(monkeypatch) -> None:
    monkeypatch.setattr(local, "engine_device", lambda: "cpu")
    launch = local.prepare()
    launch.let_go()
    Start(launch.argv, env=launch.env)


def of_serve_help(monkeypatch) -> None:
    from workshop.cli.serve import serve

    monkeypatch.setattr(local, "engine_device", lambda: "cpu")
    monkeypatch.setattr(subprocess, "call", Start)
    serve.command.make_context("serve", ["--help=max-num-seqs"])


def of_jupyter(monkeypatch) -> None:
    Start(jupyter.command(Path.cwd(), "127.0.0.1", 1, "x.ipynb"), env=jupyter.environment("token"))


def of_a_machine(monkeypatch) -> None:
    text = vm.unit(vm.VmServer(plan("llama-3.1-8b", "h100", usage="serve")))
    lines = dict(
        line.split("=", 1)
        for line in text.splitlines()
        if line.startswith(("ExecStart=", "WorkingDir"))
    )
    set_in_unit = [
        pair
        for line in text.splitlines()
        if line.startswith("Environment=")
        for pair in line[12:].split()
    ]
    command = lines["ExecStart"].replace(vm.PYTHON, sys.executable).split()
    unit_env = dict(pair.split("=", 1) for pair in set_in_unit) | {"PYTHONPATH": str(ROOT)}
    Start(command, env=unit_env, cwd=lines["WorkingDirectory"])


STARTS = (of_serve, of_serve_help, of_jupyter, of_a_machine)


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__)
def test_a_start_and_what_it_starts_take_nothing_from_the_current_folder(
    start, planted, monkeypatch
):
    """Interpreter, flags, environment and folder are those of the start; in place of the module PROBE runs."""
    with pytest.raises(Started) as caught, monkeypatch.context() as patched:
        patched.delenv(preloaded.PATH_VARIABLE, raising=False)  # a start of its own
        start(patched)
    begun = caught.value.args[0]
    flags = begun.command[: begun.command.index("-m")]
    options = {name: begun.options[name] for name in ("env", "cwd") if name in begun.options}
    done = subprocess.run([*flags, "-c", PROBE], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    assert not planted.ran, f"{start.__name__}: {begun.command[:4]}"


def test_offline_batches_leave_nothing_of_the_folder_to_the_engines_processes(planted, monkeypatch):
    """The engine runs in the command's own process, and what that starts has its environment."""

    class Enough(Exception):
        pass

    def enough() -> None:
        raise Enough

    monkeypatch.setattr(local, "engine_device", lambda: "cpu")
    monkeypatch.setattr(offline.cpu_package_name, "apply", enough)
    before = dict(os.environ)
    try:
        with pytest.raises(Enough):
            offline.start(str(local.TEACHING_FOLDER))
        done = subprocess.run([sys.executable, "-c", "import json, numpy"], env=dict(os.environ))
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert done.returncode == 0 and not planted.ran


def need_vllm() -> None:
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")


def test_vllms_classes_work_among_planted_files(planted, monkeypatch):
    """A real start, which loads all of vLLM; the simulator's worker is started in the same way."""
    need_vllm()
    monkeypatch.delenv("WORKSHOP_VLLM_PYTHON", raising=False)
    job = {
        "config": dict(load_model("llama-3.2-1b").raw),
        "tp": 1,
        "pp": 1,
        "max_model_len": 4096,
        "max_num_batched_tokens": 8192,
    }
    with ask.ExactWorker() as exact_worker:
        built = exact_worker.build(job)
    assert built.get("architecture") == "LlamaForCausalLM", built
    assert not planted.ran


@pytest.mark.parametrize("arguments", [["plan", "llama-3.2-1b", "--gpu", "h100"], ["doctor"]])
def test_commands_work_among_planted_files(arguments, planted, monkeypatch):
    done = subprocess.run(
        [WORKSHOP, *arguments], capture_output=True, text=True, env=outside(monkeypatch)
    )
    assert done.returncode == 0, done.stderr
    assert not planted.ran


@pytest.mark.parametrize("entries", ["", ".", "sub/..", "/nowhere:"])
def test_the_command_line_forgets_what_a_pythonpath_means_by_the_current_folder(
    entries, planted, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", f"{entries}{os.pathsep}")
    # read before our first line
    for name in "sitecustomize", "usercustomize", "workshop", "typing", "re":
        (planted.folder / f"{name}.py").unlink()
    done = subprocess.run(
        [WORKSHOP, "plan", "llama-3.2-1b", "--gpu", "h100"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert not planted.ran


def test_python_m_workshop_leaves_the_folder_before_it_imports_anything_else(planted, monkeypatch):
    for name in ("workshop", "typing", "re"):  # Python itself looks for these before our first line
        (planted.folder / f"{name}.py").unlink()
    command = [sys.executable, "-m", "workshop", "plan", "llama-3.2-1b", "--gpu", "h100"]
    done = subprocess.run(command, capture_output=True, text=True, env=outside(monkeypatch))
    assert done.returncode == 0, done.stderr
    assert not planted.ran


def test_a_folder_that_pythonpath_names_by_its_whole_path_is_a_persons_own_choice(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), "", "lib"]))
    assert python_process.environment()["PYTHONPATH"] == str(tmp_path)
    monkeypatch.setattr(
        sys, "path", [str(tmp_path), os.getcwd(), os.path.abspath("lib"), "/usr/lib/python3"]
    )
    python_process.leave_current_folder()
    assert sys.path == [str(tmp_path), "/usr/lib/python3"]


def test_the_packages_own_folder_is_named_only_to_a_python_that_would_not_find_it(monkeypatch):
    """It is a checkout, perhaps, with files of its own, and PYTHONPATH goes before the standard library."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    packages = os.pathsep.join((str(ROOT), str(ROOT / "planner")))
    assert python_process.environment(python="/opt/other/python")["PYTHONPATH"] == packages
    monkeypatch.setattr(python_process, "_is_installed", lambda: True)
    assert "PYTHONPATH" not in python_process.environment()
    monkeypatch.setattr(python_process, "_is_installed", lambda: False)
    assert python_process.environment()["PYTHONPATH"] == packages


def test_the_kernel_of_another_jupyterlab_ignores_the_folder_of_a_notebook(
    planted, monkeypatch, tmp_path
):
    env = outside(monkeypatch) | {"JUPYTER_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path)}
    subprocess.run([WORKSHOP, "kernel", "install"], env=env, check=True, capture_output=True)
    (spec,) = tmp_path.rglob("vllm-workshop/kernel.json")
    argv = json.loads(spec.read_text())["argv"]
    command = [*argv[: argv.index("-f")], "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "IPKernelApp" in done.stdout and not planted.ran


def test_what_the_engines_python_says_last_stands_in_the_commands_sentence(tmp_path):
    error = "ModuleNotFoundError: No module named 'pydantic'"
    stand_in(tmp_path, "python", f'echo "{error}" >&2; exit 1')
    done = subprocess.run(
        [WORKSHOP, "plan", "llama-3.2-1b", "--gpu", "h100", "--exact"],
        capture_output=True,
        text=True,
        env=os.environ
        | {"WORKSHOP_VLLM_PYTHON": str(tmp_path / "python"), "WORKSHOP_HOME": str(tmp_path)},
    )
    assert done.returncode == 2 and "No module named 'pydantic'" in done.stderr
    assert "Traceback" not in done.stderr


STARTERS = ("executable", "ProcessPoolExecutor")  # of sys; of concurrent.futures
SHOWN_ALONE = {
    "lab/doctor.py": "a command that a person is told to give",
    "vllm_package.py": "a command that a person is told to give",
    "course/notebooks/nb03.py": "a command that a person is told to give",
    "lab/terminal.py": "the folder of this Python, for PATH; nothing is started",
}


def starts_of_python(source: str) -> list[int]:
    """The lines of a module that build a command of Python's: sys.executable, or a list with "-m" or "-c" in it."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in STARTERS:
            lines.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and any(alias.name in STARTERS for alias in node.names):
            lines.append(node.lineno)
        if isinstance(node, (ast.List, ast.Tuple)):
            constants = [part.value for part in node.elts if isinstance(part, ast.Constant)]
            if "-m" in constants or {"python", "python3"} & set(map(str, constants)):
                lines.append(node.lineno)
    return lines


def test_nothing_starts_python_but_the_one_owner():
    starts = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        lines = starts_of_python(path.read_text())
        if lines and name not in SHOWN_ALONE and name != "python_process.py":
            starts[name] = lines
    assert not starts, "take command() and environment() of workshop/python_process.py"


@pytest.mark.parametrize(
    "source",
    [
        "import sys, subprocess\nsubprocess.run([sys.executable, '-c', 'x'])",
        "from sys import executable",
        "import subprocess\nsubprocess.run(['python3', 'x.py'])",
        "command = [python(), '-m', 'json.tool']",
    ],
)
def test_a_start_that_goes_round_the_owner_is_found(source):
    assert starts_of_python(source)


def test_the_owner_imports_only_what_every_python_has_loaded():
    code = f"import sys\nbefore = set(sys.modules)\nsys.path.append({str(ROOT)!r})\n"
    code += "import importlib.util as u\nbefore |= set(sys.modules)\n"
    code += f"spec = u.spec_from_file_location('p', {str(PACKAGE / 'python_process.py')!r})\n"
    code += "m = u.module_from_spec(spec); spec.loader.exec_module(m); m.leave_current_folder()\n"
    code += "print(sorted(set(sys.modules) - before))"
    assert (
        subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True).stdout
        == "[]\n"
    )
