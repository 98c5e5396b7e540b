from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import click

from workshop.cli.say import console, json_option, say, say_json, shown
from workshop.course import class_progress, exercises
from workshop.course.course_map import course_map
from workshop.course.numbers import counted
from workshop.errors import BadInput

CLASS = (
    '{"learners": [{"name", "claim", "file", "updated", "notebook", "done", "failing", "tests"}], '
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
@json_option(f"Your checks; with --shared {CLASS}.")
def command(shared: bool, share: str | None, withdraw: bool, as_json: bool) -> None:
    """Show which exercises you have completed, and which you tried without success so far.

    With --shared, show the progress of a class. Its files are in $WORKSHOP_SHARED/progress.
    """
    mine = {key: entry for key, entry in exercises.progress().items() if "tries" in entry}
    if shared + withdraw + (share is not None) > 1:
        raise BadInput(
            "These options are for different things.",
            "Give one: --shared, --share [NAME], --withdraw.",
        )
    if share is not None:
        _share(share)
    elif withdraw:
        say("✓ You share no longer." if class_progress.withdraw() else "You share nothing.")
    elif shared:
        _class(as_json)
    elif as_json:
        say_json(mine)
    else:
        say(repr(course_map()))
        for key in (
            key for key in exercises.all_exercises() if key in mine and not mine[key].get("done")
        ):
            say(
                f"  not yet: {key} ({mine[key]['tries']} tries): {exercises.all_exercises()[key].title}"
            )


def _class(as_json: bool) -> None:
    every = exercises.all_exercises()
    learners, passed = class_progress.read(every)  # their checks are in the course's order
    place = class_progress.folder()
    if note := class_progress.folder_note(place):
        say(f"· {note}", err=True)
    for learner in learners:
        if learner.claim:
            said = f"{learner.file} says that it is {learner.name}, but {learner.claim}. Its account: ls -l {place}"
            say(f"· {said}", err=True)
    people = [{"name": one.name, "claim": one.claim, "file": one.file, "updated": one.updated,
               "notebook": _last_notebook(one.checks),
               "done": sum(entry["done"] for entry in one.checks.values()),
               "failing": {key: entry["tries"] for key, entry in one.checks.items() if not entry["done"]},
               "tests": one.tests} for one in learners]  # fmt: skip
    hard = Counter(key for one in people for key in one["failing"])
    tried = Counter(key for one in learners for key in one.checks)
    checks = {key: {"failing": count, "tried": tried[key]} for key, count in hard.most_common()}
    for line in passed:
        say(f"· passed over: {line}", err=True)
    if as_json:
        say_json({"learners": people, "checks": checks})
    elif not people:
        say("Nobody shares progress yet. Each learner may: workshop progress --share")
    else:
        stuck = [
            ", ".join(f"{key} ({tries})" for key, tries in one["failing"].items()) for one in people
        ]
        rows = [(_with_claim(one), one["updated"][:16].replace("T", " "), one["notebook"], one["done"], each)
                for one, each in zip(people, stuck, strict=True)]  # fmt: skip
        _table(("learner", "last try, UTC", "in", "checks", "tried, not right yet (tries)"), rows)
        _table(
            ("check", "not right yet", "of"),
            [(key, *each.values()) for key, each in checks.items()][:MOST_ROWS],
        )
        for when in class_progress.TESTS:
            if scores := [one.tests[when] for one in learners if when in one.tests]:
                mean = sum(scores) / len(scores)
                say(f"{when}-test: {mean:.1f} of 10 right, {counted(len(scores), 'learner')}")


def _share(name: str) -> None:
    shown_name = class_progress.share(exercises.progress(), name)
    say(f"✓ Your instructor sees your tries as {shown_name}.", fg="green")
    place = class_progress.folder()
    who = class_progress.who_may_list(place)
    say(
        f"  The file's name and content do not name your account, but its owner does: {who} can see it in {place}."
    )


def _last_notebook(checks: Mapping[str, Mapping]) -> str:
    """Return the notebook of the last check in the course's order; empty without any."""
    for key in reversed(list(checks)):
        return exercises.all_exercises()[key].notebook
    return ""


def _with_claim(person: dict) -> str:
    return f"{person['name']} ({person['claim']})" if person["claim"] else person["name"]


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from rich.table import Table

    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*map(shown, row))
    console(80).print(table, "")
