"""On a cluster that is not ours: sites that differ from the bed's, and neighbours whom a job's end must not harm."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest
from cluster import SMALL, Job, doctor, workshop
from test_refusals import SECONDS, ended, gpus
from test_server import START_S, TWO_NODES, python

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]  # a busy machine starts engines slowly
ONE = ("--gpus-per-node=1", "--nodelist=node01")
# Makes what PyTorch and vLLM make while they start: semaphores that a child opens later, by name.
NEIGHBOUR = """
import multiprocessing, pathlib, sys, time
context, made, stop = multiprocessing.get_context("spawn"), [], pathlib.Path(sys.argv[1])
while not stop.exists():
    made.append(context.Lock())
    time.sleep(0.05)
gone = [lock for lock in made if not pathlib.Path("/dev/shm/sem." + lock._semlock.name[1:]).exists()]
print(len(made), "made", len(gone), "gone")
"""
ASK = """
import json, urllib.error, urllib.request
body = json.dumps({{"model": "{model}", "prompt": "The", "max_tokens": 2}}).encode()
headers = {{"Authorization": "Bearer {key}", "Content-Type": "application/json"}}
try:
    print(urllib.request.urlopen(urllib.request.Request("{url}", body, headers), timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code, json.load(error)["error"]["message"])
"""


@pytest.fixture(autouse=True)
def idle(cluster):
    """Every test leaves the cluster without jobs, also one that fails."""
    yield
    cluster.run("login", "scancel", "--user=teacher", "--full")
    cluster.wait(lambda: not cluster.ask_slurm("squeue", "-h").strip(), SECONDS, "jobs are left")


def batch(cluster, script: str, *options: str) -> Job:
    """A job of the teacher's that has nothing to do with the course."""
    path = cluster.course / "own.sh"
    path.write_text(f"#!/bin/bash\n{script}\n")
    out = cluster.run(
        "login",
        "sbatch",
        "--parsable",
        "--mem=100",
        "--output=%x_%j.out",
        *options,
        str(path),
        user="teacher",
        cwd=cluster.course,
    )
    return Job(cluster, int(out.strip().splitlines()[-1]))


def test_the_end_of_a_job_leaves_a_neighbours_semaphores(cluster):
    stop, program = cluster.course / "stop", cluster.course / "neighbour.py"
    program.write_text(NEIGHBOUR)
    neighbour = batch(
        cluster, f"{sys.executable} {program} {stop}", "--nodelist=node01", "--job-name=neighbour"
    )
    cluster.wait(
        lambda: "sem.mp-" in cluster.inside("node01", "ls", "/dev/shm"), 30, "no semaphore came"
    )
    try:
        job = cluster.submit("70b.sbatch", *ONE, WORKSHOP_MODEL="/nowhere/llama")
        assert job.until_over(SECONDS) == "FAILED"
    finally:
        stop.touch()
    neighbour.until_over(SECONDS)
    output = (cluster.course / f"neighbour_{neighbour.id}.out").read_text()
    assert " 0 gone" in output and not output.startswith("0 "), output
    cluster.wait_until_clean()


def test_a_job_with_gpus_does_not_take_the_cpu_build(cluster):
    job = cluster.submit("70b.sbatch", *ONE, site="export WORKSHOP_ALLOW_CPU=")
    ended(job, cluster, "node01 has the CPU build of vLLM", "conda env create")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("module load cuda/99", "module: command not found"),
        ("source /nowhere/activate", "/nowhere/activate: No such file"),
        ("python=()", "sets no `python`"),
        ("python=(/nowhere/python)", "/nowhere/python: No such file"),
        (
            "[ $(hostname) != node02 ] || module load cuda/99; python=(" + sys.executable + ")",
            "on node02: module",
        ),
    ],
)
def test_an_environment_that_fails_is_the_reason(cluster, function, reason):
    job = cluster.submit(
        "405b.sbatch", *TWO_NODES, site=f"workshop_environment() {{\n{function}\n}}"
    )
    assert reason in ended(job, cluster, "workshop_environment", "slurm/sites/")


def test_nothing_of_the_persons_environment_needs_to_reach_the_job(cluster):
    with gpus(cluster, "node01", "0, GPU-0, NVIDIA A100-SXM4-40GB, 40960, 40400\n"):
        job = cluster.submit("70b.sbatch", *ONE, "--export=NONE")
        sentence = "GPU 0 of node01 (NVIDIA A100-SXM4-40GB) has 40.0 GiB, and the plan needs 75.0"
        ended(job, cluster, sentence, "KV cache")


def test_a_site_without_gpus_per_node(cluster):
    """How many GPUs there are SLURM does not say, but the node's own driver, or site.sh."""
    script = (
        (cluster.course / "slurm/70b.sbatch").read_text().replace("#SBATCH --gpus-per-node=4", "")
    )
    (cluster.course / "slurm/without.sbatch").write_text(script)
    with gpus(cluster, "node01", "0, GPU-0, NVIDIA A100-SXM4-40GB, 40960, 40400\n"):
        job = cluster.submit("without.sbatch", "--gres=none", "--nodelist=node01")
        ended(job, cluster, "GPU 0 of node01 (NVIDIA A100-SXM4-40GB) has 40.0 GiB")


@pytest.mark.parametrize("site", ["SBATCH_GRES=gpu:2", "SBATCH_GPUS_PER_NODE=2"])
def test_the_sites_way_to_ask_for_gpus_is_what_slurm_gets(cluster, site):
    path = cluster.course / "site-gpus.sh"
    path.write_text(
        (cluster.course / "slurm/site.sh").read_text()
        + f"\nexport {site} WORKSHOP_CPUS_PER_GPU=3\n"
    )
    env = {"WORKSHOP_SITE": str(path), "WORKSHOP_SLURM": str(cluster.course / "slurm")}
    out = workshop(cluster, "slurm", "submit", "70b", "--json", "--hold", **env)
    facts = Job(cluster, int(json.loads(out[out.index("{") :])["job_id"])).facts
    assert (facts["TresPerNode"], facts["CPUs/Task"]) == ("gres:gpu:2", "6"), facts


def test_a_site_that_counts_everything_by_gpu_gets_its_engine_started(cluster):
    """`site_sbatch` without --mem, --cpus-per-task and --gpus-per-node: srun takes what the job has."""
    path = cluster.course / "site-by-gpu.sh"
    changes = "site_sbatch=(--mem-per-gpu=10G --cpus-per-gpu=2 --gpus-per-task=4)\nexport WORKSHOP_MODEL=/nowhere/llama"
    path.write_text((cluster.course / "slurm/site.sh").read_text() + f"\n{changes}\n")
    env = {"WORKSHOP_SITE": str(path), "WORKSHOP_SLURM": str(cluster.course / "slurm")}
    arguments = ("slurm", "submit", "70b", "--json", "--anyway", "--nodelist=node01")
    out = workshop(cluster, *arguments, **env)
    facts = json.loads(out[out.index("{") :])
    job = Job(cluster, int(facts["job_id"]))
    ended(job, cluster, "(1 nodes × 4 GPUs)", "node01 sees no config.json")
    script = Path(facts["script"]).read_text()
    assert facts["cluster"] == "workshop" and "--mem=" not in script
    assert "--gpus-per-task=4" in script and "--cpus-per-task" not in script


@pytest.mark.parametrize(
    ("options", "input", "message"),
    [
        (("--array=0-1",), "prompts.jsonl", "--array=1-2"),
        ((), "nowhere.jsonl", "nowhere.jsonl"),
        ((), "bad.jsonl", "prompt"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_before_the_engine(cluster, options, input, message):
    (cluster.course / "prompts.jsonl").write_text('{"prompt": "A"}\n')
    (cluster.course / "bad.jsonl").write_text('{"promt": "A"}\n')
    job = cluster.submit(
        "70b-offline.sbatch", *ONE, *options, args=(str(cluster.course / input), "answers.jsonl")
    )
    for task in [f"{job.id}_{number}" for number in (0, 1)] if options else [str(job.id)]:
        squeue = ("squeue", "-h", "-j", task)
        cluster.wait(
            lambda squeue=squeue: not cluster.ask_slurm(*squeue, check=False).strip(),
            SECONDS,
            "it did not end",
            job.text,
        )
        text = (cluster.course / f"70b-offline_{task}/error_{task}.out").read_text()
        assert message in text and "[workshop] ended: " in text and "Traceback" not in text, text
        assert "non-default args" not in text


def test_a_folder_that_cannot_hold_the_jobs_files_is_refused_before_sbatch(cluster):
    arguments = ("slurm", "submit", "70b", "--gpus-per-node", "1")
    for more, message in (
        ((), "may not write"),
        (("--job-name=a/b",), "a/b"),
        (("--job-name", "a b"), "'a b'"),
    ):
        cwd = cluster.course if more else cluster.bed
        out = workshop(cluster, *arguments, *more, cwd=cwd, check=False)
        assert message in out and "✓ job" not in out, out


def test_the_administrators_site_counts_until_the_file_is_edited(cluster):
    """/etc/workshop/site.sh, WORKSHOP_SITE, and slurm/site.sh as it came; doctor says which."""
    course = cluster.bed / "home/teacher/course"
    shutil.copytree(cluster.course, course, symlinks=True)
    shutil.chown(course, 7001, 7001)
    shutil.copy(cluster.repository / "slurm/site.sh", course / "slurm/site.sh")
    own = (cluster.course / "slurm/site.sh").read_text()
    with cluster.file("/etc/workshop/site.sh", own + "export WORKSHOP_INTERFACE=ib7\n"):
        env = {"PYTHONPATH": str(course), "WORKSHOP_SLURM": str(course / "slurm")}

        def site() -> dict:
            return doctor(cluster, **env)["Site's settings"]

        assert "/etc/workshop/site.sh" in site()["found"]
        line = "source slurm/site.sh && sbatch --parsable --gpus-per-node=1 slurm/70b.sbatch"
        job = Job(
            cluster, int(cluster.run("login", "bash", "-c", line, user="teacher", cwd=course))
        )
        assert job.until_over(SECONDS) == "FAILED"
        assert "has no interface 'ib7'" in (course / f"70b_{job.id}/error_{job.id}.out").read_text()
        (course / "slurm/site.sh").write_text(own)
        assert str(course / "slurm/site.sh") in site()["found"]
        env["WORKSHOP_SITE"] = str(cluster.course / "slurm/site.sh")
        assert str(cluster.course / "slurm/site.sh") in site()["found"]


def test_what_hung_is_said_by_the_stacks_of_every_process(cluster):
    job = cluster.submit("405b.sbatch", *TWO_NODES, site="export WORKSHOP_START_ALLOWANCE_S=10")
    text = job.until_over(SECONDS + 10) and job.text("error")
    assert "was not ready within its budget of 10 s" in text
    for node in ("0", "1"):
        assert f"{node}: Current thread" in text or f"{node}: Thread" in text, text[-3000:]
    assert "(most recent call first)" in text
    cluster.wait_until_clean()


def test_a_preempted_server_comes_back_under_its_name_and_key(cluster):
    """With a GraceTime, as sites have it: TERM, time to end, back into the queue; the class's copy follows."""
    path = cluster.bed / "home/teacher/.workshop/servers/preempted.json"
    copy = cluster.bed / "class/preempted.json"
    job = cluster.submit("70b.sbatch", *ONE, "--exclusive", "--job-name=preempted", site=SMALL)
    job.until("[workshop] ready after", START_S)
    first = json.loads(path.read_text())
    workshop(
        cluster,
        "share",
        "preempted",
        "--group",
        "class",
        WORKSHOP_SHARED=str(cluster.bed / "class"),
    )

    def through() -> str:
        server = json.loads(path.read_text())
        ask = ASK.format(
            url=f"{server['url']}/completions", key=server["api_key"], model=server["model"]
        )
        return python(cluster, ask).strip()

    assert through() == "200"
    done = cluster.course / "urgent-done"
    urgent = batch(
        cluster,
        f"until [ -e {done} ]; do sleep 0.2; done",
        "--partition=urgent",
        "--exclusive",
        "--nodelist=node01",
        "--job-name=urgent",
    )
    cluster.wait(
        lambda: urgent.state == "RUNNING",
        SECONDS,
        "the urgent job did not start",
        lambda: str(job.facts),
    )
    assert job.state == "PENDING" and job.facts["Restarts"] == "1"
    waiting = json.loads(path.read_text())
    assert waiting["state"] == "starting" and "waits in the queue again" in waiting["reason"]
    assert json.loads(copy.read_text())["state"] == "starting"
    done.touch()
    # a job's credential is revoked for the second in which it was requeued; no event says that it
    # is over
    time.sleep(2)

    def started() -> bool:
        cluster.ask_slurm("scontrol", "update", f"JobId={job.id}", "StartTime=now", check=False)
        return job.state == "RUNNING"

    cluster.wait(started, 150, "it did not start again", lambda: str(job.facts))
    cluster.wait(
        lambda: json.loads(path.read_text())["state"] == "ready",
        START_S,
        "it was not ready again",
        job.text,
    )
    assert through() == "200", "it answers again, with the same key"
    second = json.loads(path.read_text())
    assert second["api_key"] == first["api_key"] and second["name"] == "preempted"
    assert json.loads(copy.read_text()) == second
    assert job.text("output").count("[workshop] ready after") == 2, (
        "the log of the first start is kept"
    )
    now = json.loads(workshop(cluster, "servers", str(job.id), "--json"))[0]["job"]
    assert (now["server"], now["error"]) == ("ready", "")
    # A node that is lost: SLURM puts the job back by itself.
    cluster.ask_slurm("scontrol", "update", "NodeName=node01", "State=DOWN", "Reason=lost")
    try:
        cluster.wait(
            lambda: job.state == "PENDING", SECONDS, "it was not put back", lambda: str(job.facts)
        )
        servers = json.loads(workshop(cluster, "servers", "--json"))
        now = next(server for server in servers if server["name"] == "preempted")
        assert now["state"] == "starting" and "waits in the queue again" in now["reason"]
    finally:
        # it may have come back
        cluster.ask_slurm("scontrol", "update", "NodeName=node01", "State=RESUME", check=False)
    workshop(cluster, "stop", "preempted")
    assert job.until_over(SECONDS) == "CANCELLED" and not path.exists() and not copy.exists()
    cluster.wait_until_clean()
