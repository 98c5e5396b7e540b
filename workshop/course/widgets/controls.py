"""Widgets share a stylesheet, controls beside a picture, and a sentence below each control."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import ipywidgets as widgets
from inference_planner.catalog import list_gpus, list_models, load_gpu

from workshop.course.drawing import html
from workshop.errors import WorkshopError

# What a learner can set, and what a picture is drawn of. ipywidgets has no type hints: a control's
# value is Any.
ControlT = TypeVar("ControlT", bound="widgets.DOMWidget")
ResultT = TypeVar("ResultT")

AUTO = {"description_width": "initial"}
MORE = "more …"
TEN_MODELS = (
    "llama-3.2-1b",
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-70b-fp8",
    "llama-3.1-405b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "mistral-small-24b",
    "gpt-oss-120b",
    "deepseek-v3",
)
# ipywidgets gives a slider's handle and a player's buttons no name, and says a place in a list for
# the slider's value. The stylesheet sees to all three. It also presses the button by which a page
# answers (page_answer.py).
NAMES = """const box = this.closest('.widget-vbox') ?? this.parentElement;
const name = () => {
for (const slider of box.querySelectorAll('.widget-slider')) {
  const classes = ['.widget-label', '.noUi-handle', '.widget-readout'];
  const [label, handle, readout] = classes.map(cls => slider.querySelector(cls));
  for (const part of [handle, readout]) part?.setAttribute('aria-label', label.textContent);
  if (readout) handle?.setAttribute('aria-valuetext', readout.textContent);
}
for (const play of box.querySelectorAll('.widget-play')) {
  ['play or pause', 'stop', 'repeat'].forEach((name, n) => play.children[n]?.setAttribute('aria-label', name));
}
for (const button of box.querySelectorAll('.workshop-unseen')) {
  button.classList.remove('workshop-unseen');
  button.click();
}};
name(); new MutationObserver(name).observe(box, {childList: true, subtree: true});"""


class View(widgets.VBox):
    """A widget of the course: its children, with the stylesheet before them.

    A page that cannot show widgets gets its static form instead: its pictures and values, as HTML.
    """

    def __init__(self, *children: widgets.Widget, max_width: str | None = None):
        named = html.Html(html.SHEET.replace("<style>", f'<style onload="{NAMES}">'))
        sheet = widgets.HTML(named, layout=widgets.Layout(height="0", min_height="0", margin="0"))
        super().__init__([sheet, *children], layout=widgets.Layout(max_width=max_width))

    def static_form(self) -> html.Html:
        """Return what is shown now as HTML: pictures, and controls as their names and values."""
        return html.alone(html.join(_static_parts(self.children[1:])))

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, object]:
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        return {**bundle, "text/html": self.static_form()}


def _static_parts(children: Iterable[Any]) -> Iterator[html.Html]:
    """Yield the static form of each widget that is shown."""
    for child in children:
        if child.layout.display == "none":
            continue
        if isinstance(child, widgets.Stack):  # frames of a story: the last one says most
            yield from _static_parts(child.children[-1:])
        elif isinstance(child, widgets.Box):
            yield from _static_parts(child.children)
        elif isinstance(child, widgets.HTML):
            yield html.Html(child.value)
        elif isinstance(child, widgets.ToggleButtons):
            for place, option in enumerate(child.options):
                name = _name_of(option)
                if place == child.index:
                    name = html.bold(name)
                yield html.panel(html.div(name))
        elif not isinstance(child, widgets.Button | widgets.Play):
            yield html.panel(html.muted(f"{child.description}: ", html.bold(_in_words(child))))


def _in_words(control: Any) -> object:
    """Return a control's value as its page writes it: of a list, the name of what is chosen."""
    if getattr(control, "index", None) is None:
        return control.value
    return _name_of(control.options[control.index])


def _name_of(option: object) -> object:
    """Return what a list shows of an option: its name, where it has one of its own."""
    if isinstance(option, tuple):
        return option[0]
    return option


class Watching(View):
    """A view that looks again every `every_s` seconds, in a thread, until it is stopped."""

    def __init__(self, *children: widgets.Widget, every_s: float):
        self.every_s = every_s
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        super().__init__(*children)

    def look(self) -> object:
        """Look once, and draw what is seen. Each subclass has its own."""
        raise NotImplementedError

    def start(self) -> Self:
        """Look until `stop`; return the view, so that a cell can end in it."""
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
        """Stop looking; look a last time, and return what that says."""
        if self._thread is not None:
            self._end.set()
            self._thread.join(timeout=10)
            self._thread = None
        return self.look()


class Explorer(View, Generic[ResultT]):
    """Controls by name, and a picture of the result that belongs to their values.

    A subclass has `compute`, which turns the values into a result, and `picture_of`, which draws
    it. Its `sentences` stand below the controls, and `arranged` lays the page out in another way.
    After an error the result is None.
    """

    def __init__(
        self,
        controls: Mapping[str, Any],
        *,
        label_px: int = 0,
        indent_px: int | None = None,
        max_width: str | None = "1080px",
        picture_px: int = 460,
    ):
        """Lay the controls out, and draw.

        Args:
            controls: ipywidgets that have a value and a label, by name.
            label_px: width of the labels; the controls stand beside the picture. With 0 they stand
                in a row above it.
            indent_px: where the sentences below the controls begin; by default after the labels.
            max_width: of the page, in CSS.
            picture_px: the room that the picture needs beside the controls; with less it stands
                below them.
        """
        self.picture_px = picture_px
        self.controls = dict(controls)
        self.label_px = label_px
        self.result: ResultT | None = None
        self._is_held = False
        if indent_px is None:
            indent_px = label_px + 4
        label_width = "initial"
        if label_px:
            label_width = f"{label_px}px"
        self.indent_px = indent_px
        self.says = {}
        self.picture = widgets.HTML()
        for name, control in self.controls.items():
            self.says[name] = widgets.HTML()
            control.style.description_width = label_width
            control.observe(lambda _, name=name: self._changed(name), "value")
        super().__init__(*self.arranged(), max_width=max_width)
        self._changed(next(iter(controls)))

    def arranged(self) -> tuple[widgets.Widget, ...]:
        """Return what stands on the page, from top to bottom."""
        if self.label_px:
            return (beside(self.control_rows(), self.picture, self.picture_px),)
        return in_a_row(*self.controls.values(), gap="2px 22px"), self.picture

    def control_rows(self) -> list[tuple[widgets.Widget, ...]]:
        """Return each control with what stands below it."""
        rows = []
        for name, control in self.controls.items():
            rows.append((control, self.says[name]))
        return rows

    def _changed(self, name: str) -> None:
        if self._is_held:
            return
        with self.without_drawing():
            self.adapt(name)
        self.draw()

    @contextlib.contextmanager
    def without_drawing(self) -> Iterator[None]:
        """Change controls without drawing at each."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    @property
    def values(self) -> dict[str, Any]:
        """The value of each control, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def adapt(self, name: str) -> None:
        """Change other controls after `name` changed: ranges, options."""

    def compute(self) -> ResultT:
        """Return the result that belongs to the values of the controls."""
        raise NotImplementedError

    def picture_of(self, result: ResultT) -> str:
        """Return the result as HTML."""
        raise NotImplementedError

    def sentences(self) -> Mapping[str, object]:
        """Return what each control means now, in one sentence."""
        return {}

    def draw(self) -> None:
        """Compute and draw; this is what a step of a slider costs."""
        try:
            self.result = result = self.compute()
            self.picture.value = self.picture_of(result)
        except WorkshopError as error:
            self.result = None
            self.picture.value = html.alert(error)
        for name, sentence in self.sentences().items():
            self.says[name].value = html.says(sentence, indent=self.indent_px)


def beside(
    rows: Iterable[tuple[widgets.Widget, ...]], picture: widgets.Widget, least_px: int = 460
) -> widgets.HBox:
    """Return controls beside their picture.

    On a narrow page they stand above it in two columns, so that both stay in view.

    A row is a control and what stands below it. A picture that has not even `least_px` beside them
    stands below.
    """
    Layout = widgets.Layout
    groups = []
    for row in rows:
        groups.append(widgets.VBox(row, layout=Layout(flex="1 1 250px", margin="0 0 5px 0")))
    columns = Layout(
        flex="1 1 290px",
        grid_gap="0 24px",
        flex_flow="row wrap",
        align_content="flex-start",
        align_items="flex-start",
    )
    left = widgets.Box(groups, layout=columns)
    wide = Layout(flex=f"3 1 {least_px}px", min_width="330px")
    right = widgets.VBox([picture], layout=wide)
    return widgets.HBox([left, right], layout=Layout(flex_flow="row wrap", grid_gap="8px 20px"))


def in_a_row(*children: widgets.Widget, gap: str = "2px 4px") -> widgets.HBox:
    """Return children side by side; what does not fit goes on below."""
    return widgets.HBox(
        children, layout=widgets.Layout(flex_flow="row wrap", grid_gap=gap, align_items="center")
    )


def set_shown(widget: widgets.DOMWidget, is_shown: bool) -> None:
    """Show a widget, or hide it without leaving a gap."""
    display = "none"
    if is_shown:
        display = ""
    widget.layout.display = display


def made(
    kind: type[ControlT], name: str, value: object, width: str = "auto", **traits: object
) -> ControlT:
    """Return a control of that kind whose label is `name`, in full; its margins are 2 px.

    Args:
        kind: a class of ipywidgets.
        traits: what else that class takes.
    """
    layout = widgets.Layout(width=width, max_width="calc(100% - 4px)")
    return kind(value=value, description=name, style=AUTO, layout=layout, **traits)


def choice(name: str, options: Iterable, value: object, width: str = "auto") -> widgets.Dropdown:
    """Return a list to choose from."""
    return made(widgets.Dropdown, name, value, width, options=list(options))


class ModelList(widgets.Dropdown):
    """A list of ten models, and of the one that is chosen. Its last entry makes it that of all."""

    before = ""  # the model that was chosen when "more" was

    def show_all(self) -> None:
        """List every model of the catalog, the chosen one first."""
        chosen = self.value
        if chosen == MORE:
            chosen = self.before
        self.options = list(dict.fromkeys([chosen, *TEN_MODELS, *list_models()]))

    def notify_change(self, change: Any) -> None:
        """Tell observers of another model; choosing "more" is none."""
        if change["name"] != "value" or MORE not in (change["new"], change["old"]):
            super().notify_change(change)
        elif change["new"] == MORE:
            self.before = change["old"]
            self.show_all()


def models(value: str) -> ModelList:
    """Return a list that begins with ten models, and with `value` where that is another or a folder."""
    names = list(TEN_MODELS)
    if value not in names:
        names = [value, *names]
    return made(ModelList, "model", value, options=[*names, MORE])


def gpus(value: str, names: Iterable[str] | None = None) -> widgets.Dropdown:
    """Return a list of the GPUs of the catalog (or of those in `names`) by their titles."""
    value = load_gpu(value).name
    offered = list_gpus()
    if names is not None:
        offered = list(dict.fromkeys([*names, value]))
    options = [(load_gpu(name).title, name) for name in offered]
    return choice("GPU", options, value)


def steps(
    name: str, values: Iterable[float], value: float, width: str = "auto"
) -> widgets.SelectionSlider:
    """Return a slider over some numbers, and `value`."""
    options = [(f"{number:,}", number) for number in sorted({*values, value})]
    slider = made(widgets.SelectionSlider, name, value, width, options=options)
    slider.add_class("workshop-listed")  # its number can be written over, and nothing would follow
    return slider


def whole(
    name: str,
    value: int,
    low: int,
    high: int,
    step: int = 1,
    *,
    width: str = "auto",
    **traits: object,
) -> widgets.IntSlider:
    """Return a slider over whole numbers."""
    return made(widgets.IntSlider, name, value, width, min=low, max=high, step=step, **traits)


def real(
    name: str,
    value: float,
    low: float,
    high: float,
    step: float,
    *,
    width: str = "auto",
    **traits: object,
) -> widgets.FloatSlider:
    """Return a slider over numbers."""
    return made(widgets.FloatSlider, name, value, width, min=low, max=high, step=step, **traits)


def button(
    text: str, act: Callable[[], object], width: str = "auto", **traits: object
) -> widgets.Button:
    """Return a button that calls `act` when it is clicked."""
    made_button = widgets.Button(description=text, layout=widgets.Layout(width=width), **traits)
    made_button.on_click(lambda _: act())
    return made_button
