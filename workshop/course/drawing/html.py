"""The HTML that the course shows: tags that escape, and the parts that pictures are made of.

    panel(verdict("✓", "good", "It fits."), tiles([("15 GiB", "weights")], columns=2), label="It fits: 15 GiB.")

The look is in widgets/style.css alone. A widget has SHEET once, as its first child
(widgets.controls.View); what a cell shows without a widget goes through `alone`, so that every
output looks right by itself, also on a static page.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache, partial
from html import escape
from importlib.resources import files

from workshop.course.widgets import style
from workshop.errors import WorkshopError


class Html(str):
    """Text that is markup already. What is not gets escaped."""

    __slots__ = ()


BR = Html("<br>")


def join(children: Iterable[object]) -> Html:
    """Return children one after the other; those that are no Html are escaped."""
    return Html(_joined(children))


def _joined(children: Iterable[object]) -> str:
    return "".join(map(_escaped, children))


def _escaped(child: object) -> str:
    if isinstance(child, Html):
        return child
    return escape(str(child), quote=False)


def tag(name: str, *children: object, cls: str = "", **attributes: object) -> Html:
    """Return an element.

    Attributes that are None or empty are left out; `aria_label` becomes aria-label.
    """
    head = f"<{name}"
    if cls:
        head += f' class="{cls}"'
    for key, value in attributes.items():
        if value is not None and value != "":
            head += f' {key.replace("_", "-")}="{escape(str(value))}"'
    return Html(f"{head}>{_joined(children)}</{name}>")


div, span, bold = partial(tag, "div"), partial(tag, "span"), partial(tag, "b")


def with_code(text: str) -> Html:
    """Return a text in which what stands between backticks is code."""
    parts = text.split("`")
    return join(tag("code", part) if place % 2 else part for place, part in enumerate(parts))


def muted(*children: object, cls: str = "") -> Html:
    return tag("div", *children, cls=f"note {cls}".rstrip())


def panel(*children: object, label: str = "", cls: str = "") -> Html:
    """Return the frame of all that the course shows.

    With a label it is one picture, which a screen reader says so.
    """
    role = ""
    if label:
        role = "img"
    return tag("div", *children, cls=f"workshop {cls}".rstrip(), role=role, aria_label=label)


def verdict(sign: str, kind: str, head: str, *more: object) -> Html:
    """Return a verdict at a coloured edge; kind is good, bad, warn or open."""
    return div(tag("b", sign, cls="sign"), " ", bold(head), *more, cls=f"verdict {kind}")


def alert(error: WorkshopError) -> Html:
    """Return a panel with an error and its remedy, shown in place of the picture."""
    remedy = []
    if error.remedy:
        remedy = [BR, "→ ", error.remedy]
    return panel(div(bold("✗ ", error.message), *remedy, cls="verdict bad", role="alert"))


def tiles(items: Iterable[tuple[str, str] | tuple[str, str, str]], columns: int) -> Html:
    """Return numbers side by side, each with what it is, and perhaps a note."""
    cells = []
    for number, meaning, *notes in items:
        lines = map(muted, filter(None, notes))
        cells.append(div(tag("b", number), div(meaning), *lines, cls="tile"))
    return div(*cells, cls=f"tiles of{columns}")


def legend(items: Iterable[tuple[str, object]], cls: str = "") -> Html:
    """Return what colours mean: (classes of the key, its meaning) each."""
    keys = []
    for key, meaning in items:
        keys.append(span(tag("i", cls=f"key {key}"), meaning))
    return muted(*keys, cls=f"legend {cls}".rstrip())


def bar(
    parts: Iterable[tuple[str, float]],
    *marks: Html,
    label: str | None = None,
    now: float | None = None,
    cls: str = "",
) -> Html:
    """Return a bar of coloured parts: (colour, percent of its length) each, and marks on it.

    With `now`, the percent that a screen reader says, it is a progress bar of what `label` says.
    """
    coloured = []
    for colour, percent in parts:
        coloured.append(tag("i", cls=f"bg-{colour}", style=f"width:{percent:.2f}%"))
    progress: dict[str, object] = {}
    if now is not None:
        progress = {
            "role": "progressbar",
            "aria_valuenow": f"{now:.0f}",
            "aria_valuemin": 0,
            "aria_valuemax": 100,
        }
    return div(*coloured, *marks, cls=f"bar {cls}".rstrip(), **progress, aria_label=label)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], cls: str = "") -> Html:
    """Return a table; an empty head is left out.

    Class `numbers` sets all but the first two columns to the right.
    """
    parts = []
    if any(head):
        names = []
        for name in head:
            kind = "td"
            if name:
                kind = "th"
            names.append(tag(kind, name))
        parts.append(tag("thead", tag("tr", *names)))
    lines = []
    for row in rows:
        cells = [tag("td", cell) for cell in row]
        lines.append(tag("tr", *cells))
    return tag("table", *parts, tag("tbody", *lines), cls=f"table {cls}".rstrip())


def code(text: str) -> Html:
    """Return a command that is to be copied.

    Its lines break between words, not inside of a flag.
    """
    parts: list[object] = []
    for word in text.split(" "):
        part = word
        if word.startswith("--"):
            part = span(word, cls="whole")
        parts.append(part)
    return tag("pre", *between(" ", parts), cls="code")


def between(separator: str, children: Iterable[object]) -> list[object]:
    """Return children with a separator between every two."""
    parts: list[object] = []
    for child in children:
        parts += [separator, child]
    return parts[1:]


def says(*children: object, indent: int = 0) -> Html:
    """Return the sentence below a control; indent in pixels: where the control begins."""
    return div(*children, cls="workshop says", style=f"padding-left:{indent}px")


def alone(body: str) -> Html:
    """Return an output that stands by itself: the stylesheet, as far as needed, then the body."""
    used: set[str] = set()
    for classes in re.findall(r'class="([^"]*)"', body):
        used.update(classes.split())
    rules = []
    for rule, selectors in _rules():
        if any(classes <= used for classes in selectors):
            rules.append(rule)
    return Html(f"<style>{''.join(rules)}</style>{body}")


@cache
def _rules() -> tuple[tuple[str, tuple[set[str], ...]], ...]:
    """Return each rule of the stylesheet with the classes that each of its selectors wants.

    A rule that holds others (@media) wants the classes of one of them.
    """
    rules = []
    for rule in re.findall(r"[^{}]+{(?:[^{}]*{(?:[^{}]*{[^{}]*})*[^{}]*})*[^{}]*}", _stylesheet()):
        rule = rule.strip()
        selectors = rule[: rule.index("{")].split(",")
        if rule.startswith("@keyframes"):  # named as the class that it moves
            selectors = [rule.replace("@keyframes ", ".", 1).split("{")[0]]
        elif rule.startswith("@"):
            selectors = re.findall(r"(?<=[{},])\.[^{},]*", rule)
        classes = []
        for selector in selectors:
            classes.append(set(re.findall(r"\.([a-z][\w-]*)", selector)))
        rules.append((rule, tuple(classes)))
    return tuple(rules)


def _stylesheet() -> str:
    """Return the colours and style.css, without comments and without spaces that say nothing."""
    values = []
    for name, value in style.NAMES.items():
        values.append(f"--{name}:{value}")
    sheet = f".workshop{{{';'.join(values)}}}"
    for name in style.NAMES:
        sheet += f".workshop .bg-{name}{{background:var(--{name})}}"
        mixed = f"color-mix(in srgb,var(--{name}) 55%,var(--text))"
        sheet += f".workshop .ink-{name}{{color:{mixed}}}"
    sheet += (files("workshop.course.widgets") / "style.css").read_text(encoding="utf-8")
    sheet = re.sub(r"(?s)/\*.*?\*/", "", sheet)
    return re.sub(r"\s*([{};,>])\s*|(:)\s+|\s+(?=\s)", r"\1\2", sheet.replace("\n", " "))


SHEET = Html(f"<style>{''.join(rule for rule, _ in _rules())}</style>")
