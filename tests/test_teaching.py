"""The instructor's guide promises only what exists: commands, options, sections of notebooks, minutes that add up."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from workshop.cli import COMMANDS, group

ROOT = Path(__file__).parents[1]
GUIDE = (ROOT / "docs" / "teaching.md").read_text()
PASSED_ON = {"slurm submit": {"--reservation"}}  # to sbatch, as it is


def commands(text: str) -> list[str]:
    """Every `workshop …` of the blocks and of the lines."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines()
    inline = re.findall(r"`(workshop [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line for line in [*blocks, *inline] if line.startswith("workshop ")]


@pytest.mark.parametrize("line", sorted(set(commands(GUIDE))))
def test_every_command_of_the_guide_exists_with_its_options(line):
    words = shlex.split(line)[1:]
    assert words[0] in COMMANDS
    command, name = group.get_command(None, words.pop(0)), line.split()[1]
    while isinstance(command, click.Group):
        name, command = f"{name} {words[0]}", command.get_command(None, words.pop(0))
    known = {option for param in command.params for option in param.opts}
    strange = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    assert {word.partition("=")[0] for word in strange} <= PASSED_ON.get(name, set()), f"{name} knows no {strange}"


def test_there_are_commands_for_each_part_of_the_day():
    for needed in ("doctor", "prefetch", "slurm submit", "share", "classroom", "serve --background", "kernel install"):
        assert any(line.startswith(f"workshop {needed}") for line in commands(GUIDE)), needed


def test_every_section_that_the_guide_names_is_in_its_notebook():
    named = re.findall(r'notebook (\d):? ((?:"[^"]+"(?:, | and )?)+)', GUIDE)
    assert len(named) >= 10
    for number, titles in named:
        cells = json.loads(next((ROOT / "notebooks").glob(f"0{number}_*.ipynb")).read_text())["cells"]
        headings = re.findall(r"^#+ (.+)$", "\n".join("".join(cell["source"]) for cell in cells), re.MULTILINE)
        for title in re.findall(r'"([^"]+)"', titles):
            assert any(heading.replace("`", "").startswith(title) for heading in headings), f"{number}: {title}"


@pytest.mark.parametrize(("title", "minutes"), [("90 minutes", 90), ("Three hours", 180)])
def test_minutes_add_up(title, minutes):
    part = re.search(rf"### {title}.*?\n\n", GUIDE + "\n\n", re.DOTALL)[0]
    assert sum(map(int, re.findall(r"^\| (\d+) \|", part, re.MULTILINE))) == minutes


def test_the_day_runs_forward_and_gives_each_notebook_its_minutes():
    part = re.search(r"### A day.*?\n\n", GUIDE, re.DOTALL)[0]
    rows = [
        (60 * int(hour) + int(minute), rest)
        for hour, minute, rest in re.findall(r"^\| (\d+):(\d\d) (\|.*)$", part, re.MULTILINE)
    ]
    assert [at for at, _ in rows] == sorted(at for at, _ in rows)
    ends = [*(at for at, _ in rows[1:]), 17 * 60]
    for (at, rest), end in zip(rows, ends, strict=True):
        if found := re.search(r"notebook (\d), all", rest):
            first = json.loads(next((ROOT / "notebooks").glob(f"0{found[1]}_*.ipynb")).read_text())["cells"][0]
            assert int(re.search(r"(\d+) minutes", "".join(first["source"]))[1]) <= end - at, rest


def test_links_of_the_guide_lead_somewhere():
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in GUIDE.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", GUIDE):
        here = target.lstrip("#") in headings if target.startswith("#") else (ROOT / "docs" / target).exists()
        assert here or target.startswith("https://"), target
