from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.say import console, json_option, say, say_json, shown
from workshop.errors import BadInput

if TYPE_CHECKING:
    from workshop.course.progress import class_progress

CLASS = (
    '{"learners": [{"name", "file", "updated", "notebook", "done", "failing", "tests"}], '
    '"checks": {key: {"failing", "tried"}}}'
)
MOST_ROWS = 15


@click.command
@click.option(
    "--shared",
    is_flag=True,
    help="Show the class: where each learner is, and which checks fail for whom.",
)
@click.option("--share", is_flag=False, flag_value="", metavar="[NAME]", help="Let the instructor see your tries from now on, under a number, or under NAME.")  # fmt: skip
@click.option("--withdraw", is_flag=True, help="Stop sharing your progress.")
@click.option("--before", "when", flag_value="pre", help="Answer ten questions before the course.")
@click.option("--after", "when", flag_value="post", help="The same after it, with the solutions.")
@click.option(
    "--answers",
    metavar="LETTERS",
    help="All ten at once, such as abcdabcdab; by default each is asked.",
)
@json_option(
    f"Your checks; with --shared {CLASS}; with --before and --after "
    '{"right", "of", "before", "answers"}.'
)
def command(
    shared: bool,
    share: str | None,
    withdraw: bool,
    when: str | None,
    answers: str | None,
    as_json: bool,
) -> None:
    """Show which exercises you have completed, and which you tried without success so far.

    With --shared, show the progress of a class. Its files are in $WORKSHOP_SHARED/progress.

    Before the course and after it, ten questions show what it has taught you.
    """
    from workshop.course.exercises import checking
    from workshop.course.progress import class_progress
    from workshop.course.progress.course_map import course_map

    own_checks = {}
    for key, entry in checking.progress().items():
        if "tries" in entry:
            own_checks[key] = entry
    if shared + withdraw + (share is not None) + (when is not None) > 1:
        raise BadInput(
            "These options are for different things.",
            "Give one: --shared, --share [NAME], --withdraw, --before, --after.",
        )
    if answers is not None and when is None:
        raise BadInput("--answers belongs to --before or --after.", "Give one of them as well.")
    if when is not None:
        from workshop.cli.teach import before_after

        before_after.ask(when, answers, as_json)
    elif share is not None:
        _share(share)
    elif withdraw and class_progress.withdraw():
        say("✓ You share no longer.")
    elif withdraw:
        say("You share nothing.")
    elif shared:
        _class(as_json)
    elif as_json:
        say_json(own_checks)
    else:
        say(repr(course_map()))
        for key, exercise in checking.all_exercises().items():
            if key in own_checks and not own_checks[key].get("done"):
                tries = "try" if own_checks[key]["tries"] == 1 else "tries"
                say(f"  not yet: {key} ({own_checks[key]['tries']} {tries}): {exercise.title}")


def _class(as_json: bool) -> None:
    from workshop.course.exercises import checking
    from workshop.course.progress import class_progress

    every = checking.all_exercises()
    learners, passed = class_progress.read(every)  # their checks are in the course's order
    people = [_person(learner) for learner in learners]
    failing: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for person, learner in zip(people, learners, strict=True):
        failing.update(list(person["failing"]))
        tried.update(list(learner.checks))
    checks = {}
    for key, count in failing.most_common():
        checks[key] = {"failing": count, "tried": tried[key]}
    for line in passed:
        say(f"· passed over: {line}", err=True)
    if as_json:
        say_json({"learners": people, "checks": checks})
    elif not people:
        say("Nobody shares progress yet. Each learner may: workshop progress --share")
    else:
        heads = ("learner", "last try, UTC", "in", "checks", "tried, not right yet (tries)")
        _table(heads, map(_row_of_person, people))
        rows = []
        for key, counts in checks.items():
            rows.append((key, counts["failing"], counts["tried"]))
        _table(("check", "not right yet", "of"), rows[:MOST_ROWS])
        for when in class_progress.TESTS:
            _say_mean(when, learners)


def _person(learner: class_progress.Learner) -> dict[str, Any]:
    """Return what --json says of one learner."""
    failing = {}
    done = 0
    for key, entry in learner.checks.items():
        if entry["done"]:
            done += 1
        else:
            failing[key] = entry["tries"]
    return {
        "name": learner.name,
        "file": learner.file,
        "updated": learner.updated,
        "notebook": _last_notebook(learner.checks),
        "done": done,
        "failing": failing,
        "tests": learner.tests,
    }


def _row_of_person(person: dict[str, Any]) -> tuple[object, ...]:
    """Return a learner's row of the table."""
    tries = [f"{key} ({count})" for key, count in person["failing"].items()]
    last_try = person["updated"][:16].replace("T", " ")
    return person["name"], last_try, person["notebook"], person["done"], ", ".join(tries)


def _say_mean(when: str, learners: Sequence[class_progress.Learner]) -> None:
    """Print the mean of a test ("pre" or "post"), if somebody has done it."""
    from workshop.course.drawing.readable_numbers import counted

    scores = [learner.tests[when] for learner in learners if when in learner.tests]
    if scores:
        mean = sum(scores) / len(scores)
        say(f"{when}-test: {mean:.1f} of 10 right, {counted(len(scores), 'learner')}")


def _share(name: str) -> None:
    from workshop.course.exercises import checking
    from workshop.course.progress import class_progress

    shown_name = class_progress.share(checking.progress(), name)
    say(f"✓ Your instructor sees your tries as {shown_name}.", fg="green")
    place = class_progress.folder()
    say(f"  The file does not name your account, but its owner does, to all who may list {place}.")


def _last_notebook(checks: Mapping[str, Mapping]) -> str:
    """Return the notebook of the last check in the course's order; empty without any."""
    from workshop.course.exercises import checking

    for key in reversed(list(checks)):
        return checking.all_exercises()[key].notebook
    return ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from rich.table import Table

    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(shown, row))
    console(80).print(table, "")
