"""Write docs/checks.md, what learners believe: questions and key points of each notebook, its checks.

python docs/checks.py            (again after each change of an exercise's words or of a notebook's first or last text)
"""

# ruff: noqa: E402      the rows of the tests are found by the path that is set first

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
sys.path.insert(0, str(TESTS / "helpers"))

import check_rows  # pyright: ignore[reportMissingImports]  it lies in tests/helpers/

from workshop.client import client
from workshop.course.exercises.checking import all_exercises
from workshop.course.exercises.judging import SHAPELESS, Exercise
from workshop.course.progress.course_map import Chapter, chapters

PAGE = HERE / "checks.md"
MOST_WRONG = 4  # wrong answers of one check, where a judge has words for many
LONGEST = 200  # characters of a right answer that is shown
OUTPUT_NAME = "answers.jsonl"
HEAD = """# What learners believe, check by check
Made by `docs/checks.py`. For [instructors](teaching.md) and [helpers](teaching/helpers.md): each notebook with its questions, its key points, and its checks: typical wrong answers, and what the check says to them. It is worth asking for them aloud.

"""


def words_of(name: str) -> tuple[str, list[str]]:
    """Return a notebook's questions, and its key points: the items of its recap."""
    cells = json.loads((HERE.parent / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    texts = [plain("".join(cell["source"])) for cell in cells if cell["cell_type"] == "markdown"]
    questions = re.search(r"\*\*Questions:\*\* (.+)", texts[0])
    recap = next(text for text in reversed(texts) if "## Recap\n" in text).partition("## Recap\n")[
        2
    ]
    return questions[1] if questions else "", re.findall(r"^- (.+)$", recap, re.MULTILINE)


def plain(text: str) -> str:
    """Return Markdown without hovers and links."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", re.sub(r"</?abbr[^>]*>", "", text))


def line_of(key: str, exercise: Exercise) -> str:
    """Return one line on a check: its title, and each typical wrong answer with what it is told."""
    wrong = []
    if exercise.options:
        for letter, (text, why) in exercise.options.items():
            if exercise.judge(letter):
                wrong.append(f"*{text}* {why}")
    elif exercise.wrong:
        for value, why in exercise.wrong.items():
            wrong.append(f"{_in_words(value)}: {why}")
    else:
        wrong = judged(key, exercise)
    return f"- **{exercise.title}** (`{key}`) {' · '.join(wrong)}"


def _in_words(value: object) -> str:
    """Return an answer of the exercises' files as a reader writes it."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def judged(key: str, exercise: Exercise) -> list[str]:
    """Return a right answer and typical wrong ones with what the judge says to them, from the rows of the tests."""
    rights, wrongs = rows()[key]
    lines = []
    for right in rights:
        if is_plain(right) and len(short(right)) <= LONGEST:
            lines.append(f"right: `{short(right)}`")
            break
    sentences: list[str] = []
    shapes: list[str] = []  # of answers that are no answer at all: only if there is nothing better
    for answer, expected in wrongs:
        sentence = sentence_of(exercise, answer, expected)
        if sentence in sentences or sentence in shapes:
            continue
        if sentence.startswith(("give ", "one number", SHAPELESS)):
            shapes.append(sentence)
        else:
            sentences.append(sentence)
    return lines + (sentences or shapes)[:MOST_WRONG]


def sentence_of(exercise: Exercise, answer: object, expected: str) -> str:
    """Return what the judge says to a wrong answer. Raises ValueError if `expected` is no part of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / OUTPUT_NAME
        names = ("a", "b", "a", "c")  # the output of a batch in which a row stands twice
        path.write_text("".join(json.dumps({"custom_id": name}) + "\n" for name in names))
        if isinstance(answer, tuple) and answer[0] is check_rows.OUTPUT:
            answer = path, *answer[1:]
        with mock.patch.object(client, "connect", _StandIn):
            sentence = exercise.test(answer)
        if sentence is None or expected not in sentence:
            raise ValueError(f"{exercise.title}: {answer!r} is told {sentence!r}, not {expected!r}")
        return " ".join(sentence.replace(str(path), OUTPUT_NAME).split())


class _StandIn:
    """Stands for a client of the teaching model: it counts tokens as that does, and generates nothing."""

    url = check_rows.URL

    def complete(self, prompt: str, *, max_tokens: int, **sampling: object) -> SimpleNamespace:
        return SimpleNamespace(usage=SimpleNamespace(**check_rows.response(max_tokens)["usage"]))


def is_plain(value: object) -> bool:
    """Return True if an answer is made of numbers and texts alone."""
    if isinstance(value, Mapping):
        return is_plain(list(value.items()))
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return isinstance(value, str | int | float | bool)


def short(value: object) -> str:
    """Return an answer on one line, without line breaks and backquotes."""
    return " ".join(repr(value).replace("`", "'").replace("\\n", " ").split())


@cache
def rows() -> dict[str, tuple[list, list]]:
    """Return {key of a check: (right answers, wrong answers with words that they get)}, as the tests have them."""
    collected: dict[str, tuple[list, list]] = {}
    for path in sorted((TESTS / "course" / "rows").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"rows_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        collected |= module.ROWS
    return collected


def fold(chapter: Chapter) -> str:
    """Return a notebook's part, folded."""
    questions, points = words_of(chapter.name)
    checks = [line_of(key, all_exercises()[key]) for key in chapter.checks]
    deeper = [line_of(key, all_exercises()[key]) for key in chapter.deeper]
    count = f"{len(checks)} checks"
    if deeper:
        count += f", and {len(deeper)} in Deeper"
        deeper.insert(0, "\n**Checks in Deeper**\n")
    parts = [
        f"<details><summary>{chapter.title}: {count}</summary>\n",
        f"**Questions:** {questions}\n",
    ]
    return "\n".join(
        [
            *parts,
            "**Key points**\n",
            *(f"- {point}" for point in points),
            "\n**Checks**\n",
            *checks,
            *deeper,
            "\n</details>\n",
        ]
    )


def page() -> str:
    """Return the whole page."""
    return HEAD + "\n".join(map(fold, chapters()))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
