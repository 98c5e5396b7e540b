"""The course as a path: what each notebook teaches, needs and takes, and which of its checks are answered.

Everything comes from the notebooks' first cells and from the exercises, so the map cannot say otherwise than they do.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from workshop.errors import BadInput
from workshop.launch.local import course
from workshop.learn import exercises
from workshop.learn.html import Html, alone, div, muted, panel, span, tag

NEED = r"(\d+) minutes · needs: (.+)"


@dataclass(frozen=True)
class Chapter:
    """One notebook of the course.

    Attributes:
        name: of its file, without `.ipynb`.
        title, goal: what stands before and after the colon of its heading.
        needs: a few words.
        checks: the keys of its exercises, in their order.
    """

    name: str
    title: str
    goal: str
    minutes: int
    needs: str
    checks: tuple[str, ...]


def chapters(folder: Path | None = None) -> list[Chapter]:
    """Return the notebooks of the course in their order."""
    folder = folder or course.course_folder()
    return [_chapter(path) for path in sorted(folder.glob("[0-9]*.ipynb"))]


def _chapter(path: Path) -> Chapter:
    first = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title, _, goal = first.splitlines()[0].lstrip("# ").partition(":")
    found = re.search(NEED, first)
    if not found:
        raise BadInput(
            f"The first cell of {path.name} does not say how long it takes and what it needs.",
            "Write: 45 minutes · needs: a CPU.",
        )
    checks = exercises.of_notebook(path.stem)
    return Chapter(path.stem, title.strip(), goal.strip(), int(found[1]), _few_words(found[2]), checks)


def _few_words(needs: str) -> str:
    """Return the first sentence without brackets and links."""
    text = re.sub(r"\([^()]*\(?[^()]*\)?[^()]*\)", "", re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", needs))
    return re.sub(r"\s+(?=[,.]|$)|\s{2,}", "", re.split(r"\.(?:\s|$)", text)[0]).strip()


@dataclass(frozen=True)
class CourseMap:
    """The path with what is done; HTML in notebooks, text elsewhere."""

    chapters: tuple[Chapter, ...]
    done: frozenset[str]

    def state(self, chapter: Chapter) -> str:
        """Return "done", "begun" or "" (also of a notebook without checks)."""
        answered = sum(key in self.done for key in chapter.checks)
        return "" if not answered else "done" if answered == len(chapter.checks) else "begun"

    @property
    def next(self) -> Chapter | None:
        """The first notebook whose checks are not all answered."""
        return next((one for one in self.chapters if one.checks and self.state(one) != "done"), None)

    def __repr__(self) -> str:
        signs = {"done": "✓", "begun": "…", "": " "}
        lines = [
            f"{signs[self.state(one)]} {f'{one.title}: {one.goal}' if one.goal else one.title:<58} "
            f"{one.minutes:>3} min  {self.count(one)}"
            for one in self.chapters
        ]
        return "\n".join([*lines, self.summary()])

    def count(self, chapter: Chapter) -> str:
        """Return how many of its checks are answered, in words."""
        answered = sum(key in self.done for key in chapter.checks)
        return f"{answered} of {len(chapter.checks)} checks" if chapter.checks else "nothing to check"

    def summary(self) -> str:
        """Return one line on the whole course."""
        every = [key for one in self.chapters for key in one.checks]
        left = sum(one.minutes for one in self.chapters if self.state(one) != "done")
        hours = f"{left // 60} h {left % 60} min".replace(" 0 min", "") if left >= 60 else f"{left} min"
        answered = sum(key in self.done for key in every)
        return f"{answered} of {len(every)} checks answered" + (f" · about {hours} to go" if left else " · all done")

    def _repr_html_(self) -> str:
        path = tag("ol", *map(self._step, self.chapters), cls="course")
        below = muted(self.summary(), cls="below")
        return alone(panel(tag("nav", path, aria_label="Course map"), below))

    def _step(self, one: Chapter) -> Html:
        title = tag("a", one.title, cls="plain", href=f"{one.name}.ipynb")
        goal = [span(f": {one.goal}", cls="ink-muted")] if one.goal else []
        if one is self.next:
            goal += [" ", span("go on here" if self.state(one) else "start here", cls="badge")]
        what = div(title, *goal, muted(f"{one.minutes} min · {one.needs}"), cls="what")
        return tag("li", self._stop(one), what, div(self.dots(one), cls="dots"))

    def _stop(self, one: Chapter) -> Html:
        state = self.state(one) or ("here" if one is self.next else "")
        sign = "✓" if state == "done" else one.title.split(".")[0]
        return span(sign, cls=f"stop {state}".rstrip(), aria_hidden="true")

    def dots(self, one: Chapter) -> Html:
        """Return a dot for each check of a notebook, filled where it is answered."""
        if not one.checks:
            return span(self.count(one), cls="note")
        titles = {key: exercises.all_exercises()[key].title for key in one.checks}
        rings = [
            span(cls="dot ring bg-good", title=f"{title}: answered")
            if key in self.done
            else span(cls="dot ring", title=title)
            for key, title in titles.items()
        ]
        return span(*rings, role="img", aria_label=self.count(one))


@dataclass(frozen=True)
class ProgressLine:
    """How far one notebook is, and where it goes on; one line."""

    map: CourseMap
    chapter: Chapter

    def __repr__(self) -> str:
        return f"{self.map.count(self.chapter)} of this notebook · {self.map.summary()}"

    def _repr_html_(self) -> str:
        on = tag("a", "the whole map", cls="plain", href="00_start.ipynb")
        return alone(panel(div(self.map.dots(self.chapter), span(repr(self)), on, cls="line-of-progress")))


def course_map() -> CourseMap:
    """Return the course as a path: what each notebook takes (minutes) and needs, and which checks you have answered.

    >>> from workshop import course_map
    >>> course_map().next.title                 # where you go on; a new learner at the first notebook
    '0. Start'
    """
    stored = exercises.progress()
    return CourseMap(tuple(chapters()), frozenset(key for key, entry in stored.items() if entry.get("done")))


def progress_line(name: str) -> ProgressLine:
    """Return one line on how far a notebook is: its checks that you have answered, and those of the whole course.

    >>> from workshop import progress_line
    >>> progress_line("01_memory")
    0 of 6 checks of this notebook · ...

    Args:
        name: the notebook's, without `.ipynb`.

    Raises:
        BadInput: there is no such notebook.
    """
    found = course_map()
    for chapter in found.chapters:
        if chapter.name == name:
            return ProgressLine(found, chapter)
    raise BadInput(f"There is no notebook {name!r}.", f"There are: {', '.join(one.name for one in found.chapters)}.")
