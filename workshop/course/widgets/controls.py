"""What widgets share: the stylesheet, controls beside a picture, and a sentence below each control."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping

import ipywidgets as widgets
from inference_planner.catalog import list_gpus, list_models, load_gpu

from workshop.course import html
from workshop.errors import WorkshopError

AUTO = {"description_width": "initial"}
# ipywidgets gives a slider's handle no name, and says a place in a list for its value. The stylesheet sees to both.
NAMES = """const box = this.closest('.widget-vbox') ?? this.parentElement;
const name = () => box.querySelectorAll('.widget-slider').forEach(slider => {
  const parts = ['.widget-label', '.noUi-handle', '.widget-readout'].map(each => slider.querySelector(each));
  const [label, handle, readout] = parts;
  for (const part of [handle, readout]) part?.setAttribute('aria-label', label.textContent);
  if (readout) handle?.setAttribute('aria-valuetext', readout.textContent);
});
name(); new MutationObserver(name).observe(box, {childList: true, subtree: true});"""


class View(widgets.VBox):
    """A widget of the course: its children, with the stylesheet before them."""

    def __init__(self, *children: widgets.Widget, max_width: str | None = None):
        named = html.Html(html.SHEET.replace("<style>", f'<style onload="{NAMES}">'))
        sheet = widgets.HTML(named, layout=widgets.Layout(height="0", min_height="0", margin="0"))
        super().__init__([sheet, *children], layout=widgets.Layout(max_width=max_width))


class Watching(View):
    """A view that looks again every `every_s` seconds, in a thread, until it is stopped; a subclass has `look`."""

    def __init__(self, *children: widgets.Widget, every_s: float):
        self.every_s, self._thread, self._end = every_s, None, threading.Event()
        super().__init__(*children)

    def start(self) -> Watching:
        """Look until `stop`; returns the view, so that a cell can end in it."""
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def _watch(self) -> None:
        try:
            while not self._end.is_set():
                self.look()
                self._end.wait(self.every_s)
        except WorkshopError as error:  # what is drawn stays
            self.children = (*self.children, widgets.HTML(html.alert(error)))

    def stop(self) -> object:
        """Look no more, but once at the end; return what that says."""
        if self._thread is not None:
            self._end.set()
            self._thread.join(timeout=10)
            self._thread = None
        return self.look()


class Explorer(View):
    """Controls (by name), and a picture of the result of what they say; the result is None after an error.

    A subclass has `compute`, which turns what the controls say into a result, and `picture_of`, which draws it; with
    `words` it says below each control what that means now, and with `arranged` it lays the page out in another way.
    """

    def __init__(self, controls: Mapping[str, widgets.Widget], *, label_px: int = 0, indent_px: int | None = None,
                 max_width: str | None = "1080px"):  # fmt: skip
        """Lay them out: beside the picture with labels of `label_px`, or above it in a row where that is 0."""
        self.controls, self.label_px, self.result, self._held = (
            dict(controls),
            label_px,
            None,
            False,
        )
        self.indent_px = label_px + 4 if indent_px is None else indent_px
        self.says, self.picture = {name: widgets.HTML() for name in controls}, widgets.HTML()
        for name, control in self.controls.items():
            control.style.description_width = f"{label_px}px" if label_px else "initial"
            control.observe(lambda _, name=name: self._changed(name), "value")
        super().__init__(*self.arranged(), max_width=max_width)
        self._changed(next(iter(controls)))

    def arranged(self) -> tuple[widgets.Widget, ...]:
        """Return what stands on the page, from top to bottom."""
        if self.label_px:
            return (beside(self.rows(), self.picture),)
        return in_a_row(*self.controls.values(), gap="2px 22px"), self.picture

    def rows(self) -> list[tuple[widgets.Widget, ...]]:
        """Return each control with what stands below it."""
        return [(each, self.says[name]) for name, each in self.controls.items()]

    def _changed(self, name: str) -> None:
        if not self._held:
            with self.held():
                self.adapt(name)
            self.draw()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Change controls without drawing at each."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @property
    def said(self) -> dict[str, object]:
        return {name: control.value for name, control in self.controls.items()}

    def adapt(self, name: str) -> None:
        """Change other controls after `name` changed: ranges, options."""

    def compute(self) -> object:
        raise NotImplementedError

    def picture_of(self, result: object) -> str:
        raise NotImplementedError

    def words(self) -> Mapping[str, object]:
        """Return what each control means now, in one sentence."""
        return {}

    def draw(self) -> None:
        """Compute and draw; this is what a step of a slider costs."""
        try:
            self.result = self.compute()
            self.picture.value = self.picture_of(self.result)
        except WorkshopError as error:
            self.result = None
            self.picture.value = html.alert(error)
        for name, sentence in self.words().items():
            self.says[name].value = html.says(sentence, indent=self.indent_px)


def beside(
    rows: Iterable[tuple[widgets.Widget, ...]], picture: widgets.Widget, least_px: int = 460
) -> widgets.HBox:
    """Return controls beside their picture; on a narrow page above it in two columns, so that both stay in view.

    A row is a control and what stands below it; a picture that has not even `least_px` beside them stands below.
    """
    groups = [
        widgets.VBox(row, layout=widgets.Layout(flex="1 1 250px", margin="0 0 5px 0"))
        for row in rows
    ]
    columns = {"flex_flow": "row wrap", "align_content": "flex-start", "align_items": "flex-start"}
    controls = widgets.Box(
        groups, layout=widgets.Layout(flex="1 1 290px", grid_gap="0 24px", **columns)
    )
    right = widgets.VBox(
        [picture], layout=widgets.Layout(flex=f"3 1 {least_px}px", min_width="330px")
    )
    return widgets.HBox(
        [controls, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="20px")
    )


def in_a_row(*children: widgets.Widget, gap: str = "2px 4px") -> widgets.HBox:
    """Return children side by side; what does not fit goes on below."""
    return widgets.HBox(
        children, layout=widgets.Layout(flex_flow="row wrap", grid_gap=gap, align_items="center")
    )


def made(
    kind: type, name: str, value: object, width: str = "auto", **more: object
) -> widgets.Widget:
    """Return a control of that kind whose label is `name`, in full; its margins are 2 px."""
    layout = widgets.Layout(width=width, max_width="calc(100% - 4px)")
    return kind(value=value, description=name, style=AUTO, layout=layout, **more)


def choice(name: str, options: Iterable, value: object, width: str = "auto") -> widgets.Dropdown:
    return made(widgets.Dropdown, name, value, width, options=list(options))


def models(value: str) -> widgets.Dropdown:
    """Return the models of the catalogue, and `value` where that is a folder."""
    return choice(
        "model",
        dict.fromkeys([*([] if value in list_models() else [value]), *list_models()]),
        value,
    )


def gpus(value: str, names: Iterable[str] | None = None) -> widgets.Dropdown:
    """Return the GPUs of the catalogue (or those of `names`) by their titles."""
    value = load_gpu(value).name
    known = list_gpus() if names is None else dict.fromkeys([*names, value])
    return choice("GPU", [(load_gpu(name).title, name) for name in known], value)


def steps(
    name: str, values: Iterable[int], value: int, width: str = "auto"
) -> widgets.SelectionSlider:
    """Return a slider over some numbers, and `value`."""
    options = [(f"{each:,}", each) for each in sorted({*values, value})]
    slider = made(widgets.SelectionSlider, name, value, width, options=options)
    slider.add_class("workshop-listed")  # its number can be written over, and nothing would follow
    return slider


def whole(
    name: str, value: int, low: int, high: int, step: int = 1, **more: object
) -> widgets.IntSlider:
    """Return a slider over whole numbers."""
    return made(widgets.IntSlider, name, value, min=low, max=high, step=step, **more)


def real(
    name: str, value: float, low: float, high: float, step: float, **more: object
) -> widgets.FloatSlider:
    """Return a slider over numbers."""
    return made(widgets.FloatSlider, name, value, min=low, max=high, step=step, **more)


def button(words: str, act: object, width: str = "auto", **more: object) -> widgets.Button:
    made = widgets.Button(description=words, layout=widgets.Layout(width=width), **more)
    made.on_click(lambda _: act())
    return made
