"""Both wheels, installed in an empty environment outside the checkout: the commands run there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import httpx
import install
import package_sources
import pytest
from needs import lacking

from workshop.course.exercises.checking import all_exercises

ROOT = Path(__file__).parents[2]

LAB_STARTS_S = 90


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """Return the folder of commands of an environment with the locked base and both wheels."""
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    if not uv.is_file():
        lacking("the wheels are installed with uv: make setup")
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT / "planner", ROOT):
        # A copy, so that nothing of the checkout can be found by accident.
        copy = folder / f"source-{source.name}"
        ignored = shutil.ignore_patterns(".venv", "node_modules", ".git", "dist", "__pycache__")
        shutil.copytree(source, copy, ignore=ignored)
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps"]
        run(*build, "--no-build-isolation", "-w", folder, copy)
        shutil.rmtree(copy)
    run(uv, "venv", "--python", sys.executable, folder / "env")
    python = folder / "env" / "bin" / "python"
    variables = package_sources.environment(Path(sys.executable))
    add = [*install.with_uv(uv, python, variables), "-q", "--no-deps"]
    run(*add, "--require-hashes", "-r", ROOT / "locks" / "base.txt", env=variables)
    run(*add, *sorted(folder.glob("*.whl")), env=variables)
    run(uv, "pip", "check", "--python", python)
    return python.parent


def run(*command, env=None, cwd=None) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, env=env, cwd=cwd
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def elsewhere(folder: Path) -> dict[str, str]:
    """Return an environment that knows neither the checkout nor this user's files."""
    variables = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**variables, "HOME": str(folder), "WORKSHOP_HOME": str(folder / "workshop")}


@pytest.mark.parametrize("program", [("inference-planner",), ("workshop", "plan")])
def test_a_plan_is_printed(environment, program, tmp_path):
    command = [environment / program[0], *program[1:], "llama-3.1-70b", "--gpu", "h100"]
    output = run(*command, "--gpus-per-node", "4", env=elsewhere(tmp_path), cwd=tmp_path)
    assert "vllm serve" in output and "--tensor-parallel-size 4" in output


def test_a_kustomize_tree_has_the_components(environment, tmp_path):
    command = [environment / "workshop", "plan", "mistral-7b", "--gpu", "l4"]
    run(*command, "--as", "kubernetes", "--output", ".", env=elsewhere(tmp_path), cwd=tmp_path)
    source = ROOT / "kubernetes" / "components"
    for path in source.rglob("*.yaml"):
        written = tmp_path / "components" / path.relative_to(source)
        assert written.read_bytes() == path.read_bytes()


def test_the_lab_opens_on_the_course(environment, tmp_path):
    command = [environment / "workshop", "lab", "--no-server", "--no-browser"]
    log = tmp_path / "lab.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, cwd=tmp_path, env=elsewhere(tmp_path)
        )
    try:
        address = with_address(process, log)
        page = httpx.get(address, follow_redirects=True, trust_env=False)
        assert page.status_code == 200 and "JupyterLab" in page.text
        notebooks = {path.name for path in tmp_path.rglob("*.ipynb")}
        assert {path.name for path in (ROOT / "notebooks").glob("*.ipynb")} <= notebooks
    finally:
        process.terminate()
        process.wait(30)


GRADE = """
import json, sys
import workshop
assert workshop.__file__.startswith(sys.prefix), workshop.__file__
file = {}
exec(open(sys.argv[1]).read(), file)
(suite,) = file["test"]["suites"]
lines = [line.removeprefix(">>> ") for line in suite["cases"][0]["code"].splitlines()[:-1]]
names = json.loads(sys.argv[2])
exec("\\n".join(lines[:-1]), names)
print(json.dumps(eval(lines[-1], names)))
"""


def test_an_assignment_is_graded_with_the_wheels_that_it_holds(environment, tmp_path):
    """A grader has the wheels of the assignment, the packages that they need, and nothing else."""
    folder = tmp_path / "assignment"
    make = [sys.executable, "-P", ROOT / "docs" / "assignment.py", "01_memory", "--to", folder]
    run(*make)
    wheels = sorted(folder.glob("*.whl"))
    assert len(wheels) == 2 and wheels[0].name.startswith("distributed_inference_workshop-")
    lines = (folder / "requirements.txt").read_text().split()
    assert lines == [f"/autograder/source/files/{path.name}" for path in wheels]
    size = sum(path.stat().st_size for path in wheels)
    assert size < 100e6  # what graders take
    guide = (ROOT / "docs" / "teaching" / "grading.md").read_text()
    megabytes = int(re.search(r"\((\d+) MB in the zip\)", guide)[1])
    assert abs(size / 1e6 - megabytes) <= 1
    python = environment / "python"
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    add = [uv, "pip", "install", "-q", "--python", python, "--no-deps", "--reinstall"]
    run(*add, "--offline", *wheels)
    exercise = all_exercises()["memory.training"]
    letters = {exercise.judge(letter) is None: letter for letter in exercise.options}
    for right in (True, False):
        test = folder / "tests" / "memory_training.py"
        answer = json.dumps({"memory_training": letters[right]})
        command = [python, "-I", "-c", GRADE, test, answer]
        graded = run(*command, env=elsewhere(tmp_path), cwd=tmp_path)
        assert json.loads(graded.splitlines()[-1]) is right


def with_address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return the address that `workshop lab` prints."""
    for _ in range(LAB_STARTS_S * 4):
        match = re.search(r"http://127\.0\.0\.1:\d+/lab\S*", log.read_text())
        if match:
            return match[0]
        try:
            process.wait(0.25)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(log.read_text())
