"""The instructor's guide promises only what exists: sections of notebooks, minutes that add up.

Its commands are read in tests/cli/test_commands_in_text.py.
"""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import cells
import pytest
import yaml

from workshop.measure import classes
from workshop.simulate.report import parse_slo

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "teaching.md").read_text()
PAGES = {  # the guide, and what it hands out
    path.relative_to(ROOT / "docs").as_posix(): path.read_text()
    for path in (
        ROOT / "docs" / "teaching.md",
        ROOT / "docs" / "accessibility.md",
        *sorted((ROOT / "docs" / "teaching").glob("*.md")),
    )
}
MOST_LINES = 250  # of the guide: an instructor reads it in one go


def commands(text: str) -> list[str]:
    """Every `workshop …` of the blocks and of the lines, without its comment."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines()
    inline = re.findall(r"`(workshop [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    lines = [line.partition("#")[0].strip() for line in [*blocks, *inline]]
    return [line for line in lines if line.startswith("workshop ")]


def notebook_of(number: str) -> str:
    """The name of the notebook with that number."""
    return next(cells.NOTEBOOKS.glob(f"{int(number):02}_*.ipynb")).stem


def test_every_section_that_a_page_names_is_seen_in_its_notebook():
    named = re.findall(
        r'notebook (\d+)[:,]? (?:(?:to|from) )?((?:"[^"]+"(?:, | and )?)+)', "".join(PAGES.values())
    )
    assert len(named) >= 18
    for number, titles in named:
        headings = [title.replace("`", "") for title in cells.headings(notebook_of(number))]
        for title in re.findall(r'"([^"]+)"', titles):
            assert any(heading.startswith(title) for heading in headings), (
                f"notebook {number} shows no {title!r}: it is missing, or folded in Deeper"
            )


def test_every_row_of_a_schedule_is_taught_somewhere():
    schedules = GUIDE.partition("## Four schedules")[2].partition("\n## ")[0]
    for row in re.findall(r"^\| (?:\d+|\d+:\d\d) \|.*$", schedules, re.MULTILINE):
        where = row.split("|")[3]
        if not re.search(r"\*(break|lunch|end)\*", row) and "#afterwards" not in where:
            assert "notebook" in where or "slides" in where, row


def test_the_guide_is_read_in_one_go():
    assert len(GUIDE.splitlines()) <= MOST_LINES


def rows_of(title: str) -> list[tuple[int, str]]:
    """The rows of a schedule in minutes: how many, and what is done."""
    part = re.search(rf"### {title}.*?\n\n", GUIDE + "\n\n", re.DOTALL)[0]
    rows = re.findall(r"^\| (\d+) (\|.*)$", part, re.MULTILINE)
    return [(int(minutes), rest) for minutes, rest in rows]


def minutes_of(number: str) -> int:
    """The minutes that a notebook says it takes."""
    return int(re.search(r"(\d+) minutes", cells.cells(notebook_of(number))[0].source)[1])


@pytest.mark.parametrize(("title", "minutes"), [("90 minutes", 90), ("Three hours", 180)])
def test_minutes_add_up_and_are_enough_for_whole_notebooks(title, minutes):
    rows = rows_of(title)
    assert sum(count for count, _ in rows) == minutes
    for count, rest in rows:
        for number in re.findall(r"notebook (\d+), all", rest):
            assert minutes_of(number) <= count, rest


def slides(name: str = "workshop") -> list:
    """The slides of a deck, in their order: those of the three hours."""
    import deck

    return deck.slides(name)


def spoken_minutes(row: str) -> float:
    """The minutes of the slides that a row names, without their exercises, which are in the notebook."""
    import deck

    file_of = {title.lower(): files[0] for _, title, _, files in deck.DECKS["day_two"]}
    minutes = 0.0
    for is_day_two, part in re.findall(r"slides \*(day two: )?([\w ]+)\*", row):
        of_part = [
            slide
            for slide in slides("day_two" if is_day_two else "workshop")
            if slide.title != "Break"
            and slide.part.startswith(file_of[part.lower()] if is_day_two else "")
            and (is_day_two or slide.part.partition("_")[2] == part)
        ]
        assert of_part, row
        minutes += sum(slide.minutes for slide in of_part if not slide.wheres)
    return minutes


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
            assert minutes_of(number) + spoken_minutes(rest) <= end - at, rest
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


CORE_HOURS = 19 / 6  # README: 3 h 10 min


def test_ondemand_the_guide_and_the_schedules_agree():
    app = ROOT / "slurm" / "ondemand"
    form = (app / "form.yml.erb").read_text().replace("<%= class_folder.to_json %>", '""')
    fields = yaml.safe_load(re.sub(r"<%.*?%>", "", form, flags=re.DOTALL))["attributes"]
    hours, cores, memory = fields["bc_num_hours"], fields["num_cores"], fields["memory_gb"]
    longest_day = max(rows[-1][0] - rows[0][0] for rows in days()) / 60
    assert hours["value"] >= CORE_HOURS + 1, "the core, and an hour of breaks and questions"
    assert hours["max"] >= longest_day + 1
    chosen = f"{hours['value']} hours with {cores['value']} core and {memory['value']} GB"
    assert chosen in GUIDE and f"{hours['max']} hours" in GUIDE
    readme = (app / "README.md").read_text()
    assert chosen.replace(" with", ",") in readme and f"{hours['max']} hours" in readme
    more = "Notebooks 11 to 14 start engines of their own"
    for text in (GUIDE, cores["help"]):
        assert more in text and re.search(r"\b(2|two)\b( cores)?", text)
    assert "6 GB for notebook 14" in GUIDE and "Notebook 14 needs 6" in memory["help"]
    assert cores["max"] >= 2 and memory["max"] >= 6


def test_the_citation_and_the_licences_are_those_of_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    assert [author["name"] for author in citation["authors"]] == [
        author["name"] for author in project["authors"]
    ]
    assert {"cff-version", "message", "title"} <= set(citation)
    texts = (ROOT / "LICENSE-texts").read_text()
    for folder in re.findall(r"\b(?:docs|slides|workshop)/[\w/.]+\w", texts):
        assert (ROOT / folder).exists(), folder


def test_the_mail_asks_for_the_line_that_doctor_prints():
    command = (ROOT / "workshop" / "cli" / "start" / "doctor.py").read_text()
    last_line = "Everything that the course needs is here"
    assert last_line in command
    for page in ("teaching.md", "teaching/a_week_before.md"):
        assert last_line in PAGES[page]


def headings_of(page: str) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    lines = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    return {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[name]):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        page = (ROOT / "docs" / name).parent / path if path else ROOT / "docs" / name
        assert page.exists(), target
        assert not anchor or anchor in headings_of(page.read_text()), target
