"""Ten questions before the course, and the same after it: `workshop progress --before`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from workshop.cli.say import say, say_json
from workshop.errors import BadInput

if TYPE_CHECKING:
    from workshop.course.exercises.judging import Exercise


def questions() -> dict[str, Exercise]:
    """Return the ten questions by their keys."""
    import tomllib
    from importlib.resources import files

    from workshop.course.exercises.judging import Exercise

    path = files("workshop.course.progress") / "before_after.toml"
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {key: Exercise.of(table, None) for key, table in tables.items()}


def ask(when: str, answers: str | None, as_json: bool) -> None:
    """Ask the questions, keep what was answered, and print how many are right.

    Before the course no solution is shown, after it all of them.

    Args:
        when: "pre" or "post".
        answers: all ten letters; None: each is asked.
    """
    from workshop.course.exercises import checking

    exercises_by_key = questions()
    if answers is None:
        answers = ""
        for number, question in enumerate(exercises_by_key.values(), 1):
            answers += _ask(number, question)
    letters = _letters(answers, exercises_by_key)
    right = 0
    for key, chosen in letters.items():
        right += exercises_by_key[key].test(chosen) is None
    count = len(exercises_by_key)
    before = checking.progress().get("test.pre", {}).get("right")
    problem = checking.keep(f"test.{when}", {"right": right, "answers": answers})
    if problem:
        say(problem, err=True)
    if as_json:
        if when == "pre":
            before = None
        say_json({"right": right, "of": count, "before": before, "answers": letters})
    elif when == "pre":
        say(
            f"{right} of {count} right. The solutions come after the course: workshop progress --after"
        )
    else:
        for key, chosen in letters.items():
            _say_solution(exercises_by_key[key], chosen)
        comparison = ""
        if before is not None:
            comparison = f"; before the course {before}"
        say(f"\n{right} of {count} right{comparison}.")


def _letters(answers: str, exercises_by_key: dict[str, Exercise]) -> dict[str, str]:
    """Return the letter for each question.

    Raises BadInput: there are more or fewer, or others than a to d.
    """
    from workshop.course.exercises.judging import letter

    letters = dict(zip(exercises_by_key, map(letter, answers), strict=False))
    count = len(exercises_by_key)
    problem = BadInput(
        f"{answers!r} are not {count} letters from a to d.", "Give one letter for each question."
    )
    if len(answers) != count:
        raise problem
    for key, chosen in letters.items():
        if chosen not in exercises_by_key[key].options:
            raise problem
    return letters


def _say_solution(question: Exercise, chosen: str) -> None:
    """Print a question with the answer that was chosen, and why it is right or wrong."""
    sign = "✗" if question.test(chosen) else "✓"
    option = ": ".join(question.options[chosen])
    say(f"\n{question.title}\n  {sign} {chosen}) {option}")


def _ask(number: int, question: Exercise) -> str:
    say(f"\n{number}. {question.title}")
    for option, (text, _) in question.options.items():
        say(f"   {option}) {text}")
    return click.prompt(
        "  ", type=click.Choice(list(question.options)), show_choices=False, prompt_suffix="> "
    )
