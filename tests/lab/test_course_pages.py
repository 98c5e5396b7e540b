"""Every link of a learner's notebooks leads to a file in their own folder, in a checkout, a wheel and JupyterLite."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from workshop.lab import course_pages, learner_copies
from workshop.lab.places import place_of

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)")


def local_links(text: str) -> list[str]:
    return [link for link in LINK.findall(text) if not link.startswith(("http", "mailto:"))]


def prose(path: Path) -> str:
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mine") / "notebooks"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKSHOP_NOTEBOOKS", str(folder))
        assert learner_copies.copy_notebooks() == (folder, [])
    return folder


def test_the_course_has_links_to_pages():
    """The review counted 19 that led nowhere."""
    linked = [
        link for path in (ROOT / "notebooks").glob("*.ipynb") for link in local_links(prose(path))
    ]
    assert sum(link.startswith("../") for link in linked) >= 10


def test_every_link_of_a_notebook_leads_to_a_file_in_the_learners_folder(copies):
    for name in learner_copies.names():
        copy = copies / place_of(name)
        for link in local_links(prose(copy)):
            target = (copy.parent / link).resolve()
            assert target.is_relative_to(copies), f"{name}: {link} leads out of the folder"
            assert target.is_file(), f"{name}: {link} leads nowhere"


def test_every_link_of_a_linked_page_leads_to_a_file_in_the_learners_folder(copies):
    pages = [path for folder in ("docs", "kubernetes") for path in (copies / folder).rglob("*.md")]
    assert copies / "docs" / "glossary.md" in pages
    for page in pages:
        for link in local_links(page.read_text()):
            target = (page.parent / link).resolve()
            assert target.is_relative_to(copies) and target.is_file(), f"{page.name}: {link}"


def test_a_page_of_the_repository_that_is_not_copied_is_named_in_words(copies):
    text = (copies / "docs" / "simulate.md").read_text()
    assert "(`workshop/simulate/clock.py` of the repository)" in text


def test_the_wheel_has_every_page_that_notebooks_link():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    for path in course_pages.linked_pages(ROOT / "notebooks"):
        at = [source for source in included if path == source or path.startswith(f"{source}/")]
        assert at, f"{path} is not in the wheel: name it in pyproject.toml"
        assert included[at[0]] == f"workshop/_course/{at[0]}"


def test_a_page_that_a_learner_has_changed_stays(copies, monkeypatch):
    monkeypatch.setenv("WORKSHOP_NOTEBOOKS", str(copies))
    page = copies / "docs" / "vm.md"
    page.write_text("my notes")
    learner_copies.copy_notebooks()
    assert page.read_text() == "my notes"
