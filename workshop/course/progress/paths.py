"""The paths through the course: the core, a role after it, and the learner's choice."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from workshop.course.progress import progress_file
from workshop.errors import BadInput, WorkshopError
from workshop.lab.places import CORE_NOTEBOOKS

CHOICE = "course.path"  # the entry of progress.json with the path that the learner chose
RECALL = re.compile(r"^From notebook (\d+):")


@dataclass(frozen=True)
class Path:
    """A way through the course."""

    name: str
    title: str
    about: str
    notebooks: tuple[str, ...]  # the beginnings of their names: 01, capstone

    def has(self, notebook: str) -> bool:
        """Return whether a notebook (`01_memory`) belongs to it."""
        return notebook.split("_")[0] in self.notebooks


CORE = Path("core", "Core", "from the first request to a whole file", CORE_NOTEBOOKS)
ROLES = (
    Path("serve", "Serve it", "for those who run a server for others", ("02", "06", "08")),
    Path("understand", "Understand it", "for those who ask why", ("09", "11", "12")),
    Path("scale", "Scale it", "for many users and many servers", ("13", "14")),
    Path("build", "Build with it", "for those who write an application", ("10",)),
    Path("capstone", "Capstone", "your model, your GPUs, your file", ("capstone",)),
)
NAMES = (CORE.name, *(role.name for role in ROLES), "all")


def path_of(name: str) -> tuple[Path, ...]:
    """Return the parts of a path in their order: the core, then the role.

    "all" has every role.

    Raises:
        BadInput: there is no such path.
    """
    wanted_name = name.strip().lower().removesuffix(" it").replace("build with", "build")
    if wanted_name == "all":
        return (CORE, *ROLES)
    for path in (CORE, *ROLES):
        if path.name == wanted_name:
            if path is CORE:
                return (CORE,)
            return (CORE, path)
    raise BadInput(f"There is no path {name!r}.", f"There are: {', '.join(NAMES)}.")


def chosen(stored: Mapping[str, dict]) -> str:
    """Return the name of the path that a learner's progress has; the core if none was chosen."""
    name = stored.get(CHOICE, {}).get("name")
    if name in NAMES:
        return name
    return CORE.name


def choose(name: str) -> str:
    """Store the choice of a path; return a note if that is impossible, or ''.

    A full quota must not stop a learner.
    """
    parts = path_of(name)
    path = CORE.name
    if len(parts) > 2:
        path = "all"
    elif len(parts) == 2:
        path = parts[1].name
    try:
        progress_file.add(CHOICE, {"name": path})
    except WorkshopError as error:
        return f"Your path could not be kept: {error}"
    return ""


def recalls(question: str) -> str | None:
    """Return the number of the notebook that a recall question asks about ("01").

    None for another question.
    """
    recall = RECALL.match(question)
    if recall:
        return f"{int(recall[1]):02}"
    return None


def is_left_out(question: str, path: str, begun: Collection[str]) -> bool:
    """Return whether a question asks about a notebook that the learner has not met.

    Args:
        question: its text.
        path: the name of the learner's path.
        begun: notebooks in which something was answered.
    """
    number = recalls(question)
    if number is None:
        return False
    for part in path_of(path):
        if number in part.notebooks:
            return False
    return not any(notebook.startswith(number) for notebook in begun)


def parts_after(path: str) -> Iterable[Path]:
    """Return the roles that a path leaves open."""
    return [role for role in ROLES if role not in path_of(path)]
