"""The paths through the course: the core, a role after it, and the learner's choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workshop.errors import BadInput
from workshop.lab.places import CORE_NOTEBOOKS

CHOICE = "course.path"  # the entry of progress.json with the path that the learner chose


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


def named(name: str) -> str:
    """Return the path that is meant, as NAMES has it: "Build with it" is build.

    Raises:
        BadInput: there is no such path.
    """
    path = name.strip().lower().removesuffix(" it").replace("build with", "build")
    if path not in NAMES:
        raise BadInput(f"There is no path {name!r}.", f"There are: {', '.join(NAMES)}.")
    return path


def path_of(name: str) -> tuple[Path, ...]:
    """Return the parts of a path in their order: the core, then the role.

    "all" has every role.

    Raises:
        BadInput: there is no such path.
    """
    path = named(name)
    if path == "all":
        return (CORE, *ROLES)
    return (CORE, *(role for role in ROLES if role.name == path))


def chosen(stored: Mapping[str, dict]) -> str:
    """Return the name of the path that a learner's progress has; the core if none was chosen."""
    name = stored.get(CHOICE, {}).get("name")
    if name in NAMES:
        return name
    return CORE.name
