"""Write the part of docs/teaching.md on what learners believe: questions and key points of each notebook, its checks.

python docs/checks.py            (again after each change of an exercise's words or of a notebook's first or last text)
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from workshop.course.course_map import Chapter, chapters
from workshop.course.exercises import all_exercises
from workshop.course.judging import Exercise

HERE = Path(__file__).parent
GUIDE = HERE / "teaching.md"
MARKS = "<!-- checks -->\n", "<!-- /checks -->"


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
    """Return one line on a check: its title, and each wrong answer with what it tells."""
    if exercise.options:
        wrong = [
            f"*{text}* {why}"
            for each, (text, why) in exercise.options.items()
            if exercise.judge(each)
        ]
    else:
        wrong = [
            f"{', '.join(map(str, value)) if isinstance(value, tuple) else value}: {why}"
            for value, why in exercise.wrong.items()
        ]
    return f"- **{exercise.title}** (`{key}`) {' · '.join(wrong) or 'What it says depends on the answer.'}"


def fold(chapter: Chapter) -> str:
    """Return a notebook's part, folded."""
    questions, points = words_of(chapter.name)
    checks = [line_of(key, all_exercises()[key]) for key in chapter.checks]
    parts = [
        f"<details><summary>{chapter.title}: {len(checks)} checks</summary>\n",
        f"**Questions:** {questions}\n",
    ]
    return "\n".join(
        [
            *parts,
            "**Key points**\n",
            *(f"- {point}" for point in points),
            "\n**Checks**\n",
            *checks,
            "\n</details>\n",
        ]
    )


def part() -> str:
    """Return what stands between the marks."""
    return "\n".join(map(fold, chapters()))


if __name__ == "__main__":
    before, _, rest = GUIDE.read_text(encoding="utf-8").partition(MARKS[0])
    GUIDE.write_text(
        f"{before}{MARKS[0]}{part()}{MARKS[1]}{rest.partition(MARKS[1])[2]}", encoding="utf-8"
    )
