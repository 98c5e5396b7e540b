"""Places of a learner's copies: the notebooks of the core lie first in their folder, the others in `more/`.

In the repository all notebooks lie in one folder; a link between them is their names.
"""

import re
from pathlib import PurePosixPath

CORE_NOTEBOOKS = ("00", "01", "03", "04", "05", "07")  # the beginnings of their names
MORE = "more"
# In a notebook's file: a link to a page, as in the repository or as in a copy beside the pages
PAGE = re.compile(rb"\]\((?:\.\./)?((?:docs|kubernetes)/)")
NOTEBOOK = re.compile(rb"\]\((\w+)\.ipynb")


def place_of(name: str) -> str:
    """Return where the copy of a notebook lies in the learner's folder: 01_memory.ipynb, more/10_chat.ipynb."""
    if name.split("_")[0] in CORE_NOTEBOOKS:
        return f"{name}.ipynb"
    return f"{MORE}/{name}.ipynb"


def with_links_from(name: str, notebook: bytes) -> bytes:
    """Return a notebook's file whose links lead from its place to pages and notebooks in the learner's folder."""
    up = "../" * (len(PurePosixPath(place_of(name)).parts) - 1)

    def to_notebook(match: re.Match[bytes]) -> bytes:
        target = place_of(match[1].decode())
        link = f"{up}{target}"
        if up and target.startswith(f"{MORE}/"):
            link = target.removeprefix(f"{MORE}/")
        return f"]({link}".encode()

    linked = PAGE.sub(rb"](" + up.encode() + rb"\1", notebook)
    return NOTEBOOK.sub(to_notebook, linked)
