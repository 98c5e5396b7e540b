"""A learner's copy has no solution's code: in its place is a cell that shows it after a few tries.

A collapsed cell opens with one click, tried or not. So a copy has `solution("memory.weights")`
there, which workshop/course/exercises/solutions.py answers with the code of the course's own notebook.
"""

import json
import re
from typing import Any

TAG = "solution"
CHECK = re.compile(r'check\("([\w.]+)"')
FIRST_LINE = "# Solution: run this cell when the hints above are open"


def keys_of(source: str) -> list[str]:
    """Return the exercises that a solution's cell checks, each once, in their order."""
    return list(dict.fromkeys(CHECK.findall(source)))


def is_solution(cell: dict[str, Any]) -> bool:
    """Return whether a cell of a notebook holds a solution that its exercises can ask for."""
    return TAG in cell["metadata"].get("tags", []) and bool(keys_of("".join(cell["source"])))


def held_back(notebook: bytes) -> bytes:
    """Return a notebook's file without the code of its solutions.

    A file that is no notebook stays as it is.
    """
    try:
        content = json.loads(notebook)
        solutions = [cell for cell in content["cells"] if is_solution(cell)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return notebook
    for cell in solutions:
        keys = keys_of("".join(cell["source"]))
        arguments = ", ".join(f'"{key}"' for key in keys)
        lines = [
            FIRST_LINE,
            "from workshop.course.exercises.solutions import solution",
            f"solution({arguments})",
        ]
        cell["source"] = "\n".join(lines).splitlines(keepends=True)
        cell["metadata"].pop("jupyter", None)  # it may be seen
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode("utf-8")
