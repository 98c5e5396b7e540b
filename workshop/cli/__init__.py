"""`workshop …`: thin commands over the package. Each module here holds one `command`, loaded when it is called."""

# ruff: noqa: E402      nothing else may be imported before the current folder is out of the way

from workshop import own_packages, python_process

python_process.leave_current_folder()
own_packages.environment_first()

import importlib
import io
import os
import re
import sys
from typing import NoReturn

import click

import workshop
from workshop.cli.say import plain_lines
from workshop.errors import WorkshopError

LONG_WORD = re.compile(r"(\S{80})\S{120,}")

# name (a module under workshop.cli) -> help. The help stands here so that `workshop --help` imports nothing else.
COMMANDS = {
    "doctor": "What this machine or cluster has, lacks, and the remedy for each lack.",
    "lab": "JupyterLab on the course, with a server behind it.",
    "serve": "Start vLLM and say where it is.",
    "servers": "List the servers that are known here.",
    "stop": "Stop a server.",
    "share": "Let a class use your server.",
    "keys": "A key for each learner of a class, and what each has used.",
    "plan": "Predict memory, parallelism and speed of a model on GPUs.",
    "simulate": "How long many users would wait, by vLLM's own scheduler on the plan's clock.",
    "tune": "Which GPUs, split and settings serve a load best.",
    "models": "Which models the catalogue has, and the fewest GPUs that serve each.",
    "reconcile": "Compare the plan with what vLLM's own log says.",
    "slurm": "Submit a server to a SLURM cluster, and watch it.",
    "prefetch": "Download a model to a shared folder, whole and checked.",
    "tunnel": "A cluster's server under an address of this machine, which stays.",
    "batch": "Answer every prompt of a file exactly once; run it again and it goes on.",
    "xray": "What the engine did, step by step: a trace as one page that works by a double click.",
    "classroom": "Simulate a class against a server: will it hold?",
    "progress": "Which checks you have done; --shared: who of a class is where.",
    "test": "Ten questions before the course, and the same after it.",
    "fresh": "Get a fresh copy of one notebook, keeping yours.",
    "kernel": "Let another environment's JupyterLab find the course's kernel.",
}


class LazyGroup(click.Group):
    """A group whose commands are imported only when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f"workshop.cli.{name.replace('-', '_')}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(workshop.__version__, package_name=None, prog_name="workshop")
def group() -> None:
    """Distributed LLM inference with vLLM: plan → launch → use → reconcile → learn."""


def main() -> None:
    """Run the command line: what goes wrong becomes one sentence and an exit code, never a traceback."""
    _make_streams_sure()
    try:
        code = group.main(standalone_mode=False)
    except click.ClickException as error:
        error.message = LONG_WORD.sub(r"\1…", plain_lines(error.message))
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Stopped.", err=True)
        sys.exit(1)
    except WorkshopError as error:
        _show(error)
    except OSError as error:  # of a file that nobody thought of: the system's own words
        place = f": {error.filename}" if error.filename else ""
        _show(WorkshopError(f"The system refuses: {error.strerror or error}{place}."))
    sys.exit(code if isinstance(code, int) else 0)


def _show(error: WorkshopError) -> NoReturn:
    click.secho(f"✗ {error.message}", fg="red", err=True)
    if error.remedy:
        click.echo(f"→ {error.remedy}", err=True)
    sys.exit(error.exit_code)


def _make_streams_sure() -> None:
    """Let every text be printed: names of files with half a character, and to streams that are closed (2>&-)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
