"""`workshop …`: thin commands over the package, in a folder for each group of `workshop --help`.

Each module there that is named after a command holds it as `command`, loaded when it is called.
"""

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

# group (a folder here) -> name (a module in it) -> help. The help stands here so that
# `workshop --help` imports nothing else.
GROUPS = {
    "Start": {
        "doctor": "Show what this machine or cluster has and lacks, with remedies.",
        "lab": "Open JupyterLab on the course, with a server behind it.",
        "fresh": "Get a fresh copy of one notebook, and keep yours.",
        "kernel": "Let another environment's JupyterLab find the course's kernel.",
    },
    "Plan": {
        "plan": "Predict memory and speed; --as prints what starts it.",
        "models": "List models, and how many GPUs serve each; --gpus: cards.",
        "simulate": "Predict how long many users wait; --search: the GPUs they need.",
    },
    "Serve": {
        "serve": "Start vLLM on this machine.",
        "slurm": "Submit a server to a SLURM cluster.",
        "prefetch": "Download a model to a shared folder, whole and checked.",
        "servers": "List your servers and waiting jobs; NAME: how to reach one.",
        "logs": "Show what a server has written.",
        "stop": "Stop a server, or cancel its job.",
    },
    "Use": {
        "ask": "Send one prompt to a server, and show the answer as it comes.",
        "bench": "Measure a server, and check the figures. Will it hold a class?",
        "evaluate": "Ask a server a task of lm-eval: is it still as good as before?",
        "batch": "Answer every prompt of a file exactly once.",
        "tunnel": "Reach a cluster's server under an address of this machine.",
        "reconcile": "Compare the plan with vLLM's own log.",
        "xray": "Show what the engine did, step by step, as one page.",
    },
    "Teach": {
        "share": "Let a class use your server.",
        "keys": "Give each learner a key, and take it back.",
        "progress": "Show your exercises; ten questions --before and --after.",
        "certificate": "Write a page to keep of what you have done.",
    },
}
COMMANDS = {name: about for commands in GROUPS.values() for name, about in commands.items()}


def load(name: str) -> click.Command:
    """Return a command, whose module is imported now."""
    for title, commands in GROUPS.items():
        if name in commands:
            return importlib.import_module(f"workshop.cli.{title.lower()}.{name}").command
    raise KeyError(name)


class LazyGroup(click.Group):
    """A group whose commands are imported only when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        return load(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; click names the nearest, for which it needs the names."""
        if args[0] not in COMMANDS:
            raise click.NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `help COMMAND` and `version`, as other programs have them, too."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args[:1] in (["version"], ["-V"]):
            args = ["--version"]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(longest), about) for name, about in commands.items()]
                )


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(workshop.__version__, package_name=None, prog_name="workshop")
def group() -> None:
    """Distributed LLM inference with vLLM: plan → launch → use → reconcile → learn."""


def main() -> None:
    """Run the command line.

    What goes wrong becomes one sentence and an exit code, never a traceback.
    """
    _make_streams_sure()
    try:
        code = group.main(standalone_mode=False)
    except click.ClickException as error:
        _show_wrong_use(error)
    except click.Abort:
        click.echo("Stopped.", err=True)
        sys.exit(1)
    except WorkshopError as error:
        _show(error)
    except OSError as error:  # a file error that no command foresaw: the system's own words
        place = f": {error.filename}" if error.filename else ""
        _show(WorkshopError(f"The system refuses: {error.strerror or error}{place}."))
    sys.exit(code if isinstance(code, int) else 0)


def _show_wrong_use(error: click.ClickException) -> NoReturn:
    """Show click's own message, without control characters and cut after long words, and exit."""
    message = LONG_WORD.sub(r"\1…", plain_lines(error.message))
    error.message = message  # pyright: ignore  click declares it Final, and show() reads it
    error.show()
    sys.exit(error.exit_code)


def _show(error: WorkshopError) -> NoReturn:
    from workshop.cli.say import say_remedy

    click.secho(f"✗ {error.message}", fg="red", err=True)
    remedy = getattr(error, "command_remedy", error.remedy)
    if remedy:
        say_remedy(remedy, err=True)
    sys.exit(error.exit_code)


def _make_streams_sure() -> None:
    """Let every text be printed, on every stream.

    Names of files may hold half a character, and a stream may be closed (2>&-).
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
