import tomllib
from importlib.resources import files

import click

from workshop.cli.say import json_option, say, say_json
from workshop.course import exercises
from workshop.course.judging import Exercise, letter
from workshop.errors import BadInput


def questions() -> dict[str, Exercise]:
    written = tomllib.loads(
        (files("workshop.course") / "before_after.toml").read_text(encoding="utf-8")
    )
    return {key: Exercise.of(words, None) for key, words in written.items()}


@click.command
@click.argument("when", type=click.Choice(["pre", "post"]))
@click.option(
    "--answers",
    metavar="LETTERS",
    help="All ten at once, such as abcdabcdab; by default each is asked.",
)
@json_option(
    '{"right", "of", "before", "answers"}; before: right answers of the pre-test, null if there was none.'
)
def command(when: str, answers: str | None, as_json: bool) -> None:
    """Ask ten questions: `pre` before the course, without the solutions; `post` after it, with all of them."""
    asked = questions()
    if answers is None:
        answers = "".join(_ask(number, one) for number, one in enumerate(asked.values(), 1))
    given = dict(zip(asked, map(letter, answers), strict=False))
    if len(answers) != len(asked) or any(given[key] not in asked[key].options for key in given):
        raise BadInput(
            f"{answers!r} are not {len(asked)} letters from a to d.",
            "Give one letter for each question.",
        )
    right = sum(asked[key].test(each) is None for key, each in given.items())
    before = exercises.progress().get("test.pre", {}).get("right")
    if problem := exercises.keep(f"test.{when}", {"right": right, "answers": answers}):
        say(problem, err=True)
    if as_json:
        say_json(
            {
                "right": right,
                "of": len(asked),
                "before": before if when == "post" else None,
                "answers": given,
            }
        )
    elif when == "pre":
        say(
            f"{right} of {len(asked)} right. The solutions come after the course: workshop test post"
        )
    else:
        for key, each in given.items():
            sign, option = (
                "✗" if asked[key].test(each) else "✓",
                ": ".join(asked[key].options[each]),
            )
            say(f"\n{asked[key].title}\n  {sign} {each}) {option}")
        say(
            f"\n{right} of {len(asked)} right"
            + (f"; before the course {before}." if before is not None else ".")
        )


def _ask(number: int, question: Exercise) -> str:
    say(f"\n{number}. {question.title}")
    for each, (text, _) in question.options.items():
        say(f"   {each}) {text}")
    return click.prompt(
        "  ", type=click.Choice(list(question.options)), show_choices=False, prompt_suffix="> "
    )
