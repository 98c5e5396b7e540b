"""The supervisor of a job, with a shell that says what a test lets it say: no SLURM, no vLLM."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest
import small_server

from workshop.engine.reconcile import learned
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.slurm.job import job_file, job_start
from workshop.servers.slurm.job import supervisor as slurm_job
from workshop.servers.slurm.job.job_end import End
from workshop.servers.slurm.job.job_start import Task
from workshop.servers.slurm.job.supervisor import Shell, Supervisor

SERVE = ["/models/Llama", "--tensor-parallel-size", "4", "--pipeline-parallel-size", "1"]
SRUN = ["srun", "--label", "bash", "node.sh", "vllm", "serve", *SERVE]
LOGS = Path(__file__).parents[3] / "workshop" / "data" / "logs"
LISTENS = (
    "import pathlib, signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75)); "
    "pathlib.Path(sys.argv[1]).touch(); signal.alarm(30); signal.pause()"
)


class Spoken(Shell):
    """slurm/job.sh with a SLURM that answers nothing; keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__(io.StringIO(), io.StringIO(), Path(os.devnull))
        assert self.next() is None  # the end of the empty file
        self.asked: list[str] = []

    def start(self) -> None:
        self.asked.append("start")

    def run(self, *command: str) -> tuple[int, str]:
        self.asked.append(" ".join(command))
        if command[0] == "scancel" and "--signal=TERM" in command:
            self.put("engine", "0")
        return 0, ""


@pytest.fixture
def shell(tmp_path, monkeypatch, workshop_home) -> Spoken:
    """A job of one node with four GPUs; its server is announced as usual, and ready when a test says so."""
    folder = tmp_path / "one_7"
    folder.mkdir()
    for name in ("output", "error"):
        (folder / f"{name}_7.out").touch()
    for name, value in {
        "JOB_ID": "7",
        "JOB_NAME": "one",
        "NNODES": "1",
        "JOB_NODELIST": "n1",
        "CLUSTER_NAME": "here",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("WORKSHOP_JOB", str(folder / "job_7.json"))
    monkeypatch.setenv("WORKSHOP_SLURM", str(tmp_path))
    monkeypatch.setattr(job_start.machine, "own_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(slurm_job, "CANCELLED_S", 0.0)
    monkeypatch.setattr(slurm_job, "TOLD_S", 0.1)
    return Spoken()


def never_ready(monkeypatch) -> None:
    monkeypatch.setattr(job_start, "watch", lambda record, task, over: over.wait())


def ready(monkeypatch, batch: list[str]) -> None:
    """Let the server be ready at once, and the batch be another program."""
    monkeypatch.setattr(job_start, "watch", lambda record, task, over: None)
    monkeypatch.setattr(job_start, "_check_batch", lambda arguments: None)
    monkeypatch.setattr(job_start, "batch_command", lambda arguments: batch)


def record(name: str = "one") -> dict | None:
    path = records.path_of(name)
    return json.loads(path.read_text()) if path.exists() else None


def say_once_there(shell: Shell, path: Path, kind: str, value: str) -> None:
    """Put a message as soon as a file is there."""

    def wait() -> None:
        slurm_job.time.sleep(0)
        while not path.exists():
            slurm_job.time.sleep(0.05)
        shell.put(kind, value)

    threading.Thread(target=wait, daemon=True).start()


def test_a_server_whose_engine_ends_has_failed_and_says_so_last_in_both_files(
    shell, monkeypatch, capfd
):
    never_ready(monkeypatch)
    shell.put("engine", "137")
    assert Supervisor(Task(4, 0.0, SRUN, []), shell).run() == 137
    assert record()["state"] == "failed" and "exit code 137" in record()["reason"]
    out, err = capfd.readouterr()
    for text in (out, err):
        assert text.splitlines()[-2].startswith("[workshop] ended: the engine ended by itself")
    assert [command for command in shell.asked if command.startswith("srun --overlap")]
    assert not job_file.path().exists()


def test_a_cancelled_job_whose_engine_ends_first_is_cancelled(shell, monkeypatch, capfd):
    never_ready(monkeypatch)
    shell.put("engine", "143")
    shell.put("signal", "TERM")
    assert Supervisor(Task(4, 0.0, SRUN, []), shell).run() == 143
    assert record() is None
    assert capfd.readouterr().err.endswith("ended: cancelled: the job was told to end\n")


def test_the_record_of_a_traced_server_names_the_trace(shell, monkeypatch):
    never_ready(monkeypatch)
    shell.put("engine", "1")
    traced = [*SRUN, "--scheduler-cls", "workshop.engine.trace_writer.traced"]
    Supervisor(Task(4, 0.0, traced, []), shell).run()
    assert record()["trace"] == str(job_file.path().with_suffix(".trace.jsonl"))


def test_a_job_that_is_cancelled_before_its_server_is_ready_says_so_and_leaves_no_record(
    shell, monkeypatch, capfd
):
    never_ready(monkeypatch)
    shell.put("signal", "TERM")
    assert Supervisor(Task(4, 0.0, SRUN, []), shell).run() == 143
    assert record() is None
    assert capfd.readouterr().err.endswith("ended: cancelled: the job was told to end\n")


def test_a_job_keeps_what_its_start_measured(shell, monkeypatch, capfd):
    task = Task(4, 0.0, SRUN, [])
    log = LOGS / "llama-3.1-8b_vllm-0.32.0_h100.log"
    gpu = "[workshop] GPUs: 1 × NVIDIA H100 80GB HBM3, 79.2 GiB each\n"
    task.output.write_text(gpu + log.read_text())
    monkeypatch.setattr(job_start.slurm_queue, "listens", lambda url: True)
    monkeypatch.setattr(job_start, "answers", lambda record: True)
    server_record = small_server.record("one", job_id="7")
    job_start.watch(server_record, task, threading.Event())
    assert record("one")["state"] == "ready"
    (file,) = learned.files()
    assert learned.parse(file.read_bytes()).run["gpu"] == "h100"


def test_a_time_limit_ends_the_engine_first(shell, monkeypatch):
    never_ready(monkeypatch)
    shell.put("signal", "USR1")
    assert Supervisor(Task(4, 0.0, SRUN, []), shell).run() == 124
    assert record()["reason"] == "the job's time limit is reached"
    assert "scancel --quiet --signal=TERM 7.0" in shell.asked


def test_a_batch_in_a_job_ends_with_its_engine(shell, monkeypatch, tmp_path):
    there = tmp_path / "there"
    ready(monkeypatch, [sys.executable, "-c", LISTENS, str(there)])
    say_once_there(shell, there, "engine", "137")
    assert Supervisor(Task(4, 0.0, SRUN, ["workshop", "batch"]), shell).run() == 75
    assert record("one_7")["state"] == "failed"
    assert not [command for command in shell.asked if "requeue" in command]


@pytest.mark.parametrize("command", [["sleep", "60"], [sys.executable, "-c", LISTENS]])
def test_a_batch_that_is_told_to_stop_goes_back_into_the_queue(
    shell, monkeypatch, tmp_path, command
):
    """Also one that does not listen yet: the signal ends it."""
    there = tmp_path / "there"
    ready(monkeypatch, [*command, str(there)] if "-c" in command else command)
    begun = slurm_job.subprocess.Popen

    def popen(*arguments, **options):
        process = begun(*arguments, **options)
        if "-c" in command:
            say_once_there(shell, there, "signal", "USR1")
        else:
            shell.put("signal", "USR1")
        return process

    monkeypatch.setattr(slurm_job.subprocess, "Popen", popen)
    assert Supervisor(Task(4, 0.0, SRUN, ["workshop", "batch"]), shell).run() == 75
    assert "scontrol requeue 7" in shell.asked
    assert record("one_7")["state"] == "starting"


def test_a_batch_that_is_done_leaves_no_record(shell, monkeypatch, capfd):
    ready(monkeypatch, ["true"])
    assert Supervisor(Task(4, 0.0, SRUN, ["workshop", "batch"]), shell).run() == 0
    assert record("one_7") is None and "ended: done" in capfd.readouterr().err


def test_what_cannot_work_is_refused_before_a_server_is_announced(shell, capfd, subtests):
    for gpus, model, message in [
        (2, "/models/Llama", "TP 4 × PP 1 needs 4 GPUs, and the job has 1 × 2."),
        (0, "/models/Llama", "Neither SLURM nor the driver says"),
        (4, "", "WORKSHOP_MODELS is not set"),
    ]:
        with subtests.test(str(gpus)):
            command = [word if word != "/models/Llama" else model for word in SRUN]
            assert Supervisor(Task(gpus, 0.0, command, []), shell).run() == 3
            assert f"[workshop] ended: {message}" in capfd.readouterr().out
            assert record() is None and "start" not in shell.asked


def test_shards_that_are_none_are_refused(monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "0")
    monkeypatch.setenv("SLURM_ARRAY_TASK_MAX", "1")
    with pytest.raises(WorkshopError, match="no shards of 2") as error:
        job_start._check_batch(["batch", "a", "b", "--shard", "0/2"])
    assert "--array=1-2" in error.value.remedy


def test_the_task_is_read_from_what_the_shell_hands_over():
    task = job_start.task_of(["4", "75", "2", "workshop", "batch", *SRUN])
    assert (task.gpus_per_node, task.min_gpu_gib, task.batch) == (4, 75.0, ["workshop", "batch"])
    assert task.serve == SERVE and job_start.sizes(task.serve) == (4, 1)


def test_a_server_is_called_by_its_model():
    for model, flags, name in [
        ("/models/Llama", [], "Llama"),
        ("/hub/models--meta--Llama-3/snapshots/abc123", [], "Llama-3"),
        ("/models/Llama", ["--served-model-name", "mine"], "mine"),
        ("/models/Llama", ["--served-model-name=mine"], "mine"),
    ]:
        assert job_start.served_name([model, *flags]) == name, model


def test_the_shell_runs_a_command_and_messages_that_come_meanwhile_are_not_lost(tmp_path):
    answer = tmp_path / "answer"
    answer.write_text("n1\nn2\n")
    requests = io.StringIO()
    messages = io.StringIO("signal TERM\nanswer 0\nengine 3\n")
    shell = Shell(requests, messages, answer)
    assert shell.run("scontrol", "show", "hostnames", "n[1-2]") == (0, "n1\nn2")
    assert requests.getvalue() == "run\tscontrol\tshow\thostnames\tn[1-2]\n"
    assert [shell.next(), shell.next(), shell.next()] == [("signal", "TERM"), ("engine", "3"), None]


# --- its end, where its shell asks SLURM


def ended(shell: Spoken, cause: str, facts: str, refused: str = "") -> bool:
    """Write a job's end, with the words of `scontrol show job`; return whether a requeue was asked for."""
    records.write(small_server.record("one", where="slurm", job_id="7"))
    commands: list[tuple[str, ...]] = []

    def run(*command: str) -> tuple[int, str]:
        commands.append(command)
        if "requeue" in command:
            return (1 if refused else 0), refused
        return 0, facts

    shell.run = run
    supervisor = Supervisor(Task(4, 0.0, SRUN, []), shell)
    supervisor.record = records.path_of("one")
    supervisor._write_end(End(cause, 75))
    return any("requeue" in command for command in commands)


def test_the_shell_is_told_to_ask_for_the_requeue(shell, monkeypatch, tmp_path, capfd, subtests):
    monkeypatch.setenv("PATH", str(tmp_path))  # an image without SLURM's commands
    for cause, facts, why in [
        ("requeue", "Requeue=1 Restarts=0 PreemptTime=None", "its time limit was near"),
        ("requeue", "", "its time limit was near"),
        ("cancelled", "Requeue=1 Restarts=0 PreemptTime=2026-11-25T01:00:00", "preempted"),
        ("engine", "Requeue=1 Restarts=0 PreemptTime=2026-11-25T01:00:00", "preempted"),
    ]:
        with subtests.test(cause):
            assert ended(shell, cause, facts)
            reason = f"its SLURM job 7 waits in the queue again ({why})"
            assert capfd.readouterr().out == f"[workshop] ended: {reason}\n"
            assert (record()["state"], record()["reason"]) == ("starting", reason)
            refused = "Requested operation is presently disabled for job 7\nslurm_suspend error\n"
            assert ended(shell, cause, facts, refused)
            output = capfd.readouterr().out
            assert (
                "did not put job 7 back" in output
                and "presently disabled for job 7; slurm_suspend error" in output
            )
            assert (
                record()["state"] == "failed"
                and why in record()["reason"]
                and "waits" not in output
            )


def test_no_other_end_asks_for_a_requeue(shell, subtests):
    for cause, facts, state in [
        ("cancelled", "Requeue=1 Restarts=1 PreemptTime=None", "starting"),
        ("cancelled", "Requeue=1 Restarts=0 PreemptTime=None Reason=None", ""),
        ("cancelled", "Requeue=0 Restarts=0 PreemptTime=2026-11-25T01:00:00", "failed"),
        ("engine", "Requeue=1 Restarts=0 PreemptTime=None", "failed"),
        ("done", "Requeue=1 Restarts=0 PreemptTime=None", ""),
    ]:
        with subtests.test(cause):
            assert not ended(shell, cause, facts)
            assert (record()["state"] if record() else "") == state
