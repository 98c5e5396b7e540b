"""The command line: every command explains itself, errors are one sentence, exit codes mean what the design says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from command_line import run_arguments as workshop

from workshop.cli import COMMANDS, group
from workshop.servers import records

ROOT = Path(__file__).parents[2]


def test_every_command_has_help_and_the_same_summary(subtests):
    for command in COMMANDS:
        with subtests.test(command):
            shown = CliRunner().invoke(group, [command, "--help"])
            assert shown.exit_code == 0, shown.output
            assert "Usage:" in shown.output and len(shown.output.splitlines()) > 4


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
    assert done.code == 2, done.out + done.err
    assert "Traceback" not in done.err and done.err.strip()


def test_what_could_not_be_done_is_1_with_a_remedy(workshop_home):
    """In a process of its own: the other tests read the code before Python ends."""
    command = [sys.executable, "-m", "workshop", "stop", "nobody"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "nobody" in done.stderr and "→" in done.stderr


def test_stop_without_a_name_lists_what_could_be_stopped(workshop_home):
    assert "you have no server" in workshop("stop").err
    for name in ("first", "second"):
        records.write(records.new(name=name, url="http://127.0.0.1:1/v1", model="m", log=""))
    done = workshop("stop")
    assert done.code == 2
    assert "workshop stop first, workshop stop second" in done.err
    assert len(records.own()) == 2


def test_no_servers_is_an_empty_list(workshop_home):
    done = workshop("servers", "--json")
    assert done.code == 0 and json.loads(done.out) == []


def test_doctor_gives_each_lack_a_remedy(workshop_home):
    report = json.loads(workshop("doctor", "--json").out)
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


def test_doctor_sees_a_home_that_cannot_be_written_and_a_server_that_does_not_answer(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("WORKSHOP_URL", "http://127.0.0.1:9/v1")
    done = workshop("doctor", "--json")
    lacks = {
        check["name"]: check["remedy"]
        for check in json.loads(done.out)["checks"]
        if check["state"] == "lack"
    }
    assert done.code == 1 and "WORKSHOP_HOME" in lacks["Workshop folder"] and "Server" in lacks


def test_serve_tells_its_own_flags_from_those_of_vllm(subtests):
    for args, model, theirs in [
        ((), None, ()),
        (("m",), "m", ()),
        (("m", "--max-model-len", "5"), "m", ("--max-model-len", "5")),
        (("--max-model-len", "5"), None, ("--max-model-len", "5")),
        (("--name", "a", "m", "--seed=3", "-O3"), "m", ("--seed=3", "-O3")),
        (("--enforce-eager", "--port", "9"), None, ("--enforce-eager",)),
        (("--allowed-origins", "a", "b", "--name", "x"), None, ("--allowed-origins", "a", "b")),
        (("m", "--seed", "-1"), "m", ("--seed", "-1")),
        (("--host", "::1", "-tp", "2", "--background", "-dp=2"), None, ("-tp", "2", "-dp=2")),
        (
            ("m", "--compilation-config", '{"mode": 3}', "--name=x"),
            "m",
            ("--compilation-config", '{"mode": 3}'),
        ),
    ]:
        with subtests.test(str(args)):
            from workshop.cli.serve.serve import command

            with command.make_context("serve", list(args)) as context:
                assert context.params["model"] == model and context.obj == theirs


def test_help_on_a_flag_of_vllm_is_vllms_own(monkeypatch):
    from workshop.cli.serve import serve
    from workshop.servers import local

    commands = []
    monkeypatch.setattr(local, "engine_device", lambda: "cpu")
    monkeypatch.setattr(subprocess, "call", lambda command, env: commands.append(command) or 0)
    with pytest.raises(click.exceptions.Exit) as ended:
        serve.command.make_context("serve", ["--help=tool-call-parser"])
    assert ended.value.exit_code == 0
    assert commands == [
        [
            sys.executable,
            "-P",
            "-m",
            "workshop.servers.vllm_main",
            "serve",
            "--help=tool-call-parser",
        ]
    ]


def test_nobody_is_sent_to_a_command_that_the_cpu_build_lacks():
    """`vllm` itself ends there: it asks for the version of a package of that name."""
    texts = [
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("workshop/**/*.toml"),
    ]
    assert len(texts) > 40 and not [
        path.name for path in texts if "vllm serve --help" in path.read_text()
    ]


def test_import_is_light():
    heavy = ("torch", "vllm", "pandas", "matplotlib", "openai", "ipywidgets", "numpy")
    code = f"import sys, workshop; print([name for name in {heavy} if name in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "[]"
    )
