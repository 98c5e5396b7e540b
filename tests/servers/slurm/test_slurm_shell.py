"""A whole job without SLURM and vLLM: the .sbatch file, job.sh and the supervisor, with stand-ins for srun and scontrol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from needs import lacking
from stand_ins import stand_in

from workshop.servers.host import machine

ROOT = Path(__file__).parents[3]
ENGINE = ROOT / "tests/slurm/small/engine.py"
WITHIN_S = 120.0  # other tests run beside this one
SRUN = f"""
[[ "$*" != *--overlap* ]] || exit 0
echo $$ >"$SLURM_SUBMIT_DIR/engine"
exec "{sys.executable}" -I "{ENGINE}"
"""


@pytest.fixture
def job(tmp_path, monkeypatch, bin_folder, workshop_home):
    """Start a job by its script, in a shell of its own; every process of it is ended after the test."""
    if all(address.startswith("127.") for address in machine.interfaces().values()):
        lacking("this machine has no network interface")
    stand_in(bin_folder, "srun", SRUN)
    stand_in(bin_folder, "scancel", f'kill -s "${{2#--signal=}}" "$(cat {tmp_path}/engine)"')
    stand_in(bin_folder, "scontrol", f'echo "$*" >>{tmp_path}/asked; [[ "$*" != *hostnames* ]]')
    (tmp_path / "site.sh").write_text(
        f"export WORKSHOP_MODELS=/models WORKSHOP_SCRATCH={tmp_path}\n"
        f'workshop_environment() {{ python=("{sys.executable}"); }}\n'
    )
    (tmp_path / "prompts.jsonl").write_text('{"custom_id": "a", "prompt": "A"}\n')
    for name, value in {"SITE": tmp_path / "site.sh", "SLURM": ROOT / "slurm"}.items():
        monkeypatch.setenv(f"WORKSHOP_{name}", str(value))
    for name, value in {
        "SUBMIT_DIR": tmp_path,
        "JOB_ID": 7,
        "JOB_NAME": "one",
        "NNODES": 1,
        "GPUS_ON_NODE": 4,
        "JOB_NODELIST": "n1",
        "CLUSTER_NAME": "here",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    begun: list[subprocess.Popen] = []

    def start(script: str, *arguments: str) -> subprocess.Popen:
        command = ["bash", str(ROOT / "slurm" / script), *arguments]
        begun.append(subprocess.Popen(command, cwd=tmp_path, start_new_session=True))
        until("[workshop] ready after", tmp_path / "one_7/output_7.out")
        return begun[0]

    yield start
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def until(text: str, path: Path) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, path.read_text() if path.exists() else path
        time.sleep(0.1)


def files(folder: Path) -> tuple[str, str]:
    """Return what the job's output and error files say."""
    return tuple((folder / f"one_7/{name}_7.out").read_text() for name in ("output", "error"))


def test_a_server_that_is_cancelled_says_so_and_leaves_nothing(job, tmp_path, workshop_home):
    process = job("70b.sbatch")
    record = workshop_home / "servers/one.json"
    assert json.loads(record.read_text())["state"] == "ready"
    process.send_signal(signal.SIGTERM)
    os.kill(int((tmp_path / "engine").read_text()), signal.SIGTERM)  # as SLURM tells every step
    assert process.wait(WITHIN_S) == 143
    for text in files(tmp_path):
        assert text.endswith("[workshop] ended: cancelled: the job was told to end\n"), text
    assert not record.exists()
    assert {path.name for path in (tmp_path / "one_7").iterdir()} == {
        "output_7.out",
        "error_7.out",
    }


def test_an_engine_that_dies_ends_the_job_with_its_exit_code(job, tmp_path, workshop_home):
    process = job("70b.sbatch")
    os.kill(int((tmp_path / "engine").read_text()), signal.SIGKILL)
    assert process.wait(WITHIN_S) == 137
    assert json.loads((workshop_home / "servers/one.json").read_text())["state"] == "failed"
    for text in files(tmp_path):
        assert text.splitlines()[-1].startswith("[workshop] remedy: "), text


def test_a_time_limit_ends_a_server_in_order(job, tmp_path, workshop_home):
    process = job("70b.sbatch")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(WITHIN_S) == 124
    record = json.loads((workshop_home / "servers/one.json").read_text())
    assert record["reason"] == "the job's time limit is reached"


def test_a_batch_whose_time_is_over_asks_for_the_requeue(job, tmp_path, workshop_home):
    process = job("70b-offline.sbatch", "prompts.jsonl", "answers.jsonl")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(WITHIN_S) == 75, files(tmp_path)
    assert "requeue 7" in (tmp_path / "asked").read_text().splitlines()
    reason = "its SLURM job 7 waits in the queue again (its time limit was near)"
    record = json.loads((workshop_home / "servers/one_7.json").read_text())
    assert (record["state"], record["reason"]) == ("starting", reason)
    for text in files(tmp_path):
        assert text.endswith(f"[workshop] ended: {reason}\n"), text
