"""What chooses one of several."""

from __future__ import annotations

from ipywidgets.base import element, on
from ipywidgets.controls import Control


class _Selection(Control):
    """One of `options`: values, or pairs of (label, value)."""

    traits = {"options": (), **Control.traits}

    def __init__(self, **kwargs: object):
        kwargs["options"] = tuple(kwargs.get("options", ()))
        if "value" not in kwargs and kwargs["options"]:
            kwargs["value"] = _pairs(kwargs["options"])[0][1]
        super().__init__(**kwargs)

    def dom_valid(self, name: str, value: object) -> object:
        if name == "options":
            return tuple(value)
        if name == "value" and value is not None and value not in self.values:
            raise ValueError(
                f"{value!r} is none of the options: {', '.join(map(str, self.values))}."
            )
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
    return [option if isinstance(option, tuple) else (str(option), option) for option in options]


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
        self.input.min, self.input.max, self.input.step = (
            "0",
            str(max(len(self.options) - 1, 0)),
            "1",
        )
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
            button = element("button", "w-button", label, type="button")
            button.title = (list(self.__dict__.get("tooltips") or ()) + [""] * len(self.labels))[
                number
            ]
            on(
                button,
                "click",
                lambda _, number=number: setattr(self, "value", self.values[number]),
            )
            made.append(button)
        self.input.replaceChildren(*made)
        self.dom_value()

    def dom_value(self) -> None:
        for number in range(self.input.children.length):
            button = self.input.children.item(number)
            button.classList.toggle("w-chosen", number == self.index)
            button.setAttribute("aria-pressed", str(number == self.index).lower())


class RadioButtons(ToggleButtons):
    pass
