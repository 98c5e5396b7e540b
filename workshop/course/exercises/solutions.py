"""Solutions that open after the last hint: `solution("memory.weights")` in a learner's copy."""

import json
from collections.abc import Mapping, Sequence

from workshop import install_words
from workshop.client import lost
from workshop.course.drawing.html import alone, code, muted, panel
from workshop.course.exercises import checking
from workshop.errors import BadInput
from workshop.lab import solutions

MOST_TRIES = 2  # an exercise has at most two hints; each wrong answer opens one


class Solution:
    """The code of a solution; a notebook shows it, a terminal prints it."""

    def __init__(self, source: str):
        self.source = source

    def __repr__(self) -> str:
        return self.source

    def _repr_html_(self) -> str:
        return alone(panel(muted("The solution, which has run:"), code(self.source)))


def tries_left(keys: Sequence[str], stored: Mapping[str, dict]) -> int:
    """Return how many more tries open a solution: all hints are open by then.

    0 if its exercises are done.
    """
    tries = 0
    for key in keys:
        entry = stored.get(key, {})
        if entry.get("done"):
            continue
        hints = len(checking.all_exercises()[key].hints)
        needed = max(1, min(hints, MOST_TRIES))
        tries = max(tries, needed - entry.get("tries", 0))
    return max(0, tries)


def source_of(*keys: str) -> str:
    """Return the code of the solution of these exercises, from the course's own notebook.

    Raises:
        BadInput: there is no such exercise, or no cell solves exactly these.
    """
    every = checking.all_exercises()
    for key in keys:
        if key not in every:
            raise BadInput(f"There is no exercise {key!r}.", f"There are: {', '.join(every)}.")
    notebook = every[keys[0]].notebook
    path = install_words.course_folder() / f"{notebook}.ipynb"
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if solutions.is_solution(cell) and solutions.keys_of(source) == list(keys):
            return source
    raise BadInput(
        f"Notebook {notebook} has no solution of {', '.join(keys)}.",
        f"Get the notebook anew: workshop fresh {notebook}",
    )


def solution(*keys: str) -> Solution | None:
    """Show the solution of some exercises and run it, once they were tried.

    Before that, print how many tries are left.

    Args:
        keys: the exercises, as the solution's cell has them.

    Raises:
        BadInput: there is no such exercise, or no cell solves exactly these.
    """
    if not keys:
        raise BadInput(
            "No exercise is named.", 'Write for example solution("memory.weights_405b").'
        )
    source = source_of(*keys)
    stored = checking.progress()
    tries = tries_left(keys, stored)
    if tries and not checking.strict():
        times = "twice"
        if tries == 1:
            times = "once"
        if any(stored.get(key, {}).get("tries") for key in keys):
            times += " more"
        print(f"Held back until you have tried {times}: run the cell above with your answer.")
        print(
            "A wrong answer opens a hint, and when the hints are open, this cell shows the solution."
        )
        return None
    shell = lost.shell()
    shown = Solution(source)
    if shell is None:
        return shown
    from IPython.display import display

    display(shown)
    shell.run_cell(source, store_history=False)
    return None
