"""Every `workshop …` command that a notebook, a page, a slide, a help text or a remedy names exists, with its options.

A line of a block can be pasted: its values are read, too.
"""

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
FENCED = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
# the rest of a shell line: not part of the command
SHELL_WORDS = {"|", "&&", "||", ";", ">", "2>&1", "&"}
# What goes on to vLLM, or to sbatch, as it is.
PASSED_ON = {
    "batch": {"--tensor-parallel-size"},
    "serve": {"--allowed-origins", "-t"},  # -tp, as click reads it
    "slurm submit": {"--reservation", "-M"},
}
SOURCES = [
    *sorted((ROOT / "notebooks").glob("*.ipynb")),
    *sorted((ROOT / "workshop" / "course" / "exercises" / "sets").glob("*.toml")),
    *sorted((ROOT / "workshop").rglob("*.py")),
    # The changelog names commands that have gone.
    *sorted({*ROOT.glob("*.md")} - {ROOT / "CHANGELOG.md"}),
    *sorted(ROOT.glob("*/*.md")),
    *sorted((ROOT / "docs" / "teaching").glob("*.md")),
    *sorted((ROOT / "slides" / "deck").rglob("*.md")),
]


def text_of(path: Path) -> str:
    if path.suffix != ".ipynb":
        return re.sub("{{.*?}}", "1", path.read_text())  # the slides have placeholders of figures
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def lines(text: str) -> list[str]:
    """Return the commands that are lines of blocks, each with the lines that continue it."""
    blocks = FENCED.findall(text)
    return [line for block in blocks for line in A_LINE.findall(block.replace("\\\n", ""))]


def refusal(command: str, is_line: bool = False) -> str:
    """Return why the command line does not take a command; '' if it does. Of a line, the values are read as well."""
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
    passed_on = PASSED_ON.get(context.command_path.removeprefix("workshop "), ())
    try:
        values, _, _ = current.make_parser(context).parse_args([*arguments])
        rest = values.get("arguments")  # of `slurm submit`, with what it passes on to sbatch
        for word in rest if isinstance(rest, tuple) else ():
            name = word.partition("=")[0]
            if name.startswith("-") and name not in passed_on:
                return f"No such option: {name}"
    except click.NoSuchOption as error:
        if error.option_name not in passed_on:
            return error.message
    except click.BadOptionUsage:  # `workshop ask --url …`: a mention, its value left out
        pass
    except click.UsageError as error:
        return error.message
    if is_line:
        try:
            current.make_context(context.info_name, arguments, parent=context.parent)
        except click.UsageError as error:
            return error.message
    return ""


def test_the_command_line_takes_every_command_of_the_text(subtests):
    for path in SOURCES:
        with subtests.test(path.relative_to(ROOT).as_posix()):
            text = text_of(path)
            refused = {command: refusal(command) for command in IN_TICKS.findall(text)}
            refused |= {line: refusal(line, is_line=True) for line in lines(text)}
            assert {command: reason for command, reason in refused.items() if reason} == {}


def test_the_texts_name_commands_and_have_lines_to_paste():
    """The review of the course counted 32; the test above must not pass because it finds none."""
    texts = [text_of(path) for path in SOURCES]
    assert sum(len(IN_TICKS.findall(text)) for text in texts[:10]) >= 15
    assert len({line for text in texts for line in lines(text)}) > 60


def test_a_command_that_does_not_exist_is_found(subtests):
    for command, reason in [
        ("workshop launch 70b", "no command 'launch'"),
        ("workshop progress --sharing", "No such option"),
        ("workshop slurm cancel 70b", "no command 'cancel'"),
        ("workshop slurm submit 70b --reservations=course", "No such option"),
        ("workshop plan 70b --as nonsense", "is not one of"),
        ("workshop ask Why? --url", "requires an argument"),
        ("workshop serve --background | tee log", ""),
    ]:
        with subtests.test(command):
            reported = refusal(command, is_line=True)
            assert (reason in reported) if reason else reported == ""
    assert refusal("workshop ask --url …") == ""
