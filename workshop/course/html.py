"""One set of HTML for everything that the course shows: tags that escape, and the parts that pictures are made of.

    panel(verdict("✓", "good", "It fits."), tiles([("15 GiB", "weights")], columns=2), label="It fits: 15 GiB.")

The look is in widgets/style.css alone. A widget has SHEET once, as its first child (widgets.controls.View); what a cell
shows without a widget goes through `alone`, so that every output looks right by itself, also on a static page.
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
    return "".join([_escaped(child) for child in children])


def _escaped(child: object) -> str:
    return child if isinstance(child, Html) else escape(str(child), quote=False)


def tag(name: str, *children: object, cls: str = "", **attributes: object) -> Html:
    """Return an element. Attributes that are None or empty are left out; `aria_label` becomes aria-label."""
    head = f'<{name} class="{cls}"' if cls else f"<{name}"
    for key, value in attributes.items():
        if value is not None and value != "":
            head += f' {key.replace("_", "-")}="{escape(str(value))}"'
    return Html(f"{head}>{_joined(children)}</{name}>")


div, span, bold = partial(tag, "div"), partial(tag, "span"), partial(tag, "b")


def muted(*children: object, cls: str = "") -> Html:
    return tag("div", *children, cls=f"note {cls}".rstrip())


def panel(*children: object, label: str = "", cls: str = "") -> Html:
    """Return the frame of all that the course shows; with a label it is one picture, which a screen reader says so."""
    return tag(
        "div",
        *children,
        cls=f"workshop {cls}".rstrip(),
        role="img" if label else "",
        aria_label=label,
    )


def verdict(sign: str, kind: str, head: str, *more: object) -> Html:
    """Return a verdict at a coloured edge; kind is good, bad, warn or open."""
    return div(tag("b", sign, cls="sign"), " ", bold(head), *more, cls=f"verdict {kind}")


def alert(error: WorkshopError) -> Html:
    """Return what is wrong and what to do, in a panel of its own: it stands where the picture would."""
    remedy = [BR, "→ ", error.remedy] if error.remedy else []
    return panel(div(bold("✗ ", error.message), *remedy, cls="verdict bad", role="alert"))


def tiles(items: Iterable[tuple[str, str] | tuple[str, str, str]], columns: int) -> Html:
    """Return numbers side by side, each with what it is, and perhaps a note."""
    cells = (
        div(tag("b", big), div(what), *map(muted, filter(None, more)), cls="tile")
        for big, what, *more in items
    )
    return div(*cells, cls=f"tiles of{columns}")


def legend(items: Iterable[tuple[str, object]], cls: str = "") -> Html:
    """Return what colours mean: (classes of the key, words) each."""
    return muted(
        *(span(tag("i", cls=f"key {key}"), words) for key, words in items),
        cls=f"legend {cls}".rstrip(),
    )


def bar(parts: Iterable[tuple[str, float]], *marks: Html, label: str | None = None, now: float | None = None,
        cls: str = "") -> Html:  # fmt: skip
    """Return a bar of coloured parts: (colour, percent of its length) each, and marks on it.

    With `now`, the percent that a screen reader says, it is a progress bar of what `label` says.
    """
    filled = [
        tag("i", cls=f"bg-{colour}", style=f"width:{percent:.2f}%") for colour, percent in parts
    ]
    said = {}
    if now is not None:
        said = {
            "role": "progressbar",
            "aria_valuenow": f"{now:.0f}",
            "aria_valuemin": 0,
            "aria_valuemax": 100,
        }
    return div(*filled, *marks, cls=f"bar {cls}".rstrip(), **said, aria_label=label)


def table(head: Sequence[str], rows: Iterable[Sequence[object]], cls: str = "") -> Html:
    """Return a table; an empty head is left out. Class `numbers` sets all but the first two columns to the right."""
    top = (
        tag("thead", tag("tr", *(tag("th" if name else "td", name) for name in head)))
        if any(head)
        else ""
    )
    body = [tag("tr", *(tag("td", cell) for cell in row)) for row in rows]
    return tag("table", *([top] if top else []), tag("tbody", *body), cls=f"table {cls}".rstrip())


def code(text: str) -> Html:
    """Return a command that is to be copied; its lines break between words, not inside of a flag."""
    words = (span(word, cls="whole") if word.startswith("--") else word for word in text.split(" "))
    return tag("pre", *between(" ", words), cls="code")


def between(separator: str, children: Iterable[object]) -> list[object]:
    """Return children with a separator between every two."""
    return [part for one in children for part in (separator, one)][1:]


def says(*children: object, indent: int = 0) -> Html:
    """Return the sentence below a control; indent in pixels: where the control begins."""
    return div(*children, cls="workshop says", style=f"padding-left:{indent}px")


def alone(body: str) -> Html:
    """Return an output that stands by itself: as much of the stylesheet as it needs, then the body."""
    used = set(" ".join(re.findall(r'class="([^"]*)"', body)).split())
    rules = [rule for rule, needs in _rules() if any(need <= used for need in needs)]
    return Html(f"<style>{''.join(rules)}</style>{body}")


@cache
def _rules() -> tuple[tuple[str, tuple[set[str], ...]], ...]:
    """Return each rule of the stylesheet with the classes that each of its selectors wants."""
    values = ";".join(f"--{name}:{value}" for name, value in style.NAMES.items())
    both = ".workshop .bg-{0}{{background:var(--{0})}}.workshop .ink-{0}{{color:color-mix(in srgb,var(--{0}) 55%,var(--text))}}"
    written = (files("workshop.course.widgets") / "style.css").read_text(encoding="utf-8")
    text = re.sub(
        r"(?s)/\*.*?\*/",
        "",
        f".workshop{{{values}}}{''.join(map(both.format, style.NAMES))}{written}",
    )
    text = re.sub(r"\s*([{};,>])\s*|(:)\s+|\s+(?=\s)", r"\1\2", text.replace("\n", " "))
    rules = [rule.strip() for rule in re.findall(r"[^{}]+{[^}]*}", text)]
    selectors = (rule[: rule.index("{")].split(",") for rule in rules)
    needs = (tuple({*re.findall(r"\.([a-z][\w-]*)", one)} for one in each) for each in selectors)
    return tuple(zip(rules, needs, strict=True))


SHEET = Html(f"<style>{''.join(rule for rule, _ in _rules())}</style>")
