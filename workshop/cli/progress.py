"""`workshop progress`: how far you are; with --shared, how far your class is."""

from __future__ import annotations

from collections.abc import Sequence

import click

from workshop.cli.say import console, json_option, say, say_json, shown
from workshop.errors import BadInput
from workshop.learn import class_progress, exercises
from workshop.learn.class_progress import TESTS, Learner
from workshop.learn.course_map import Chapter, chapters, course_map

SHAPE = (
    'Your checks; with --shared {"learners": [{"name", "updated", "notebook", "done", "failing", "tests"}], "checks"}.'
)
MOST_ROWS = 15


@click.command
@click.option("--shared", is_flag=True, help="The class: who is where, and which check fails for whom.")
@click.option(
    "--share", is_flag=True, help="Let the instructor see your tries, from now on: $WORKSHOP_SHARED/progress."
)
@click.option("--as", "name", default="", metavar="NAME", help="--share under this name; by default under a number.")
@click.option("--withdraw", is_flag=True, help="Share no longer: your file there is removed.")
@json_option(SHAPE)
def command(shared: bool, share: bool, name: str, withdraw: bool, as_json: bool) -> None:
    """Show which notebooks and checks you have done, and which were tried and are not right yet."""
    if shared + share + withdraw > 1 or (name and not share):
        raise BadInput(
            "These options are for different things.", "Give one: --shared, --share [--as NAME], --withdraw."
        )
    if share:
        path = class_progress.share(exercises.progress(), name)
        say(f"✓ The instructor sees your tries as {name or f'learner {path.stem[:4]}'}: {path}", fg="green")
    elif withdraw:
        try:
            say(f"✓ {class_progress.withdraw()} is gone.", fg="green")
        except (OSError, ValueError, KeyError, TypeError):
            say("You share nothing.")
    elif shared:
        _class(as_json)
    elif as_json:
        say_json({key: entry for key, entry in exercises.progress().items() if "tries" in entry})
    else:
        say(repr(course_map()))
        for key, entry in exercises.progress().items():
            if "tries" in entry and not entry.get("done") and key in exercises.all_exercises():
                say(f"  not yet: {key} ({entry['tries']} tries): {exercises.all_exercises()[key].title}")


def _class(as_json: bool) -> None:
    known = exercises.all_exercises()
    learners, passed = class_progress.read(known)
    course, checks = chapters(), failing(learners)
    for line in passed:
        say(f"· passed over: {line}", err=True)
    if as_json:
        people = [
            {"name": one.name, "updated": one.updated, "notebook": where(one, course), "done": done(one),
             "failing": one.failing, "tests": one.tests} for one in learners
        ]  # fmt: skip
        say_json({"learners": people, "checks": checks})
        return
    if not learners:
        say("Nobody shares progress yet. Each learner may: workshop progress --share")
        return
    from rich.table import Table

    people, hard = Table(box=None, pad_edge=False), Table(box=None, pad_edge=False)
    for head in ("learner", "in", "checks", "last try, UTC", "tried, not right yet"):
        people.add_column(head, overflow="fold")
    for one in learners:
        stuck = ", ".join(f"{key} ({tries})" for key, tries in one.failing.items())
        people.add_row(*map(shown, (one.name, where(one, course), done(one), one.updated[5:16], stuck)))
    for head in ("check", "not right yet", "of those who tried", "tries each"):
        hard.add_column(head, justify="left" if head == "check" else "right")
    for key, count in list(checks.items())[:MOST_ROWS]:
        hard.add_row(*map(shown, (key, count["failing"], count["tried"], f"{count['tries'] / count['tried']:.1f}")))
    for when, scores in ((when, [one.tests[when] for one in learners if when in one.tests]) for when in TESTS):
        if scores:
            say(f"{when}-test: {sum(scores) / len(scores):.1f} of 10 right, {len(scores)} learners")
    out = console(80)
    out.print(people, "", hard, sep="\n") if checks else out.print(people)


def where(one: Learner, course: Sequence[Chapter]) -> str:
    """Return the last notebook in which a learner has tried something."""
    return next((each.name for each in reversed(course) if any(key in one.checks for key in each.checks)), "")


def done(one: Learner) -> int:
    """Return how many checks a learner has right."""
    return sum(entry["done"] for entry in one.checks.values())


def failing(learners: Sequence[Learner]) -> dict[str, dict[str, int]]:
    """Return the checks that somebody tried and has not right, those of most learners first: how many, of how many."""
    counts: dict[str, dict[str, int]] = {}
    for key, entry in (item for one in learners for item in one.checks.items()):
        count = counts.setdefault(key, {"failing": 0, "tried": 0, "tries": 0})
        count["failing"] += not entry["done"]
        count["tried"] += 1
        count["tries"] += entry["tries"]
    hard = {key: count for key, count in counts.items() if count["failing"]}
    return dict(sorted(hard.items(), key=lambda item: -item[1]["failing"]))
