"""A solution opens with the ladder of hints, not with a click: its code is not in a learner's copy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from workshop.course.exercises import solutions
from workshop.course.exercises.checking import check, keep
from workshop.errors import BadInput
from workshop.lab import learner_copies
from workshop.lab import solutions as in_copies
from workshop.lab.places import place_of

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKSHOP_NOTEBOOKS", str(folder))
        learner_copies.copy_notebooks()
    return folder


def test_no_copy_holds_the_code_of_a_solution(copies, subtests):
    for path in NOTEBOOKS:
        with subtests.test(path.stem):
            originals = [
                cell for cell in code_cells(path) if "solution" in cell["metadata"].get("tags", [])
            ]
            copied = code_cells(copies / place_of(path.stem))
            text = "\n".join("".join(cell["source"]) for cell in copied)
            for cell in originals:
                source = "".join(cell["source"])
                keys = re.findall(r'check\("([\w.]+)"', source)
                first_statement = source.splitlines()[1]
                assert keys, "each solution checks itself"
                called = ", ".join(f'"{key}"' for key in dict.fromkeys(keys))
                assert f"solution({called})" in text
                tagged = [c for c in copied if "solution" in c["metadata"].get("tags", [])]
                assert all(first_statement not in "".join(c["source"]) for c in tagged)


def test_every_solution_can_be_asked_for(subtests):
    for path in NOTEBOOKS:
        with subtests.test(path.stem):
            for cell in code_cells(path):
                if in_copies.is_solution(cell):
                    source = "".join(cell["source"])
                    assert solutions.source_of(*in_copies.keys_of(source)) == source


KEY = "memory.weights_405b"  # two hints


def test_the_solution_waits_for_both_hints(workshop_home, monkeypatch, capsys):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    assert solutions.solution(KEY) is None
    assert "tried twice:" in capsys.readouterr().out
    check(KEY, 1)
    assert solutions.solution(KEY) is None
    assert "tried once more" in capsys.readouterr().out
    check(KEY, 2)
    assert "weights_405b" in repr(solutions.solution(KEY))


def test_who_has_the_answer_sees_the_solution_at_once(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    keep(KEY, {"tries": 1, "done": True})
    assert "weights_405b" in repr(solutions.solution(KEY))


def test_a_solution_runs_in_a_notebook_and_counts_for_nothing(workshop_home, monkeypatch):
    ipython = pytest.importorskip("IPython")
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    shell = ipython.core.interactiveshell.InteractiveShell.instance()
    try:
        keep("memory.weights_405b", {"tries": 2, "done": False})
        [cell] = [
            cell
            for cell in code_cells(ROOT / "notebooks" / "01_memory.ipynb")
            if in_copies.is_solution(cell)
            and in_copies.keys_of("".join(cell["source"])) == ["memory.weights_405b"]
        ]
        copied = in_copies.held_back(json.dumps({"cells": [cell]}).encode())
        source = "".join(json.loads(copied)["cells"][0]["source"])
        shell.run_cell("from workshop import check")
        result = shell.run_cell(source, store_history=True)
        assert result.success
        from workshop.course.exercises.checking import progress

        assert progress()["memory.weights_405b"] == {"tries": 2, "done": False}
    finally:
        type(shell).clear_instance()


def test_what_has_no_solution_is_one_sentence(workshop_home, subtests):
    for keys in [(), ("no.such",), ("start.total_tokens", "memory.weights_405b")]:
        with subtests.test(str(keys)), pytest.raises(BadInput):
            solutions.solution(*keys)


def test_a_file_that_is_no_notebook_stays_as_it_is():
    assert in_copies.held_back(b"{") == b"{"
    assert in_copies.held_back(b'{"cells": 3}') == b'{"cells": 3}'
