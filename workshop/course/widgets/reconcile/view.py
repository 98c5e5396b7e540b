"""The plan beside a log of vLLM: predicted, actual, a bar of the error, what to change."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import ipywidgets as widgets
from inference_planner.catalog import list_gpus, load_gpu, load_model
from inference_planner.tables import calculators

from workshop.course.drawing.html import Html, bold, div, join, panel, span, tag
from workshop.course.drawing.readable_numbers import figure_of
from workshop.course.topics import recorded_data
from workshop.course.widgets import style
from workshop.course.widgets.controls import Explorer, choice, made, set_shown
from workshop.engine import log as engine_log
from workshop.engine.reconcile.compare import Quantity, Reconciliation, reconcile

LOGS = recorded_data.DATA / "logs"
OTHERS: dict[str, Callable] = {
    "llm-d-planner": calculators.llm_d_planner_tokens,
    "hf-mem": calculators.hf_mem_tokens,
    "rule of thumb": calculators.rule_tokens,
}
OWN = "a file of yours …"
AXIS_PERCENT = 5.0  # a bar this long fills its half; longer errors are cut, and say their number
CLOSE_PERCENT, FAIR_PERCENT = 1.0, 3.0
HEAD = (
    ("quantity", ""),
    ("predicted", "number"),
    ("actual", "number"),
    ("too low ← 0 → too high", "mid"),
    ("", ""),
)


def recorded() -> dict[str, dict]:
    """Return the recorded logs that can be compared, as `reconcile` takes them.

    The result is label → {"path", "model", "gpu"}.
    """
    choices = {}
    for name, entry in recorded_data.read("logs/index.json")["logs"].items():
        if not _can_be_compared(name, entry):
            continue
        model = entry["model"]
        if (LOGS / model).exists():
            model = str(LOGS / model)
        gpu = entry["gpu"]
        label = f"{entry['what']} ({gpu or 'CPU'}, vLLM {entry['vllm_version']})"
        choices[label] = {
            "path": LOGS / name,
            "model": model,
            "gpu": gpu and gpu.lower(),
        }
    return choices


def _can_be_compared(name: str, entry: dict) -> bool:
    """Return whether a recorded log names its model and came to the KV cache."""
    if entry["model"] is None:
        return False
    return not name.startswith("failures/") or entry["failure"] == "kv-cache-too-small"


@lru_cache(maxsize=1)
def recorded_errors() -> dict[str, dict[str, float]]:
    """Return the errors of every recorded run on GPUs, in percent of its KV-cache tokens.

    The result is {run: {calculator: error}}.
    """
    errors_by_run = {}
    for label, run in recorded().items():
        if not run["gpu"]:
            continue
        row = reconcile(run["path"], run["model"], run["gpu"]).row("KV cache size")
        if row is None or not row.actual:
            continue
        log = engine_log.read(run["path"])
        tp, pp = log.tensor_parallel_size or 1, log.pipeline_parallel_size or 1
        model, gpu = load_model(run["model"]), load_gpu(run["gpu"])
        errors = {"workshop plan": row.error_percent}
        for name, tokens in OTHERS.items():
            errors[name] = (tokens(model, gpu, tp, pp) / row.actual - 1) * 100
        errors_by_run[_short(label)] = errors
    return errors_by_run


def _short(label: str) -> str:
    """Shorten `llama-3.1-70b, tensor parallel 4 (H200, …)` to `llama-3.1-70b, TP 4`."""
    name = label.partition(" (")[0].replace("tensor parallel", "TP").replace("pipeline", "PP")
    return name.replace(", TP 1", "").replace("KV cache in FP8", "fp8 KV")


def picture(result: Reconciliation) -> Html:
    """Return the table with its error bars, the advice, and what was assumed."""
    failure: Html | str = ""
    label = "Plan beside log. "
    if result.failure:
        failure = div(tag("b", "✗", cls="ink-bad"), f" {result.failure}")
        label += f"{result.failure} "
    label += ". ".join(map(_spoken, result.rows))
    head = [span(name, cls=f"note {side}".rstrip()) for name, side in HEAD]
    grid = div(*head, *map(_row, result.rows), cls="compare")
    # A picture is one thing to a screen reader: the advice, which is text, stands outside of it.
    below = []
    if result.advice:
        order = ", the most effective first, more ranks last"
        below += [tag("p", bold("What to change"), order), _advice(result)]
    if result.assumed:
        lines = [tag("li", line) for line in result.assumed]
        below.append(tag("ul", *lines, cls="note"))
    return join([panel(failure, grid, label=label), panel(*below)])


def _advice(result: Reconciliation) -> Html:
    """Return each flag that would help, with its effect."""
    pairs = []
    for item in result.advice:
        pairs += [tag("code", f"{item.flag} {item.value}"), span(item.effect)]
    return div(*pairs, cls="pairs")


def _row(row: Quantity) -> Html:
    error = ""
    if row.error_percent is not None:
        error = f"{row.error_percent:+.2f} %"
    cells = (
        Html("<hr>"),
        bold(row.quantity),
        _with_unit(row.predicted, row.unit),
        _with_unit(row.actual, row.unit),
        _bar(row.error_percent),
        span(error, cls="number"),
        span(row.reason, cls="note why"),
    )
    return join(cells)


def _with_unit(value: float | None, unit: str) -> Html:
    """Return a number with its unit; an unknown one has none."""
    small = ""
    if value is not None:
        small = tag("small", unit, cls="ink-muted")
    return span(f"{figure_of(value)} ", small, cls="number")


def _bar(error: float | None) -> Html:
    """Draw a bar from the middle: to the right if the plan is too high, to the left if too low."""
    if error is None:
        return span()
    width = max(0.6, min(50.0, abs(error) / AXIS_PERCENT * 50))
    left = 50.0
    if error < 0:
        left -= width
    place = f"left:{left:.2f}%;width:{width:.2f}%;background:{_colour(abs(error))}"
    return span(tag("i", style=place), tag("i"), cls="error")


def _colour(error: float) -> str:
    """Return the colour of an error in percent, without its sign."""
    if error <= CLOSE_PERCENT:
        return style.GOOD
    if error <= FAIR_PERCENT:
        return style.ORANGE
    return style.BAD


def _spoken(row: Quantity) -> str:
    sentence = f"{row.quantity}: predicted {figure_of(row.predicted)}"
    sentence += f", actual {figure_of(row.actual)} {row.unit}"
    if row.error_percent is not None:
        sentence += f", error {row.error_percent:+.1f} percent"
    return sentence


class ReconcileView(Explorer[Reconciliation | None]):
    """The plan beside vLLM's log: weights, KV cache, tokens, why they differ, what to change.

    A bar shows the error in percent of the log's number. Below stands which flags would give more,
    and how much.

    >>> from workshop import ReconcileView
    >>> view = ReconcileView()      # or ReconcileView("vllm.log", model="llama-3.1-8b", gpu="h200")
    >>> logs = view.choice.options
    >>> view.choice.value = next(log for log in logs if log.startswith("llama-3.1-8b"))
    >>> "914,304" in view.picture.value         # tokens of KV cache, as that log says
    True

    Args:
        log: a log of your own; without one, the recorded logs are offered.
        model: catalog name or folder, where the log's own path is of no use.
        gpu: catalog name; logs do not say which GPU it was.
    """

    def __init__(self, log: str | Path | None = None, model: str = "", gpu: str = ""):
        self._recorded = recorded()
        logs = [*self._recorded, OWN]
        first = OWN
        if log is None:
            first = logs[0]
        self.choice = choice("log", logs, first, "560px")
        self.path = self._field("file", str(log or ""), "path of vLLM's log")
        about = "catalog name or folder, if the log's path is of no use"
        self.model = self._field("model", model, about)
        gpus = [("as the log says", "")]
        for name in list_gpus():
            gpus.append((name, name))
        self.gpu = choice("GPU", gpus, gpu, "560px")
        controls = {"log": self.choice, "path": self.path, "model": self.model, "gpu": self.gpu}
        super().__init__(controls, max_width=None)

    @staticmethod
    def _field(name: str, value: str, about: str) -> widgets.Text:
        """Return a field for text, which counts once it is whole."""
        return made(widgets.Text, name, value, "560px", placeholder=about, continuous_update=False)

    def arranged(self) -> tuple[widgets.Widget, ...]:
        self.own = widgets.VBox([self.path, self.model, self.gpu])
        return self.choice, self.own, self.picture

    def adapt(self, name: str) -> None:
        set_shown(self.own, self.choice.value == OWN)

    def compute(self) -> Reconciliation | None:
        log = self.values["log"]
        if log != OWN:
            recording = self._recorded[log]
            return reconcile(recording["path"], recording["model"], recording["gpu"])
        path = Path(self.path.value.strip()).expanduser()
        if not path.name:
            return None
        return reconcile(path, self.model.value.strip() or None, self.gpu.value or None)

    def picture_of(self, result: Reconciliation | None) -> Html:
        if result is None:
            return panel("Give the path of a log that vLLM wrote.")
        return picture(result)
