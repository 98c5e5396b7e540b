"""The course as a path: what each notebook teaches, needs and takes, which checks are answered, what was predicted.

Everything comes from the notebooks and from the exercises, so the map cannot say otherwise than they do.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from workshop.course import exercises
from workshop.course.html import Html, alone, div, muted, panel, span, table, tag
from workshop.errors import BadInput
from workshop.servers.local import course

NEED = r"(\d+) minutes · needs: (.+)"
ASKED = r'predict\("([\w.]+)", \('


@dataclass(frozen=True)
class Chapter:
    name: str  # of its file, without `.ipynb`
    title: str  # its heading up to the colon
    goal: str  # its heading from there
    minutes: int
    needs: str
    checks: tuple[str, ...]  # keys of its exercises, in their order
    predictions: tuple[str, ...] = ()


def chapters(folder: Path | None = None) -> list[Chapter]:
    """Return the notebooks of the course in their order: by number, then the capstone, which has none."""
    folder = folder or course.course_folder()
    return [_chapter(path) for path in sorted(folder.glob("*.ipynb"))]


def _chapter(path: Path) -> Chapter:
    cells = [
        "".join(cell["source"]) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]
    title, _, goal = cells[0].splitlines()[0].lstrip("# ").partition(":")
    found = re.search(NEED, cells[0])
    if not found:
        wrong = f"The first cell of {path.name} does not say how long it takes and what it needs."
        raise BadInput(wrong, "Write: 45 minutes · needs: a CPU.")
    # Of what it needs the first sentence, without brackets and links.
    text = re.sub(
        r"\([^()]*\(?[^()]*\)?[^()]*\)", "", re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", found[2])
    )
    needs = re.sub(r"\s+(?=[,.]|$)|\s{2,}", "", re.split(r"\.(?:\s|$)", text)[0]).strip()
    keys = exercises.of_notebook(path.stem), tuple(re.findall(ASKED, "\n".join(cells)))
    return Chapter(path.stem, title.strip(), goal.strip(), int(found[1]), needs, *keys)


@dataclass(frozen=True)
class CourseMap:
    """The path with what is done; HTML in notebooks, text elsewhere."""

    chapters: tuple[Chapter, ...]
    done: frozenset[str]
    predicted: Mapping[str, dict] = field(default_factory=dict)

    def answered(self, chapter: Chapter) -> int:
        return sum(key in self.done for key in chapter.checks)

    def state(self, chapter: Chapter) -> str:
        """Return "done", "begun" or "" (also of a notebook without checks)."""
        answered = self.answered(chapter)
        return "" if not answered else "done" if answered == len(chapter.checks) else "begun"

    @property
    def next(self) -> Chapter | None:
        """The first notebook whose checks are not all answered."""
        return next(
            (one for one in self.chapters if one.checks and self.state(one) != "done"), None
        )

    def __repr__(self) -> str:
        signs, lines = {"done": "✓", "begun": "…", "": " "}, []
        for one in self.chapters:
            name = f"{one.title}: {one.goal}" if one.goal else one.title
            lines.append(
                f"{signs[self.state(one)]} {name:<58} {one.minutes:>3} min  {self.count(one)}"
            )
        return "\n".join([*lines, self.summary()])

    def count(self, chapter: Chapter) -> str:
        return (
            f"{self.answered(chapter)} of {len(chapter.checks)} checks"
            if chapter.checks
            else "nothing to check"
        )

    def made(self, chapters: tuple[Chapter, ...]) -> str:
        """Return how many predictions of these notebooks were made and came true, in words; '' if none was made."""
        asked = [key for one in chapters for key in one.predictions]
        made = [self.predicted[key] for key in asked if key in self.predicted]
        true = sum(entry["predicted"] == entry["result"] for entry in made)
        return f"{len(made)} of {len(asked)} predictions made, {true} came true" if made else ""

    def summary(self) -> str:
        every = sum(len(one.checks) for one in self.chapters)
        left = sum(one.minutes for one in self.chapters if self.state(one) != "done")
        hours = (
            f"{left // 60} h {left % 60} min".replace(" 0 min", "") if left >= 60 else f"{left} min"
        )
        checks = f"{sum(map(self.answered, self.chapters))} of {every} checks answered"
        to_go = f"about {hours} to go" if left else "all done"
        return " · ".join(filter(None, (checks, self.made(self.chapters), to_go)))

    def _repr_html_(self) -> str:
        path = tag(
            "nav", tag("ol", *map(self._step, self.chapters), cls="course"), aria_label="Course map"
        )
        return alone(panel(path, muted(self.summary(), cls="below")))

    def _step(self, one: Chapter) -> Html:
        title = tag("a", one.title, cls="plain", href=f"{one.name}.ipynb")
        goal = [span(f": {one.goal}", cls="ink-muted")] if one.goal else []
        if one is self.next:
            goal += [" ", span("go on here" if self.state(one) else "start here", cls="badge")]
        what = div(title, *goal, muted(f"{one.minutes} min · {one.needs}"), cls="what")
        state = self.state(one) or ("here" if one is self.next else "")
        sign = "✓" if state == "done" else one.title.split(".")[0] if "." in one.title else "★"
        stop = span(sign, cls=f"stop {state}".rstrip(), aria_hidden="true")
        return tag("li", stop, what, div(self.dots(one), self._predictions(one), cls="dots"))

    def _predictions(self, one: Chapter) -> Html:
        """Return what was predicted in a notebook beside the results, folded."""
        if not (made := self.made((one,))):
            return Html()
        entries = [
            (key.split(".")[1], self.predicted[key])
            for key in one.predictions
            if key in self.predicted
        ]
        rows = [
            (name.replace("_", " "), entry["predicted"], entry["result"] or "…")
            for name, entry in entries
        ]
        return tag(
            "details", tag("summary", made), table(("", "predicted", "result"), rows), cls="note"
        )

    def dots(self, one: Chapter) -> Html:
        if not one.checks:
            return span(self.count(one), cls="note")
        return span(exercises.dots(one.checks, self.done), role="img", aria_label=self.count(one))


@dataclass(frozen=True)
class ProgressLine:
    """How far one notebook is, and where it goes on; one line."""

    map: CourseMap
    chapter: Chapter

    def __repr__(self) -> str:
        return f"{self.map.count(self.chapter)} of this notebook · {self.map.summary()}"

    def _repr_html_(self) -> str:
        on = tag("a", "the whole map", cls="plain", href="00_start.ipynb")
        return alone(
            panel(div(self.map.dots(self.chapter), span(repr(self)), on, cls="line-of-progress"))
        )


@overload
def course_map(name: None = None) -> CourseMap: ...


@overload
def course_map(name: str) -> ProgressLine: ...


def course_map(name: str | None = None) -> CourseMap | ProgressLine:
    """Return the course as a path: what each notebook takes (minutes) and needs, and which checks you have answered.

    >>> from workshop import course_map
    >>> course_map().next.title                 # where you go on; a new learner at the first notebook
    '0. Start'
    >>> course_map("01_memory")
    0 of 10 checks of this notebook · ...

    Args:
        name: of one notebook, without `.ipynb`: then one line on that alone.

    Raises:
        BadInput: there is no such notebook.
    """
    stored = exercises.progress()
    predicted = {key: entry for key, entry in stored.items() if entry.get("predicted")}
    found = CourseMap(
        tuple(chapters()), frozenset(key for key in stored if stored[key].get("done")), predicted
    )
    if name is None:
        return found
    known = {one.name: one for one in found.chapters}
    if name not in known:
        raise BadInput(f"There is no notebook {name!r}.", f"There are: {', '.join(known)}.")
    return ProgressLine(found, known[name])
