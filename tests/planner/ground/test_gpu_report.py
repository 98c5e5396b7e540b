"""docs/gpu.md says what the recorded runs say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from inference_planner.catalog import load_gpu, load_model
from inference_planner.speed.roofline import bandwidth_limit_tokens_per_s

from benchmarks.page_tables import with_tables
from workshop.course.drawing.plots import step_parts
from workshop.engine import measured_runs as recorded

ROOT = Path(__file__).parents[3]


def script(name: str):
    """Return a script of benchmarks/gpu as a module."""
    spec = importlib.util.spec_from_file_location(f"gpu_{name}", ROOT / f"benchmarks/gpu/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def report():
    return script("report")


@pytest.mark.parametrize("document", ["docs/gpu.md", "docs/figures.md"])
def test_the_tables_are_what_the_records_say(report, document):
    text = (ROOT / document).read_text()
    assert report.claims() in text
    assert with_tables(text, **report.tables()) == text


def test_the_picture_is_what_the_records_say(report):
    assert (ROOT / "docs/pictures/gpu_step.svg").read_text() == report.picture()


def test_the_limit_is_bandwidth_over_weights():
    """4.8 TB/s a GPU (NVIDIA's H200 datasheet) over 70.6 and 8.03 billion parameters of 2 bytes."""
    for model, gpus, limit in [("llama-3.1-70b", 4, 136), ("llama-3.1-8b", 1, 299)]:
        assert bandwidth_limit_tokens_per_s(
            load_model(model), load_gpu("h200"), gpus
        ) == pytest.approx(limit, abs=0.6), model


def test_the_parts_of_a_step_are_the_whole_step():
    for name in ["70b-tp4-unfused", "70b-tp4-best"]:
        run = next(r for r in recorded.tuning() if r["name"] == name)
        parts = step_parts(name)
        assert sum(parts.values()) == pytest.approx(1e3 / run["single_tok_s"], rel=0.01), name
        assert all(ms >= 0 for ms in parts.values()), name


def test_the_script_of_70b_takes_what_was_kept():
    best = next(r for r in recorded.tuning() if r["name"] == "70b-tp4-best")
    assert best["compilation_config"]["compile_sizes"] == [1]
    assert (
        """--compilation-config '{"compile_sizes": [1]}'"""
        in (ROOT / "slurm/70b.sbatch").read_text()
    )


def test_jobs_are_predicted_before_they_are_measured(monkeypatch, capsys):
    """As docs/gpu.md has it: a job names neither a version nor, on one GPU, a pipeline."""
    jobs = ROOT / "benchmarks/gpu/jobs/new_models.json"
    monkeypatch.setattr("sys.argv", ["predict.py", str(jobs)])
    script("predict").main()
    predictions = json.loads(capsys.readouterr().out)
    assert list(predictions) == [job["name"] for job in json.loads(jobs.read_text())]
    assert predictions["70b-fp8-tp1"]["weights_gib_per_gpu"] == pytest.approx(67.7, abs=0.05)
