"""The 405B overlay's own arguments, environment and files start a real vLLM: leader and headless worker, on the CPU.

What differs from a cluster: the model is the small one, there is one rank a node, and both "pods" are processes here,
each with the name service that LeaderWorkerSet would give it (an /etc/hosts of its own).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from k8s_cases import GUARD_IMAGE, rendered
from k8s_read import env, leader_address, serving, vllm
from needs import lacking

from workshop.servers.host.machine import free_port
from workshop.servers.local import TEACHING_FOLDER
from workshop.vllm_package import installed

pytestmark = pytest.mark.starts
READY_S = 600
ON_THE_CPU = ["--enforce-eager", "--no-enable-chunked-prefill", "--kv-cache-memory-bytes=67108864"]
SMALLER = {
    "--tensor-parallel-size": "2",
    "--pipeline-parallel-size": "1",
    "--max-model-len": "256",
    "--host": "127.0.0.1",
}


class Pods:
    """Two processes that get what the leader's and the worker's pod would get."""

    def __init__(self, folder: Path):
        self.docs = rendered("llama-3-1-405b", guard_image=GUARD_IMAGE)
        self.folder, self.running = folder, {}
        self.ports = {
            "--port": free_port("127.0.0.1"),
            "--master-port": free_port("127.0.0.1", 29501),
        }
        self.leader, early = leader_address(self.docs)
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + f"127.0.0.1 {self.leader}\n" * early
        )
        for name, key in (("api-key", "right"), ("metrics-key", "scraper")):
            (folder / name).write_text(f"{key}\n")

    def environment(self, name: str, rank: int) -> dict[str, str]:
        """The container's variables; paths lie in this test's folder, and the CPU engine's own are added."""
        variables = {
            "PATH": os.environ["PATH"],
            "LWS_GROUP_SIZE": "2",
            "LWS_WORKER_INDEX": str(rank),
            "LWS_LEADER_ADDRESS": self.leader,
        }
        for variable, entry in env(vllm(serving(self.docs)[name])).items():
            text = entry.get("value") or "127.0.0.1"
            variables[variable] = re.sub(r"^/scratch", str(self.folder / f"scratch-{rank}"), text)
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        for variable in ("WORKSHOP_API_KEY_FILE", "WORKSHOP_METRICS_KEY_FILE"):
            if variable in variables:
                variables[variable] = str(self.folder / Path(variables[variable]).name)
        Path(variables["HOME"]).mkdir(exist_ok=True)
        return variables

    def start(self, name: str, rank: int) -> None:
        variables = self.environment(name, rank)
        args = [
            re.sub(r"\$\((\w+)\)", lambda match: variables[match[1]], word)  # as the kubelet does
            for word in vllm(serving(self.docs)[name])["args"]
        ]
        changed = [str(TEACHING_FOLDER)]
        for word in args[1:]:
            flag = word.partition("=")[0]
            other = SMALLER.get(flag) or self.ports.get(flag)
            changed.append(f"{flag}={other}" if other else word)
        command = [
            *self.hosts,
            sys.executable,
            "-m",
            "workshop.servers.vllm_main",
            "serve",
            *changed,
            *ON_THE_CPU,
        ]
        log = (self.folder / f"{name}.log").open("w")
        self.running[name] = subprocess.Popen(
            command,
            env=variables,
            cwd=self.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def hosts(self) -> list[str]:
        """The words before a command that give it this test's /etc/hosts."""
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        mount = f'mount --bind {self.folder / "hosts"} /etc/hosts && exec "$@"'
        return ["unshare", *user, "--mount", "sh", "-c", mount, "sh"]

    def probe(self) -> int:
        """Run the leader's liveness probe, the overlay's words with this test's port."""
        command = vllm(serving(self.docs)["server"])["livenessProbe"]["exec"]["command"]
        return subprocess.run(
            [sys.executable, *command[1:-1], str(self.ports["--port"])],
            env=self.environment("server", 0),
            capture_output=True,
            timeout=60,
        ).returncode

    def ask(self, path: str, key: str = "", body: dict | None = None) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports['--port']}{path}",
            data=json.dumps(body).encode() if body else None,
            headers={"Content-Type": "application/json"},
        )
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        try:
            return urllib.request.urlopen(request, timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def wait(self, true, what: str, seconds: float = READY_S) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            logs = "\n".join(
                path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log")
            )
            assert time.monotonic() < deadline, f"{what}\n{logs}"
            time.sleep(0.2)

    def end(self) -> None:
        for process in self.running.values():
            for candidate in psutil.process_iter():
                try:
                    if os.getsid(candidate.pid) == process.pid:
                        candidate.kill()
                except (ProcessLookupError, psutil.Error):
                    continue
            process.wait()


@pytest.fixture
def pods(tmp_path):
    if installed()[0] != "vllm-cpu":
        lacking("vLLM's CPU build is not installed: make test installs it on Linux")
    group = Pods(tmp_path)
    if subprocess.run([*group.hosts, "true"], capture_output=True).returncode:
        lacking("a process cannot get an /etc/hosts of its own here (unshare --mount): run as root")
    yield group
    group.end()


def test_the_group_of_pods_starts_answers_and_ends_as_one(pods):
    assert pods.probe() == 1, "nobody listens before the start"
    pods.start("worker", 1)
    pods.start("server", 0)
    pods.wait(lambda: pods.ask("/health") == 200, "the leader's probe")
    assert pods.probe() == 0
    assert pods.ask("/metrics") == 401 and pods.ask("/metrics", "right") == 200
    # as the PodMonitor asks
    assert pods.ask("/metrics", "scraper") == 200 and pods.ask("/v1/models", "scraper") == 401
    hub = next(
        word.partition("=")[2]
        for word in vllm(serving(pods.docs)["server"])["args"]
        if "served-model" in word
    )
    body = {"model": hub, "prompt": "The sea", "max_tokens": 4}
    assert pods.ask("/v1/completions", body=body) == 401
    assert pods.ask("/v1/completions", "right", body) == 200

    worker = next(
        process
        for process in psutil.process_iter(["cmdline"])
        if "VLLM::Worker_TP1" in " ".join(process.info["cmdline"] or [])
    )
    worker.send_signal(signal.SIGKILL)
    # Its container ends, whatever its exit code; LeaderWorkerSet then starts the group anew. No probe is needed.
    pods.wait(
        lambda: pods.running["worker"].poll() is not None,
        "the headless container outlives its worker",
        90,
    )
