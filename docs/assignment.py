"""Make an assignment for otter-grader of a notebook: no solutions, and its checks as tests.

python docs/assignment.py 01_memory --to assignment

`assignment/01_memory.ipynb` goes to the learners with the folder `tests` beside it; `otter generate` makes the
autograder of that folder. What is right is asked from the workshop itself, so the grader's environment needs it.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from workshop.course.exercises import all_exercises
from workshop.servers.local import course

CHECK = re.compile(r'^check\("([\w.]+)"(?:, (.+))?\)$', re.MULTILINE)
START = 'import otter\n\ngrader = otter.Notebook(tests_dir="tests")'
TEST = """OK_FORMAT = True

test = {{
    "name": "{name}",
    "points": 1,
    "suites": [{{"cases": [{{"code": {code!r}, "hidden": False, "locked": False}}], "scored": True, "setup": "",
                "teardown": "", "type": "doctest"}}],
}}
"""


def cell(source: str, kind: str, key: str) -> dict:
    """Return a cell of a notebook."""
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {
        "cell_type": kind,
        "id": key,
        "metadata": {},
        **more,
        "source": source.splitlines(keepends=True),
    }


def asked(key: str) -> list[dict]:
    """Return the cells of a concept question: buttons would not be graded, so its letter goes into a variable."""
    exercise, name = all_exercises()[key], key.replace(".", "_")
    options = "\n".join(f"- {each}) {text}" for each, (text, _) in exercise.options.items())
    code = f'from workshop import check\n\n{name} = ...      # one letter, such as "a"\ncheck("{key}", {name}) if {name} is not ... else None'
    return [
        cell(f"**{exercise.title}**\n\n{options}", "markdown", f"{name}-text"),
        cell(code, "code", f"{name}-answer"),
    ]


def assignment(notebook: dict) -> tuple[dict, dict[str, str]]:
    """Return a notebook for learners, and the tests: name → text of its file."""
    cells, tests = [cell(START, "code", "otter-start")], {}
    for each in notebook["cells"]:
        if "solution" in each["metadata"].get("tags", []):
            continue
        found = CHECK.search("".join(each["source"])) if each["cell_type"] == "code" else None
        if not found:
            cells.append(each)
            continue
        key, answer = found.groups()
        name = key.replace(".", "_")
        cells += [each] if answer else asked(key)
        cells.append(cell(f'grader.check("{name}")', "code", f"{name}-graded"))
        code = f'>>> from workshop import check\n>>> bool(check("{key}", {answer or f"str({name})"}))\nTrue'
        tests[name] = TEST.format(name=name, code=code)
    return {**notebook, "cells": cells}, tests


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "notebook", choices=course.names(), metavar="NOTEBOOK", help="such as 01_memory"
    )
    parser.add_argument("--to", type=Path, default=Path("assignment"), help="folder (assignment)")
    options = parser.parse_args()
    source = course.course_folder() / f"{options.notebook}.ipynb"
    made, tests = assignment(json.loads(source.read_text(encoding="utf-8")))
    (options.to / "tests").mkdir(parents=True, exist_ok=True)
    (options.to / source.name).write_text(
        json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    for name, text in tests.items():
        (options.to / "tests" / f"{name}.py").write_text(text, encoding="utf-8")
    print(f"{options.to / source.name}, {len(tests)} tests")


if __name__ == "__main__":
    main()
