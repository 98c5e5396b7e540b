"""Checks for the exercises: quiet when unanswered, kind when wrong, and they remember what is done.

A set of exercises is a module of `workshop.learn.exercise_sets` (one a notebook) with a dict EXERCISES.
With WORKSHOP_STRICT=1, as in the tests, a wrong answer raises.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Real

from workshop.errors import BadInput, WorkshopError
from workshop.launch.home import home, private_folder, write_private
from workshop.learn import exercise_sets
from workshop.learn.html import Html, alone, div, join, muted, panel, span, tag

Test = Callable[[object], str | None]
FROM_SOLUTION = "This is the solution's answer. Only yours counts as done: put it in the cell above."


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Args:
        title: what it asks, in a few words.
        test: takes the answer; returns None if it is right, else one kind sentence about what is off.
        hints: shown one after the other, the last one nearly gives the answer away.
    """

    title: str
    test: Test
    hints: tuple[str, ...] = ()


def close_to(
    expected: float, *, rel: float = 0.01, unit: str = "", near_misses: dict[float, str] | None = None
) -> Test:
    """Return a test for a number; `near_misses` maps typical wrong numbers to what went wrong."""

    def test(answer: object) -> str | None:
        if isinstance(answer, bool) or not isinstance(answer, Real) or not math.isfinite(answer):
            return f"{answer!r} is not a number{f' of {unit}' if unit else ''}"
        if math.isclose(answer, expected, rel_tol=rel):
            return None
        for wrong, why in (near_misses or {}).items():
            if math.isclose(answer, wrong, rel_tol=rel):
                return why
        size = "large" if answer > expected else "small"
        return f"{answer:,.6g} {unit} is too {size}".replace("  ", " ")

    return test


@cache
def all_exercises() -> dict[str, Exercise]:
    """Return every exercise of the course by its key, in the order of the notebooks."""
    found: dict[str, Exercise] = {}
    for module in sorted(pkgutil.iter_modules(exercise_sets.__path__), key=lambda module: module.name):
        found.update(importlib.import_module(f"{exercise_sets.__name__}.{module.name}").EXERCISES)
    return found


def of_notebook(name: str) -> tuple[str, ...]:
    """Return the keys of a notebook's exercises (`01_memory`), in their order; () if it has none."""
    try:
        return tuple(importlib.import_module(f"{exercise_sets.__name__}.e{name}").EXERCISES)
    except ModuleNotFoundError:
        return ()


def progress() -> dict[str, dict]:
    """Return what was tried and done: {key: {"tries": int, "done": bool}}; it lasts between sessions."""
    try:
        stored = json.loads((home() / "progress.json").read_text(encoding="utf-8"))
        return stored if isinstance(stored, dict) else {}
    except (OSError, ValueError):
        return {}


def _in_solution() -> bool:
    """Return whether the notebook's cell that runs now is a solution."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    cells = shell.user_ns.get("In") if shell else None
    return bool(cells) and cells[-1].lstrip().startswith("# Solution")


def _remember(key: str, right: bool) -> str:
    """Keep the outcome; return a note if that was impossible (a full quota must not stop a learner)."""
    stored = progress()
    entry = stored.setdefault(key, {"tries": 0, "done": False})
    entry["tries"] += 1
    entry["done"] = entry["done"] or right
    try:
        private_folder()
        write_private(home() / "progress.json", json.dumps(stored, indent=1) + "\n")
    except WorkshopError as error:
        return f"Your progress could not be kept: {error}"
    return ""


@dataclass(frozen=True)
class Result:
    """What a check says; notebooks show it as HTML, terminals as text."""

    key: str
    state: str  # unanswered, right, wrong
    message: str
    note: str = ""

    def __bool__(self) -> bool:
        return self.state == "right"

    def __repr__(self) -> str:
        sign = {"right": "✓", "wrong": "✗", "unanswered": "…"}[self.state]
        return f"{sign} {all_exercises()[self.key].title}{f': {self.message}' if self.message else ''}"

    def _repr_html_(self) -> str:
        kind = {"right": "good", "wrong": "bad", "unanswered": "open"}[self.state]
        hints = all_exercises()[self.key].hints if self.state != "right" else ()
        said = tag("b", repr(self), cls="workshop-check", data_state=self.state)
        shown = [
            tag("details", tag("summary", f"Hint {number} of {len(hints)}"), hint)
            for number, hint in enumerate(hints, 1)
        ]
        note = [muted(self.note)] if self.note else []
        return alone(panel(div(said, *shown, *note, cls=f"verdict {kind}"), progress_bar(self.key)))


def progress_bar(key: str) -> Html:
    """Return how far this notebook's exercises are done (keys are `notebook.exercise`)."""
    mine = [name for name in all_exercises() if name.split(".")[0] == key.split(".")[0]]
    stored = progress()
    done = [bool(stored.get(name, {}).get("done")) for name in mine]
    dots = join(
        span(cls=f"dot bg-{'good' if right else 'free'}", title=all_exercises()[name].title)
        for name, right in zip(mine, done, strict=True)
    )
    said = f"{sum(done)} of {len(mine)}"
    return div(dots, f" {said}", cls="note", role="img", aria_label=f"{said} exercises of this notebook done")


def check(key: str, answer: object) -> Result:
    """Check an answer to an exercise; `...` stands for "not answered yet", also as one part of a tuple.

    A wrong answer gets a sentence about what is off, then hints; a right one is remembered for the course map. A
    solution's cell counts for nothing: it is folded, and who runs all cells runs it too.

    >>> from workshop import check
    >>> check("memory.weights_405b", ...)
    … GB of weights of Llama 3.1 405B in float16: replace the ... above with your answer, then run the cell again
    >>> check("memory.weights_405b", 810)
    ✓ GB of weights of Llama 3.1 405B in float16

    Args:
        key: the exercise, as its cell has it.
        answer: a number, a text, a tuple, a function: what the exercise asks for.

    Raises:
        BadInput: there is no such exercise.
        AssertionError: the answer is wrong and WORKSHOP_STRICT=1.
    """
    if key not in all_exercises():
        raise BadInput(f"There is no exercise {key!r}.", f"There are: {', '.join(all_exercises())}.")
    if answer is ... or (isinstance(answer, tuple) and any(part is ... for part in answer)):
        return Result(key, "unanswered", "replace the ... above with your answer, then run the cell again")
    try:
        message = all_exercises()[key].test(answer)
    except Exception as error:  # whatever a learner's answer does must not look like a fault of theirs
        message = f"the check could not use {answer!r} ({type(error).__name__}: {error})"
    if message and os.environ.get("WORKSHOP_STRICT") == "1":
        raise AssertionError(f"{key}: {message}")
    note = FROM_SOLUTION if _in_solution() else _remember(key, message is None)
    return Result(key, "right" if message is None else "wrong", message or "", note)
