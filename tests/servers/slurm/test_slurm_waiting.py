"""Jobs that wait, never start or are suspended: refused at submit, listed, stopped and told of in SLURM's words."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from stand_ins import downloaded, stand_in

from workshop import cli, install_words, timestamps
from workshop.client import reach
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import doctor, options, reasons, site
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.submit import submission as slurm

# squeue of 22.05, as the test bed of tests/slurm prints it
SINFO = (
    "gpu*|1|gpu:h100:4|h100,ib|up|infinite|1-infinite|1000000|64|idle\n"
    "gpu*|1|gpu:h100:4|h100,ib|up|infinite|1-infinite|500000|64|drain\n"
    "old|4|gpu:4|(null)|up|1:00:00|1|500000|32|idle\n"
    "mixed|2|gpu:h100:4|(null)|up|infinite|1-infinite|1|1|idle\n"
    "mixed|2|gpu:a100:4|(null)|up|infinite|1-infinite|1|1|idle\n"
)


@pytest.fixture
def cluster(bin_folder, tmp_path, monkeypatch, workshop_home) -> Path:
    """A login node where sbatch accepts job 7, and no job is in the queue. Returns the folder of its commands."""
    monkeypatch.setenv("WORKSHOP_MODELS", str(downloaded(tmp_path / "models")))
    for name in ("WORKSHOP_SITE", "SLURM_CLUSTERS", "WORKSHOP_URL", "WORKSHOP_SHARED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_queue, "FIRST_ANSWER_S", 0.2)
    (tmp_path / "sinfo").write_text(SINFO)
    stand_in(bin_folder, "sinfo", f"cat {tmp_path}/sinfo")
    stand_in(bin_folder, "sbatch", f"touch {tmp_path}/submitted; echo 7")
    stand_in(bin_folder, "scancel", f'echo "$@" >>{tmp_path}/cancelled')
    stand_in(bin_folder, "scontrol", "exit 1")
    queue(bin_folder)
    return bin_folder


def queue(folder: Path, *rows: str, facts: str = "") -> None:
    """Let squeue print these rows, and scontrol these fields of any job."""
    stand_in(folder, "squeue", "\n".join(["true", *(f"echo {shlex.quote(row)}" for row in rows)]))
    if facts:
        stand_in(folder, "scontrol", f'[ "$2" = show ] && echo "JobId=7 {facts}"')


def waiting(reason: str, number: str = "7", name: str = "70b") -> str:
    return f"{number}|{name}|PENDING|{reason}||0:00|8:00:00|/w"


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.group, list(arguments))
    error = done.exception
    message = f"{error.message} {error.remedy}" if isinstance(error, WorkshopError) else ""
    return getattr(error, "exit_code", done.exit_code), done.output + message


def cancelled(tmp_path: Path) -> list[str]:
    path = tmp_path / "cancelled"
    return path.read_text().split() if path.exists() else []


# --- what is refused at submit


def test_a_model_that_is_not_there_or_not_whole_is_refused_with_its_folder(cluster, tmp_path):
    folder = tmp_path / "models/Llama-3.1-70B-Instruct"
    submitted = tmp_path / "submitted"
    config = (folder / "config.json").read_text()
    index = '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    half = {"config.json": config, "model.safetensors.index.json": index, "1.safetensors": "x"}
    for files, message in (
        ({}, f"There is no model in {folder}: it has no config.json."),
        ({"config.json": config}, f"The model in {folder} has no weights."),
        (half, f"The model in {folder} lacks 1 of its files, 2.safetensors first."),
    ):
        for path in folder.iterdir():
            path.unlink()
        for name, text in files.items():
            (folder / name).write_text(text)
        code, output = run("slurm", "submit", "70b")
        assert code == 1 and message in output and "--anyway" in output
        assert not submitted.exists(), message
        code, output = run("slurm", "submit", "70b", "--anyway")
        assert code == 0 and "✓ job 7" in output and submitted.exists(), message
        submitted.unlink()


def test_gpus_that_the_plan_does_not_have_are_sent_on_demand_alone(cluster, tmp_path):
    for spelling in ("--gpus=8", "-G8", "--gres=gpu:h100:2", "--gpus-per-task=1"):
        code, output = run("slurm", "submit", "70b", spelling)
        option = spelling.replace("-G8", "--gpus=8")
        assert code == 2 and f"{option} contradicts the plan, which has 4" in output, option
        assert "--gpus-per-node N" in output and not (tmp_path / "submitted").exists(), option
    for sent in (["--gres=lscratch:100"], ["--gres=gpu:4"], ["-G4"], ["-G8", "--anyway"]):
        assert run("slurm", "submit", "70b", *sent)[0] == 0, sent


def test_an_option_that_says_the_same_in_another_way_takes_the_script_s_line_away(
    cluster, subtests
):
    """sbatch refuses --mem-per-gpu beside --mem, and adds --gres to --gpus-per-node."""
    for option in ["--gpus=4", "--gres=gpu:4", "--mem-per-gpu=40G", "--cpus-per-gpu=4"]:
        with subtests.test(option):
            made = slurm.prepare(slurm.SubmitRequest("70b", sbatch_args=(option,), anyway=True))
            names = {line.name for line in options.in_script(made.script.read_text())}
            name = option[2:].split("=")[0]
            groups = [group for group in site.ONE_OF if name in group]
            assert groups and not groups[0] & names


def test_a_job_that_slurm_would_never_start_is_taken_back(cluster, tmp_path):
    queue(cluster, waiting("PartitionNodeLimit"))
    code, output = run("slurm", "submit", "70b", "--nodes=1")
    assert code == 1 and "this will never start: its number of nodes" in output
    assert "The partition gpu is up and has 2 nodes" in output and "--anyway" in output
    assert cancelled(tmp_path) == ["7"]
    code, output = run("slurm", "submit", "70b", "--nodes=1", "--anyway")
    assert code == 0 and "✓ job 7" in output and "this will never start" in output
    assert cancelled(tmp_path) == ["7"]


def test_a_first_look_that_stays_is_a_limit_where_all_nodes_are_up(cluster, tmp_path, subtests):
    """PartitionConfig is what SLURM 22.05 says until its scheduler knows more: of a limit, and of nodes that are down."""
    for state, refused in [("idle", True), ("down*", False), ("drain", False)]:
        with subtests.test(state):
            (tmp_path / "sinfo").write_text(
                f"gpu*|2|gpu:h100:4|h|up|infinite|1-infinite|1|64|{state}\n"
            )
            queue(cluster, waiting("PartitionConfig"))
            (tmp_path / "cancelled").unlink(missing_ok=True)
            code, output = run("slurm", "submit", "70b")
            assert (code, cancelled(tmp_path)) == ((1, ["7"]) if refused else (0, []))
            assert "this will never start as the partition is now" in output


def test_the_reason_of_one_of_several_partitions_is_not_the_job_s(cluster, tmp_path):
    queue(cluster, waiting("PartitionTimeLimit"), facts="Partition=short,gpu StartTime=Unknown")
    code, output = run("slurm", "submit", "70b", "-p", "short,gpu")
    assert code == 0 and "never" not in output and not cancelled(tmp_path)


def test_a_job_whose_reason_passes_or_was_wanted_stays(cluster, tmp_path, subtests):
    for reason in ["Resources", "Priority", "BeginTime", "Dependency", "None", "JobHeldUser"]:
        with subtests.test(reason):
            queue(cluster, waiting(reason))
            code, output = run("slurm", "submit", "70b")
            assert code == 0 and "✓ job 7" in output and not cancelled(tmp_path)
            assert ("scontrol release 7" in output) == (reason == "JobHeldUser")


def test_a_refusal_of_sbatch_says_what_the_partition_has(cluster, subtests):
    for arguments, described in [
        ((), "The partition gpu is up and has 2 nodes: 1 (idle) with 64 processors"),
        (
            ("-p", "old"),
            "The partition old is up and has 4 nodes, 1 for a job, for at most 1:00:00: 4 (idle)",
        ),
        (("--partition=none",), "The partitions here are gpu, old, mixed."),
    ]:
        with subtests.test(str(arguments)):
            message = "Batch job submission failed: Requested node configuration is not available"
            stand_in(cluster, "sbatch", f'echo "sbatch: error: {message}" >&2; exit 1')
            code, output = run("slurm", "submit", "70b", *arguments)
            assert code == 1 and message in output and described in output


# --- reasons that do not pass


def test_the_reasons_of_slurm_are_told_apart():
    """slurm.schedmd.com/job_reason_codes.html: limits of one job never pass, those of all jobs do with them."""
    of_request = {
        "PartitionNodeLimit": "number of nodes",
        "PartitionTimeLimit": "time limit",
        "PartitionDown": "partition is down",
        "MaxMemPerLimit": "more memory",
        "BadConstraints": "no nodes satisfy",
        "Job's account not known, so it can't use this partition (gpu allows lab)": "account",
        "QOSMaxNodePerJobLimit": "more than one job of this account or QOS",
        "AssocMaxGRESPerJob": "more than one job of this account or QOS",
        "AssocMaxMemPerNode": "more than one job",
        "QOSMaxWallDurationPerJobLimit": "more than one job",
        "QOSMinGRES": "less than a job",
        "QOSNotAllowed": "QOS",
        "InvalidQOS": "QOS",
    }
    for reason, never in of_request.items():
        obstacle = reasons.obstacle(reason)
        assert obstacle.of_request and never in obstacle.never, reason
    by_others = "AssocMaxJobsLimit QOSMaxJobsPerUserLimit QOSGrpGRES AssocGrpCPUMinutesLimit MaxGRESPerAccount"
    by_others += " AssocGrpCPURunMinutesLimit QOSMaxGRESPerUser JobHeldAdmin JobHoldMaxRequeue QOSResourceLimit"
    for reason in [*by_others.split(), "ReqNodeNotAvail, UnavailableNodes:n[1-2]"]:
        assert not reasons.obstacle(reason).of_request, reason
    for reason in ("AssocGrpGRESMinutes", "QOSGrpCPUMinutesLimit"):
        assert "used up" in reasons.obstacle(reason).never
    assert "used up" not in reasons.obstacle("AssocGrpGRESRunMinutes").never
    passing = (
        "Resources Priority BeginTime Dependency Licenses Reservation JobArrayTaskLimit Prolog"
    )
    for reason in passing.split():
        assert reasons.obstacle(reason) is None, reason


def test_status_and_the_watch_tell_what_a_job_waits_for(cluster, subtests):
    for reason, code, message in [
        ("PartitionNodeLimit", 1, "✗ this will never start: its number of nodes"),
        (
            "JobHeldUser",
            0,
            "this will never start until its hold is released (JobHeldUser)\n→ Release it",
        ),
        (
            "Resources",
            0,
            "waits in the queue (Resources); SLURM expects its start at 2026-11-28 09:05",
        ),
    ]:
        with subtests.test(reason):
            queue(cluster, waiting(reason), facts="StartTime=2026-11-28T09:05:13")
            done = run("servers", "7")
            assert done[0] == 0 and message in done[1]
            if code:  # any other is watched on
                done = run("logs", "7", "--follow")
                assert done[0] == code and message in done[1]


# --- a job that has no record yet


def test_a_waiting_job_is_listed_and_stopped_by_name_or_number(cluster, tmp_path):
    for number in ("7", "8", "9"):
        slurm_queue.remember(number, "")
    queue(
        cluster,
        waiting("Resources"),
        waiting("PartitionDown", "8", "big"),
        waiting("Priority", "11", "foreign"),
        facts="StartTime=2026-11-28T09:05:13",
    )
    code, output = run("servers")
    assert code == 0 and "foreign" not in output, "not submitted by the workshop"
    expected = r"waits in the queue \(Resources\); SLURM expects its start at 2026-11-28 09:05"
    assert re.search(f"… 70b +{expected}", output) and "workshop stop 7" in output
    assert re.search(r"big +this will never start while the partition is down", output)
    states = {entry["name"]: entry["state"] for entry in json.loads(run("servers", "--json")[1])}
    assert states == {"70b": "waiting", "big": "waiting"}
    assert "workshop stop 70b" in run("stop")[1]
    assert run("stop", "foreign")[0] == run("stop", "11")[0] == 1 and not cancelled(tmp_path)
    code, output = run("stop", "70b")
    assert code == 0 and "job 7 is cancelled" in output and cancelled(tmp_path) == ["7"]
    assert run("stop", "8")[0] == 0 and cancelled(tmp_path) == ["7", "8"]


def test_two_waiting_jobs_of_one_name_are_told_apart_by_their_numbers(cluster, tmp_path):
    for number in ("7", "8"):
        slurm_queue.remember(number, "")
    queue(cluster, waiting("Resources"), waiting("Resources", "8"))
    code, output = run("stop", "70b")
    assert code == 1 and "7, 8" in output and not cancelled(tmp_path)
    assert run("stop", "8")[0] == 0 and cancelled(tmp_path) == ["8"]


def write_server() -> None:
    record = ServerRecord("web", "http://127.0.0.1:1/v1", "m", "k", where="slurm", job_id="7")
    records.write(replace(record, state="ready", started=timestamps.now("milliseconds")))


def test_a_job_with_a_record_is_listed_once(cluster):
    slurm_queue.remember("7", "")
    write_server()
    queue(cluster, "7|web|RUNNING|None|n1|1:00|7:59:00|/w")
    assert run("servers")[1].count("web ") == 1


# --- suspended


def test_a_suspended_job_is_not_ready(cluster):
    write_server()
    before = records.path_of("web").read_bytes()
    row = "7|web|SUSPENDED|None|n1|1:00|7:59:00|/w"
    queue(cluster, row, facts="JobState=SUSPENDED SuspendTime=2026-11-28T08:05:19")
    since = "suspended by SLURM since 2026-11-28 08:05"
    output = run("servers")[1]
    assert since in output and "✓" not in output and "ready" not in output
    (entry,) = json.loads(run("servers", "--json")[1])
    assert entry["state"] == "suspended" and since in entry["reason"]
    output = run("servers", "7")[1]
    assert since in output and "✓" not in output
    for name in (None, "web"):
        with pytest.raises(WorkshopError, match=since):
            reach.ready_server(name)
    assert records.path_of("web").read_bytes() == before, "it goes on, as ready"
    queue(cluster, row.replace("SUSPENDED", "RUNNING"))
    assert "suspended" not in run("servers")[1]


# --- GPUs that nobody names


def test_a_plan_for_gpus_that_nobody_names_says_so(cluster, subtests):
    for arguments, gpu, why in [
        ((), "h100", ""),
        (("-p", "old"), "h100", "SLURM does not name the GPUs of the partition old."),
        (("-p", "mixed"), "h100", "SLURM names several GPUs in mixed: a100, h100."),
        (("-p", "old", "--gpu", "h200"), "h200", ""),
    ]:
        with subtests.test(str(arguments)):
            for extra in (("--dry-run",), ()):
                output = run("slurm", "submit", "70b", *arguments, *extra)[1]
                assert f"4 × {gpu}," in output
                assert ("Assumed: h100" in output) == bool(why) and why in output
                assert not why or "Set WORKSHOP_GPU in" in output


def test_the_one_type_of_a_partition_is_planned_with(cluster, tmp_path):
    (tmp_path / "sinfo").write_text(SINFO.replace("gpu:h100:4", "gpu:nvidia_a100-sxm4-80gb:4"))
    output = run("slurm", "submit", "70b", "--dry-run")[1]
    assert "4 × a100-80gb" in output and "Assumed" not in output


def test_doctor_says_that_plans_assume_a_gpu(cluster):
    def gpu_checks() -> list:
        return [check for check in doctor.examine() if check.name == "site.sh: GPUs"]

    assert not gpu_checks()
    own, _ = site.make_own_file()
    own.write_text(own.read_text().replace("SBATCH_PARTITION= ", "SBATCH_PARTITION=old "))
    (check,) = gpu_checks()
    assert "assume h100" in check.found and "partition old" in check.remedy


# --- remedies name a file that the reader can write


def test_a_remedy_names_the_site_file_that_its_reader_can_write(cluster, tmp_path, monkeypatch):
    text = "Set it in slurm/site.sh."
    assert site.adapted(text) == text
    with monkeypatch.context() as foreign:
        foreign.setattr(site.os, "access", lambda path, mode: False)
        assert "`workshop slurm site` makes it" in site.adapted(text)
    with monkeypatch.context() as wheel:
        wheel.setattr(install_words, "REPOSITORY", tmp_path)
        assert "`workshop slurm site` makes it" in site.adapted(text)
    own, _ = site.make_own_file()
    assert site.adapted(text) == f"Set it in {own}."
