"""A command never replaces a file without --force."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

import workshop
from workshop.cli.plan.simulate import command as simulate
from workshop.cli.use.xray import command as xray
from workshop.errors import BadInput
from workshop.simulate import choices, process
from workshop.simulate.report import Outcome

RECORDED = Path(workshop.__file__).parent / "data" / "traces" / "teaching_model.jsonl"
LOAD = '{"arrival_s": 0, "prompt_tokens": 20, "output_tokens": 4}\n'
SIMULATED = SimpleNamespace(
    gpus=1,
    replicas=1,
    slo_share=1.0,
    of=lambda measure: {"p95": 20.0},
    command="vllm serve",
)


@pytest.fixture(autouse=True)
def without_a_scheduler(monkeypatch):
    """Stand-ins for vLLM's scheduler: one request, and one line in each file of steps."""

    def run(rules, clock, arrivals, *, steps=None, **_: object) -> dict:
        for name in steps or ():
            Path(name).write_bytes(b"steps\n")
        return {
            "requests": [Outcome(0.0, 20, first_s=0.1, last_s=0.2, output_tokens=4)],
            "gaps_s": [0.1],
            "steps": 1,
            "over_time": {name: [0.0] for name in ("t_s", "running", "waiting", "kv_cache_usage")},
            "kv_cache_usage_max": 0.0,
            "wall_s": 0.0,
        }

    monkeypatch.setattr(process, "run", run)
    best = choices.Choice({}, SIMULATED, None)
    monkeypatch.setattr(choices, "search", lambda *_, **__: [best])


def simulate_to(file: str, source: Path, *more: str) -> Result:
    arguments = ["llama-3.1-8b", "--gpu", "h100", "--trace", str(source), "--steps", file, *more]
    return CliRunner().invoke(simulate, arguments)


def search_to(file: str, source: Path, *more: str) -> Result:
    arguments = [
        "llama-3.1-8b",
        "--gpu",
        "h100",
        "--trace",
        str(source),
        "--search",
        "--slo",
        "ttft=1s",
        "--plot",
        file,
        *more,
    ]
    return CliRunner().invoke(simulate, arguments)


def xray_to(file: str, source: Path, *more: str) -> Result:
    return CliRunner().invoke(xray, [str(source), "--html", file, *more])


COMMANDS = pytest.mark.parametrize("command", [simulate_to, search_to, xray_to])


@pytest.fixture
def source(tmp_path, request) -> Path:
    path = tmp_path / "source.jsonl"
    if request.node.callspec.params["command"] is xray_to:
        shutil.copy(RECORDED, path)
    else:
        path.write_text(LOAD)
    return path


@COMMANDS
def test_an_existing_file_is_replaced_only_if_forced(command, source, tmp_path):
    file = tmp_path / "thesis.tex"
    file.write_text("years of work")
    refused = command(str(file), source)
    assert isinstance(refused.exception, BadInput) and "exists already" in str(refused.exception)
    assert "--force" in refused.exception.remedy and file.read_text() == "years of work"
    forced = command(str(file), source, "--force")
    assert forced.exit_code == 0, forced.exception
    assert file.read_text() != "years of work"


@COMMANDS
def test_a_new_file_is_written(command, source, tmp_path):
    done = command(str(tmp_path / "new"), source)
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "new").stat().st_size and sorted(os.listdir(tmp_path)) == [
        "new",
        "source.jsonl",
    ]


def test_the_steps_of_each_engine_get_a_new_file(tmp_path):
    load = tmp_path / "load.jsonl"
    load.write_text(LOAD)
    (tmp_path / "steps.1").write_text("kept")
    refused = simulate_to(str(tmp_path / "steps"), load, "--replicas", "2")
    assert isinstance(refused.exception, BadInput) and "steps.1 exists already" in str(
        refused.exception
    )
    assert (tmp_path / "steps.1").read_text() == "kept" and not (tmp_path / "steps").exists()
