"""The site: notebooks as pages that read well without a kernel, without scripts and without the internet."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import static_page

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "docs" / "site" / "website.py"


def test_a_widget_becomes_its_static_form_and_nothing_pretends_that_it_can_be_moved():
    import website

    from workshop import GpuField, predict

    field = GpuField("llama-3.1-70b", tokens=128_000)
    buttons = predict("memory.example", ("more", "less"))
    shown = [
        nbformat.v4.new_output("display_data", widget._repr_mimebundle_())
        for widget in (field, buttons)
    ]
    cells = [nbformat.v4.new_code_cell("field", outputs=shown)]
    drawn = website.html_of(nbformat.v4.new_notebook(cells=cells))
    assert drawn.count(f">{field.frames[-1].text}<") == 1, "the last page of the story"
    assert "I predict: … (one of: more · less)" in drawn
    assert not re.search("<(input|button|select|textarea|script)", drawn)


def test_formulas_are_drawn_and_code_and_prices_stay():
    drawn = static_page.with_formulas(
        r"so $y = f(x W_1) W_2$ and `$HOME` and $5 or $6 and ``a $b$ c``"
    )
    assert drawn.count("<img") == 1 and 'alt="y = f(x W_1) W_2"' in drawn
    assert "`$HOME`" in drawn and "``a $b$ c``" in drawn
    assert "http" not in re.sub(r'src="[^"]*"', "", drawn)


def test_every_notebook_becomes_a_page_with_its_neighbours(tmp_path):
    command = [sys.executable, str(BUILD), "--saved", "--no-live", "--to", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert sorted(path.stem for path in tmp_path.glob("*.html")) == sorted(
        [*names, "index", "summary_cards", *(path.stem for path in (ROOT / "docs").glob("*.md"))]
    )
    for path in tmp_path.glob("*.html"):
        text = path.read_text()
        assert ".ipynb" not in " ".join(re.findall(r'href="([^"]*)"', text)), "links lead to pages"
        for target in re.findall(r'href="([^":#]+)"', text):
            assert (tmp_path / target).exists(), f"{path.name} leads to {target}"
        assert "<script" not in text and "@import" not in text and "<link" not in text
    index = (tmp_path / "index.html").read_text()
    assert all(f'href="{name}.html"' in index for name in names)


def test_pyodide_of_an_earlier_lock_is_replaced(tmp_path, monkeypatch):
    from live import pages

    def locked(path: Path, integrity: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({"packages": {"": {}, "node_modules/pyodide": {"integrity": integrity}}})
        )

    def npm(command: list[str], cwd: Path, **_) -> subprocess.CompletedProcess:
        commands.append(command)
        shutil.copy(cwd / "package-lock.json", cwd / "node_modules" / ".package-lock.json")
        return subprocess.CompletedProcess(command, 0)

    commands = []
    locked(tmp_path / "package-lock.json", "sha512-new")
    locked(tmp_path / "node_modules" / ".package-lock.json", "sha512-old")
    monkeypatch.setattr(pages, "HERE", tmp_path)
    monkeypatch.setattr(pages.shutil, "which", lambda _: "npm")
    monkeypatch.setattr(pages.subprocess, "run", npm)
    pages.fetch()
    pages.fetch()
    assert [command[:2] for command in commands] == [["npm", "ci"]], "once: afterwards it is there"


def test_what_is_no_jupyterlite_is_never_cleared(tmp_path):
    from lite import build as lite
    from live import pages

    folder = tmp_path / "mine"
    folder.mkdir()
    lite.make_room(folder)
    (folder / "thesis.txt").write_text("years of work")
    (folder / "jupyter-lite.json").write_text("{}")
    for place in (folder, folder / "thesis.txt"):
        with pytest.raises(pages.CannotBuild, match="left as it is"):
            lite.make_room(place)
    assert (folder / "thesis.txt").read_text() == "years of work"
    (folder / "lab").mkdir()
    lite.make_room(folder)
    assert not folder.exists()


def test_what_no_browser_has_can_be_imported_and_says_so_when_it_is_used(tmp_path, subtests):
    from lite import build as lite

    for inside, text in lite.stand_ins().items():
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).write_text(text)
    for name in ("httpx", "numpy", "openai", "psutil", *lite.UNAVAILABLE):
        with subtests.test(name):
            code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {name}; {name}.post"
            done = subprocess.run(
                [sys.executable, "-S", "-c", code], capture_output=True, text=True
            )
            message = (
                f"{name} is not in this page's Python: run this cell in JupyterLab (make workshop)."
            )
            assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {message}"
