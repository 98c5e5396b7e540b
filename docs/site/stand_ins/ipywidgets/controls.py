"""What is pressed, typed or moved."""

from __future__ import annotations

import contextlib

from js import clearInterval, setInterval
from pyodide.ffi import create_proxy

from ipywidgets.base import Widget, element, on


class Button(Widget):
    traits = {"description": "", "disabled": False}

    def __init__(self, **kwargs: object):
        self.__dict__["_clicks"] = []
        super().__init__(**kwargs)

    def dom_build(self):
        made = element(
            "button", f"w-button {'w-primary' * (self.__dict__.get('button_style') == 'primary')}"
        )
        made.title = self.__dict__.get("tooltip") or ""
        on(made, "click", lambda _: [function(self) for function in self._clicks])
        return made

    def on_click(self, function) -> None:
        """Call `function` with the button at a click."""
        self._clicks.append(function)

    def click(self) -> None:
        """Do as if clicked."""
        self.element.click()

    def dom_show(self, name: str) -> None:
        self.element.textContent, self.element.disabled = self.description, self.disabled


class Control(Widget):
    """A label, an input, and what it says now."""

    traits = {"value": None, "description": "", "disabled": False}
    tag, kind = "input", "text"

    def dom_build(self):
        made = element("span" if self.tag == "span" else "label", "w-control")
        tip = self.__dict__.get("tooltip")
        self.__dict__.update(
            _label=element("span", "w-label"), input=self.dom_input(), _readout=element("output")
        )
        made.append(self._label, self.input, self._readout)
        if tip:
            made.title = tip
        return made

    def dom_input(self):
        """Return the input, which tells `dom_typed` what it is given."""
        made = element(self.tag, type=self.kind) if self.kind else element(self.tag)
        lazy = (
            self.__dict__.get("continuous_update") is False
            or self.tag == "select"
            or self.kind == "number"
        )
        on(made, "change" if lazy else "input", lambda _: self.dom_typed())
        if holder := self.__dict__.get("placeholder"):
            made.placeholder = holder
        return made

    def dom_typed(self) -> None:
        """Take what the input holds."""
        self.value = self.input.value

    def dom_show(self, name: str) -> None:
        if name == "description":
            self._label.textContent = self.description
            self.input.setAttribute("aria-label", self.description)
        elif name == "disabled":
            self.input.disabled = self.disabled
        elif name == "value":
            self.dom_value()

    def dom_value(self) -> None:
        """Bring the value into the input."""
        if str(self.input.value) != str(self.value):
            self.input.value = str(self.value)

    def dom_style(self) -> None:
        width = self.style.description_width
        self._label.style.minWidth = width if width != "initial" else "0"


class Text(Control):
    traits = {**Control.traits, "value": ""}


class Textarea(Text):
    tag, kind = "textarea", ""

    def dom_input(self):
        made = super().dom_input()
        made.rows = self.__dict__.get("rows") or 3
        return made


class _Number(Control):
    """A number, held within min and max where it has them."""

    traits = {**Control.traits, "value": 0, "min": None, "max": None}
    number, kind, step = int, "number", 1

    def dom_valid(self, name: str, value: object) -> object:
        if name != "value":
            return value
        value = self.number(value)
        value = value if self.max is None else min(value, self.max)
        return value if self.min is None else max(value, self.min)

    def dom_typed(self) -> None:
        with contextlib.suppress(ValueError):  # nothing, or not yet a number
            self.value = self.number(float(self.input.value))
        self.dom_value()

    def dom_show(self, name: str) -> None:
        if name in ("min", "max"):
            limit = getattr(self, name)
            if limit is not None:
                setattr(self.input, name, str(limit))
                self.input.step = str(self.step)
                self.value = self.value
                self.dom_value()
        super().dom_show(name)


class IntText(_Number):
    pass


class BoundedIntText(_Number):
    traits = {**_Number.traits, "min": 0, "max": 100}


class BoundedFloatText(_Number):
    traits = {**_Number.traits, "value": 0.0, "min": 0.0, "max": 100.0}
    number, step = float, "any"


class IntSlider(_Number):
    traits = {**_Number.traits, "min": 0, "max": 100, "readout_format": "d"}
    kind = "range"

    def dom_value(self) -> None:
        super().dom_value()
        self._readout.textContent = format(self.value, self.readout_format)

    def dom_show(self, name: str) -> None:
        super().dom_show("value" if name == "readout_format" else name)


class FloatSlider(IntSlider):
    traits = {**IntSlider.traits, "value": 0.0, "max": 10.0, "readout_format": ".2f"}
    number, step = float, 0.1


class Play(Widget):
    """Counts from min to max, `step` every `interval` ms, while it plays."""

    traits = {
        "value": 0,
        "min": 0,
        "max": 100,
        "interval": 100,
        "step": 1,
        "playing": False,
        "disabled": False,
    }

    def dom_build(self):
        made = element("button", "w-button", "▶", aria_label=self.__dict__.get("tooltip") or "Play")
        on(made, "click", lambda _: setattr(self, "playing", not self.playing))
        self.__dict__.update(_timer=None, _tick=create_proxy(self._forward))
        return made

    def _forward(self) -> None:
        if self.value >= self.max:
            self.playing = False
        else:
            self.value = min(self.value + self.step, self.max)

    def dom_show(self, name: str) -> None:
        if name != "playing":
            return
        self.element.textContent = "❚❚" if self.playing else "▶"
        if self._timer is not None:
            clearInterval(self._timer)
            self._timer = None
        if self.playing:
            if self.value >= self.max:
                self.value = self.min
            self._timer = setInterval(self._tick, self.interval)


class link:
    """Keep two traits equal."""

    def __init__(self, first: tuple[Widget, str], second: tuple[Widget, str]):
        for (source, name), (target, its) in ((first, second), (second, first)):
            source.observe(
                lambda change, target=target, its=its: setattr(target, its, change["new"]), name
            )
        setattr(second[0], second[1], getattr(*first))
