"""A job runs no code of the folder in which sbatch was called, nor of its caller's PYTHONPATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import stand_in

from workshop import python_process
from workshop.servers.host import machine
from workshop.servers.slurm import doctor
from workshop.servers.slurm.job.job_file import JobFile

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


def test_a_job_runs_no_python_of_the_folder_where_sbatch_was_called(planted, bin_folder):
    """Its own steps: the batch's check of its input, announce, and the end; srun starts nothing here."""
    stand_in(bin_folder, "srun", "exit 1")
    stand_in(bin_folder, "scontrol", "exit 1")
    stand_in(bin_folder, "scancel", "exit 0")
    Path("in.jsonl").write_text('{"prompt": "A"}\n')
    command = ["bash", ROOT / "slurm/70b-offline.sbatch", "in.jsonl", "out.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    log = Path("x_7/error_7.out").read_text()
    assert not planted.exists(), planted.read_text()
    assert done.returncode and "[workshop] ended: " in log and "Traceback" not in log, log
    assert "could not be written" not in log
    assert not Path("x_7/python").exists(), "the link to the package goes with the job"


def test_a_node_runs_no_python_of_the_folder_where_sbatch_was_called(
    planted, tmp_path, monkeypatch
):
    """node.sh: the checks before loading, which refuse this model."""
    package = tmp_path / "x_7/python"
    package.mkdir(parents=True)
    (package / "workshop").symlink_to(ROOT / "workshop")
    (package / "inference_planner").symlink_to(ROOT / "planner" / "inference_planner")
    monkeypatch.delenv("PYTHONHOME")  # job.sh has taken both out of the environment of its steps
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("WORKSHOP_JOB", str(tmp_path / "x_7/job_7.json"))
    JobFile(
        record="r",
        served="m",
        api_host="127.0.0.1",
        api_port=1,
        head_address="127.0.0.1",
        master_port=1,
        check_port=machine.free_port("127.0.0.1"),
        nodes=1,
        gpus_per_node=1,
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        min_gpu_gib=0,
    ).write()
    command = ["bash", ROOT / "slurm/node.sh", "vllm", "serve", "/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert not planted.exists(), planted.read_text()
    assert done.returncode == 3, done.stderr
    assert "[workshop] refused: " in (tmp_path / "x_7/job_7.reasons").read_text(), done.stderr
    assert not list((tmp_path / "scratch").iterdir())


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
