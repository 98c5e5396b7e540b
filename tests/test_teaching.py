"""The instructor's guide promises only what exists: commands, options, sections of notebooks, minutes that add up."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest

from workshop.cli import COMMANDS, group
from workshop.measure import classes
from workshop.simulate.report import parse_slo

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
    arguments = shlex.split(line)[1:]
    assert arguments[0] in COMMANDS
    command, name = group.get_command(None, arguments.pop(0)), line.split()[1]
    while isinstance(command, click.Group):
        name, command = f"{name} {arguments[0]}", command.get_command(None, arguments.pop(0))
    options = {option for param in command.params for option in param.opts}
    strange = [
        argument
        for argument in arguments
        if argument.startswith("--") and argument.partition("=")[0] not in options
    ]
    assert {word.partition("=")[0] for word in strange} <= PASSED_ON.get(name, set()), (
        f"{name} knows no {strange}"
    )


def test_there_are_commands_for_each_part_of_the_day():
    for needed in (
        "doctor",
        "prefetch",
        "slurm submit",
        "share",
        "bench",
        "serve --background",
        "kernel install",
    ):
        assert any(line.startswith(f"workshop {needed}") for line in commands(GUIDE)), needed


def cells(number: str) -> list[str]:
    """The cells of the notebook with that number."""
    path = next((ROOT / "notebooks").glob(f"{int(number):02}_*.ipynb"))
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


def test_every_section_that_the_guide_names_is_in_its_notebook():
    named = re.findall(r'notebook (\d+)[:,]? (?:to )?((?:"[^"]+"(?:, | and )?)+)', GUIDE)
    assert len(named) >= 18
    for number, titles in named:
        headings = re.findall(r"^#+ (.+)$", "\n".join(cells(number)), re.MULTILINE)
        for title in re.findall(r'"([^"]+)"', titles):
            assert any(heading.replace("`", "").startswith(title) for heading in headings), (
                f"{number}: {title}"
            )


def rows_of(title: str) -> list[tuple[int, str]]:
    """The rows of a schedule in minutes: how many, and what is done."""
    part = re.search(rf"### {title}.*?\n\n", GUIDE + "\n\n", re.DOTALL)[0]
    rows = re.findall(r"^\| (\d+) (\|.*)$", part, re.MULTILINE)
    return [(int(minutes), rest) for minutes, rest in rows]


def minutes_of(number: str) -> int:
    """The minutes that a notebook says it takes."""
    return int(re.search(r"(\d+) minutes", cells(number)[0])[1])


@pytest.mark.parametrize(("title", "minutes"), [("90 minutes", 90), ("Three hours", 180)])
def test_minutes_add_up_and_are_enough_for_whole_notebooks(title, minutes):
    rows = rows_of(title)
    assert sum(count for count, _ in rows) == minutes
    for count, rest in rows:
        for number in re.findall(r"notebook (\d+), all", rest):
            assert minutes_of(number) <= count, rest


def slides() -> list:
    """The slides of the three hours, in their order."""
    import deck

    return deck.slides("workshop")


def test_three_hours_have_the_minutes_of_the_slides():
    by_part: dict[str, float] = {}
    for slide in slides():
        part = "break" if slide.title == "Break" else slide.part.partition("_")[2]
        by_part[part] = by_part.get(part, 0) + slide.minutes
    for minutes, rest in rows_of("Three hours"):
        part = re.search(r"slides \*([\w ]+)\*|\*(break)\*", rest)
        assert abs(minutes - by_part.pop(part[1] or part[2])) <= 0.5, rest
    assert not by_part


def test_three_hours_name_the_sections_of_the_exercise_slides():
    schedule = " ".join(rest for _, rest in rows_of("Three hours"))
    for slide in slides():
        for _, heading, _ in slide.wheres:
            if heading != "Your turn":  # several sections have this name
                assert f'"{heading}"' in schedule, slide.title


def days() -> list[list[tuple[int, str]]]:
    """Each day's rows: minutes since midnight, and what is done."""
    tables = re.findall(r"^\| from \|.*?\n\n", GUIDE, re.DOTALL | re.MULTILINE)
    times = [re.findall(r"^\| (\d+):(\d\d) (\|.*)$", table, re.MULTILINE) for table in tables]
    return [[(60 * int(hour) + int(minute), rest) for hour, minute, rest in rows] for rows in times]


@pytest.mark.parametrize("rows", days(), ids=lambda rows: rows[0][1].split("|")[1].strip())
def test_a_day_runs_forward_and_gives_each_notebook_its_minutes(rows):
    taught = 0
    for (at, rest), (end, _) in pairwise(rows):
        assert at < end
        taught += 0 if re.match(r"\| \*(break|lunch)", rest) else end - at
        for number in re.findall(r"notebook (\d+), all", rest):
            assert minutes_of(number) <= end - at, rest
    assert "*end*" in rows[-1][1] and taught <= 8 * 60
    print(f"{taught} minutes are taught")


LONGEST_WITHOUT_A_BREAK = 120  # minutes


@pytest.mark.parametrize("rows", days(), ids=lambda rows: rows[0][1].split("|")[1].strip())
def test_nobody_sits_for_more_than_two_hours_without_a_break(rows):
    began = rows[0][0]
    for at, rest in rows:
        if re.match(r"\| \*(break|lunch|end)", rest):
            assert at - began <= LONGEST_WITHOUT_A_BREAK, rest
        elif began is None:
            began = at
        if re.match(r"\| \*(break|lunch)", rest):
            began = None


def test_the_server_of_the_day_lasts_from_an_hour_before_to_the_end():
    longest = max(rows[-1][0] - rows[0][0] for rows in days())  # minutes
    part = GUIDE.partition("## On the day")[2].partition("## ")[0]
    hours = re.search(r"workshop slurm submit 70b .*--time=(\d+):00:00", part)
    assert 60 * int(hours[1]) >= longest + 60
    script = (ROOT / "slurm" / "70b.sbatch").read_text()
    assert "--time=08:00:00" in script and "ends after eight hours" in GUIDE


def test_the_guide_names_what_a_class_must_keep_to_hold():
    limits = parse_slo(classes.SLO)
    first, whole = f"{limits['ttft'] / 1e3:g} s", f"{limits['e2el'] / 1e3:g} s"
    assert (
        f"95 of 100 first tokens within {first} and 95 of 100 whole answers within {whole}" in GUIDE
    )


def test_every_check_of_the_guide_names_a_wrong_answer():
    checks = GUIDE.split("<!-- checks -->")[1].split("<!-- /checks -->")[0]
    lines = re.findall(r"^- \*\*.+?\*\* \(`([a-z_.0-9]+)`\) ?(.*)$", checks, re.MULTILINE)
    assert len(lines) >= 130
    assert [key for key, text in lines if len(text) < 30] == []
    assert "depends on the answer" not in checks


def headings_of(page: str) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    lines = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}


def test_links_of_the_guide_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", GUIDE):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        page = ROOT / "docs" / path if path else None
        assert page is None or page.exists(), target
        assert not anchor or anchor in headings_of(page.read_text() if page else GUIDE), target
