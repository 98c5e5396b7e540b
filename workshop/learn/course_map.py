"""The course as a path: what each notebook teaches, needs and takes, and which of its checks are answered.

    from workshop.learn.course_map import course_map, progress_line
    course_map()                    # in notebook 00
    progress_line("01_memory")      # at the end of a notebook

Everything comes from the notebooks' first cells and from the exercises, so the map cannot say otherwise than they do.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path

from workshop.errors import BadInput
from workshop.launch import course
from workshop.learn import exercises
from workshop.learn.widgets import style

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
        raise BadInput(f"The first cell of {path.name} does not say how long it takes and what it needs.",
                       "Write: 45 minutes · needs: a CPU.")
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
        lines = [f"{signs[self.state(one)]} {f'{one.title}: {one.goal}' if one.goal else one.title:<58} "
                 f"{one.minutes:>3} min  {self.count(one)}" for one in self.chapters]
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
        steps = "".join(self._step(one, last=one is self.chapters[-1]) for one in self.chapters)
        return style.panel(f'<nav aria-label="Course map"><ol style="list-style:none;margin:0;padding:0">{steps}</ol>'
                           f'</nav><div style="font-size:12px;color:{style.MUTED};margin:4px 0 0 38px">'
                           f"{html.escape(self.summary())}</div>")

    def _step(self, one: Chapter, last: bool) -> str:
        here = one is self.next
        goal = f'<span style="color:{style.MUTED}">: {html.escape(one.goal)}</span>' if one.goal else ""
        words = f"{one.minutes} min · {one.needs}"
        begin = (f' <span style="background:{style.BLUE};color:#fff;border-radius:9px;padding:1px 8px;font-size:11px;'
                 f'white-space:nowrap">{"go on" if self.state(one) else "start"} here</span>') if here else ""
        line = "" if last else (f'<span aria-hidden="true" style="position:absolute;left:12px;top:27px;bottom:-5px;'
                                f'width:2px;background:{style.LINE}"></span>')
        return (f'<li style="position:relative;padding:4px 0 8px 38px;margin:0">{line}{self._stop(one)}'
                f'<div style="display:flex;flex-wrap:wrap;gap:0 14px;justify-content:space-between">'
                f'<div style="flex:1 1 400px"><a href="{html.escape(one.name)}.ipynb" style="color:{style.TEXT};'
                f'text-decoration:underline;text-underline-offset:3px;font-weight:600">{html.escape(one.title)}</a>'
                f'{goal}{begin}<div style="font-size:12px;color:{style.MUTED}">{html.escape(words)}</div></div>'
                f'<div style="flex:0 0 160px;padding-top:3px">{self._dots(one)}</div></div></li>')

    def _stop(self, one: Chapter) -> str:
        state = self.state(one)
        fill, colour = {"done": (style.GOOD, "#fff"), "begun": (style.PANEL, style.TEXT)}.get(
            state, (style.PANEL, style.MUTED))
        edge = style.LINE if not state and one is not self.next else style.GOOD if state else style.BLUE
        text = "✓" if state == "done" else html.escape(one.title.split(".")[0])
        return (f'<span aria-hidden="true" style="position:absolute;left:0;top:3px;width:22px;height:22px;'
                f'border-radius:50%;border:2px solid {edge};background:{fill};color:{colour};font-size:12px;'
                f'font-weight:600;display:flex;align-items:center;justify-content:center">{text}</span>')

    def _dots(self, one: Chapter) -> str:
        def dot(key: str) -> str:
            title = exercises.all_exercises()[key].title
            done = key in self.done
            look = f"background:{style.GOOD};border-color:{style.GOOD}" if done else f"border-color:{style.GREY}"
            return (f'<span title="{html.escape(title)}{": answered" if done else ""}" style="display:inline-block;'
                    f'box-sizing:border-box;width:14px;height:9px;border:1px solid;border-radius:5px;'
                    f'margin-right:3px;{look}"></span>')
        return (f'<span role="img" aria-label="{self.count(one)}">{"".join(map(dot, one.checks))}</span>'
                if one.checks else f'<span style="font-size:12px;color:{style.MUTED}">{self.count(one)}</span>')


@dataclass(frozen=True)
class ProgressLine:
    """How far one notebook is, and where it goes on; one line."""

    map: CourseMap
    chapter: Chapter

    def __repr__(self) -> str:
        return f"{self.map.count(self.chapter)} of this notebook · {self.map.summary()}"

    def _repr_html_(self) -> str:
        return style.panel(
            f'<div style="display:flex;flex-wrap:wrap;gap:4px 14px;font-size:13px">{self.map._dots(self.chapter)}'
            f'<span>{html.escape(repr(self))}</span><a href="00_start.ipynb" style="color:{style.TEXT};'
            f'text-decoration:underline">the whole map</a></div>')


def course_map() -> CourseMap:
    """Return the course as a path with this learner's progress; needs no server."""
    stored = exercises.progress()
    return CourseMap(tuple(chapters()), frozenset(key for key, entry in stored.items() if entry.get("done")))


def progress_line(name: str) -> ProgressLine:
    """Return one line on how far a notebook is (`01_memory`)."""
    found = course_map()
    for chapter in found.chapters:
        if chapter.name == name:
            return ProgressLine(found, chapter)
    raise BadInput(f"There is no notebook {name!r}.", f"There are: {', '.join(one.name for one in found.chapters)}.")
