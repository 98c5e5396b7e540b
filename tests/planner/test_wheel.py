"""The planner's own wheel: small, without dependencies, and with the same words as `workshop plan`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from itertools import product
from pathlib import Path

import pytest
from click.testing import CliRunner

from workshop.cli.plan import places
from workshop.cli.plan.plan import command as plan_command
from workshop.engine.exact import ask

ROOT = Path(__file__).parents[2]
MODELS = ("llama-3.1-8b", "llama-3.1-405b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3")
PAIRS = [*product(MODELS, ("t4", "a100-80gb", "h100", "h200"))]
TEXTS = [
    ["llama-3.1-70b", "--gpu", "h100", "--gpus-per-node", "4", "--explain"],
    ["llama-3.1-405b", "--gpu", "h100", "--gpus-per-node", "8", "--nodes", "1"],
    ["llama-3.2-1b", "--gpu-memory", "24", "--free-gib", "12"],
    [
        "qwen3-30b-a3b",
        "--gpu",
        "h100",
        "-tp",
        "1",
        "-dp",
        "2",
        "-ep",
        "--max-model-len",
        "32K",
        "-q",
        "fp8",
    ],
    ["llama-3.1-70b", "--machines"],
    ["llama-3.1-70b", "--machines", "--json"],
    ["deepseek-v3", "--machines", "--max-model-len", "8k"],
]
REFUSED = [
    ["llama-3.1-8", "--gpu", "h100"],
    ["llama-3.1-8b", "--gpu", "h101"],
    ["llama-3.1-8b"],
    ["--gpu", "h100"],
    ["llama-3.1-8b", "--gpu", "h100", "-tp", "3"],
]
ONCE_FOR_ALL = """
import contextlib, io, json, sys
from inference_planner.cli import main
said = []
for words in json.loads(sys.argv[1]):
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    sys.argv = ["inference-planner", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main()
    said.append([code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()])
foreign = {name.split(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"inference_planner", "__main__"}
print(json.dumps([said, sorted(foreign)]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        ROOT / "planner",
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The folder of an environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        wheel,
    )
    return folder


def run(*command: object, code: int = 0, **more: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **more)
    assert done.returncode == code, done.stderr
    return done.stdout


def of_the_course(arguments: list[str]) -> tuple[int, str, str]:
    """What `workshop plan` says; its main() prints what it refuses. Many requests need the simulator's clock."""
    done = CliRunner().invoke(plan_command, arguments)
    text = done.stdout.partition("\nMany requests\n")[0]
    return done.exit_code, text, getattr(done.exception, "message", "")


def test_it_is_small_and_has_no_dependency(wheel, installed):
    assert wheel.stat().st_size < 1_000_000
    metadata = next(
        installed.glob("lib/*/site-packages/inference_planner-*.dist-info/METADATA")
    ).read_text()
    assert "Requires-Dist" not in metadata and "\nVersion: 0.1.0\n" in metadata


def test_it_says_what_the_course_says(installed, monkeypatch):
    monkeypatch.setattr(ask, "python", lambda: "")  # as where there is no vLLM
    monkeypatch.setenv("COLUMNS", "90")
    commands = [*([model, "--gpu", gpu, "--json"] for model, gpu in PAIRS), *TEXTS, *REFUSED]
    results, foreign = json.loads(
        run(installed / "bin" / "python", "-I", "-c", ONCE_FOR_ALL, json.dumps(commands))
    )
    assert not foreign, "the standard library alone"
    for arguments, (code, out, err) in zip(commands, results, strict=True):
        expected, text, refused = of_the_course(arguments)
        assert (code, out) == (expected if not refused else 2, text), arguments
        assert refused in err and bool(refused) == bool(err), arguments
    assert {code for code, *_ in results} == {0, 1, 2}


def test_the_command_is_there_and_says_what_only_the_course_has(installed):
    command = installed / "bin" / "inference-planner"
    arguments = ("llama-3.1-70b", "--gpu", "h200", "--json", "-cc.cudagraph_mode=NONE")
    data = json.loads(run(command, *arguments))
    assert data["fits"] and '{"cudagraph_mode": "NONE"}' in data["command"]
    for arguments, message in (
        (["--exact"], "--exact is not in the planner alone"),
        (["--max-model-len", "many"], "'many' is not a whole number"),
        (["--bogus\x07"], r"unrecognized arguments: --bogus\x07"),
    ):
        done = subprocess.run(
            [command, "x", "--gpu", "h100", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_reader_that_has_enough_sees_no_traceback(installed):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [installed / "bin" / "inference-planner", "--list-models"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    assert done.returncode == 1 and not done.stderr


def test_it_takes_every_option_of_the_course_but_those_of_other_places(installed):
    text = run(installed / "bin" / "inference-planner", "--help")
    elsewhere = {"exact", "model", "place", *places.NAMES}
    for option in plan_command.params:
        if option.name not in elsewhere:
            assert all(flag in text for flag in option.opts), option.name


def test_files_of_the_current_folder_take_no_modules_place(installed, tmp_path):
    ran = tmp_path / "ran"
    for name in ("json", "argparse", "torch", "workshop"):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name} ')\n")
    arguments = ["llama-3.1-8b", "--gpu", "h100", "--json"]
    env = {**os.environ, "PYTHONPATH": os.pathsep}
    run(installed / "bin" / "inference-planner", *arguments, cwd=tmp_path, env=env)
    run(installed / "bin" / "python", "-m", "inference_planner", *arguments, cwd=tmp_path)
    assert not ran.exists()
