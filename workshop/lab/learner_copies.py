"""The learner's private copy of the notebooks: an update of the course never touches answers.

A copy that the learner has not touched is renewed when the course changes; one that they have
worked in stays, and `fresh` gives a new one beside it. Outputs are the learner's as well: a copy
that was only run is renewed, and what it was is kept beside it. No file of theirs is ever written
over. The notebooks of the core lie first in the folder, the others in `more/`.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from workshop import files
from workshop.errors import BadInput, WorkshopError
from workshop.home import replace_file, writing
from workshop.install_words import REPOSITORY, course_folder
from workshop.lab import course_pages, solutions
from workshop.lab.places import place_of, with_links_from

FOLDER = "my-notebooks"
MODE = 0o644  # of a copy: the course may be installed read-only
MOST_ORIGINALS_BYTES = 2**20
ORIGINALS = ".originals.json"  # which version of the course each copy was made from


def private_folder() -> Path:
    """Return where this learner's copies are.

    $WORKSHOP_NOTEBOOKS, else a folder in the checkout, else one in the home folder.
    """
    chosen = os.environ.get("WORKSHOP_NOTEBOOKS")
    if chosen:
        try:
            return Path(chosen).expanduser()
        except RuntimeError:  # ~name of nobody
            remedy = "Set WORKSHOP_NOTEBOOKS to a folder that you may write."
            raise BadInput(
                f"There is no home folder for WORKSHOP_NOTEBOOKS={chosen!r}.", remedy
            ) from None
    if (REPOSITORY / "pyproject.toml").exists() and os.access(REPOSITORY, os.W_OK):
        return REPOSITORY / FOLDER
    return Path.home() / "workshop-notebooks"


def names() -> list[str]:
    """Return the notebooks of the course, without `.ipynb`, in their order."""
    return [path.stem for path in sorted(course_folder().glob("*.ipynb"))]


def copy_notebooks() -> tuple[Path, list[str]]:
    """Make or renew the private copy; return its folder and the notebooks that are outdated.

    Of those a newer version was held back, because the learner has changed the copy.
    The pages that notebooks link (glossary, background) are copied as well, so that each link
    opens.
    """
    folder = private_folder()
    held_back: list[str] = []
    with _writing_to(folder) as originals:
        for name in names():
            copy = folder / place_of(name)
            copy.parent.mkdir(exist_ok=True)
            if not _renew(copy, _published(name), name, originals):
                held_back.append(name)
        for path, content in course_pages.linked_pages(course_folder()).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            _renew(target, content, path, originals)
    return folder, held_back


def _published(name: str) -> bytes:
    """Return a notebook as a learner gets it.

    Its links lead to the copies of the pages, its solutions wait.
    """
    source = course_folder() / f"{name}.ipynb"
    return solutions.held_back(with_links_from(name, source.read_bytes()))


def _renew(copy: Path, content: bytes, name: str, originals: dict[str, str]) -> bool:
    """Make or renew one copy unless its learner has changed it; return False if it was left."""
    newest, _ = _look(content)
    if not os.path.lexists(copy):
        replace_file(copy, content, MODE)
    elif not copy.is_file():  # a link to a disk that is away, for example
        return False
    elif originals.get(name) != newest:
        own_version, has_outputs = _look(copy.read_bytes())
        if own_version not in (originals.get(name), newest):
            return False
        if own_version != newest:
            if has_outputs:
                _keep(copy)
            replace_file(copy, content, MODE)
    originals[name] = newest
    return True


def named(text: str) -> str:
    """Return the notebook that is meant: by its name, its number (1) or a part of it (memory).

    Raises BadInput: none, or several.
    """
    text = text.removesuffix(".ipynb").removeprefix("more/")
    if text in names():
        return text
    start = f"{int(text):02}_" if text.isdecimal() and len(text) < 3 else None
    meant = [
        name for name in names() if (name.startswith(start) if start else text and text in name)
    ]
    if len(meant) != 1:
        raise BadInput(
            f"There is no notebook {text!r}.", f"There are: {', '.join(meant or names())}."
        )
    return meant[0]


def fresh(name: str) -> tuple[Path, Path | None]:
    """Put a fresh copy of one notebook in place; return it and where the old one is kept.

    The old one is kept, with its outputs, unless nothing was changed in it and it has none (then
    None is returned).
    """
    name = named(name)
    folder = private_folder()
    old_copy = None
    copy = folder / place_of(name)
    content = _published(name)
    if os.path.lexists(copy) and not copy.is_file():
        raise WorkshopError(
            f"{copy} is no file.", f"Move it elsewhere, then again: workshop fresh {name}"
        )
    with _writing_to(folder) as originals:
        newest, _ = _look(content)
        copy.parent.mkdir(exist_ok=True)
        if copy.exists() and _look(copy.read_bytes()) != (newest, False):
            old_copy = _keep(copy)
        replace_file(copy, content, MODE)
        originals[name] = newest
    copy_notebooks()
    return copy, old_copy


@contextlib.contextmanager
def _writing_to(folder: Path) -> Iterator[dict[str, str]]:
    """Make the folder if need be; yield {name: version its copy was made from}, and save that."""
    with writing(
        folder, "Set WORKSHOP_NOTEBOOKS to a folder that you may write, with some space left."
    ):
        folder.mkdir(parents=True, exist_ok=True)
        originals: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
            originals = dict(files.read_json(folder / ORIGINALS, MOST_ORIGINALS_BYTES))
        yield originals
        replace_file(folder / ORIGINALS, json.dumps(originals, indent=1).encode(), 0o644)


def _keep(copy: Path) -> Path:
    """Copy a learner's file to a new name beside it, and return that.

    A file that has the name is never touched.
    """
    moment = datetime.now().strftime("%Y-%m-%d_%H%M%S")
    target = copy.with_name(f"{copy.stem}.{moment}.ipynb")
    number = 1
    while os.path.lexists(target):  # a moment comes twice: in a second, and in an hour of autumn
        number += 1
        target = copy.with_name(f"{copy.stem}.{moment}-{number}.ipynb")
    shutil.copy(copy, target)
    return target


def _look(data: bytes) -> tuple[str, bool]:
    """Return a digest of what a learner writes, and whether there are outputs.

    What a learner writes are the cells without outputs and counts.
    """
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        cells = json.loads(data)["cells"]
        written: list[list[object]] = []
        for cell in cells:
            parts: list[object] = [cell["cell_type"], "".join(cell["source"])]
            if cell.get("attachments"):
                parts.append(cell["attachments"])
            written.append(parts)
        digest = hashlib.sha256(json.dumps(written).encode()).hexdigest()
        return digest, any(cell.get("outputs") for cell in cells)
    return hashlib.sha256(data).hexdigest(), False
