"""Jobs that cannot work end within seconds, with the reason, before anything is loaded; nothing is left behind."""

from __future__ import annotations

import contextlib
import functools
import json
import time

import cluster as cluster_module
import pytest

pytestmark = pytest.mark.slurm
SECONDS = 90  # they take two to five; other tests run beside them


def ended(job, cluster, *messages: str) -> str:
    """Wait for the job's end; check its state, its bound, its messages and its record; return its text."""
    began = time.monotonic()
    assert job.until_over(SECONDS) == "FAILED"
    assert time.monotonic() - began < SECONDS
    text = job.text()
    for message in messages:
        assert message in text, text[-3000:]
    assert (
        "[workshop] ended: " in text
        and "Traceback" not in text
        and "Starting to load model" not in text
    )
    assert text.rstrip().splitlines()[-1].startswith("[workshop] remedy: "), (
        "the last line says what to do"
    )
    cluster.wait_until_clean()
    return text


@contextlib.contextmanager
def gpus(cluster, node: str, text: str):
    """Let nvidia-smi on one node say something else."""
    path = cluster.bed / f"gpus.{node}"
    path.write_text(text)
    try:
        yield
    finally:
        path.unlink()


def test_head_that_only_knows_its_loopback_address(cluster):
    job = cluster.submit("70b.sbatch", "--gpus-per-node=1", site="export WORKSHOP_INTERFACE=lo")
    ended(job, cluster, "127.0.0.1", "no other node reaches", "eth0 (10.77.0.11)")


def test_interface_that_does_not_exist(cluster):
    job = cluster.submit("70b.sbatch", "--gpus-per-node=1", site="export WORKSHOP_INTERFACE=ib0")
    ended(job, cluster, "has no interface 'ib0'", "eth0 (10.77.0.11)")


def test_port_that_was_asked_for_is_taken_by_a_stranger(cluster):
    stranger = cluster.spawn(
        "node01", "python3", "-m", "http.server", "8123", "--bind", "10.77.0.11"
    )
    try:
        cluster.wait(
            lambda: ":8123" in cluster.run("node01", "ss", "-Hltn"),
            20,
            "the stranger does not listen",
        )
        job = cluster.submit(
            "70b.sbatch", "--gpus-per-node=1", "--nodelist=node01", WORKSHOP_PORT="8123"
        )
        job.until_over(SECONDS)
        assert "Port 8123 on 10.77.0.11 is taken by another program" in job.text()
    finally:
        stranger.terminate()
        stranger.wait()


def test_node_with_fewer_gpus_than_planned(cluster):
    with gpus(cluster, "node02", "0, GPU-0, NVIDIA H100 80GB HBM3, 81559, 81008\n"):
        job = cluster.submit("405b.sbatch", "--nodes=2", "--gpus-per-node=2")
        ended(job, cluster, "node02 gives this job 1 GPUs, and the plan is for 2 a node")


def test_gpu_that_somebody_else_uses(cluster):
    with gpus(cluster, "node01", "0, GPU-0, NVIDIA H100 80GB HBM3, 81559, 30000\n"):
        job = cluster.submit("70b.sbatch", "--gpus-per-node=1", "--nodelist=node01")
        ended(job, cluster, "Another process holds 50.4 GiB of GPU 0 of node01")


def test_full_disk_on_one_node(cluster):
    for node, size in (("node01", "1g"), ("node02", "8m")):
        cluster.inside(
            node, "mount", "-t", "tmpfs", "-o", f"size={size},mode=1777", "tmpfs", "/mnt"
        )
    try:
        job = cluster.submit(
            "405b.sbatch", "--nodes=2", "--gpus-per-node=1", site="export WORKSHOP_SCRATCH=/mnt"
        )
        ended(job, cluster, "node02 has 8 MiB left in /mnt/workshop-teacher-", "WORKSHOP_SCRATCH")
    finally:
        for node in ("node01", "node02"):
            cluster.inside(node, "umount", "/mnt")


def test_start_that_takes_longer_than_its_budget(cluster):
    job = cluster.submit(
        "70b.sbatch", "--gpus-per-node=1", site="export WORKSHOP_START_ALLOWANCE_S=3"
    )
    ended(job, cluster, "was not ready within its budget of 3 s")


def test_the_record_of_a_refused_job_says_why(cluster):
    job = cluster.submit(
        "model.sbatch", "--job-name=why", "--gpus-per-node=1", WORKSHOP_MODEL="/nowhere/llama"
    )
    ended(job, cluster, "sees no config.json in the model's folder", "workshop prefetch")
    record = json.loads((cluster.bed / "home/teacher/.workshop/servers/why.json").read_text())
    assert record["state"] == "failed" and "config.json" in record["reason"]
    assert record["job_id"] == str(job.id) and record["where"] == "slurm"


workshop = functools.partial(cluster_module.workshop, check=False)
SMALL = ("slurm", "submit", "70b", "--gpus-per-node=1", "--mem=1G", "--cpus-per-task=1")


def test_a_job_that_slurm_would_never_start_is_refused_at_submit(cluster):
    """sbatch accepts the first five and lets them wait for ever: EnforcePartLimits is off by default."""
    limits = {
        "short": "MaxTime=60",
        "one": "MaxNodes=1",
        "off": "State=DOWN",
        "lean": "MaxMemPerNode=100",
    }
    for name, limit in limits.items():
        cluster.ask_slurm("scontrol", "create", f"PartitionName={name}", "Nodes=ALL", limit)
    try:
        for options, message in (
            (("--nodes=4",), "The partition gpu is up and has 2 nodes"),
            (("-p", "short", "--time=8:00:00"), "for at most 1:00:00"),
            (("-p", "one", "--nodes=2"), "The partition one is up and has 2 nodes, 1 for a job"),
            (("-p", "off"), "The partition off is down"),
            (("-p", "lean"), "more memory"),
            (("-p", "none"), "The partitions here are gpu, urgent"),
            (("--mem=2000G",), "1000000 MB"),
            (("-C", "h100"), "features (null)"),
            (("--gpus=8",), "--gpus=8 contradicts the plan, which has 1 there."),
        ):
            out = workshop(cluster, *SMALL, *options)
            assert "✗" in out and "✓" not in out and message in out, out
            assert not cluster.ask_slurm("squeue", "--noheader", "--states=PENDING,RUNNING")
    finally:
        for name in limits:
            cluster.ask_slurm("scontrol", "delete", f"PartitionName={name}")


def test_a_waiting_job_is_listed_and_stopped_with_the_tool_that_submitted_it(cluster):
    assert "✓ job" in workshop(cluster, *SMALL, "--name=later", "--begin=now+1hour")
    submitted = workshop(cluster, *SMALL, "--name=held", "--hold")
    assert "never start until its hold is released" in submitted
    assert "scontrol release" in submitted
    servers = workshop(cluster, "servers")
    assert "waits in the queue (BeginTime); SLURM expects its start at 20" in servers
    assert "this will never start until its hold is released" in servers
    assert "JobHeldUser" in workshop(cluster, "servers", "held")
    for name in ("later", "held"):
        assert "is cancelled before it began" in workshop(cluster, "stop", name)
    assert not cluster.ask_slurm("squeue", "--noheader")


def test_a_suspended_job_is_not_ready(cluster):
    line = "--wrap=sleep 600"
    job = cluster.run(
        "login", "sbatch", "--parsable", "--job-name=sus", line, user="teacher"
    ).strip()
    home = cluster.bed / "home/teacher/.workshop/servers"
    text = json.dumps({
        "name": "sus", "url": "http://10.77.0.11:1/v1", "model": "m", "api_key": "k", "where": "slurm",
        "job_id": job, "state": "ready", "started": "2026-11-28T08:00:00+00:00",
    })  # fmt: skip
    write = f"mkdir -p {home} && cat >{home}/sus.json <<'END'\n{text}\nEND"
    cluster.run("login", "bash", "-c", write, user="teacher")
    running = ("squeue", "--noheader", "--jobs", job, "--format=%T")
    cluster.wait(lambda: "RUNNING" in cluster.ask_slurm(*running), 30, "the job did not start")
    assert "suspended" not in workshop(cluster, "servers")
    cluster.ask_slurm("scontrol", "suspend", job)
    out = workshop(cluster, "servers")
    assert "suspended by SLURM since 20" in out and "✓" not in out, out
    assert "is cancelled" in workshop(cluster, "stop", "sus")
    cluster.wait_until_clean()


def doctor(cluster, site: str = "") -> dict[str, dict]:
    """`workshop doctor` with the site's file, and lines added to it."""
    path = cluster.course / "site-doctor.sh"
    path.write_text((cluster.course / "slurm/site.sh").read_text() + f"\n{site}\n")
    return cluster_module.doctor(cluster, WORKSHOP_SITE=str(path))


def test_doctor_holds_site_sh_against_the_cluster(cluster):
    checks = doctor(cluster, "export SBATCH_GPUS_PER_NODE=2")
    assert (
        "with GPUs: gpu" in checks["SLURM"]["found"]
        and checks["site.sh: partition"]["state"] == "ok"
    )
    assert checks["sbatch 70b.sbatch"]["state"] == "ok", checks["sbatch 70b.sbatch"]
    assert "teaching-model" in checks["site.sh: models"]["found"]
    assert checks["site.sh: environment"]["found"].startswith("vllm")
    check = doctor(cluster, "export SBATCH_GPUS_PER_NODE=2 WORKSHOP_CPUS_PER_GPU=33")[
        "sbatch 70b.sbatch"
    ]
    assert check["state"] == "lack" and "would be refused" in check["found"], (
        "66 of the node's 64 processors"
    )


def test_doctor_sees_that_jobs_would_take_the_cpu_build(cluster):
    check = doctor(cluster, "export WORKSHOP_ALLOW_CPU=")["site.sh: environment"]
    assert (
        check["state"] == "lack"
        and "is the CPU build" in check["found"]
        and "conda env create" in check["remedy"]
    )


def test_doctor_finds_what_is_wrong_in_site_sh(cluster):
    checks = doctor(
        cluster,
        "export SBATCH_GPUS_PER_NODE=2 SBATCH_PARTITION=gpuu SBATCH_CONSTRAINT=h200 WORKSHOP_MODELS=/nowhere\n"
        "workshop_environment() { python=(/usr/bin/false); }",
    )
    for name, message in (
        ("site.sh: partition", "gpuu is not here"),
        ("sbatch 70b.sbatch", "would be refused"),
        ("site.sh: models", "no folder /nowhere"),
        ("site.sh: environment", "fails here"),
    ):
        check = checks[name]
        assert check["state"] == "lack" and message in check["found"] and check["remedy"], check
