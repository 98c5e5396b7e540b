"""The course as a path: notebooks in their order, with the learner's checks and predictions.

For each notebook it has what the notebook teaches and needs, and how many minutes it takes.

Everything comes from the notebooks and from the exercises, so the map cannot say otherwise than
they do.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import overload

from workshop import install_words
from workshop.course.drawing.html import Html, alone, div, muted, panel, span, table, tag
from workshop.course.exercises import checking
from workshop.course.progress import paths
from workshop.errors import BadInput
from workshop.lab.places import place_of

NEED = r"(\d+) minutes · needs: (.+)"
ASKED = r'predict\("([\w.]+)", \('
HEADING = re.compile(r"^## (.*)")


@dataclass(frozen=True)
class Chapter:
    name: str  # of its file, without `.ipynb`
    title: str  # its heading up to the colon
    goal: str  # its heading from there
    minutes: int
    needs: str
    checks: tuple[str, ...]  # keys of its exercises, in their order
    deeper: tuple[str, ...] = ()  # those of its section "Deeper", which no path counts
    predictions: tuple[str, ...] = ()
    deeper_predictions: tuple[str, ...] = ()


def chapters(folder: Path | None = None) -> list[Chapter]:
    """Return the notebooks of the course by number, then the capstone, which has no number."""
    folder = folder or install_words.course_folder()
    in_order: list[Chapter] = []
    for path in sorted(folder.glob("*.ipynb")):
        status = path.stat()
        in_order.append(_chapter(path, status.st_mtime_ns, status.st_size))
    return in_order


@lru_cache(maxsize=64)
def _chapter(path: Path, mtime_ns: int, size: int) -> Chapter:
    """Read a notebook, once for each state of its file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"]]
    title, _, goal = cells[0].splitlines()[0].lstrip("# ").partition(":")
    minutes_and_needs = re.search(NEED, cells[0])
    if not minutes_and_needs:
        wrong = f"The first cell of {path.name} does not say how long it takes and what it needs."
        raise BadInput(wrong, "Write: 45 minutes · needs: a CPU.")
    checks, deeper = [], []
    for key in checking.of_notebook(path.stem):
        if checking.all_exercises()[key].deeper:
            deeper.append(key)
        else:
            checks.append(key)
    return Chapter(
        name=path.stem,
        title=title.strip(),
        goal=goal.strip(),
        minutes=int(minutes_and_needs[1]),
        needs=_first_sentence(minutes_and_needs[2]),
        checks=tuple(checks),
        deeper=tuple(deeper),
        predictions=_prediction_keys(cells, in_deeper=False),
        deeper_predictions=_prediction_keys(cells, in_deeper=True),
    )


def _prediction_keys(cells: Sequence[str], in_deeper: bool) -> tuple[str, ...]:
    """Return the keys of the predictions of a notebook inside or outside its section "Deeper"."""
    keys: list[str] = []
    is_deeper = False
    for source in cells:
        heading = HEADING.match(source)
        if heading:
            is_deeper = heading[1].strip() == "Deeper"
        if is_deeper == in_deeper:
            keys += re.findall(ASKED, source)
    return tuple(keys)


def _first_sentence(text: str) -> str:
    """Return the first sentence of Markdown, without brackets and links."""
    without_links = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)
    without_brackets = re.sub(r"\([^()]*\(?[^()]*\)?[^()]*\)", "", without_links)
    sentence = re.split(r"\.(?:\s|$)", without_brackets)[0]
    return re.sub(r"\s+(?=[,.]|$)|\s{2,}", "", sentence).strip()


@dataclass(frozen=True)
class CourseMap:
    """The learner's path with its finished parts, and the notebooks beside it.

    It is HTML in notebooks, and text elsewhere.
    """

    chapters: tuple[Chapter, ...]
    done: frozenset[str]
    predicted: Mapping[str, dict] = field(default_factory=dict)
    path: str = paths.CORE.name
    note: str = ""  # what went wrong while the choice of a path was kept

    @property
    def on_path(self) -> tuple[Chapter, ...]:
        """The notebooks of the learner's path, the core first."""
        chapters: list[Chapter] = []
        for part in paths.path_of(self.path):
            chapters += self.of_part(part)
        return tuple(chapters) or self.chapters

    def of_part(self, part: paths.Path) -> list[Chapter]:
        """Return the notebooks of the core or of a role, in their order."""
        return [chapter for chapter in self.chapters if part.has(chapter.name)]

    @property
    def title(self) -> str:
        """The learner's path, as a sentence names it: "the core", "the core and “Serve it”"."""
        if self.path == "all":
            return "the whole course"
        last = paths.path_of(self.path)[-1]
        if last is paths.CORE:
            return "the core"
        return f"the core and “{last.title}”"

    @property
    def begun(self) -> set[str]:
        """The notebooks in which something was answered."""
        keys = self.done | set(self.predicted)
        result = set()
        for chapter in self.chapters:
            of_chapter = {*chapter.checks, *chapter.deeper, *chapter.predictions}
            if keys & of_chapter.union(chapter.deeper_predictions):
                result.add(chapter.name)
        return result

    def answered(self, chapter: Chapter) -> int:
        return len(self.done.intersection(chapter.checks))

    def state(self, chapter: Chapter) -> str:
        """Return "done", "begun" or "" (also of a notebook without checks)."""
        answered = self.answered(chapter)
        if not answered:
            return ""
        if answered == len(chapter.checks):
            return "done"
        return "begun"

    @property
    def next(self) -> Chapter | None:
        """The first notebook of the path whose checks are not all answered."""
        for chapter in self.on_path:
            if chapter.checks and self.state(chapter) != "done":
                return chapter
        return None

    def after(self, chapter: Chapter) -> Chapter | None:
        """Return the notebook that follows one on the path: the capstone at its end, None off the path."""
        path = [*self.on_path, self.chapters[-1]]
        if chapter not in path[:-1] or chapter == path[-1]:
            return None
        return path[path.index(chapter) + 1]

    def minutes_left(self, chapters: Sequence[Chapter]) -> int:
        """Return the minutes that some notebooks still take.

        Answered checks count: a notebook half of whose checks are done takes half of its minutes.
        """
        minutes = 0.0
        for chapter in chapters:
            share = 1
            if chapter.checks:
                share = 1 - self.answered(chapter) / len(chapter.checks)
            minutes += chapter.minutes * share
        return round(minutes)

    def __repr__(self) -> str:
        lines = [f"Your path: {self.title}"]
        for chapter in self.on_path:
            name = chapter.title
            if chapter.goal:
                name = f"{chapter.title}: {chapter.goal}"
            sign = SIGNS[self.state(chapter)]
            lines.append(f"{sign} {name:<58} {chapter.minutes:>3} min  {self.count(chapter)}")
        lines.append(self.summary())
        for part in self.parts_after():
            lines.append(f"{part.title}, {part.about}: {self.about(part)}")
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def parts_after(self) -> list[paths.Path]:
        """Return the roles that the path leaves open and that have notebooks here."""
        on_path = self.on_path
        parts = []
        for role in paths.ROLES:
            chapters = self.of_part(role)
            if chapters and chapters[0] not in on_path:
                parts.append(role)
        return parts

    def about(self, part: paths.Path) -> str:
        """Return which notebooks a role has, how long they take, and how to choose it."""
        chapters = self.of_part(part)
        names = ", ".join(chapter.title for chapter in chapters)
        return f'{names} · {in_hours(self.minutes_left(chapters))} · course_map(path="{part.name}")'

    def count(self, chapter: Chapter) -> str:
        if not chapter.checks:
            return "nothing to check"
        return f"{self.answered(chapter)} of {len(chapter.checks)} checks"

    def made(self, chapters: Sequence[Chapter]) -> str:
        """Return how many predictions of these notebooks were made and came true, as text.

        It is '' if none was made.
        """
        keys: list[str] = []
        for chapter in chapters:
            keys += chapter.predictions
            # those of Deeper count once they are made
            keys += [key for key in chapter.deeper_predictions if key in self.predicted]
        made = 0
        true = 0
        for key in keys:
            if key not in self.predicted:
                continue
            made += 1
            prediction = self.predicted[key]
            if prediction["predicted"] == prediction["result"]:
                true += 1
        if not made:
            return ""
        return f"{made} of {len(keys)} predictions made, {true} came true"

    def summary(self) -> str:
        """Return what is done and what is left of the path, in a line."""
        chapters = self.on_path
        checks, answered = 0, 0
        for chapter in chapters:
            checks += len(chapter.checks)
            answered += self.answered(chapter)
        done = f"{answered} of {checks} checks of {self.title} answered"
        return " · ".join(filter(None, (done, self.made(chapters), self.to_go())))

    def to_go(self) -> str:
        """Return the time that the path still takes, as text."""
        minutes_left = self.minutes_left(self.on_path)
        if not minutes_left:
            return "all done"
        return f"about {in_hours(minutes_left)} to go"

    def _repr_html_(self) -> str:
        steps = tag("ol", *map(self._step, self.on_path), cls="course")
        parts = [steps, muted(self.summary(), cls="below")]
        after = self.parts_after()
        if after:
            parts.append(
                muted("After the core (or earlier, if you need to), choose by role:", cls="below")
            )
            parts += map(self._role, after)
        if self.note:
            parts.append(muted(self.note, cls="below"))
        return alone(panel(tag("nav", *parts, aria_label="Course map")))

    def _role(self, part: paths.Path) -> Html:
        """Return the notebooks of a role, folded."""
        chapters = self.of_part(part)
        hours = in_hours(self.minutes_left(chapters))
        head = tag("summary", tag("b", part.title), f", {part.about}: {hours}")
        steps = tag("ol", *map(self._step, chapters), cls="course")
        choose = muted("To make it your path: ", tag("code", f'course_map(path="{part.name}")'))
        return tag("details", head, steps, choose, cls="role")

    def _step(self, chapter: Chapter) -> Html:
        state = self.state(chapter)
        is_next = chapter == self.next
        parts: list[object] = [tag("a", chapter.title, cls="plain", href=link_to(chapter.name))]
        if chapter.goal:
            parts.append(span(f": {chapter.goal}", cls="ink-muted"))
        if is_next:
            badge = "start here"
            if state:
                badge = "go on here"
            parts += [" ", span(badge, cls="badge")]
        parts.append(muted(f"{chapter.minutes} min · {chapter.needs}"))
        look = state
        if is_next and not state:
            look = "here"
        stop = span(_sign(chapter, state), cls=f"stop {look}".rstrip(), aria_hidden="true")
        outcomes = div(self.dots(chapter), self._predictions(chapter), cls="dots")
        return tag("li", stop, div(*parts, cls="what"), outcomes)

    def _predictions(self, chapter: Chapter) -> Html:
        """Return what was predicted in a notebook beside the results, folded."""
        predictions = self.made((chapter,))
        if not predictions:
            return Html()
        rows = []
        for key in (*chapter.predictions, *chapter.deeper_predictions):
            if key in self.predicted:
                entry = self.predicted[key]
                name = key.split(".")[1].replace("_", " ")
                rows.append((name, entry["predicted"], entry["result"] or "…"))
        shown = table(("", "predicted", "result"), rows)
        return tag("details", tag("summary", predictions), shown, cls="note")

    def dots(self, chapter: Chapter) -> Html:
        if not chapter.checks:
            return span(self.count(chapter), cls="note")
        shown = checking.dots(chapter.checks, self.done)
        return span(shown, role="img", aria_label=self.count(chapter))


def link_to(name: str) -> str:
    """Return the link to a notebook from the one that runs: a learner's copies lie in two folders."""
    for link in (f"{name}.ipynb", place_of(name), f"../{name}.ipynb"):
        if Path(link).is_file():
            return link
    return f"{name}.ipynb"


CERTIFICATE = "workshop certificate"  # writes the page to keep
SIGNS = {"done": "✓", "begun": "…", "": " "}


def _sign(chapter: Chapter, state: str) -> str:
    """Return what stands in the circle of a step: its number, ★ without one, ✓ when it is done."""
    if state == "done":
        return "✓"
    if "." in chapter.title:
        return chapter.title.split(".")[0]
    return "★"


def in_hours(minutes: int) -> str:
    """Return minutes as people say them: 45 min, 3 h, 3 h 30 min."""
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if rest:
        return f"{hours} h {rest} min"
    return f"{hours} h"


@dataclass(frozen=True)
class ProgressLine:
    """The progress of one notebook and a link to the course map, in one line."""

    map: CourseMap
    chapter: Chapter

    @property
    def progress(self) -> str:
        done = f"{self.map.count(self.chapter)} of this notebook"
        return f"{done} · {self.map.title}: {self.map.to_go()}"

    @property
    def ends_the_core(self) -> bool:
        return [self.chapter] == self.map.of_part(paths.CORE)[-1:]

    def __repr__(self) -> str:
        if self.ends_the_core:
            return f"{self.progress} · your page: {CERTIFICATE}"
        return self.progress

    def _repr_html_(self) -> str:
        parts: list[object] = [self.map.dots(self.chapter), span(self.progress)]
        if self.ends_the_core:
            parts.append(span("your page, in a terminal: ", tag("code", CERTIFICATE)))
        following = self.map.after(self.chapter)
        if following:
            label = f"Next: {following.title} →"
            parts.append(tag("a", label, cls="plain next", href=link_to(following.name)))
        parts.append(tag("a", "the whole map", cls="plain", href=link_to("00_start")))
        return alone(panel(div(*parts, cls="line-of-progress")))


@overload
def course_map(name: None = None, *, path: str | None = None) -> CourseMap: ...


@overload
def course_map(name: str, *, path: str | None = None) -> ProgressLine: ...


def course_map(name: str | None = None, *, path: str | None = None) -> CourseMap | ProgressLine:
    """Return your path through the course: what each notebook takes and needs.

    It also shows which checks you have answered.

    >>> from workshop import course_map
    >>> course_map().next.title         # where you go on; a new learner at the first notebook
    '0. Start'
    >>> course_map("01_memory")
    0 of ... checks of this notebook · ...

    Args:
        name: of one notebook, without `.ipynb`: then one line on that alone.
        path: chooses a path, and keeps the choice: "core" (at first), "serve", "understand",
            "scale", "build", "capstone", each of them after the core, or "all".

    Raises:
        BadInput: there is no such notebook, or no such path.
    """
    note = ""
    if path is not None:
        note = checking.keep(paths.CHOICE, {"name": paths.named(path)})
    stored = checking.progress()
    predicted, done = {}, set()
    for key, entry in stored.items():
        if entry.get("predicted"):
            predicted[key] = entry
        if entry.get("done"):
            done.add(key)
    whole = CourseMap(tuple(chapters()), frozenset(done), predicted, paths.chosen(stored), note)
    if name is None:
        return whole
    by_name = {chapter.name: chapter for chapter in whole.chapters}
    if name not in by_name:
        raise BadInput(f"There is no notebook {name!r}.", f"There are: {', '.join(by_name)}.")
    return ProgressLine(whole, by_name[name])
