"""What widgets share: the stylesheet, controls beside a picture, and a sentence below each control."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn import html
from workshop.plan.catalog import list_gpus, list_models, load_gpu

AUTO = {"description_width": "initial"}


class View(widgets.VBox):
    """A widget of the course: its children, with the stylesheet before them."""

    def __init__(self, *children: widgets.Widget, max_width: str | None = None):
        sheet = widgets.HTML(html.SHEET, layout=widgets.Layout(height="0", min_height="0", margin="0"))
        super().__init__([sheet, *children], layout=widgets.Layout(max_width=max_width))


class Explorer(View):
    """Controls, and a picture of what they say.

    A subclass has `compute`, which turns what the controls say into a result, and `picture_of`, which draws it; with
    `words` it says below each control what that means now.

    Attributes:
        controls: by name; says: the sentence below each; picture: the HTML; result: what it shows, None after an error.
    """

    def __init__(
        self,
        controls: Mapping[str, widgets.Widget],
        *,
        label_px: int = 0,
        below: Mapping[str, widgets.Widget] | None = None,
        max_width: str = "1080px",
    ):
        """Lay them out: beside each other with labels of `label_px`, or above the picture in a row where that is 0."""
        self.controls, self.label_px, self.result, self._held = dict(controls), label_px, None, False
        self._words: dict[str, str] = {}
        self.says, self.picture = {name: widgets.HTML() for name in controls}, widgets.HTML()
        for name, control in self.controls.items():
            control.style.description_width = f"{label_px}px" if label_px else "initial"
            control.observe(lambda _, name=name: self._changed(name), "value")
        if label_px:
            more = below or {}
            rows = [(each, self.says[name], *more.get(name, ())) for name, each in self.controls.items()]
            super().__init__(beside(rows, self.picture), max_width=max_width)
        else:
            super().__init__(in_a_row(*self.controls.values(), gap="2px 22px"), self.picture, max_width=max_width)
        self._changed(next(iter(controls)))

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
        """What the controls say."""
        return {name: control.value for name, control in self.controls.items()}

    def adapt(self, name: str) -> None:
        """Change other controls after `name` changed: ranges, options."""

    def compute(self) -> object:
        """Return the result of what the controls say."""
        raise NotImplementedError

    def picture_of(self, result: object) -> str:
        """Return the HTML of a result."""
        raise NotImplementedError

    def words(self) -> Mapping[str, str]:
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
            if self._words.get(name) != sentence:
                self._words[name] = sentence
                self.says[name].value = html.says(sentence, indent=self.label_px + 4)


def beside(rows: Iterable[tuple[widgets.Widget, ...]], picture: widgets.Widget) -> widgets.HBox:
    """Return controls beside their picture; on a narrow page above it in two columns, so that both stay in view.

    Args:
        rows: each a control and what stands below it.
        picture: what the controls change. It gets three quarters of what is to spare.
    """
    groups = [widgets.VBox(row, layout=widgets.Layout(flex="1 1 250px", margin="0 0 5px 0")) for row in rows]
    columns = {"flex_flow": "row wrap", "align_content": "flex-start", "align_items": "flex-start"}
    controls = widgets.Box(groups, layout=widgets.Layout(flex="1 1 290px", grid_gap="0 24px", **columns))
    right = widgets.VBox([picture], layout=widgets.Layout(flex="3 1 460px", min_width="330px"))
    return widgets.HBox([controls, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="20px"))


def in_a_row(*children: widgets.Widget, gap: str = "2px 4px") -> widgets.HBox:
    """Return children side by side; what does not fit goes on below."""
    return widgets.HBox(children, layout=widgets.Layout(flex_flow="row wrap", grid_gap=gap, align_items="center"))


def choice(name: str, options: Iterable, value: object, width: str = "auto") -> widgets.Dropdown:
    """Return a list to choose from."""
    layout = widgets.Layout(width=width)
    return widgets.Dropdown(options=list(options), value=value, description=name, layout=layout, style=AUTO)


def models(value: str, width: str = "auto") -> widgets.Dropdown:
    """Return the models of the catalogue, and `value` where that is a folder."""
    return choice("model", dict.fromkeys([*([] if value in list_models() else [value]), *list_models()]), value, width)


def gpus(value: str, names: Iterable[str] | None = None) -> widgets.Dropdown:
    """Return the GPUs of the catalogue (or those of `names`) by their titles."""
    value = load_gpu(value).name
    known = list_gpus() if names is None else dict.fromkeys([*names, value])
    return choice("GPU", [(load_gpu(name).title, name) for name in known], value)


def steps(name: str, values: Iterable[int], value: int) -> widgets.SelectionSlider:
    """Return a slider over some numbers, and `value`."""
    options = [(f"{each:,}", each) for each in sorted({*values, value})]
    layout = widgets.Layout(width="auto")
    return widgets.SelectionSlider(options=options, value=value, description=name, layout=layout, style=AUTO)


def whole(name: str, value: int, low: int, high: int, step: int = 1, **more: object) -> widgets.IntSlider:
    """Return a slider over whole numbers."""
    more = {"layout": widgets.Layout(width="auto"), "style": AUTO, **more}
    return widgets.IntSlider(value, min=low, max=high, step=step, description=name, **more)


def real(name: str, value: float, low: float, high: float, step: float, **more: object) -> widgets.FloatSlider:
    """Return a slider over numbers."""
    more = {"layout": widgets.Layout(width="auto"), "style": AUTO, **more}
    return widgets.FloatSlider(value, min=low, max=high, step=step, description=name, **more)


def button(words: str, act: object, width: str = "auto", **more: object) -> widgets.Button:
    """Return a button that calls `act`."""
    made = widgets.Button(description=words, layout=widgets.Layout(width=width), **more)
    made.on_click(lambda _: act())
    return made
