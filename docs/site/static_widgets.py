"""A notebook's widgets as plain HTML: pictures as they are, controls as disabled inputs with their values.

ipywidgets needs a kernel and scripts from a CDN; a page that is only read needs neither. What is drawn is the state
that the notebook was saved with.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"


class Widgets:
    """The widgets of one notebook, by their ids."""

    def __init__(
        self,
        state: Mapping[str, Mapping],
        output_html: Callable[[Mapping], str] = lambda output: "",
    ):
        self._state, self._output_html = state, output_html
        self._turning = self._linked_to_pages()

    @classmethod
    def of(
        cls, notebook: Mapping, output_html: Callable[[Mapping], str] = lambda output: ""
    ) -> Widgets:
        """Read them from a notebook's metadata."""
        saved_state = notebook.get("metadata", {}).get("widgets", {}).get(STATE, {})
        return cls(saved_state.get("state", {}), output_html)

    def html(self, model_id: str) -> str:
        """Return the HTML of one widget with all that is in it.

        Raises:
            KeyError: the notebook does not know it, or it is of a kind that is not drawn here.
        """
        model = self._state[model_id.removeprefix("IPY_MODEL_")]
        kind, state = model["model_name"].removesuffix("Model"), model["state"]
        layout = self._layout(state)
        if layout.get("display") == "none" or layout.get("visibility") == "hidden":
            return ""
        if model_id.removeprefix("IPY_MODEL_") in self._turning:
            return ""
        if kind == "Stack":
            return self._pages(model_id, state)
        if kind in ("HTML", "HTMLMath"):
            return f'<div class="w-html">{self._label(state)}{state.get("value") or ""}</div>'
        if kind in _BOXES:
            return self._box(_BOXES[kind], state)
        if kind == "Output":
            return "".join(map(self._output_html, state.get("outputs", ())))
        if kind in ("Play", "Link", "DirectionalLink"):
            return (
                '<button type="button" disabled class="w-button">▶</button>'
                if kind == "Play"
                else ""
            )
        return self._control(kind, state, layout)

    def _layout(self, state: Mapping) -> Mapping:
        model = self._state.get(str(state.get("layout", "")).removeprefix("IPY_MODEL_"), {})
        return model.get("state", {})

    def _box(self, name: str, state: Mapping) -> str:
        return f'<div class="{name}">{"".join(map(self.html, state.get("children", ())))}</div>'

    def _linked_to_pages(self) -> set[str]:
        """Return the controls that the browser links to a Stack: the page has its radio buttons for them."""
        linked = {
            name for name, model in self._state.items() if model["model_name"] == "StackModel"
        }
        stacks = set(linked)
        links = []
        for model in self._state.values():
            if model["model_name"] in ("LinkModel", "DirectionalLinkModel"):
                ends = (model["state"][end][0] for end in ("source", "target"))
                links.append({end.removeprefix("IPY_MODEL_") for end in ends})
        while more := {name for pair in links if pair & linked for name in pair} - linked:
            linked |= more
        return linked - stacks

    def _pages(self, model_id: str, state: Mapping) -> str:
        """Return a Stack as pages that radio buttons turn, without a script. It is open at its last page."""
        children = state.get("children", ())
        parts = ['<span class="w-label">step</span>']
        for number, child in enumerate(children):
            chosen = " checked" if number == len(children) - 1 else ""
            parts.append(
                f'<input type="radio" name="{html.escape(model_id)}" aria-label="step {number}"{chosen}>'
                f'<div class="w-page">{self.html(child)}</div>'
            )
        return f'<div class="w-stack">{"".join(parts)}</div>'

    @staticmethod
    def _label(state: Mapping) -> str:
        text = state.get("description") or ""
        return f'<span class="w-label">{html.escape(text)}</span>' if text else ""

    def _control(self, kind: str, state: Mapping, layout: Mapping) -> str:
        label, value = (
            self._label(state),
            state.get("value", "" if "Text" in kind and "Int" not in kind else 0),
        )
        if kind == "Button":
            description = html.escape(state.get("description", ""))
            return f'<button type="button" disabled class="w-button">{description}</button>'
        if kind in ("FloatSlider", "IntSlider"):
            low, high, step = (state.get(name, default) for name, default in _SLIDER[kind].items())
            return (
                f'<label class="w-control">{label}{_range(low, high, step, value)}'
                f"<output>{_number(value, state.get('readout_format'))}</output></label>"
            )
        if kind in ("SelectionSlider", "Dropdown", "ToggleButtons", "Select", "RadioButtons"):
            return self._choice(kind, state, label)
        if kind in ("FloatProgress", "IntProgress"):
            most = state.get("max", 100)
            return f'<label class="w-control">{label}<progress max="{most}" value="{value}"></progress></label>'
        if kind == "Textarea":
            return (
                f'<label class="w-control w-wide">{label}<textarea disabled rows="{state.get("rows") or 2}">'
                f"{html.escape(value)}</textarea></label>"
            )
        if kind == "Checkbox":
            ticked = " checked" if value else ""
            return (
                f'<label class="w-control"><input type="checkbox" disabled{ticked}>{label}</label>'
            )
        if kind in ("Text", "IntText", "FloatText", "BoundedIntText", "BoundedFloatText"):
            wide = " w-wide" if kind == "Text" else ""
            size = "" if wide else ' size="6"'
            return (
                f'<label class="w-control{wide}">{label}<input type="text" disabled{size} '
                f'value="{html.escape(str(value), quote=True)}"></label>'
            )
        if kind == "Label":
            return f"<span>{html.escape(str(value))}</span>"
        raise KeyError(f"widgets of the kind {kind} are not drawn")

    @staticmethod
    def _choice(kind: str, state: Mapping, label: str) -> str:
        names = list(state.get("_options_labels") or ())
        index = state.get("index", 0 if kind == "SelectionSlider" else None)
        chosen = str(names[index]) if index is not None and names else ""
        if kind == "SelectionSlider":
            return (
                f'<label class="w-control">{label}{_range(0, max(1, len(names) - 1), 1, index or 0)}'
                f"<output>{html.escape(chosen)}</output></label>"
            )
        if kind == "ToggleButtons":
            buttons = "".join(
                f'<button type="button" disabled class="w-button{" w-chosen" * (name == chosen)}">'
                f"{html.escape(str(name))}</button>"
                for name in names
            )
            return f'<span class="w-control">{label}{buttons}</span>'
        options = f"<option>{html.escape(chosen)}</option>"
        return f'<label class="w-control">{label}<select disabled>{options}</select></label>'


# What ipywidgets leaves out of a saved notebook, because it is the default.
_SLIDER = {
    "FloatSlider": {"min": 0.0, "max": 10.0, "step": 0.1},
    "IntSlider": {"min": 0, "max": 100, "step": 1},
}
_BOXES = {
    "VBox": "w-column",
    "HBox": "w-row",
    "Box": "w-row",
    "GridBox": "w-row",
    "Accordion": "w-column",
}


def _range(low: float, high: float, step: float, value: float) -> str:
    return f'<input type="range" disabled min="{low}" max="{high}" step="{step}" value="{value}">'


def _number(value: float, readout_format: str | None) -> str:
    """Write a number as its slider does; d3's formats are close to Python's."""
    try:
        return format(
            value, (readout_format or "").replace("d", "g" if isinstance(value, float) else "d")
        )
    except (ValueError, TypeError):
        return f"{value:g}" if isinstance(value, float) else str(value)
