"""The widgets of ipywidgets that the course uses, as elements of the page that Python runs in.

In a notebook a widget's state goes from the kernel to the browser and back; here both are one, so a trait that is set
is an attribute of an element that changes. Names, traits and what an option does are ipywidgets'.
"""

from __future__ import annotations

import contextlib

from js import clearInterval, document, setInterval
from pyodide.ffi import create_proxy

FLEX = {"flex_flow", "justify_content", "align_items", "align_content", "grid_gap"}


def element(tag: str, cls: str = "", text: str = "", **attributes: object):
    """Return a new element of the page."""
    made = document.createElement(tag)
    made.className, made.textContent = cls, text
    for name, value in attributes.items():
        made.setAttribute(name.replace("_", "-"), str(value))
    return made


class Layout:
    """CSS of a widget: `layout.display = "none"` hides it."""

    def __init__(self, **css: str):
        self.__dict__.update(css, _element=None)

    def __setattr__(self, name: str, value: str | None) -> None:
        self.__dict__[name] = value
        if self._element:
            self._element.style.setProperty(name.replace("_", "-"), value or "")

    def of(self, made) -> None:
        """Lay that element out."""
        self.__dict__["_element"] = made
        for name, value in [(n, v) for n, v in self.__dict__.items() if n != "_element"]:
            made.style.setProperty("gap" if name == "grid_gap" else name.replace("_", "-"), value or "")


class Style:
    """What ipywidgets calls a control's style; its label's width is all that the page uses."""

    def __init__(self, widget: Widget, given: dict | None):
        self.__dict__.update({"_widget": widget, "description_width": "initial", **(given or {})})

    def __setattr__(self, name: str, value: str) -> None:
        self.__dict__[name] = value
        self._widget.dom_style()


class Change(dict):
    """What an observer gets: also by attribute, as from traitlets."""

    __getattr__ = dict.__getitem__


class Widget:
    """A part of the page. `traits` are those that can be observed, with their values at first.

    What brings them onto the page begins with dom_: subclasses in the course have names of their own.
    """

    traits: dict[str, object] = {}

    def __init__(self, **given: object):
        self.__dict__["_observers"] = []
        layout, style = given.pop("layout", None), given.pop("style", None)
        self.__dict__["layout"] = layout if isinstance(layout, Layout) else Layout(**(layout or {}))
        self.__dict__["style"] = Style(self, style)
        self.__dict__.update({**self.traits, **given})
        self.__dict__["element"] = self.dom_build()
        self.layout.of(self.element)
        self.dom_style()
        for name in self.traits:
            self.dom_show(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.traits:
            self.__dict__[name] = value
            return
        old, value = self.__dict__[name], self.dom_valid(name, value)
        self.__dict__[name] = value
        if old is not value and old != value:
            self.dom_show(name)
            self._tell(name, old, value)

    def _tell(self, name: str, old: object, new: object) -> None:
        for function, wanted in list(self._observers):
            if wanted is None or name in wanted:
                function(Change(name=name, old=old, new=new, owner=self, type="change"))

    def observe(self, function, names: str | list[str] | None = None) -> None:
        """Call `function` with a change of these traits."""
        self._observers.append((function, None if names is None else [names] if isinstance(names, str) else names))

    def set_trait(self, name: str, value: object) -> None:
        """Set a trait."""
        setattr(self, name, value)

    def add_class(self, name: str) -> None:
        """Add a CSS class."""
        self.element.classList.add(name)

    def dom_valid(self, name: str, value: object) -> object:
        """Return the value that the trait takes."""
        return value

    def dom_build(self):
        """Return the element."""
        return element("div")

    def dom_show(self, name: str) -> None:
        """Bring a trait onto the page."""

    def dom_style(self) -> None:
        """Bring the style onto the page."""


class HTML(Widget):
    traits = {"value": ""}

    def __init__(self, value: str = "", **given: object):
        super().__init__(value=str(value), **given)

    def dom_build(self):
        return element("div", "w-html")

    def dom_show(self, name: str) -> None:
        self.element.innerHTML = str(self.value)


class Box(Widget):
    traits = {"children": ()}
    cls = "w-box"

    def __init__(self, children=(), **given: object):
        super().__init__(children=tuple(children), **given)

    def dom_build(self):
        return element("div", self.cls)

    def dom_show(self, name: str) -> None:
        self.element.replaceChildren(*(child.element for child in self.children))


class HBox(Box):
    cls = "w-box w-across"


class VBox(Box):
    cls = "w-box w-column"


class Tab(Box):
    traits = {"children": (), "titles": (), "selected_index": 0}

    def dom_build(self):
        made = element("div", "w-tabs")
        self.__dict__.update(_heads=element("div", "w-heads", role="tablist"), _body=element("div"))
        made.append(self._heads, self._body)
        return made

    def dom_show(self, name: str) -> None:
        heads = []
        for number, title in enumerate(self.titles):
            chosen = number == self.selected_index
            head = element(
                "button", "w-button" + " w-chosen" * chosen, title, role="tab", aria_selected=str(chosen).lower()
            )
            on(head, "click", lambda _, number=number: setattr(self, "selected_index", number))
            heads.append(head)
        self._heads.replaceChildren(*heads)
        if self.children:
            self._body.replaceChildren(self.children[self.selected_index].element)


def on(made, event: str, function) -> None:
    """Call `function` at an event of an element."""
    made.addEventListener(event, create_proxy(function))


class Button(Widget):
    traits = {"description": "", "disabled": False}

    def __init__(self, **given: object):
        self.__dict__["_clicks"] = []
        super().__init__(**given)

    def dom_build(self):
        made = element("button", f"w-button {'w-primary' * (self.__dict__.get('button_style') == 'primary')}")
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
        self.__dict__.update(_label=element("span", "w-label"), input=self.dom_input(), _readout=element("output"))
        made.append(self._label, self.input, self._readout)
        if tip:
            made.title = tip
        return made

    def dom_input(self):
        """Return the input, which tells `dom_typed` what it is given."""
        made = element(self.tag, type=self.kind) if self.kind else element(self.tag)
        lazy = self.__dict__.get("continuous_update") is False or self.tag == "select" or self.kind == "number"
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


class _Selection(Control):
    """One of `options`: values, or pairs of (label, value)."""

    traits = {"options": (), **Control.traits}

    def __init__(self, **given: object):
        given["options"] = tuple(given.get("options", ()))
        if "value" not in given and given["options"]:
            given["value"] = _pairs(given["options"])[0][1]
        super().__init__(**given)

    def dom_valid(self, name: str, value: object) -> object:
        if name == "options":
            return tuple(value)
        if name == "value" and value is not None and value not in self.values:
            raise ValueError(f"{value!r} is none of the options: {', '.join(map(str, self.values))}.")
        return value

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "options":
            self.dom_show("options")
            old = self.value
            self.__dict__["value"] = self.values[0] if self.values else None
            self.dom_show("value")
            if old != self.value:
                self._tell("value", old, self.value)

    @property
    def values(self) -> list[object]:
        """What can be chosen."""
        return [value for _, value in _pairs(self.options)]

    @property
    def labels(self) -> list[str]:
        """How the options are called."""
        return [str(label) for label, _ in _pairs(self.options)]

    @property
    def index(self) -> int:
        """Which option is chosen; -1: none."""
        return self.values.index(self.value) if self.value in self.values else -1

    def dom_show(self, name: str) -> None:
        super().dom_show(name)
        if name == "options":
            self.dom_options()

    def dom_options(self) -> None:
        """Bring the options onto the page."""


def _pairs(options) -> list[tuple[str, object]]:
    return [each if isinstance(each, tuple) else (str(each), each) for each in options]


class Dropdown(_Selection):
    tag, kind = "select", ""

    def dom_options(self) -> None:
        self.input.replaceChildren(*(element("option", text=label) for label in self.labels))
        self.dom_value()

    def dom_value(self) -> None:
        self.input.selectedIndex = self.index

    def dom_typed(self) -> None:
        self.value = self.values[self.input.selectedIndex]


class SelectionSlider(_Selection):
    kind = "range"

    def dom_options(self) -> None:
        self.input.min, self.input.max, self.input.step = "0", str(max(len(self.options) - 1, 0)), "1"
        self.dom_value()

    def dom_value(self) -> None:
        self.input.value = str(self.index)
        self._readout.textContent = self.labels[self.index] if self.options else ""
        self.input.setAttribute("aria-valuetext", self._readout.textContent)

    def dom_typed(self) -> None:
        self.value = self.values[int(self.input.value)]


class ToggleButtons(_Selection):
    tag, kind = "span", ""

    def dom_options(self) -> None:
        made = []
        for number, label in enumerate(self.labels):
            one = element("button", "w-button", label, type="button")
            one.title = (list(self.__dict__.get("tooltips") or ()) + [""] * len(self.labels))[number]
            on(one, "click", lambda _, number=number: setattr(self, "value", self.values[number]))
            made.append(one)
        self.input.replaceChildren(*made)
        self.dom_value()

    def dom_value(self) -> None:
        for number in range(self.input.children.length):
            one = self.input.children.item(number)
            one.classList.toggle("w-chosen", number == self.index)
            one.setAttribute("aria-pressed", str(number == self.index).lower())


class RadioButtons(ToggleButtons):
    pass


class Play(Widget):
    """Counts from min to max, `step` every `interval` ms, while it plays."""

    traits = {"value": 0, "min": 0, "max": 100, "interval": 100, "step": 1, "playing": False, "disabled": False}

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

    def __init__(self, one: tuple[Widget, str], other: tuple[Widget, str]):
        for (source, name), (target, its) in ((one, other), (other, one)):
            source.observe(lambda change, target=target, its=its: setattr(target, its, change["new"]), name)
        setattr(other[0], other[1], getattr(*one))
