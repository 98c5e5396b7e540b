"""A job runs no code of the folder in which sbatch was called, nor of its caller's PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop import python_process
from workshop.servers.slurm import doctor

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def models(monkeypatch, tmp_path, workshop_home):
    monkeypatch.setenv("WORKSHOP_MODELS", str(tmp_path / "models"))


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Path:
    """Be in a folder with modules that nobody may run, and have a PYTHONPATH of another Python; returns their mark."""
    mark = tmp_path / "ran"
    folder = tmp_path / "anybody's"
    foreign = tmp_path / "foreign"
    for place, names in (
        (folder, ("json", "torch", "argparse", "workshop")),
        (foreign, ("re", "sitecustomize")),
    ):
        place.mkdir()
        for name in names:
            (place / f"{name}.py").write_text(
                f"open({str(mark)!r}, 'a').write(__file__)\nraise SystemExit(9)\n"
            )
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", f":{foreign}:.")
    monkeypatch.setenv("PYTHONHOME", str(foreign))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    (tmp_path / "site.sh").write_text(
        f"export WORKSHOP_MODELS=/nowhere WORKSHOP_SCRATCH={tmp_path}/scratch\n"
        f'workshop_environment() {{ python=("{sys.executable}"); export PYTHONPATH=".::$PYTHONPATH"; }}\n'
    )
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    monkeypatch.setenv("WORKSHOP_SLURM", str(ROOT / "slurm"))
    job = {
        "SUBMIT_DIR": folder,
        "JOB_ID": 7,
        "JOB_NAME": "x",
        "NNODES": 1,
        "NODEID": 0,
        "GPUS_ON_NODE": 1,
    }
    for name, value in {**job, "JOB_NODELIST": "n1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    return mark


def test_doctor_runs_no_python_of_the_current_folder(planted):
    check, *_ = doctor._environment({"WORKSHOP_ALLOW_CPU": "yes"}, os.environ["WORKSHOP_SITE"])
    assert not planted.exists() and check.found.startswith("vllm"), check


def test_what_a_job_starts_sees_the_package_alone(tmp_path):
    """A process of the job that starts Python itself passes on the links, and not the folder of the checkout."""
    (tmp_path / "workshop").symlink_to(ROOT / "workshop")
    (tmp_path / "inference_planner").symlink_to(ROOT / "planner" / "inference_planner")
    code = "from workshop import python_process as p; print(p.environment(python='other')['PYTHONPATH'])"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert set(done.stdout.strip().split(":")) == {str(tmp_path)}, done.stderr


def test_an_engine_of_python_3_10_is_given_no_flag_that_it_does_not_know(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    assert "-P" not in python_process.command("workshop.servers.slurm.job.fabric", "1")
