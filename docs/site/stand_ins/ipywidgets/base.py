"""A part of the page: its element, its traits, who observes them."""

from __future__ import annotations

from js import document
from pyodide.ffi import create_proxy


def element(tag: str, cls: str = "", text: str = "", **attributes: object):
    """Return a new element of the page."""
    made = document.createElement(tag)
    made.className, made.textContent = cls, text
    for name, value in attributes.items():
        made.setAttribute(name.replace("_", "-"), str(value))
    return made


def on(made, event: str, function) -> None:
    """Call `function` at an event of an element."""
    made.addEventListener(event, create_proxy(function))


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
            made.style.setProperty(
                "gap" if name == "grid_gap" else name.replace("_", "-"), value or ""
            )


class Style:
    """What ipywidgets calls a control's style; its label's width is all that the page uses."""

    def __init__(self, widget: Widget, values: dict | None):
        self.__dict__.update({"_widget": widget, "description_width": "initial", **(values or {})})

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

    def __init__(self, **kwargs: object):
        self.__dict__["_observers"] = []
        layout, style = kwargs.pop("layout", None), kwargs.pop("style", None)
        self.__dict__["layout"] = layout if isinstance(layout, Layout) else Layout(**(layout or {}))
        self.__dict__["style"] = Style(self, style)
        self.__dict__.update({**self.traits, **kwargs})
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
        self._observers.append(
            (function, None if names is None else [names] if isinstance(names, str) else names)
        )

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
