"""What a page shows: the course's own widgets, one after the other, with their state in the address."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cache
from urllib.parse import parse_qsl, urlencode

from js import document, history, location, window
from pyodide.ffi import create_proxy

import workshop
from planner import Paste, Planner

PAGES = {
    "plan": {
        "memory": lambda: workshop.MemorySliders(),
        "planner": Planner,
        "split": lambda: workshop.ParallelismExplorer(),
        "paste": Paste,
    },
    "explorer": {
        "sampling": lambda: workshop.SamplingExplorer(source()),
        "logprobs": lambda: workshop.LogprobsViewer(client()),
        "cache": lambda: workshop.KvCacheExplorer(),
    },
}
SHORT = {"n": "gpus"}  # what links may call a control


@cache
def client():
    """Return the client of the model in this page."""
    import engine
    from client import PageClient

    return PageClient(engine)


def source():
    """Return where the sampling explorer's distributions come from."""
    from workshop.course.widgets.sampling.source import ServerSource

    class Here(ServerSource):
        def describe(self) -> str:
            return "the teaching model (11.7 million parameters), computed in this page"

    return Here(client())


async def start(name: str) -> None:
    """Show the page's widgets, the first one as soon as it can be used."""
    shown = {}
    for part, make in PAGES[name].items():
        shown[part] = widget = make(shown) if make is Paste else make()
        document.getElementById(part).replaceChildren(widget.element)
        if len(shown) == 1:
            document.documentElement.dataset.first = round(window.performance.now())
        await asyncio.sleep(0)  # the page draws it
    follow(shown)


def follow(shown: dict[str, object]) -> None:
    """Take each control's value from the address, and keep the address at what they say."""
    controls = {}
    for widget in shown.values():
        for name, control in getattr(widget, "controls", {}).items():
            controls.setdefault(name, []).append(control)
    first = {name: those[0].value for name, those in controls.items()}

    def take(*_) -> None:
        for name, text in parse_qsl(location.hash.removeprefix("#")):
            for control in controls.get(SHORT.get(name, name), ()):
                # an option that this control does not have
                with contextlib.suppress(ValueError, TypeError):
                    control.value = value_of(control, text)

    def keep(_) -> None:
        changed = {
            name: those[0].value
            for name, those in controls.items()
            if those[0].value != first[name]
        }
        history.replaceState(None, "", "#" + urlencode(changed))

    take()
    window.addEventListener("hashchange", create_proxy(take))
    for those in controls.values():
        those[0].observe(keep, "value")


def value_of(control, text: str) -> object:
    """Return the value that an address says in text, of the kind that the control has."""
    values = getattr(control, "values", None)
    if values is not None:
        return next((value for value in values if str(value) == text), text)
    return type(control.value)(text)
