"""Every `workshop …` command that a notebook, a page, a help text or a remedy names exists, with its options."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click

from workshop import cli

ROOT = Path(__file__).parents[2]
IN_TICKS = re.compile(r"`(workshop [^`]+)`")
A_LINE = re.compile(r"^\s*[!$%]?\s*(workshop [a-z-].*)$", re.MULTILINE)
FENCED = re.compile(r"```(?:bash|sh|console|text)?\n(.*?)```", re.DOTALL)
# the rest of a shell line: not part of the command
SHELL_WORDS = {"|", "&&", "||", ";", ">", "2>&1", "&"}
# Their other options go to vLLM, or to sbatch.
PASSED_ON = ("serve", "slurm submit", "batch")
SOURCES = [
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *sorted((ROOT / "workshop" / "course" / "exercises" / "sets").glob("*.toml")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "kubernetes").glob("*.md")),
    *sorted((ROOT / "workshop").rglob("*.py")),
    ROOT / "slurm" / "README.md",
    ROOT / "README.md",
]


def text_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def commands(text: str) -> list[str]:
    """Return the commands of a text: those in ticks, and the lines of blocks of code."""
    result = IN_TICKS.findall(text)
    for block in FENCED.findall(text):
        result += A_LINE.findall(block)
    return [re.sub(r"\s+", " ", command) for command in result]


def refusal(command: str) -> str:
    """Return why the command line does not take a command; '' if it does."""
    arguments = shlex.split(command, comments=True)
    for number, argument in enumerate(arguments):
        if argument in SHELL_WORDS:
            arguments = arguments[:number]
            break
    arguments = [argument for argument in arguments[1:] if argument not in ("…", "...")]
    current: click.Command = cli.group
    context = click.Context(current, info_name="workshop")
    while isinstance(current, click.Group) and arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        following = current.get_command(context, name)
        if following is None:
            return f"there is no command {name!r}"
        current = following
        context = current.context_class(
            current, parent=context, info_name=name, **current.context_settings
        )
    try:
        current.make_parser(context).parse_args(arguments)
    except click.NoSuchOption as error:
        passed_on = context.command_path.removeprefix("workshop ") in PASSED_ON
        return "" if passed_on else error.message
    except click.BadOptionUsage:  # `workshop ask --url …`: a mention, its value left out
        return ""
    except click.UsageError as error:
        return error.message
    return ""


def test_the_command_line_takes_every_command_of_the_text(subtests):
    for path in SOURCES:
        with subtests.test(path.name):
            refused = {}
            for command in commands(text_of(path)):
                if reason := refusal(command):
                    refused[command] = reason
            assert refused == {}


def test_the_notebooks_name_commands():
    """The review of the course counted 32; the test above must not pass because it finds none."""
    command_lines = [command for path in SOURCES[:10] for command in commands(text_of(path))]
    assert len(command_lines) >= 15


def test_a_command_that_does_not_exist_is_found(subtests):
    for command, reason in [
        ("workshop launch 70b", "no command 'launch'"),
        ("workshop progress --sharing", "No such option"),
        ("workshop slurm cancel 70b", "no command 'cancel'"),
        ("workshop serve --background | tee log", ""),
    ]:
        with subtests.test(command):
            assert (reason in refusal(command)) if reason else refusal(command) == ""
