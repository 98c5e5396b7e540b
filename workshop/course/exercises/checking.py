"""Exercises: friendly checks, hints one by one, and predictions that are stored.

A set of exercises (one a notebook) is a file of words in `workshop/course/exercises/sets`: titles,
answers that are numbers, hints, typical wrong answers, concept questions with their options. What
asks for more has a judge in the module of the same name. With WORKSHOP_STRICT=1, as in the tests, a
wrong answer raises, and concept questions answer themselves.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import os
import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workshop.client import lost
from workshop.course.drawing.html import (
    Html,
    alone,
    div,
    join,
    muted,
    panel,
    span,
    tag,
    with_code,
)
from workshop.course.exercises import sets, slips
from workshop.course.exercises.judging import Exercise, letter
from workshop.course.progress import class_progress, progress_file
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    import ipywidgets as widgets

SETS = files(sets)
REASONS = files("workshop.course.exercises") / "reasons.toml"
SOLUTION = "# Solution"  # the first words of a notebook's cell with a solution
# state → sign, edge
LOOKS = {"right": ("✓", "good"), "wrong": ("✗", "bad"), "unanswered": ("…", "open")}
FROM_SOLUTION = (
    "This is the solution's answer. Only yours counts as done: put it in the cell above."
)


@cache
def all_exercises() -> dict[str, Exercise]:
    """Return every exercise of the course by its key, in the order of the notebooks."""
    names = []
    for file in SETS.iterdir():
        if file.name.endswith(".toml"):
            names.append(Path(file.name).stem)
    exercises: dict[str, Exercise] = {}
    for name in sorted(names):
        exercises |= _read(name)
    return exercises


@cache
def _read(name: str) -> dict[str, Exercise]:
    """Return the exercises of a set, from its file of texts and its module of judges.

    A judge has the name of its exercise: `gap` in the module judges capstone.gap. A set whose
    answers are all numbers or letters needs no module.
    """
    module = f"{sets.__name__}.{name}"
    judges = None
    if importlib.util.find_spec(module):
        judges = importlib.import_module(module)
    exercises = {}
    for key, table in sets.texts(name).items():
        judge = getattr(judges, key.split(".")[1], None)
        exercises[key] = Exercise.of(table, judge, name.removeprefix("e"))
    return exercises


def of_notebook(name: str) -> tuple[str, ...]:
    """Return the keys of the exercises of a notebook (`01_memory`), in their order."""
    if not (SETS / f"e{name}.toml").is_file():
        return ()
    return tuple(_read(f"e{name}"))


def progress() -> dict[str, dict]:
    """Return what was tried and predicted; it lasts between sessions.

    Of a check {"tries": int, "done": bool} (a question also "first": letter), of a prediction
    {"options": list, "predicted", "result": text or None}.
    """
    return progress_file.read()


def keep(key: str, entry: dict) -> str:
    """Store an outcome or a choice; return a note if that was impossible, or ''.

    A full quota must not stop a learner.
    """
    try:
        class_progress.renew(progress_file.add(key, entry))
    except WorkshopError as error:
        return f"Your progress could not be kept: {error}"
    return ""


def strict() -> bool:
    """Return whether tests run the notebooks."""
    return os.environ.get("WORKSHOP_STRICT") == "1"


def _explain_slip(lines: list[str]) -> list[str]:
    """Return a cell's lines; a sentence instead if Python cannot run its answer, and one says why.

    IPython calls this before it runs a cell.
    """
    text = "".join(lines)
    keys = re.findall(r'check\("([\w.]+)"', text)
    if strict() or not keys or text.lstrip().startswith(SOLUTION):
        return lines
    shell = lost.shell()
    names = set(dir(builtins))
    if shell:
        names.update(shell.user_ns)
    sentence = slips.slip(text, names)
    if sentence is None or keys[0] not in all_exercises():
        return lines
    return [f"__import__({__name__!r}, fromlist=['unread']).unread({keys[0]!r}, {sentence!r})\n"]


def unread(key: str, sentence: str) -> Result:
    """Return the result of an answer that Python cannot run: what to change. It is no try."""
    return Result(key, "unanswered", sentence)


def _watch_cells() -> Any:
    """Let IPython call `_explain_slip` for each cell from now on; return its shell, if any."""
    shell = lost.shell()
    if shell and _explain_slip not in shell.input_transformers_cleanup:
        shell.input_transformers_cleanup.append(_explain_slip)
    return shell


@dataclass(frozen=True)
class Result:
    """The result of a check; notebooks show it as HTML, terminals as text."""

    key: str
    state: str  # one of LOOKS
    message: str
    note: str = ""
    hints: tuple[str, ...] = ()
    option: str = ""  # of a question, the letter that was chosen

    def __bool__(self) -> bool:
        return self.state == "right"

    def __repr__(self) -> str:
        exercise = all_exercises()[self.key]
        sign, _ = LOOKS[self.state]
        if self.option:
            text, _ = exercise.options[self.option]
            return f"{sign} {self.option}) {text} {self.message}"
        if self.message:
            return f"{sign} {exercise.title}: {self.message}"
        return f"{sign} {exercise.title}"

    def _repr_html_(self) -> str:
        sign, kind = LOOKS[self.state]
        head, why = repr(self), ""
        if self.option:
            head, why = f"{sign} {self.option}) ", self.message
        verdict = join(
            [tag("b", with_code(head), cls="workshop-check", data_state=self.state), with_code(why)]
        )
        return alone(
            panel(div(verdict, *self._hints_html(), cls=f"verdict {kind}"), progress_bar(self.key))
        )

    def _hints_html(self) -> list[Html]:
        """Return the hints that are open, each folded, and what else there is to say."""
        count = len(all_exercises()[self.key].hints)
        shown = []
        for number, hint in enumerate(self.hints, 1):
            shown.append(
                tag("details", tag("summary", f"Hint {number} of {count}"), with_code(hint))
            )
        if 0 < len(self.hints) < count:
            shown.append(muted("Another wrong answer opens the next hint."))
        if self.note:
            shown.append(muted(self.note))
        return shown


def dots(keys: Iterable[str], done: Collection[str]) -> Html:
    """Return a dot for each exercise, filled where it is done."""
    drawn = []
    for key in keys:
        title = all_exercises()[key].title
        if key in done:
            drawn.append(span(cls="dot ring bg-good", title=f"{title}: done"))
        else:
            drawn.append(span(cls="dot ring", title=title))
    return join(drawn)


def progress_bar(key: str) -> Html:
    """Return how far the exercises of the notebook that has this one are done.

    Those of its section "Deeper" are counted apart.
    """
    this = all_exercises()[key]
    keys = []
    for name, exercise in all_exercises().items():
        if exercise.notebook == this.notebook and exercise.deeper == this.deeper:
            keys.append(name)
    stored = progress()
    done = [name for name in keys if stored.get(name, {}).get("done")]
    count = f"{len(done)} of {len(keys)} checks"
    if this.deeper:
        count += " in Deeper"
    label = f"{count} of this notebook done"
    return div(dots(keys, done), f" {count}", cls="note", role="img", aria_label=label)


def _has_open_part(answer: object) -> bool:
    """Return whether an answer, or a part of it, is still `...`."""
    parts: Iterable[object] = ()
    if isinstance(answer, dict):
        parts = answer.values()
    elif isinstance(answer, tuple | list):
        parts = answer
    return answer is ... or any(map(_has_open_part, parts))


class Question:
    """A concept question: a button for each option in a notebook, text elsewhere.

    Every option is answered with why it is right or wrong.
    """

    def __init__(self, key: str):
        self.key, self.exercise = key, all_exercises()[key]

    def __repr__(self) -> str:
        lines = [self.exercise.title]
        for option, (text, _) in self.exercise.options.items():
            lines.append(f"  {option}) {text}")
        lines.append(f'Answer with check("{self.key}", "a"), or another letter.')
        return "\n".join(lines)

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, object]:
        bundle = self.buttons()._repr_mimebundle_(**kwargs) or {}
        return {**bundle, "text/plain": repr(self)}

    def buttons(self) -> widgets.DOMWidget:
        """Return a widget: the question, a button for each option, and the reply to a choice."""
        import ipywidgets as widgets

        from workshop.course.widgets.controls import View

        labels = []
        right = None
        for option, (text, _) in self.exercise.options.items():
            labels.append((f"{option}) {text}", option))
            if self.exercise.judge(option) is None:
                right = option
        question = widgets.HTML(panel(tag("b", with_code(self.exercise.title))))
        buttons = widgets.ToggleButtons(options=labels, value=None)
        buttons.add_class("workshop-options")
        reply = widgets.HTML()

        def answer(change: dict) -> None:
            result = check(self.key, change["new"])
            if isinstance(result, Result):
                reply.value = result._repr_html_()

        buttons.observe(answer, "value")
        if strict():
            buttons.value = right
        return View(question, buttons, reply, max_width="760px")


def check(key: str, answer: object = ...) -> Result | Question:
    """Check an answer to an exercise; `...` stands for "not answered yet".

    `...` may also be a part of a tuple, list or dict.

    A wrong answer gets a sentence about what is off, and opens a hint; a right one is remembered
    for the course map. A solution counts for nothing: who runs all cells runs it too. A concept
    question is shown with its options; the letter of one answers it.

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
        offered = f"There are: {', '.join(all_exercises())}."
        raise BadInput(f"There is no exercise {key!r}.", offered)
    shell = _watch_cells()
    exercise = all_exercises()[key]
    if exercise.options and answer is ...:
        return Question(key)
    if _has_open_part(answer):
        part = "each ... that is left"
        if answer is ...:
            part = "the ... above"
        remedy = f"replace {part} with your answer, then run the cell again"
        return Result(key, "unanswered", remedy)
    try:
        message = exercise.test(answer)
    except WorkshopError as error:
        return Result(key, "unanswered", str(error))
    if message and strict():
        raise AssertionError(f"{key}: {message}")
    if shell and _is_solution(shell):
        state = "right"
        if message:
            state = "wrong"
        return Result(key, state, message or "", FROM_SOLUTION)
    return _remembered(key, answer, message)


def _is_solution(shell: Any) -> bool:
    """Return whether the cell that runs now is one with a solution."""
    cells = shell.user_ns.get("In")
    return bool(cells) and cells[-1].lstrip().startswith(SOLUTION)


def _remembered(key: str, answer: object, message: str | None) -> Result:
    """Count a try of an exercise, and return the result: right if there is no message."""
    exercise = all_exercises()[key]
    option = letter(answer)
    if option not in exercise.options:
        option = ""
    stored = progress().get(key, {})
    tries = stored.get("tries", 0) + 1
    entry: dict[str, object] = {}
    if option:
        entry["first"] = option  # a stored first choice replaces it
    entry |= stored
    entry |= {"tries": tries, "done": stored.get("done", False) or message is None}
    note = keep(key, entry)
    if message is not None:
        return Result(key, "wrong", message, note, exercise.hints[:tries], option)
    why = ""
    if option:
        why = exercise.options[option][1]
    return Result(key, "right", why, note, option=option)


@cache
def reasons() -> dict[str, list[str]]:
    """Return {key of a prediction: [the result that is explained, the reason in one clause]}."""
    return tomllib.loads(REASONS.read_text(encoding="utf-8"))


def reason_of(key: str, result: str | None) -> str:
    """Return why a prediction came out so, in one clause; '' if that result is not explained."""
    explained, reason = reasons().get(key, ("", ""))
    if result == explained:
        return reason
    return ""


class Prediction:
    """A learner's prediction: options to choose from, later the choice beside the result.

    Args:
        key: as its cells have it.
        options: texts; predicted, result: one of them, or None.
        asks: whether it is shown to be made, and not to be compared; what was compared stays as it
            is.
    """

    def __init__(
        self, key: str, options: list[str], predicted: str | None, result: str | None, asks: bool
    ):
        self.key, self.options, self.predicted, self.result = key, options, predicted, result
        self.asks = asks and not (predicted and result)
        if options:
            keep(key, {"options": options, "predicted": predicted, "result": result})

    def choose(self, option: str) -> None:
        """Predict it; in a notebook a click does the same."""
        if option not in self.options:
            offered = f"There are: {', '.join(self.options)}."
            raise BadInput(f"{option!r} is none of the options.", offered)
        self.predicted = option
        keep(self.key, {"options": self.options, "predicted": option, "result": self.result})

    def __repr__(self) -> str:
        if self.asks:
            return f"I predict: {self.predicted or '…'} (one of: {' · '.join(self.options)})"
        prediction = "No prediction."
        if self.predicted:
            prediction = f"You predicted: {self.predicted}."
        reason = reason_of(self.key, self.result)
        if reason:
            return f"{prediction} Result: {self.result}, as {reason}."
        return f"{prediction} Result: {self.result}."

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, object]:
        if not self.asks:
            edge = "open"
            if self.predicted == self.result:
                edge = "good"
            shown = alone(panel(div(repr(self), cls=f"verdict {edge}")))
            return {"text/plain": repr(self), "text/html": shown}
        bundle = self.buttons()._repr_mimebundle_(**kwargs) or {}
        return {**bundle, "text/plain": repr(self)}

    def buttons(self) -> widgets.DOMWidget:
        """Return a widget: a button for each option."""
        import ipywidgets as widgets

        chosen = None
        if self.predicted in self.options:
            chosen = self.predicted
        buttons = widgets.ToggleButtons(
            options=self.options, value=chosen, description="I predict:"
        )
        buttons.style.button_width = "auto"
        buttons.observe(lambda change: self.choose(change["new"]), "value")
        return buttons


def predict(key: str, options: Sequence[str] = (), *, result: str | None = None) -> Prediction:
    """Ask what will happen before a cell runs, store the choice, and show it beside the result.

    >>> from workshop import predict
    >>> predict("memory.example", ("more", "less")).choose("less")      # in a notebook: a click
    >>> predict("memory.example", result="more")                        # after the cell that shows it
    You predicted: less. Result: more.

    Args:
        key: `notebook.name`, as the exercises have them; the course map counts predictions.
        options: what may happen.
        result: what did happen: one of the options.

    Raises:
        BadInput: the result is none of the options.
    """
    _watch_cells()
    stored = progress().get(key, {})
    options = list(options or stored.get("options", ()))
    if result is not None and options and result not in options:
        offered = f"There are: {', '.join(options)}."
        raise BadInput(f"{result!r} is none of the options of {key!r}.", offered)
    asks = result is None
    result = result or stored.get("result")
    return Prediction(key, options, stored.get("predicted"), result, asks=asks)
