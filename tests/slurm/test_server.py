"""A server over two nodes, by our scripts as they are: found, shared, guarded, watched, ended by faults."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest
from cluster import SMALL, Job, workshop

from workshop.engine import trace_writer
from workshop.guard import fairshare

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]  # a busy machine starts engines slowly
WITHIN_S = 90.0  # from a fault to a job that has ended with its reason; alone it takes less than 30
START_S = 480.0  # two engines start on two cores, beside other tests
TWO_NODES = ("--nodes=2", "--gpus-per-node=1")


def python(
    cluster, code: str, user: str = "teacher", host: str = "login", check: bool = True, **env: str
) -> str:
    return cluster.run(
        host,
        sys.executable,
        "-c",
        code,
        user=user,
        check=check,
        env={"PYTHONPATH": str(cluster.course), **env},
    )


TAGGED = re.compile(r"(psm_|sem\.mp-)[0-9a-f]{12}[_-]")  # servers/local/scratch.py


def record(cluster, name: str) -> dict | None:
    path = cluster.bed / f"home/teacher/.workshop/servers/{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def kill(cluster, node: str, command: str) -> None:
    """Kill one process of a node by signal 9, at once."""
    pids = [pid for pid, line in cluster.processes(node).items() if command in line]
    assert pids, cluster.processes(node)
    os.kill(pids[0], signal.SIGKILL)


@pytest.fixture(scope="module")
def served(cluster):
    """405b.sbatch over two nodes (TP 2), for a class, with a trace and a test of the network; nodes that call themselves
    127.0.1.1, as Debian's do."""
    for node in ("node01", "node02"):
        hosts = (cluster.bed / "etc/hosts").read_text().splitlines()
        own = [line for line in hosts if not line.endswith(node)]
        (cluster.bed / f"etc/hosts.{node}").write_text("\n".join([f"127.0.1.1 {node}", *own, ""]))
        cluster.inside(
            node, "mount", "--bind", str(cluster.bed / f"etc/hosts.{node}"), "/etc/hosts"
        )
    flags = [*fairshare.class_arguments({}), "--scheduler-cls", trace_writer.SCHEDULER]
    site = f"site_serve_args+=({shlex.join(flags)})\nexport WORKSHOP_NETWORK_TEST=yes"
    job = cluster.submit("405b.sbatch", *TWO_NODES, site=site)
    job.until("[workshop] ready after", START_S)
    yield job
    cluster.ask_slurm("scancel", str(job.id))
    job.until_over()
    for node in ("node01", "node02"):
        cluster.inside(node, "umount", "/etc/hosts")


class TestServer:
    """One server, many questions; the last test kills it."""

    def test_the_network_between_the_nodes_is_tried_before_loading(self, served):
        lines = served.text("error").splitlines()
        line = next(
            line for line in lines if "[workshop] all-reduce over 2 GPUs on 2 nodes" in line
        )
        assert (
            "Socket (Gloo)" in line
            and "GB/s" in line
            and "the plan counts with InfiniBand NDR: 50 GB/s" in line
        )

    def test_connect_finds_it_without_an_address(self, served, cluster):
        out = python(
            cluster,
            "import workshop; llm = workshop.connect(); "
            "print(llm.model, llm.url, llm.complete('The', max_tokens=8).usage.completion_tokens)",
        )
        assert out.split()[-3::2] == ["teaching-model", "8"] and "http://10.77.0.11:" in out

    def test_engine_is_spread_over_both_nodes(self, served, cluster):
        assert any("VLLM::Worker_TP0" in line for line in cluster.processes("node01").values())
        assert any("VLLM::Worker_TP1" in line for line in cluster.processes("node02").values())

    def test_all_shared_memory_has_the_jobs_tag_in_its_name(self, served, cluster):
        made = " ".join(
            cluster.inside(node, "ls", "/dev/shm") for node in ("node01", "node02")
        ).split()
        assert any(name.startswith("psm_") for name in made)
        untagged = [
            name for name in made if name.startswith(("psm_", "sem.mp-")) and not TAGGED.match(name)
        ]
        assert not untagged

    def test_seeds_file_names(self, served):
        names = {path.name for path in served.folder.iterdir()}
        assert {f"output_{served.id}.out", f"error_{served.id}.out"} <= names
        assert served.folder.name == f"405b_{served.id}"

    def test_key_is_in_the_record_only(self, served, cluster):
        path = cluster.bed / "home/teacher/.workshop/servers/405b.json"
        key = json.loads(path.read_text())["api_key"]
        assert path.stat().st_mode & 0o777 == 0o600 and len(key) >= 32
        public = [
            served.text(),
            cluster.ask_slurm("scontrol", "show", "job", "-d", str(served.id)),
            cluster.ask_slurm("scontrol", "write", "batch_script", str(served.id), "-"),
        ]
        for node in ("node01", "node02"):
            for pid in cluster.processes(node):
                public += [
                    Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace")
                    for part in ("cmdline", "environ")
                    if Path(f"/proc/{pid}").exists()
                ]
        assert not any(key in text for text in public)

    def test_bound_to_the_interface_that_learners_reach_and_no_other(self, served, cluster):
        port = record(cluster, "405b")["url"].split(":")[-1].split("/")[0]
        listening = [line.split()[3] for line in cluster.run("node01", "ss", "-Hltn").splitlines()]
        assert [place for place in listening if place.endswith(f":{port}")] == [
            f"10.77.0.11:{port}"
        ]

    def test_every_path_but_health_asks_for_the_key(self, served, cluster):
        root = record(cluster, "405b")["url"].removesuffix("/v1")
        code = (
            f"import urllib.request, urllib.error\nfor path in ('/health', '/v1/models', '/metrics',"
            f" '/openapi.json', '/invocations'):\n  try:"
            f" print(urllib.request.urlopen('{root}' + path, timeout=20).status)\n"
            f"  except urllib.error.HTTPError as error: print(error.code)"
        )
        assert python(cluster, code, user="stranger", host="notebook").split() == [
            "200",
            "401",
            "401",
            "401",
            "401",
        ]

    def test_class_uses_it_from_another_host_and_no_stranger_does(self, served, cluster):
        out = workshop(
            cluster, "share", "405b", "--group", "class", WORKSHOP_SHARED=str(cluster.bed / "class")
        )
        assert "Limits for each learner: 4 requests at a time, 1024 tokens an answer" in out
        copy = cluster.bed / "class/405b.json"
        assert copy.stat().st_mode & 0o777 == 0o640 and copy.stat().st_gid == 7100
        ask = "import workshop; print(workshop.connect().complete('The', max_tokens=4).usage.completion_tokens)"
        shared = {"WORKSHOP_SHARED": str(cluster.bed / "class")}
        assert python(cluster, ask, user="learner", host="notebook", **shared).split()[-1] == "4"
        refused = python(cluster, ask, user="stranger", host="notebook", check=False, **shared)
        assert "WorkshopError" in refused and record(cluster, "405b")["api_key"] not in refused

    def test_one_request_may_not_starve_the_class(self, served, cluster):
        ask = "import workshop; workshop.connect().complete('The', max_tokens={}, n={})"
        assert "more than one answer may have" in python(cluster, ask.format(5000, 1), check=False)
        assert "more than one request may have" in python(cluster, ask.format(5, 64), check=False)

    def test_status_and_logs_say_ready_with_the_address(self, served, cluster):
        now = json.loads(workshop(cluster, "servers", str(served.id), "--json"))[0]["job"]
        assert (now["state"], now["server"], now["fraction"]) == ("RUNNING", "ready", 1.0)
        assert now["url"] == record(cluster, "405b")["url"] and now["error"] == ""
        followed = workshop(cluster, "logs", "405b", "--follow")
        assert "✓ ready at http://10.77.0.11:" in followed and "CPU KV cache size" in followed

    def test_the_owner_follows_the_engine_by_the_servers_name(self, served, cluster):
        workshop(cluster, "xray", "405b", "--html", "/tmp/page.html", "--force")
        assert "tokens of its prompt" in cluster.run("login", "cat", "/tmp/page.html")

    def test_killed_worker_ends_the_job_with_the_reason(self, served, cluster):
        served.since = began = time.monotonic()
        kill(cluster, "node02", "VLLM::Worker_TP1")
        assert served.until_over(WITHIN_S) == "FAILED"
        assert time.monotonic() - began < WITHIN_S
        ended = record(cluster, "405b")
        assert ended["state"] == "failed" and ended["reason"], served.text("error")[-3000:]
        assert "[workshop] ended: " in served.text("output").splitlines()[-2]
        assert not (cluster.bed / "class/405b.json").exists(), (
            "learners must not find a dead server"
        )
        cluster.wait_until_clean()
        now = json.loads(workshop(cluster, "servers", str(served.id), "--json"))[0]["job"]
        assert now["state"] == "FAILED" and now["error"]


class TestEnds:
    """Two jobs at a time, one on each node: one that reaches its time limit and one that is stopped."""

    @pytest.fixture(scope="class")
    @staticmethod
    def jobs(cluster):
        """70b.sbatch on one node each: by `workshop slurm submit`, beside a stranger on the job's own port."""
        limited = cluster.submit(
            "70b.sbatch",
            "--gpus-per-node=1",
            "--job-name=limited",
            "--time=1",
            "--nodelist=node02",
            "--signal=B:USR1@5",
            site=SMALL,
        )
        site = cluster.course / "site-extra.sh"  # of the job above: the small engine
        port = 20000 + (limited.id + 1) * 8
        stranger = cluster.spawn(
            "node01", "python3", "-m", "http.server", str(port), "--bind", "10.77.0.11"
        )
        cluster.wait(
            lambda: f":{port}" in cluster.run("node01", "ss", "-Hltn"),
            20,
            "the stranger does not listen",
        )
        out = workshop(
            cluster,
            "slurm",
            "submit",
            "70b",
            "--gpus-per-node",
            "1",
            "--json",
            "--trace",
            "--nodelist=node01",
            WORKSHOP_SLURM=str(cluster.course / "slurm"),
            WORKSHOP_SITE=str(site),
        )
        facts = json.loads(out[out.index("{") :])
        yield {"limited": limited, "submitted": facts, "port": port, "stranger": stranger}
        stranger.terminate()

    def test_submit_prints_reasons_and_the_very_command(self, jobs):
        facts = jobs["submitted"]
        assert facts["job_id"].isdigit() and facts["fits"] and "TP 1 × PP 1" in facts["reasons"][0]
        assert facts["command"] == f"sbatch --nodelist=node01 {facts['script']}"
        script = Path(facts["script"]).read_text()
        assert "\n#SBATCH --gpus-per-node=1\n" in script and "\n#SBATCH --partition=gpu\n" in script

    def test_stranger_on_the_jobs_port_is_avoided(self, jobs, cluster):
        job = Job(cluster, int(jobs["submitted"]["job_id"]))
        job.until("[workshop] ready after", START_S)
        server = record(cluster, "70b")
        assert f":{jobs['port']}/v1" not in server["url"]
        assert server["trace"].endswith(".trace.jsonl")
        out = python(
            cluster,
            "import workshop; print(workshop.connect('70b').complete('The', max_tokens=3).model)",
        )
        assert out.split()[-1] == "teaching-model"

    def test_stop_cancels_the_job_and_leaves_nothing(self, jobs, cluster):
        out = workshop(cluster, "stop", "70b")
        assert f"job {jobs['submitted']['job_id']} is cancelled" in out
        assert Job(cluster, int(jobs["submitted"]["job_id"])).until_over(WITHIN_S) == "CANCELLED"
        assert record(cluster, "70b") is None
        jobs["stranger"].terminate()
        jobs["stranger"].wait()
        cluster.wait_until_clean("node01")

    def test_time_limit_is_the_reason(self, jobs, cluster):
        job = jobs["limited"]
        job.until_over(120)
        assert record(cluster, "limited")["reason"] == "the job's time limit is reached"
        assert "sbatch --time" in job.text("error").splitlines()[-1]
        cluster.wait_until_clean("node02")


def test_a_killed_head_ends_a_pipeline_with_its_exit_code(cluster):
    options = (*TWO_NODES, "--job-name=staged")
    job = cluster.submit("405b.sbatch", *options, site=SMALL, PARALLEL="pipeline")
    job.until("[workshop] ready after", START_S)
    job_file = json.loads((job.folder / f"job_{job.id}.json").read_text())
    assert (job_file["tensor_parallel_size"], job_file["pipeline_parallel_size"]) == (1, 2)
    job.since = began = time.monotonic()
    kill(cluster, "node01", "engine.py")
    assert job.until_over(WITHIN_S) == "FAILED"
    assert time.monotonic() - began < WITHIN_S
    assert "node01 first, exit code 137" in record(cluster, "staged")["reason"]
    cluster.wait_until_clean()


def test_a_record_whose_job_was_killed_without_a_word_is_corrected(cluster):
    options = ("--gpus-per-node=1", "--job-name=mute", "--nodelist=node01")
    job = cluster.submit("70b.sbatch", *options, site=SMALL)
    cluster.wait(lambda: record(cluster, "mute"), 60, "no record came", job.text)
    # the job's own script, by signal 9: it can say nothing
    kill(cluster, "node01", f"job{job.id:05d}/slurm_script")
    job.until_over(WITHIN_S)
    servers = {
        server["name"]: server for server in json.loads(workshop(cluster, "servers", "--json"))
    }
    assert servers["mute"]["state"] == "failed" and f"job {job.id}" in servers["mute"]["reason"]
    cluster.wait_until_clean()
