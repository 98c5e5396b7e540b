"""The pages that notebooks link, as files beside the learner's copies.

In the repository a notebook links `../docs/glossary.md`. A learner's JupyterLab shows their own
folder and nothing above it, so that folder gets `docs/glossary.md`, and the link in the copy says
so. A page's own links are followed. What is neither a page nor a picture stays in the repository:
its link becomes plain text.
"""

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from workshop.lab.places import PAGE, place_of

FOLDERS = ("docs", "kubernetes")
SUFFIXES = (".md", ".png", ".svg")
# [text](../docs/page.md#part): what is before the path, the path, and the part of the page
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")


def with_links_inside(notebook: bytes) -> bytes:
    """Return a notebook's file whose links to pages lead to copies in its own folder."""
    return PAGE.sub(rb"](\1", notebook)


def linked_pages(notebooks: Path, place: Callable[[str], str] = place_of) -> dict[str, bytes]:
    """Return {path beside the copies: page} for every page that notebooks reach.

    Such a path is `docs/glossary.md`.

    Args:
        notebooks: the course's own folder; the folders with the pages are beside it.
        place: where the copy of a notebook lies, by its name.
    """
    waiting: list[str] = []
    for path in sorted(notebooks.glob("*.ipynb")):
        text = with_links_inside(path.read_bytes()).decode("utf-8", "replace")
        for _, target, _ in LINK.findall(text):
            waiting.append(target)
    pages: dict[str, bytes] = {}
    while waiting:
        path = waiting.pop()
        if path in pages or not _is_page(notebooks.parent, path):
            continue
        content = (notebooks.parent / path).read_bytes()
        if path.endswith(".md"):
            text, further = _with_own_links(notebooks.parent, path, content.decode("utf-8"), place)
            content = text.encode("utf-8")
            waiting += further
        pages[path] = content
    return pages


def _is_page(root: Path, path: str) -> bool:
    """Return whether a path from the root of the course is a page, or a picture of one.

    It must exist.
    """
    parts = PurePosixPath(path).parts
    if not parts or parts[0] not in FOLDERS or ".." in parts:
        return False
    return path.endswith(SUFFIXES) and (root / path).is_file()


def _with_own_links(
    root: Path, path: str, text: str, place: Callable[[str], str]
) -> tuple[str, list[str]]:
    """Return a page whose links lead to copies, and the pages and pictures that it links."""
    further: list[str] = []

    def rewrite(match: re.Match[str]) -> str:
        label, target, part = match.groups()
        if "://" in target or target.startswith(("mailto:", "/")):
            return match[0]
        page = _joined(PurePosixPath(path).parent, target)
        if page.startswith("notebooks/"):
            copy = target.replace("../notebooks/", "../")
            name = PurePosixPath(page).stem
            copy = copy.removesuffix(f"{name}.ipynb") + place(name)
            return f"{label}({copy}{part or ''})"
        if not _is_page(root, page):
            return f"{label.strip('![]')} (`{page}` of the repository)"
        further.append(page)
        return match[0]

    return LINK.sub(rewrite, text), further


def _joined(folder: PurePosixPath, target: str) -> str:
    """Return where a relative link from a folder leads, from the root of the course."""
    parts = list(folder.parts)
    for part in PurePosixPath(target).parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)
