"""What instructors take along: an assignment for otter-grader, and the page's part on checks, from their one source."""

from __future__ import annotations

import doctest
import importlib.util
import json
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import nbformat
import pytest

from workshop.course.course_map import chapters
from workshop.course.exercises import all_exercises

ROOT = Path(__file__).parents[1]
CHAPTERS = chapters()


def tool(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(name: str):
    return tool("assignment").assignment(
        json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text())
    )


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.name)
def test_an_assignment_is_a_notebook_without_solutions_and_grades_every_check(chapter):
    notebook, tests = made(chapter.name)
    nbformat.validate(notebook)
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(text.startswith("# Solution") for text in code)
    assert sorted(tests) == sorted(key.replace(".", "_") for key in chapter.checks)
    assert all(f'grader.check("{name}")' in code for name in tests)
    for text in code:
        compile(text.replace("await ", ""), chapter.name, "exec")


def grade(text: str, names: dict) -> bool:
    """As otter does: the cases of the test file, run as doctests on the learner's names."""
    file: dict = {}
    exec(text, file)
    assert file["OK_FORMAT"]
    cases = [case["code"] for suite in file["test"]["suites"] for case in suite["cases"]]
    runner = doctest.DocTestRunner(verbose=False)
    for case in cases:
        runner.run(
            doctest.DocTestParser().get_doctest(case, dict(names), "case", None, 0),
            out=lambda _: None,
        )
    return not runner.failures


def test_right_answers_earn_the_point_and_wrong_or_open_ones_do_not(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    _, tests = made("04_sampling")
    for name, right, wrong in (
        ("sampling_softmax", {"probability": 0.8438}, {"probability": 0.75}),
        ("sampling_recall", {"sampling_recall": "b"}, {"sampling_recall": "a"}),
        (
            "sampling_top_k",
            {"two_left": {"city": 5 / 7, "port": 2 / 7}},
            {"two_left": {"city": 0.5, "port": 0.2}},
        ),
    ):
        assert grade(tests[name], right) and not grade(tests[name], wrong)
        assert not grade(tests[name], dict.fromkeys(right, ...)), "an open answer earns nothing"


def test_the_guide_says_of_checks_what_their_words_say():
    checks, guide = tool("checks"), (ROOT / "docs" / "teaching.md").read_text()
    first, last = checks.MARKS
    assert guide.partition(first)[2].partition(last)[0] == checks.part(), (
        "run: python docs/checks.py"
    )
    for key, exercise in all_exercises().items():
        assert f"(`{key}`)" in guide and all(why in guide for why in exercise.wrong.values())


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda one: one.name)
def test_every_notebook_has_questions_and_key_points(chapter):
    questions, points = tool("checks").words_of(chapter.name)
    assert questions.count("?") >= 2 and len(points) >= 3


GRADE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import workshop
from workshop import check
assert not workshop.__file__.startswith(sys.argv[2]), workshop.__file__
results = {}
for name, text in json.loads(sys.argv[3]).items():
    file = {}
    exec(text, file)
    (suite,) = file["test"]["suites"]
    lines = [line[4:] for line in suite["cases"][0]["code"].splitlines() if line[:4] == ">>> "]
    names = json.loads(sys.argv[4])[name]
    exec("\\n".join(lines[:-1]), names)
    results[name] = eval(lines[-1], names)
print(json.dumps(results))
"""


def test_the_exported_wheels_grade_where_the_repository_is_not(tmp_path):
    """A grader's container has the wheels and what they need from the index, and nothing of ours."""
    folder = tmp_path / "assignment"
    command = [sys.executable, "-P", str(ROOT / "docs" / "assignment.py"), "01_memory"]
    done = subprocess.run([*command, "--to", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wheels = sorted(path.name for path in folder.glob("*.whl"))
    assert len(wheels) == 2 and wheels[0].startswith("distributed_inference_workshop-")
    lines = (folder / "requirements.txt").read_text().split()
    assert lines == [f"/autograder/source/files/{name}" for name in wheels]
    assert sum(path.stat().st_size for path in folder.glob("*.whl")) < 100e6  # what graders take
    installed = tmp_path / "installed"
    for name in wheels:
        zipfile.ZipFile(folder / name).extractall(installed)
    key = next(
        key for key, one in all_exercises().items() if one.options and key.startswith("memory.")
    )
    name = key.replace(".", "_")
    tests = {name: (folder / "tests" / f"{name}.py").read_text()}
    right = next(letter for letter in "abcd" if all_exercises()[key].judge(letter) is None)
    wrong = next(letter for letter in "abcd" if letter != right)
    # Packages from the index lie in this environment. The folder of a path that is only named runs
    # no .pth file, so the checkout, which is installed through one, is not there.
    path = json.dumps([str(installed), sysconfig.get_path("purelib")])
    for letter, points in ((right, True), (wrong, False)):
        arguments = [path, str(ROOT), json.dumps(tests), json.dumps({name: {name: letter}})]
        graded = subprocess.run(
            [sys.executable, "-I", "-S", "-c", GRADE, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "WORKSHOP_HOME": str(tmp_path / "home")},
        )
        assert graded.returncode == 0, graded.stderr
        assert json.loads(graded.stdout.splitlines()[-1]) == {name: points}
