"""Ask the page that a notebook is open in whether it shows widgets: it presses an invisible button.

A kernel does not learn that its widgets are shown. The stylesheet of a view (controls.py) presses
this button as soon as it is on a page, and the click comes to the kernel as any other does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import ipywidgets as widgets

from workshop.course.drawing import html
from workshop.course.widgets.controls import View

# From a cell's end to the next cell a page has this long to answer: one that is run at once (Run All)
# is in the kernel's queue before the answer, and knows nothing.
ANSWER_S = 4.0
SHOWN = "Buttons and sliders work here."
MISSING = "This page has not shown the widget above. Three things may be wrong:"
CAUSES = (
    (
        "The environment that serves this page lacks the widgets' extension.",
        "In a terminal: workshop kernel install. Then reload the page.",
    ),
    (
        "The page is older than the kernel, which was started again.",
        "Reload the page, and run the cells from the top.",
    ),
    (
        "A proxy between this page and the server cuts websockets.",
        "Ask your site to let them through, or open JupyterLab through an SSH tunnel (ssh -L).",
    ),
)
REST = "Until then widgets show their static form, as below; everything else in the course works."


class PageAnswer(widgets.Button):
    """A button that nobody sees; the page presses it when it shows the widget that holds it."""

    def __init__(self) -> None:
        super().__init__(layout=widgets.Layout(display="none"))
        self.add_class("workshop-unseen")
        self.has_come = False
        self.sent_at: float | None = None  # when the widget went to a page
        self.on_click(self._note)

    def _note(self, _: widgets.Button) -> None:
        self.has_come = True

    def sent(self) -> None:
        """Note that the widget goes to a page now."""
        self.sent_at = time.monotonic()

    def verdict(self, view: View) -> Verdict | None:
        """Return whether the page shows `view`; None where nobody looks, or where it is too early to say."""
        if not a_page_asks():
            return None
        if self.has_come:
            return Verdict(True)
        if self.sent_at is None or time.monotonic() - self.sent_at < ANSWER_S:
            return None
        return Verdict(False, view.static_form())


def a_page_asks() -> bool:
    """Return whether the cell that runs was sent by a page: it names the cell. nbconvert and nbval do not."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    get_parent = getattr(kernel, "get_parent", None)
    if get_parent is None:
        return False
    return bool((get_parent() or {}).get("metadata", {}).get("cellId"))


@dataclass(frozen=True)
class Verdict:
    """Verdict on a page: it shows widgets, or the likely causes, each with its remedy, and the static form."""

    is_shown: bool
    static_form: str = ""

    def __repr__(self) -> str:
        if self.is_shown:
            return f"✓ {SHOWN}"
        lines = [f"✗ {MISSING}"]
        for cause, remedy in CAUSES:
            lines.append(f"- {cause} {remedy}")
        return "\n".join([*lines, REST])

    def _repr_html_(self) -> str:
        if self.is_shown:
            return html.alone(html.panel(html.verdict("✓", "good", SHOWN)))
        causes = []
        for cause, remedy in CAUSES:
            causes.append(html.tag("li", cause, html.BR, "→ ", remedy))
        causes = html.tag("ul", *causes)
        shown = html.panel(html.verdict("✗", "bad", MISSING, causes, REST))
        return html.alone(html.join([shown, html.Html(self.static_form)]))
