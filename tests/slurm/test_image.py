"""A job whose engine runs in an image: there are no commands of SLURM in there, so the job's own shell calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cluster import SMALL, Job, workshop
from test_refusals import SECONDS
from test_server import record

pytestmark = pytest.mark.slurm
COMMANDS = {
    "sbatch",
    "srun",
    "squeue",
    "scancel",
    "scontrol",
    "sacct",
    "sinfo",
    "salloc",
    "sbcast",
    "sattach",
}


@pytest.fixture
def quick(cluster):
    """A batch in a job without vLLM, whose time limit is near: its submission; no job is left after the test."""
    (cluster.course / "prompts.jsonl").write_text('{"custom_id": "a", "prompt": "A"}\n')

    def submit(*options: str, **more: str) -> Job:
        files = (str(cluster.course / "prompts.jsonl"), str(cluster.course / "answers.jsonl"))
        options = ("--gpus-per-node=1", *options)
        site = f"{SMALL}\n{image(cluster)}"
        job = cluster.submit("70b-offline.sbatch", *options, site=site, args=files, **more)
        job.until("[workshop] ready after", SECONDS)
        cluster.ask_slurm("scancel", "--signal=USR1", "--batch", str(job.id))
        return job

    yield submit
    cluster.run("login", "scancel", "--user=teacher", "--full")
    cluster.wait(lambda: not cluster.ask_slurm("squeue", "-h").strip(), SECONDS, "jobs are left")


def image(cluster) -> str:
    """Return lines of a site whose Python sees no command of SLURM, as in vllm/vllm-openai."""
    programs = cluster.bed / "image"
    programs.mkdir(exist_ok=True)
    for path in Path("/usr/bin").iterdir():
        if path.name not in COMMANDS and not (programs / path.name).is_symlink():
            (programs / path.name).symlink_to(path)
    own = re.search(r'python=\("?(.*?)"?\)', (cluster.course / "slurm/site.sh").read_text())[1]
    return f'workshop_environment() {{ python=(env PATH={cluster.bed}/bin:{programs} "{own}"); }}'


def test_a_job_with_an_image_is_requeued_and_says_so(cluster, quick, tmp_path):
    """Beside the job's own files lie modules that nobody may run, and the shell's PYTHONPATH is another Python's."""
    planted = [cluster.course / name for name in ("json.py", "torch.py", "argparse.py")]
    foreign = cluster.bed / "home/teacher/foreign"
    foreign.mkdir()
    ran = cluster.bed / "class/ran"
    for path in (*planted, foreign / "re.py", foreign / "sitecustomize.py"):
        path.write_text(f"open({str(ran)!r}, 'a').write(__file__ + '\\n')\nraise SystemExit(1)\n")
    try:
        job = quick("--job-name=imaged", PYTHONPATH=f":{foreign}:.", PYTHONHOME=str(foreign))
        cluster.wait(lambda: job.facts["Restarts"] == "1", SECONDS, "it was not requeued", job.text)
    finally:
        for path in planted:
            path.unlink()
    assert not ran.exists(), ran.read_text()
    name = f"imaged_{job.id}"
    server_record = record(cluster, name)
    reason = f"its SLURM job {job.id} waits in the queue again (its time limit was near)"
    assert (server_record["state"], server_record["reason"], server_record["cluster"]) == (
        "starting",
        reason,
        "workshop",
    )
    for kind in ("output", "error"):
        assert f"[workshop] ended: {reason}" in job.text(kind).splitlines()
    servers = json.loads(workshop(cluster, "servers", "--json"))
    assert [server["state"] for server in servers if server["name"] == name] == ["starting"]
    workshop(cluster, "stop", name)
    assert record(cluster, name) is None and job.state == "CANCELLED"


def test_a_requeue_that_slurm_refuses_is_told_in_slurms_words(cluster, quick):
    job = quick("--job-name=once", "--no-requeue")
    assert job.until_over(SECONDS) == "FAILED"
    server_record = record(cluster, f"once_{job.id}")
    assert server_record["state"] == "failed" and "did not put" in server_record["reason"], (
        server_record
    )
    assert "Requested operation is presently disabled" in server_record["reason"]
    for kind in ("output", "error"):
        text = job.text(kind)
        assert "waits in the queue again" not in text and "presently disabled" in text
        assert text.rstrip().splitlines()[-1].startswith("[workshop] remedy: "), text


def test_a_job_that_slurm_does_not_know_is_never_said_to_be_gone(cluster):
    """The real words of squeue and scancel for a job of another cluster."""
    folder = cluster.bed / "home/teacher/.workshop/servers"
    data = {
        "name": "elsewhere",
        "url": "http://10.77.0.12:9/v1",
        "model": "m",
        "api_key": "k" * 32,
        "where": "slurm",
        "host": "n1",
        "started": "2026-11-24T20:00:00.000+00:00",
        "state": "ready",
        "job_id": "987654",
        "log": "/nowhere/elsewhere_987654/output_987654.out",
    }
    for cluster_name in ("", "another", "workshop"):
        path = folder / "elsewhere.json"
        path.write_text(json.dumps({**data, "cluster": cluster_name}))
        path.chmod(0o600)
        cluster.run("login", "chown", "-R", "teacher", str(folder.parent))
        servers = json.loads(workshop(cluster, "servers", "--json"))
        states = [server["state"] for server in servers if server["name"] == "elsewhere"]
        assert states in (["ready"], ["unreachable"])  # SLURM is in doubt, or nothing answers there
        output = workshop(cluster, "stop", "elsewhere", check=False)
        print(output)
        assert "✗" in output and "✓" not in output and "is cancelled" not in output, output
        assert json.loads(path.read_text())["state"] == "ready"
    output = workshop(cluster, "stop", "elsewhere", "--forget")
    assert "forgotten" in output and not path.exists()
