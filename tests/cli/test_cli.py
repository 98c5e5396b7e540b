"""The command line: every command explains itself, errors are one sentence, exit codes mean what the design says."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from workshop.cli import COMMANDS

CLI = [sys.executable, "-m", "workshop"]


def workshop(*args: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([*CLI, *args], capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_the_same_summary(command):
    done = workshop(command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout and len(done.stdout.splitlines()) > 4


def test_help_names_every_command():
    shown = workshop("--help").stdout
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("serve", "--port", "many"),
        ("stop",),
        ("serve", "--port", "0"),
        ("serve", "--api-key", "x"),
        ("serve", "/no/such/model"),
        ("stop", "../x"),
    ],
)
def test_wrong_use_is_2_without_a_traceback(args, workshop_home):
    done = workshop(*args)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and done.stderr.strip()


def test_what_could_not_be_done_is_1_with_a_remedy(workshop_home):
    done = workshop("stop", "nobody")
    assert done.returncode == 1 and "nobody" in done.stderr and "→" in done.stderr


def test_no_servers_is_an_empty_list(workshop_home):
    done = workshop("servers", "--json")
    assert done.returncode == 0 and json.loads(done.stdout) == []


def test_doctor_gives_each_lack_a_remedy(workshop_home):
    report = json.loads(workshop("doctor", "--json").stdout)
    assert set(report) == {"ok", "checks"}
    names = [check["name"] for check in report["checks"]]
    assert {
        "Python",
        "jupyterlab",
        "ipywidgets",
        "openai",
        "vLLM",
        "GPUs",
        "Memory",
        "Jupyter widgets",
        "SLURM",
    } <= set(names)
    for check in report["checks"]:
        assert set(check) == {"name", "state", "found", "remedy"} and check["found"]
        assert check["state"] == "ok" or check["remedy"], check


def test_doctor_sees_a_home_that_cannot_be_written_and_a_server_that_does_not_answer(tmp_path):
    (tmp_path / "file").write_text("")
    env = {**__import__("os").environ, "WORKSHOP_HOME": str(tmp_path / "file"), "WORKSHOP_URL": "http://127.0.0.1:9/v1"}
    done = workshop("doctor", "--json", env=env)
    lacks = {check["name"]: check["remedy"] for check in json.loads(done.stdout)["checks"] if check["state"] == "lack"}
    assert done.returncode == 1 and "WORKSHOP_HOME" in lacks["Workshop folder"] and "Server" in lacks


@pytest.mark.parametrize(
    ("args", "model", "theirs"),
    [
        ((), None, ()),
        (("m",), "m", ()),
        (("m", "--max-model-len", "5"), "m", ("--max-model-len", "5")),
        (("--max-model-len", "5"), None, ("--max-model-len", "5")),
        (("--name", "a", "m", "--seed=3", "-O3"), "m", ("--seed=3", "-O3")),
        (("--enforce-eager", "--port", "9"), None, ("--enforce-eager",)),
        (("--allowed-origins", "a", "b", "--name", "x"), None, ("--allowed-origins", "a", "b")),
        (("m", "--seed", "-1"), "m", ("--seed", "-1")),
        (("--host", "::1", "-tp", "2", "--background", "-dp=2"), None, ("-tp", "2", "-dp=2")),
        (("m", "--compilation-config", '{"mode": 3}', "--name=x"), "m", ("--compilation-config", '{"mode": 3}')),
    ],
)
def test_serve_tells_its_own_flags_from_those_of_vllm(args, model, theirs):
    from workshop.cli.serve import command

    with command.make_context("serve", list(args)) as context:
        assert context.params["model"] == model and context.obj == theirs


def test_import_is_light():
    heavy = ("torch", "vllm", "pandas", "matplotlib", "openai", "ipywidgets", "numpy")
    code = f"import sys, workshop; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_help_imports_no_command():
    code = (
        "import sys; sys.argv = ['workshop', '--help']\nfrom workshop.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('workshop.launch')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip().endswith("[]")
