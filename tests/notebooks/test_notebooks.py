"""Every notebook of the course runs from top to bottom, solutions and their checks included, as nbval runs it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import symtable
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cells
import pandas as pd
import pytest

from workshop.course.exercises import sets
from workshop.course.exercises.checking import all_exercises, of_notebook
from workshop.course.exercises.judging import Exercise
from workshop.engine.planning import plan
from workshop.servers.host import machine

MOST_FOLDED = 44  # characters of a collapsed cell's line that are seen beside a chat
ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NUMBERED = [path for path in NOTEBOOKS if path.stem[:2].isdigit()]
LONG = (  # these start engines of their own: first
    "12_guess_and_check",
    "14_agents",
    "13_scale_out",
    "11_inside_the_engine",
    "02_parallelism",
    "07_offline_batching",
    "06_many_prompts",
)
ROOM_BYTES = 12 * 2**30  # for the engines of two notebooks beside the shared server


def run(notebook: Path, live_home: Path, folder: Path) -> subprocess.CompletedProcess:
    """Run one notebook with nbval. Its home knows the shared server, and none that another notebook starts."""
    home = Path(shutil.copytree(live_home, folder / "home"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval-lax",
        "--nbval-current-env",
        "--nbval-cell-timeout",
        "300",
        "-c",
        os.devnull,
        "--rootdir",
        str(notebook.parent),
        str(notebook),
    ]
    environment = {
        **os.environ,
        "WORKSHOP_HOME": str(home),
        "WORKSHOP_STRICT": "1",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=notebook.parent
    )


@pytest.fixture(scope="module")
def runs(request, server, live_home, tmp_path_factory):
    """The runs of the notebooks that were asked for, two at a time: half of the time they wait for engines to start."""
    notebooks = [
        item.callspec.params["notebook"]
        for item in request.session.items
        if getattr(item, "originalname", "") == "test_notebook_runs"
    ]
    notebooks.sort(key=lambda path: LONG.index(path.stem) if path.stem in LONG else len(LONG))
    with ThreadPoolExecutor(2 if machine.memory_available_bytes() > ROOM_BYTES else 1) as pool:
        started = {
            path: pool.submit(run, path, live_home, tmp_path_factory.mktemp(path.stem))
            for path in notebooks
        }
        yield started
        for future in started.values():
            future.cancel()  # after -x


@pytest.mark.live
@pytest.mark.notebook
# the first one waits for all that run before it; each cell has its own limit
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, runs):
    done = runs[notebook].result()
    assert done.returncode == 0, done.stdout[-6000:]


def test_notebook_is_as_the_house_writes_them(subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook.stem):
            every = json.loads(notebook.read_text())["cells"]
            code = [cell for cell in every if cell["cell_type"] == "code"]
            assert not any(cell["outputs"] or cell["execution_count"] for cell in code), (
                "outputs are stripped"
            )
            first = "".join(every[0]["source"])
            assert (
                first.startswith("# ")
                and "You will be able to" in first
                and "minutes" in first
                and "needs" in first
            )
            long = [
                len(cell["source"])
                for cell in code
                if len("".join(cell["source"]).splitlines()) > 22
            ]
            assert not long, "a learner has to read every cell"
            for cell in code:
                if "solution" in cell["metadata"].get("tags", []):
                    assert cell["metadata"].get("jupyter", {}).get("source_hidden"), (
                        "solutions are collapsed"
                    )
                    assert "".join(cell["source"]).startswith("# Solution"), (
                        "the collapsed cell shows its first line"
                    )
                if cell["metadata"].get("jupyter", {}).get("source_hidden"):
                    first = "".join(cell["source"]).split("\n")[0]
                    assert len(first) <= MOST_FOLDED, (
                        f"JupyterLab cuts it at 600 px, and the dots that unfold it: {first}"
                    )


def test_no_text_near_an_exercise_says_its_number(subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook.stem):
            every = cells.cells(notebook.stem)
            sources = [cell.source for cell in every]
            for key in of_notebook(notebook.stem):
                if "answer" not in sets.texts(f"e{notebook.stem}").get(key, {}):
                    continue
                at = next(n for n, source in enumerate(sources) if f'check("{key}"' in source)
                near = every[max(0, at - 4) : at + 5]
                text = "\n".join(cell.source for cell in near if cell.kind == "markdown")
                text = re.sub(r"<[^>]*>|(?m:^ *\d+\. )", "", text)  # numbers of a list
                numbers = re.findall(r"(?<![\d.])\d[\d,]*(?:\.\d+)?", text)
                told = [
                    number
                    for number in numbers
                    if all_exercises()[key].test(float(number.replace(",", ""))) is None
                ]
                assert not told, f"{key}: who reads on is told {told}"


def values_of_assertions(source: str) -> list[object]:
    """Return the numbers, lists and dictionaries that the assertions of a cell compare with."""
    values: list[object] = []
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.Assert):
            continue
        for part in ast.walk(statement.test):
            try:
                value = ast.literal_eval(part)
            except (ValueError, TypeError):
                continue
            if isinstance(value, str):
                values += [float(number) for number in re.findall(r"\d+\.\d+", value)]
            else:
                values.append(value)
    return values


def test_no_visible_assertion_behind_an_exercise_has_its_answer(subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook.stem):
            every = cells.cells(notebook.stem)
            sources = [cell.source for cell in every if cell.kind == "code" and not cell.is_hidden]
            for key in of_notebook(notebook.stem):
                exercise = all_exercises()[key]
                if exercise.options:
                    continue
                at = next(n for n, source in enumerate(sources) if f'check("{key}"' in source)
                for source in sources[at + 1 : at + 4]:
                    told = [
                        value for value in values_of_assertions(source) if accepts(exercise, value)
                    ]
                    assert not told, f"{key}: whoever reads on is told {told}"


def accepts(exercise: Exercise, value: object) -> bool:
    try:
        return exercise.test(value) is None
    except Exception:  # a judge of another shape cannot read this value
        return False


def test_every_prediction_is_asked_before_its_result(subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook.stem):
            code = "\n".join(cells.code(notebook.stem))
            calls = re.findall(r'predict\("([\w.]+)", (\(|result=)', code)
            predicted = [key for key, what in calls if what == "("]
            shown = [key for key, what in calls if what == "result="]
            assert (
                predicted
                and sorted(predicted) == sorted(shown)
                and len(set(predicted)) == len(predicted)
            )
            assert all(calls.index((key, "(")) < calls.index((key, "result=")) for key in predicted)
            for cell in cells.cells(notebook.stem):
                if "result=" in cell.source and "predict(" in cell.source:
                    is_folded = cell.is_hidden and cell.source.startswith("# What you predicted")
                    assert is_folded, "its code would give the result away"
            assert {key.split(".")[0] for key in predicted} <= {
                key.split(".")[0] for key in of_notebook(notebook.stem)
            }


def test_a_predictions_result_can_be_run_again_at_any_time(subtests):
    for notebook in NOTEBOOKS:
        with subtests.test(notebook.stem):
            code = [cell for cell in cells.cells(notebook.stem) if cell.kind == "code"]
            tables = [
                symtable.symtable(cell.source, notebook.stem, "exec").get_symbols() for cell in code
            ]
            assigned = {
                symbol.get_name()
                for symbols in tables
                for symbol in symbols
                if symbol.is_assigned()
            }
            later = (
                set()
            )  # what cells below bind; what is only imported, here and there, stays the same
            for cell, symbols in zip(reversed(code), reversed(tables), strict=True):
                bound = {
                    symbol.get_name()
                    for symbol in symbols
                    if symbol.is_assigned() or symbol.is_imported()
                }
                if "prediction" in cell.tags:
                    used = {symbol.get_name() for symbol in symbols} - bound
                    assert not used & later, (
                        "a learner who predicts late runs this cell again, after those below it"
                    )
                later |= bound & assigned


def test_a_notebook_asks_before_it_teaches_and_says_where_to_go_on(subtests):
    for notebook in NUMBERED:
        with subtests.test(notebook.stem):
            texts = [cell.source for cell in cells.cells(notebook.stem) if cell.kind == "markdown"]
            assert "**Questions:**" in texts[0]
            assert all(
                part in texts[-1] for part in ("## Recap", "**At home:**", "**Further reading:**")
            )
            questions = [key for key in of_notebook(notebook.stem) if all_exercises()[key].options]
            recall = [key for key in questions if key.endswith(".recall")]
            assert len(questions) - len(recall) >= 3, "three questions on what happens and why"
            assert len(recall) == (int(notebook.stem[:2]) >= 2), (
                "one on what was learned two notebooks earlier"
            )


def test_the_page_to_hand_in_is_written_with_open_exercises(tmp_path, monkeypatch, capsys):
    cell = cells.with_text("capstone", "show.hand_in")
    namespace = {
        "model": "llama-3.1-8b",
        "gpu": "h200",
        "p": plan("llama-3.1-8b", "h200"),
        "script": ...,
        "words": ...,
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    exec(cell, namespace | {"compared": None, "summary": None})
    assert "exercises are open" in capsys.readouterr().out
    monkeypatch.setenv("WORKSHOP_STRICT", "1")
    with pytest.raises(AssertionError):
        exec(cell, namespace | {"compared": None, "summary": None})


@pytest.mark.filterwarnings("error")
def test_the_table_beside_the_h200_is_drawn_without_a_warning():
    cell = cells.with_text("06_many_prompts", "8B, one H200")
    exec(cell, {"pd": pd, "sweep": {1: (100.0, 0.1), 2: (150.0, 0.2)}})
