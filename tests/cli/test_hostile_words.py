"""Whatever stands on the command line: exit code 0, 1 or 2, no traceback, and a terminal that nobody takes over."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys

import click
import pytest
from command_line import run_arguments
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop import cli
from workshop.errors import WorkshopError

AS_SYSTEMD = ["plan", "llama-3.1-8b", "--as", "systemd", "--gpu", "h100"]
AS_KUBERNETES = ["plan", "llama-3.1-8b", "--as", "kubernetes", "--gpu", "h100"]
BELL = "\x1b]0;mine\x07\x9b2J"  # sets a terminal's title, rings, clears the screen
VALUES = [
    "",
    "0",
    "-1",
    "1",
    "4",
    "1e9",
    "nan",
    "inf",
    "-inf",
    "9" * 400,
    "9" * 4000,
    "9" * 5000,
    "9" * 16 + "K",
    "٣",
    "128K",
    "x",
    "x[/]",
    "[bold]x",
    ":smile:",
    BELL,
    "\udcff",
    "a b",
    "'x",
    "{}",
    "%s",
    "../x",
    "/",
    ".",
    "~",
    "~nobody/x",
    "x" * 5000,
    "-",
    "--",
    "-x",
    "--x",
    "--x=" + BELL,
    "=",
    "@",
    "config.json",
    "broken",
    "pipe",
    "x[/]/config.json",
    "http://127.0.0.1:1/v1",
    "http://[",
    "h100",
    "t4",
    "fp8",
    "awq",
    "auto",
    "70b",
    "405b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "mixtral-8x7b",
    "install",
    "submit",
    "status",
    "logs",
    "7",
]


def options(command: click.Command) -> list[str]:
    own = [name for param in command.params for name in param.opts if name.startswith("-")]
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return own + [name for subcommand in inner for name in options(subcommand)]


FLAGS = {name: options(cli.load(name)) for name in cli.COMMANDS}


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A folder with odd files."""
    folder = tmp_path_factory.mktemp("stage") / "a" / "b" / "c"
    (folder / "x[/]").mkdir(parents=True)
    (folder / "x[/]" / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLM"], "hidden_size": []}'
    )
    (folder / "config.json").write_text('{"model_type": ' + "[" * 5000)
    (folder / "broken").write_bytes(b"\xff\0\x1b[31m")
    os.mkfifo(folder / "pipe")
    return folder


def close_the_edges(patch: pytest.MonkeyPatch, folder) -> None:
    """Let no program start, no server be reached and no engine be loaded; what is written is written below `folder`."""
    from workshop.batch import offline

    def no_program(*args, **options):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "program")

    def unreachable(*args, **options):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    def no_engine(*args, **options):
        raise WorkshopError("No engine here.", "Start one.")

    patch.chdir(folder)
    for name in (
        "HOME",
        "WORKSHOP_HOME",
        "HF_HOME",
        "JUPYTER_DATA_DIR",
        "WORKSHOP_NOTEBOOKS",
        "TMPDIR",
    ):
        patch.setenv(name, str(folder / "home"))
    patch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for owner, name, stub in (
        (subprocess.Popen, "__init__", no_program),
        (os, "execv", no_program),
        (os, "execvp", no_program),
        (os, "execvpe", no_program),
        (socket.socket, "connect", unreachable),
        (socket, "getaddrinfo", unreachable),
        (offline, "OfflineBatch", no_engine),
    ):
        patch.setattr(owner, name, stub)
    patch.setattr(subprocess.Popen, "__del__", lambda self: None)


def run(*arguments: str, folder=None) -> tuple[int, str, str]:
    """Run `workshop ARGUMENTS`, in a folder of its own if one is given; return exit code, output, complaints."""
    with pytest.MonkeyPatch.context() as patch:
        if folder is not None:
            close_the_edges(patch, folder)
        return run_arguments(*arguments)


@st.composite
def lines(draw) -> list[str]:
    name = draw(st.sampled_from([*cli.COMMANDS, "nonsense", BELL]))
    flags = FLAGS.get(name) or ["--help"]
    argument = (
        st.sampled_from(VALUES)
        | st.sampled_from(flags)
        | st.tuples(st.sampled_from(flags), st.sampled_from(VALUES)).map("=".join)
    )
    return [name, *draw(st.lists(argument, max_size=6))]


@settings(max_examples=int(os.environ.get("WORKSHOP_EXAMPLES", "100")), deadline=None)
@given(arguments=lines())
@example(arguments=["plan", "x[/]", "--gpu", "h100"])
@example(arguments=["plan", "x" * 5000, "--gpu", "h100"])
@example(arguments=["plan", "~nobody/x", "--gpu", "h100"])
@example(arguments=["plan", "pipe", "--gpu", "h100"])
@example(arguments=["plan", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "9" * 5000])
@example(arguments=[*AS_SYSTEMD, "--disk-gb", "inf"])
@example(arguments=[*AS_SYSTEMD, "--disk-gb", "9" * 400])
@example(arguments=[*AS_KUBERNETES, "--load-gb-per-s", "nan"])
@example(arguments=[*AS_KUBERNETES, "--pvc-size", "9" * 400])
@example(arguments=[*AS_KUBERNETES, "--output", "x" * 5000])
@example(arguments=["plan", "llama-3.1-8b", "--gpu", BELL])
@example(arguments=["bench", "--class", "9" * 400])
@example(arguments=["bench", "--class", "4", "--seconds", "inf"])
@example(arguments=["bench", "--class", "4", "--seconds", "nan", "--url", "http://127.0.0.1:1/v1"])
@example(arguments=["reconcile", "pipe"])
@example(arguments=["reconcile", "x" * 5000])
@example(arguments=["slurm", "submit", "70b", "--vllm", "'x"])
@example(arguments=["slurm", "submit", "x" * 5000])
@example(arguments=["servers", "9" * 5000])
@example(arguments=["prefetch", "70b", "--to", "~nobody/x"])
@example(arguments=["prefetch", "lab/x", "--to", "x" * 5000, "--verify-only"])
@example(arguments=["tunnel", BELL, "--login", BELL])
@example(arguments=["models", BELL, "--family", BELL])
@example(arguments=[BELL])
@example(arguments=["plan", "--" + BELL])
def test_any_words_end_in_an_exit_code_and_a_sentence(stage, arguments):
    code, out, err = run(*arguments, folder=stage)
    assert code in (0, 1, 2) and "Traceback" not in out + err
    assert not set(out + err) & set("\x07\x9b") and "\x1b]" not in out + err
    assert code == 0 or (out + err).strip()


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_closed_streams_are_no_reason_to_fail(monkeypatch, closed):
    monkeypatch.setattr(sys, closed, None)
    monkeypatch.setattr(sys, "argv", ["workshop", "models", "--gpus"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0


def test_reader_that_has_enough_sees_no_traceback():
    """As in `workshop … | true`: the pipe is closed before the first word."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "models", "--gpus"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert done.returncode == 1 and not done.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyboardInterrupt(), "Stopped."),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/x\x1b[31m\u200f"),
            r"Permission denied: /x\x1b[31m\u200f",
        ),
    ],
)
def test_interrupts_and_errors_of_the_system_are_one_line(monkeypatch, error, message):
    def fail(**names):
        raise error

    monkeypatch.setitem(
        sys.modules,
        "workshop.cli.start.fresh",
        type("module", (), {"command": click.Command("fresh", callback=fail)}),
    )
    code, out, err = run("fresh")
    assert code == 1 and message in err and not out and len(err.strip().splitlines()) == 1


def test_name_with_brackets_and_half_a_character_is_printed(tmp_path, monkeypatch):
    from inference_planner.catalog import load_model

    folder = tmp_path / "x[" / "]half\udcff[bold]:smile:"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(load_model("llama-3.1-8b").raw)))
    code, out, _ = run("plan", str(folder), "--gpu", "h100")
    assert code == 0 and r"]half\udcff[bold]:smile: on 1 × h100" in out and "x[/]half" in out
    assert json.loads(run("plan", str(folder), "--gpu", "h100", "--json")[1])["fits"]
