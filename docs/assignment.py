"""Make an assignment for otter-grader of a notebook: no solutions, and its checks as tests.

python docs/assignment.py 01_memory --to assignment

`assignment/01_memory.ipynb` goes to the learners with the folder `tests` beside it; `otter generate` makes the
autograder of that folder. What is right is asked from the workshop itself, so the folder holds its wheel and the
planner's, with a requirements.txt that installs them in a grader's container.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from workshop import install_words
from workshop.course.exercises.checking import all_exercises
from workshop.lab import learner_copies

ROOT = Path(__file__).parents[1]
GRADER_FILES = (
    "/autograder/source/files"  # where a grader's container has the files of an autograder.zip
)
OTTER = "otter generate -t tests -r requirements.txt -o autograder.zip *.whl"
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


def question_cells(key: str) -> list[dict]:
    """Return the cells of a concept question: buttons would not be graded, so its letter goes into a variable."""
    exercise, name = all_exercises()[key], key.replace(".", "_")
    options = "\n".join(f"- {letter}) {text}" for letter, (text, _) in exercise.options.items())
    code = f'from workshop import check\n\n{name} = ...      # one letter, such as "a"\ncheck("{key}", {name}) if {name} is not ... else None'
    return [
        cell(f"**{exercise.title}**\n\n{options}", "markdown", f"{name}-text"),
        cell(code, "code", f"{name}-answer"),
    ]


def assignment(notebook: dict) -> tuple[dict, dict[str, str]]:
    """Return a notebook for learners, and the tests: name → text of its file."""
    cells, tests = [cell(START, "code", "otter-start")], {}
    for notebook_cell in notebook["cells"]:
        if "solution" in notebook_cell["metadata"].get("tags", []):
            continue
        match = (
            CHECK.search("".join(notebook_cell["source"]))
            if notebook_cell["cell_type"] == "code"
            else None
        )
        if not match:
            cells.append(notebook_cell)
            continue
        key, answer = match.groups()
        name = key.replace(".", "_")
        cells += [notebook_cell] if answer else question_cells(key)
        cells.append(cell(f'grader.check("{name}")', "code", f"{name}-graded"))
        code = f'>>> from workshop import check\n>>> bool(check("{key}", {answer or f"str({name})"}))\nTrue'
        tests[name] = TEST.format(name=name, code=code)
    return {**notebook, "cells": cells}, tests


def build_wheels(folder: Path) -> list[Path]:
    """Build the wheels of the planner and of the workshop into a folder; return them.

    Raises SystemExit: pip cannot build them; its own words are above.
    """
    for path in folder.glob("*.whl"):
        path.unlink()
    for source in (ROOT / "planner", ROOT):
        command = [sys.executable, "-P", "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
        command += ["--no-build-isolation", "-w", str(folder), str(source)]
        code = subprocess.run(command, cwd=folder).returncode
        if code:
            raise SystemExit(f"The wheel of {source} could not be built.")
    return sorted(folder.glob("*.whl"))


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "notebook", choices=learner_copies.names(), metavar="NOTEBOOK", help="such as 01_memory"
    )
    parser.add_argument("--to", type=Path, default=Path("assignment"), help="folder (assignment)")
    options = parser.parse_args()
    source = install_words.course_folder() / f"{options.notebook}.ipynb"
    made, tests = assignment(json.loads(source.read_text(encoding="utf-8")))
    (options.to / "tests").mkdir(parents=True, exist_ok=True)
    (options.to / source.name).write_text(
        json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    for name, text in tests.items():
        (options.to / "tests" / f"{name}.py").write_text(text, encoding="utf-8")
    wheels = build_wheels(options.to.resolve())
    lines = [f"{GRADER_FILES}/{path.name}" for path in wheels]
    (options.to / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    megabytes = sum(path.stat().st_size for path in wheels) / 1e6
    print(f"{options.to / source.name}, {len(tests)} tests, {megabytes:.0f} MB of wheels")
    print(f"cd {options.to} && {OTTER}")


if __name__ == "__main__":
    main()
