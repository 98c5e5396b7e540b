"""What the queue's answers mean, and what a job's files say, also where there is no SLURM."""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from stand_ins import stand_in

from workshop import timestamps
from workshop.cli import group
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.follow import Follower
from workshop.servers.records import ServerRecord, share
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm import status as slurm_status
from workshop.servers.slurm.job import job_file, job_start

ROOT = Path(__file__).parents[3]


# --- the queue


def test_queue_is_asked_squeue_first_then_sacct(bin_folder):
    stand_in(bin_folder, "squeue", 'echo "7|70b|RUNNING|None|n[1-2]|1:00|7:59:00|/w"')
    stand_in(bin_folder, "sacct", "echo '7|70b|CANCELLED by 5|None|n1|00:01:00|08:00:00|/w'")
    assert (
        slurm_queue.find("7").source,
        slurm_queue.find("7").state,
        slurm_queue.find("7").left,
    ) == (
        "squeue",
        "RUNNING",
        "7:59:00",
    )
    stand_in(
        bin_folder, "squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
    )
    job = slurm_queue.find("7")
    assert (job.source, job.state, job.active) == ("sacct", "CANCELLED", False)
    stand_in(bin_folder, "sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    assert slurm_queue.find("7") is None


def test_queue_that_does_not_answer_is_no_reason_to_call_a_job_dead(
    bin_folder, workshop_home, monkeypatch
):
    stand_in(
        bin_folder,
        "squeue",
        'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1',
    )
    record = ServerRecord(
        "big", "http://127.0.0.1:1/v1", "m", "k", where="slurm", job_id="7", state="ready"
    )
    assert records.checked(record).state == "ready"
    monkeypatch.setattr(slurm_queue, "TIMEOUT_S", 0.3)
    stand_in(bin_folder, "squeue", "exec sleep 30")
    assert records.checked(record).state == "ready"


def test_record_of_an_ended_job_is_failed_unless_something_listens_there(bin_folder, workshop_home):
    stand_in(bin_folder, "squeue", 'echo "7|70b|TIMEOUT|TimeLimit|n1|1:00|0:00|/w"')
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        record = ServerRecord(
            "big",
            url,
            "m",
            "k",
            where="slurm",
            job_id="7",
            state="ready",
            started=timestamps.now("milliseconds"),
        )
        assert records.checked(record).state == "ready", "some clusters hide other people's jobs"
    checked = records.checked(record)
    assert (checked.state, checked.reason) == ("failed", "its SLURM job 7 reached its time limit")


def test_a_task_of_an_array_is_a_job_of_its_own(workshop_home, monkeypatch):
    """SLURM gives one of an array's tasks the array's own number: `scancel 7` there ends all of them."""
    assert slurm_status.job_of("7_2") == ("7_2", "")
    for variable, value in {"JOB_ID": "7", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "2"}.items():
        monkeypatch.setenv(f"SLURM_{variable}", value)
    assert job_file.own_job() == "7_2"
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert job_file.own_job() == "7"


def test_a_name_means_the_one_job_that_waits_under_it(workshop_home, monkeypatch):
    jobs = [
        ServerRecord("70b", "", "m", "", where="slurm", job_id=number, cluster="alpha")
        for number in ("7", "8")
    ]
    monkeypatch.setattr(records, "waiting", lambda: jobs[:1])
    assert slurm_status.job_of("70b") == ("7", "alpha") and slurm_status.job_of("8b") is None
    monkeypatch.setattr(records, "waiting", lambda: jobs)
    with pytest.raises(WorkshopError, match="2 jobs are called '70b': 7, 8"):
        slurm_status.job_of("70b")


# --- status and logs on recorded logs: the same code where there is no SLURM


def recorded(tmp_path: Path, name: str, job: str = "9") -> Path:
    folder = tmp_path / f"x_{job}"
    folder.mkdir()
    shutil.copy(ROOT / "workshop/data/logs" / name, folder / f"output_{job}.out")
    (folder / f"error_{job}.out").write_text("")
    return folder


def test_status_of_a_job_that_slurm_forgot_reads_its_files(tmp_path, workshop_home, monkeypatch):
    recorded(tmp_path, "llama-3.1-70b_tp4_h200.log")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_queue, "available", lambda: False)
    now = slurm_status.status("9")
    assert now.state == "UNKNOWN" and now.output.endswith("output_9.out") and not now.error
    with pytest.raises(WorkshopError, match="Nothing is known about job 10"):
        slurm_status.status("10")


def test_status_gives_the_first_real_error_and_its_remedy(tmp_path, workshop_home, monkeypatch):
    recorded(tmp_path, "failures/port_taken.log")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_queue, "available", lambda: False)
    now = slurm_status.status("9")
    assert "port" in now.error.lower() and now.remedy


@pytest.mark.parametrize(
    ("state", "file", "text", "exit_code", "message"),
    [
        (
            "COMPLETED",
            "x_9/output_9.out",
            "ended: done: every prompt is answered",
            0,
            "100% done: every prompt",
        ),
        (
            "FAILED",
            "x_9.out",
            "refused: There is no slurm/job.sh.",
            1,
            "✗ There is no slurm/job.sh.",
        ),
        ("FAILED", "x_9.out", "site.sh: syntax error", 1, "✗ the job has failed\nIts words: "),
        ("CANCELLED", "other", "", 1, "✗ the job was cancelled\n"),
    ],
)
def test_a_job_that_has_ended_says_how(
    bin_folder, tmp_path, workshop_home, state, file, text, exit_code, message
):
    stand_in(bin_folder, "squeue", f'echo "9|x|{state}|None|n1|1:00|7:59:00|{tmp_path}"')
    (tmp_path / "x_9").mkdir()
    (tmp_path / file).write_text(f"[workshop] {text}\n")
    for line, code in ((["servers", "9"], 0), (["logs", "9", "--follow"], exit_code)):
        done = CliRunner().invoke(group, line)
        assert done.exit_code == code and message in done.output, done.output


def test_two_files_are_read_as_one_and_lines_are_not_cut(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    follower = Follower([err, out])
    out.write_text("0: INFO 11-20 10:00:00 [api_server.py:1] vLLM API server ver")
    err.write_text(
        "0: Loading safetensors checkpoint shards:  10% Completed | 3/30 [00:01<00:10,  2.0it/s]\n"
    )
    follower.read()
    with out.open("a") as file:
        file.write("sion 0.25.1\n")
    follower.read()
    assert follower.reader.log.version == "0.25.1"
    assert (follower.reader.log.shards_loaded, follower.reader.log.shards_total) == (3, 30)
    assert "3 of 30 shards" in follower.reader.message


def test_a_bar_counts_while_it_is_drawn_and_no_character_is_cut(tmp_path):
    log = tmp_path / "log"
    bar = "Loading safetensors checkpoint shards:  10% Completed | 3/30 [00:01<00:10,  2.0it/s]"
    end = "ValueError: 6 is too small for Größe\n".encode()
    follower = Follower([log])
    log.write_bytes(f"\r{bar}".encode())
    follower.read()
    assert "3 of 30 shards" in follower.progress.message
    log.write_bytes(log.read_bytes() + b"\n" + end[:-5])
    follower.read()
    with log.open("ab") as file:
        file.write(end[-5:])
    follower.read()
    assert "Größe" in follower.reader.error.what


def test_json_of_status_is_plain(tmp_path, workshop_home, monkeypatch):
    recorded(tmp_path, "llama-3.1-405b-fp8_tp4_h200.log")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_queue, "available", lambda: False)
    done = CliRunner().invoke(group, ["servers", "9", "--json"])
    assert json.loads(done.output)[0]["job"]["job_id"] == "9"


# --- a job that starts again


def test_what_stands_before_the_last_start_does_not_count(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("[workshop] start 1 of job 7: 70b\n")
    err.write_text(
        "[workshop] start 1 of job 7\nRuntimeError: CUDA error: out of memory\n[workshop] refused: old\n"
    )
    follower = Follower([err, out])
    follower.read()
    assert follower.refusal()[0] == "old"
    for path in (err, out):
        with path.open("a") as file:
            file.write(f"[workshop] ended: {slurm_queue.waits_again('7', 'preempted')}\n")
    follower.read()
    assert follower.refusal() is None and follower.reader.error is None, (
        "it comes back: that is no end"
    )
    for path in (err, out):
        with path.open("a") as file:
            file.write(
                "[workshop] start 2 of job 7\n0: INFO 11-20 10:00:00 [api.py:1] vLLM API server version 0.25.1\n"
            )
    follower.read()
    assert follower.refusal() is None and follower.reader.error is None
    assert follower.reader.log.version == "0.25.1"
    late = Follower([err, out])
    late.read()
    assert late.refusal() is None and late.reader.log.version == "0.25.1"


def test_job_that_starts_again_keeps_name_and_key_and_the_class_learns_its_address(
    workshop_home, tmp_path
):
    first = ServerRecord(
        "70b", "http://n1:20000/v1", "m", "key-1", where="slurm", job_id="7", state="starting"
    )
    records.write(first)
    again = job_start._claimed(replace(first, url="http://n2:20008/v1", api_key="key-2"))
    assert (again.name, again.api_key, again.url) == ("70b", "key-1", "http://n2:20008/v1")
    copy = tmp_path / "70b.json"
    copy.write_text("{}")
    records.path_of("70b", ".shared").write_text(json.dumps([str(copy)]))
    share.renew(again)
    assert (
        json.loads(copy.read_text())["url"] == "http://n2:20008/v1"
        and copy.stat().st_mode & 0o777 == 0o640
    )


def test_ready_server_whose_job_waits_again_is_starting(bin_folder, workshop_home):
    stand_in(bin_folder, "squeue", 'echo "7|70b|PENDING|BeginTime|||8:00:00|/w"')
    record = ServerRecord(
        "70b", "http://127.0.0.1:1/v1", "m", "k", where="slurm", job_id="7", state="ready"
    )
    checked = records.checked(record)
    assert (checked.state, checked.reason) == (
        "starting",
        "its SLURM job 7 waits in the queue again (BeginTime)",
    )
