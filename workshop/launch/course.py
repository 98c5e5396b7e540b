"""The learner's private copy of the notebooks, so that an update of the course never collides with answers.

A copy that the learner has not touched is renewed when the course changes; one that they have worked in stays, and
`fresh` gives a new one beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import workshop
from workshop.errors import BadInput, WorkshopError

FOLDER = "my-notebooks"
ORIGINALS = ".originals.json"   # which version of the course each copy was made from


def course_folder(part: str = "notebooks") -> Path:
    """Return the course's own folder: of the checkout, or of the installed package."""
    package = Path(workshop.__file__).parent
    for folder in (package.parent / part, package / "_course" / part):
        if folder.is_dir():
            return folder
    raise WorkshopError(f"The course's folder {part} is not installed.", "Install the workshop from its repository.")


def private_folder() -> Path:
    """Return where this learner's copies are: $WORKSHOP_NOTEBOOKS, else in the checkout, else in the home folder."""
    if chosen := os.environ.get("WORKSHOP_NOTEBOOKS"):
        return Path(chosen).expanduser()
    checkout = Path(workshop.__file__).parent.parent
    if (checkout / "pyproject.toml").exists() and os.access(checkout, os.W_OK):
        return checkout / FOLDER
    return Path.home() / "workshop-notebooks"


def names() -> list[str]:
    """Return the notebooks of the course, without `.ipynb`, in their order."""
    return [path.stem for path in sorted(course_folder().glob("*.ipynb"))]


def copy_notebooks() -> tuple[Path, list[str]]:
    """Make or renew the private copy; return its folder and the notebooks whose newer version was held back."""
    folder, held = private_folder(), []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        originals = _originals(folder)
        for name in names():
            source, copy = course_folder() / f"{name}.ipynb", folder / f"{name}.ipynb"
            newest = _digest(source)
            if copy.exists() and originals.get(name) == newest:
                continue
            if copy.exists() and _digest(copy) not in (originals.get(name), newest):
                held.append(name)
                continue
            _copy(source, copy)
            originals[name] = newest
        (folder / ORIGINALS).write_text(json.dumps(originals, indent=1))
    except OSError as error:
        raise WorkshopError(f"Cannot write your copy of the notebooks to {folder} ({error.strerror}).",
                            "Set WORKSHOP_NOTEBOOKS to a folder that you may write, with some space left.") from None
    return folder, held


def fresh(name: str) -> tuple[Path, Path | None]:
    """Put a fresh copy of one notebook in place; return it and where the old one was moved (None if there was none)."""
    name = name.removesuffix(".ipynb")
    if name not in names():
        raise BadInput(f"There is no notebook {name!r}.", f"There are: {', '.join(names())}.")
    folder, _ = copy_notebooks()
    copy, kept = folder / f"{name}.ipynb", None
    source = course_folder() / f"{name}.ipynb"
    if copy.exists() and _digest(copy) != _digest(source):
        kept = folder / f"{name}.{datetime.now():%Y-%m-%d_%H%M%S}.ipynb"
        copy.rename(kept)
    _copy(source, copy)
    originals = _originals(folder)
    originals[name] = _digest(source)
    (folder / ORIGINALS).write_text(json.dumps(originals, indent=1))
    return copy, kept


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    target.chmod(0o644)     # the course may be installed read-only


def _digest(path: Path) -> str:
    """Return the digest of what the learner could have changed: cells without outputs and counts."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        kept = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
        return hashlib.sha256(json.dumps(kept).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _originals(folder: Path) -> dict[str, str]:
    try:
        return json.loads((folder / ORIGINALS).read_text())
    except (OSError, ValueError):
        return {}
