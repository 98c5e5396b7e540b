"""The plan beside a log of vLLM: predicted, actual, a bar of the error, what to change."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import ipywidgets as widgets
from inference_planner import calculators
from inference_planner.catalog import list_gpus, load_gpu, load_model

from workshop.course import recordings
from workshop.course.html import Html, bold, div, join, panel, span, tag
from workshop.course.widgets import style
from workshop.course.widgets.controls import Explorer, choice, made
from workshop.engine import log as engine_log
from workshop.engine.reconcile import Reconciliation, Row, reconcile

LOGS = recordings.DATA / "logs"
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
    """Return the recorded logs that can be compared: label → {"path", "model", "gpu"}, as `reconcile` takes them."""
    entries = recordings.read("logs/index.json")["logs"]
    choices = {}
    for name, entry in entries.items():
        if entry["model"] is None or (
            name.startswith("failures/") and entry["failure"] != "kv-cache-too-small"
        ):
            continue
        local = LOGS / entry["model"]
        label = f"{entry['what']} ({entry['gpu'] or 'CPU'}, vLLM {entry['vllm_version']})"
        model = str(local) if local.exists() else entry["model"]
        choices[label] = {
            "path": LOGS / name,
            "model": model,
            "gpu": entry["gpu"] and entry["gpu"].lower(),
        }
    return choices


@lru_cache(maxsize=1)
def recorded_errors() -> dict[str, dict[str, float]]:
    """Return {run: {calculator: error in percent of the KV-cache tokens}} for every recorded run on GPUs."""
    found = {}
    for label, run in recorded().items():
        row = (
            reconcile(run["path"], run["model"], run["gpu"]).row("KV cache size")
            if run["gpu"]
            else None
        )
        if row is None or not row.actual:
            continue
        log = engine_log.read(run["path"])
        split = (log.tensor_parallel_size or 1, log.pipeline_parallel_size or 1)
        asked = (load_model(run["model"]), load_gpu(run["gpu"]), *split)
        errors = {name: (tokens(*asked) / row.actual - 1) * 100 for name, tokens in OTHERS.items()}
        # `llama-3.1-70b, tensor parallel 4 (H200, …)` → `llama-3.1-70b, TP 4`
        name = label.partition(" (")[0].replace("tensor parallel", "TP").replace("pipeline", "PP")
        name = name.replace(", TP 1", "").replace("KV cache in FP8", "fp8 KV")
        found[name] = {"workshop plan": row.error_percent, **errors}
    return found


def picture(result: Reconciliation) -> Html:
    """Return the table with its error bars, the advice, and what was assumed."""
    failed = f"The start failed. {result.failure} " if result.failure else ""
    failure = (
        div(tag("b", "✗ The start failed.", cls="ink-bad"), f" {result.failure}") if failed else ""
    )
    head = [span(name, cls=f"note {side}".rstrip()) for name, side in HEAD]
    grid = div(*head, *map(_row, result.rows), cls="compare")
    label = f"Plan beside log. {failed}{'. '.join(map(_spoken, result.rows))}"
    advice = [
        one
        for item in result.advice
        for one in (tag("code", f"{item.flag} {item.value}"), span(item.effect))
    ]
    below = [
        tag("p", bold("What to change"), ", the most effective first, more ranks last"),
        div(*advice, cls="pairs"),
    ]
    assumed = [tag("ul", *(tag("li", line) for line in result.assumed), cls="note")]
    # A picture is one thing to a screen reader: the advice, which is text, stands outside of it.
    text = panel(*below * bool(advice), *assumed * bool(result.assumed))
    return join([panel(failure, grid, label=label), text])


def _row(row: Row) -> Html:
    unit, both = tag("small", row.unit, cls="ink-muted"), (row.predicted, row.actual)
    numbers = [
        span(f"{_number(value)} ", "" if value is None else unit, cls="number") for value in both
    ]
    error = "" if row.error_percent is None else f"{row.error_percent:+.2f} %"
    why = span(row.reason, cls="note why")
    return join(
        [
            Html("<hr>"),
            bold(row.quantity),
            *numbers,
            _bar(row.error_percent),
            span(error, cls="number"),
            why,
        ]
    )


def _bar(error: float | None) -> Html:
    """A bar from the middle: to the right where the plan says too much, to the left where it says too little."""
    if error is None:
        return span()
    width = max(0.6, min(50.0, abs(error) / AXIS_PERCENT * 50))
    colour = (
        style.GOOD
        if abs(error) <= CLOSE_PERCENT
        else style.ORANGE
        if abs(error) <= FAIR_PERCENT
        else style.BAD
    )
    place = f"left:{50 if error >= 0 else 50 - width:.2f}%;width:{width:.2f}%;background:{colour}"
    return span(tag("i", style=place), tag("i"), cls="error")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _spoken(row: Row) -> str:
    error = "" if row.error_percent is None else f", error {row.error_percent:+.1f} percent"
    return f"{row.quantity}: predicted {_number(row.predicted)}, actual {_number(row.actual)} {row.unit}{error}"


class ReconcileView(Explorer[Reconciliation | None]):
    """The plan beside what vLLM's log says: weights, KV cache, tokens, and why they differ; then what to change.

    A bar shows the error in percent of the log's number. Below stands which flags would give more, and how much.

    >>> from workshop import ReconcileView
    >>> view = ReconcileView()                  # or ReconcileView("vllm.log", model="llama-3.1-8b", gpu="h200")
    >>> view.choice.value = next(log for log in view.choice.options if log.startswith("llama-3.1-8b"))
    >>> "914,304" in view.picture.value         # tokens of KV cache, as that log says
    True

    Args:
        log: a log of your own; without one, the recorded logs are offered.
        model: catalog name or folder, where the log's own path is of no use.
        gpu: catalog name; logs do not say which GPU it was.
    """

    def __init__(self, log: str | Path | None = None, model: str = "", gpu: str = ""):
        self._recorded, wide = recorded(), {"width": "560px", "continuous_update": False}
        logs = [*self._recorded, OWN]
        self.choice = choice("log", logs, logs[0] if log is None else OWN, "560px")
        self.path = made(
            widgets.Text, "file", str(log or ""), placeholder="path of vLLM's log", **wide
        )
        about = "catalog name or folder, if the log's path is of no use"
        self.model = made(widgets.Text, "model", model, placeholder=about, **wide)
        self.gpu = choice(
            "GPU", [("as the log says", ""), *((name, name) for name in list_gpus())], gpu, "560px"
        )
        super().__init__(
            {"log": self.choice, "path": self.path, "model": self.model, "gpu": self.gpu},
            max_width=None,
        )

    def arranged(self) -> tuple[widgets.Widget, ...]:
        self.own = widgets.VBox([self.path, self.model, self.gpu])
        return self.choice, self.own, self.picture

    def adapt(self, name: str) -> None:
        self.own.layout.display = "" if self.choice.value == OWN else "none"

    def compute(self) -> Reconciliation | None:
        log = self.values["log"]
        if log != OWN:
            return reconcile(*self._recorded[log].values())
        path, model = Path(self.path.value.strip()).expanduser(), self.model.value.strip()
        return reconcile(path, model or None, self.gpu.value or None) if path.name else None

    def picture_of(self, result: Reconciliation | None) -> Html:
        return (
            panel("Give the path of a log that vLLM wrote.") if result is None else picture(result)
        )
