"""The plan beside a log: predicted, actual, a bar of the error, what to change. The arithmetic: engine.reconcile."""

from __future__ import annotations

import html
import json
from functools import lru_cache
from pathlib import Path

import ipywidgets as widgets

import workshop
from workshop.engine import log as engine_log
from workshop.engine.reconcile import Reconciliation, Row, reconcile
from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.plan.catalog import list_gpus

LOGS = Path(workshop.__file__).parent / "data" / "logs"
AXIS_PERCENT = 5.0  # a bar this long fills its half; longer errors are cut, and say their number
CLOSE_PERCENT, FAIR_PERCENT = 1.0, 3.0
OWN = "a file of yours …"


def recorded() -> dict[str, dict]:
    """Return the recorded logs that can be compared: label → {"path", "model", "gpu"}."""
    entries = json.loads((LOGS / "index.json").read_text(encoding="utf-8"))["logs"]
    choices = {}
    for name, entry in entries.items():
        if entry["model"] is None or (name.startswith("failures/") and entry["failure"] != "kv-cache-too-small"):
            continue
        local = LOGS / entry["model"]
        label = f"{entry['what']} ({entry['gpu'] or 'CPU'}, vLLM {entry['vllm_version']})"
        choices[label] = {"path": LOGS / name, "model": str(local) if local.exists() else entry["model"],
                          "gpu": entry["gpu"] and entry["gpu"].lower()}  # fmt: skip
    return choices


def reconcile_html(result: Reconciliation) -> str:
    """Return the table with its error bars, the advice, and what was assumed."""
    said = ". ".join(_spoken(row) for row in result.rows)
    failure = (f'<p style="margin:4px 0 8px"><b style="color:{style.BAD}">✗ The start failed.</b> '
               f"{_text(result.failure)}</p>")
    head = "".join(f'<span style="{_head(side)}">{name}</span>' for name, side in
                   (("quantity", "left"), ("predicted", "right"), ("actual", "right"),
                    ("too low ← 0 → too high", "center"), ("", "left")))  # fmt: skip
    grid = ('<div style="display:grid;grid-template-columns:minmax(130px,1.3fr) auto auto minmax(140px,1fr) auto;'
            'column-gap:14px;row-gap:2px;align-items:center">')  # fmt: skip
    body = (failure if result.failure else "") + grid + head + "".join(map(_row_html, result.rows)) + "</div>"
    failed = f"The start failed. {result.failure} " if result.failure else ""
    label = html.escape(f"Plan beside log. {failed}{said}", quote=True)
    # A picture is one thing to a screen reader: the advice, which is text, stands outside of it.
    return style.panel(body, label=label) + style.panel(_advice_html(result) + _assumed_html(result))


def _row_html(row: Row) -> str:
    numbers = "text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap"
    cells = [f'<span style="border-top:1px solid {style.LINE};grid-column:1/-1;height:1px"></span>',
             f"<b>{_text(row.quantity)}</b>"]
    unit = f'<small style="color:{style.MUTED}">{row.unit}</small>'
    cells += [f'<span style="{numbers}">{_number(value)} {"" if value is None else unit}</span>'
              for value in (row.predicted, row.actual)]
    error = "" if row.error_percent is None else f"{row.error_percent:+.2f} %"
    cells += [_bar(row.error_percent), f'<span style="{numbers}">{error}</span>']
    cells.append(f'<span style="grid-column:1/-1;color:{style.MUTED};font-size:12px;margin-bottom:5px">'
                 f"{_text(row.reason)}</span>")  # fmt: skip
    return "".join(cells)


def _bar(error: float | None) -> str:
    """A bar from the middle: to the right where the plan says too much, to the left where it says too little."""
    if error is None:
        return "<span></span>"
    width = max(0.6, min(50.0, abs(error) / AXIS_PERCENT * 50))
    place = f"left:{50 if error >= 0 else 50 - width:.2f}%;width:{width:.2f}%"
    return (f'<span style="position:relative;height:12px;background:{style.FREE};border-radius:3px;overflow:hidden">'
            f'<span style="position:absolute;top:0;bottom:0;{place};background:{_colour(error)}"></span>'
            f'<span style="position:absolute;top:0;bottom:0;left:50%;width:1px;background:{style.TEXT}"></span></span>')


def _colour(error: float | None) -> str:
    if error is None:
        return style.MUTED
    return style.GOOD if abs(error) <= CLOSE_PERCENT else style.ORANGE if abs(error) <= FAIR_PERCENT else style.BAD


def _advice_html(result: Reconciliation) -> str:
    if not result.advice:
        return ""
    flag = f'<code style="font-family:{style.MONO};white-space:nowrap">'
    items = "".join(f'{flag}{_text(item.flag)} {_text(item.value)}</code>'
                    f'<span style="font-size:13px">{_text(item.effect)}</span>' for item in result.advice)  # fmt: skip
    return ('<p style="margin:12px 0 4px"><b>What to change</b>, the most effective first, more ranks last</p>'
            '<div style="display:grid;grid-template-columns:auto 1fr;column-gap:14px;row-gap:4px;align-items:baseline">'
            f"{items}</div>")  # fmt: skip


def _assumed_html(result: Reconciliation) -> str:
    lines = "".join(f"<li>{_text(line)}</li>" for line in result.assumed)
    return lines and (f'<ul style="color:{style.MUTED};font-size:12px;margin:10px 0 0;padding-left:18px">{lines}</ul>')


def error_html(error: WorkshopError) -> str:
    """Return what is wrong and the remedy, in the place of the table."""
    return style.panel(f'<b style="color:{style.BAD}">✗ {_text(error.message)}</b><br>→ {_text(error.remedy)}')


def _head(side: str) -> str:
    return f"color:{style.MUTED};font-size:12px;text-align:{side};white-space:nowrap"


def _text(value: object) -> str:
    return html.escape(str(value), quote=False)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _spoken(row: Row) -> str:
    error = "" if row.error_percent is None else f", error {row.error_percent:+.1f} percent"
    return f"{row.quantity}: predicted {_number(row.predicted)}, actual {_number(row.actual)} {row.unit}{error}"


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int) -> engine_log.EngineLog:
    return engine_log.read(path)


def view_html(path: str | Path, model: str | None, gpu: str | None) -> str:
    """Read a log, compare, and draw; errors become their sentence. Reading is done once a change of the file."""
    path = Path(path).expanduser()
    try:
        source = _read(path, path.stat().st_mtime_ns) if path.is_file() else path
        return reconcile_html(reconcile(source, model or None, gpu or None))
    except WorkshopError as error:
        return error_html(error)


class ReconcileView(widgets.VBox):
    """View only: choose a recorded log or give a path, and see `view_html`."""

    def __init__(self, log: str | Path | None = None, model: str = "", gpu: str = ""):
        self._recorded = recorded()
        initial = {"style": {"description_width": "initial"}}
        wide = widgets.Layout(width="560px")
        self.choice = widgets.Dropdown(options=[*self._recorded, OWN], description="log", layout=wide, **initial)
        self.path = widgets.Text(placeholder="path of vLLM's log", description="file", layout=wide,
                                 continuous_update=False, **initial)  # fmt: skip
        self.model = widgets.Text(placeholder="catalogue name or folder, if the log's path is of no use",
                                  description="model", layout=wide, continuous_update=False, **initial)  # fmt: skip
        self.gpu = widgets.Dropdown(options=[("as the log says", ""), *((name, name) for name in list_gpus())],
                                    description="GPU", **initial)  # fmt: skip
        self.own = widgets.VBox([self.path, self.model, self.gpu])
        self.picture = widgets.HTML()
        if log is not None:
            self.choice.value, self.path.value, self.model.value, self.gpu.value = OWN, str(log), model, gpu
        for control in (self.choice, self.path, self.model, self.gpu):
            control.observe(lambda _: self.draw(), names="value")
        super().__init__([self.choice, self.own, self.picture])
        self.draw()

    def draw(self) -> None:
        """Show the chosen log."""
        own = self.choice.value == OWN
        self.own.layout.display = "" if own else "none"
        if not own:
            chosen = self._recorded[self.choice.value]
            self.picture.value = view_html(chosen["path"], chosen["model"], chosen["gpu"])
        elif self.path.value.strip():
            self.picture.value = view_html(self.path.value.strip(), self.model.value.strip(), self.gpu.value)
        else:
            self.picture.value = style.panel("Give the path of a log that vLLM wrote.")
