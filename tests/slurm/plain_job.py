"""A job of slurm/plain.sbatch or ray.sbatch on the test bed: submitted, asked and ended as a user does it, without the
workshop."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from cluster import Job
from machines import NODES

KEY = "a key of the test bed, which no log may show"
START_S = 1200.0  # engines start on two cores, beside other tests
WITHIN_S = 90.0  # from scancel to nodes without a process
ENVIRONMENT = re.compile(r"^eval .* conda activate .*$", re.MULTILINE)
# vLLM on the CPU of a machine with fewer cores than ranks
ON_A_CPU = (
    f"export PATH={Path(sys.executable).parent}:$PATH VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1"
    " TORCHDYNAMO_DISABLE=1 VLLM_CPU_KVCACHE_SPACE=1"
)
ASK = """
import json, sys, urllib.error, urllib.request
url, key = sys.argv[1:]
headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
def ask(path, data=None):
    request = urllib.request.Request(url + path, data, headers)
    return json.load(urllib.request.urlopen(request, timeout=100))
try:
    model = ask("/models")["data"][0]["id"]
    body = {"model": model, "prompt": "The", "max_tokens": 4, "ignore_eos": True}
    print(200, ask("/completions", json.dumps(body).encode())["usage"]["completion_tokens"])
except urllib.error.HTTPError as error:
    print(error.code)
"""


class PlainJob(Job):
    """A job that writes one file, <name>_<job>.out."""

    def text(self, kind: str = "both") -> str:
        path = self.cluster.course / f"{self.name}_{self.id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def ask(self, key: str) -> str:
        """Ask for four tokens from another host; return the status and how many came."""
        address = self.text().split(" is the address")[0].split()[-1]
        return self.cluster.run(
            "notebook", sys.executable, "-c", ASK, address, key, user="teacher"
        ).strip()

    def answers_with_the_key_alone(self) -> None:
        """Wait for the server, and see that it answers to the key, and shows it to nobody."""
        ready_s = self.until("Application startup complete.", START_S)
        assert self.ask(KEY) == "200 4", self.text()[-5000:]
        assert self.ask("another") == "401"
        for node in NODES:
            assert not any(KEY in line for line in self.cluster.processes(node).values())
        assert KEY not in self.text()
        self.cluster.note(ready_s, "ready")

    def ends_without_a_process(self) -> None:
        """Cancel the job, and wait until its nodes are empty."""
        self.since = time.monotonic()
        self.cluster.ask_slurm("scancel", str(self.id))
        assert self.until_over(WITHIN_S) == "CANCELLED"
        self.cluster.wait(
            lambda: not any(self.cluster.processes(node) for node in NODES),
            WITHIN_S,
            "a process is left",
        )
        # What a killed vLLM leaves, and Ray's logs: the workshop's own scripts remove it, these do not.
        for node, left in (line.split(" ", 1) for line in self.cluster.leftovers()):
            if left.startswith(("/tmp/", "/dev/shm/")):
                self.cluster.inside(node, "rm", "-rf", left)


def submit(cluster, script: str, *options: str) -> PlainJob:
    """Submit a script by sbatch alone, as a user who has a key; its line with the environment is this machine's."""
    script, count = ENVIRONMENT.subn(ON_A_CPU, script)
    assert count == 1
    (cluster.course / "plain.sbatch").write_text(script)
    store = 'umask 077; printf %s "$1" >~/.vllm_api_key'
    cluster.run("login", "bash", "-c", store, "bash", KEY, user="teacher")
    command = ("sbatch", "--parsable", *options, "plain.sbatch")
    return PlainJob(
        cluster, int(cluster.run("login", *command, user="teacher", cwd=cluster.course))
    )
