"""From `sbatch` to the first completion on the test bed, beside a bare `srun vllm serve`: two nodes, one rank on each.

    sudo python benchmarks/slurm/start.py [--pairs 3]

The pairs alternate on the same cluster with the same model, flags and environment, so their ratio holds where absolute
times vary. Prints the seconds of each pair and the median of their ratios, with the load of the machine beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/slurm")]
from cluster import Cluster, what_is_missing  # noqa: E402

from workshop.servers.local import TEACHING_FOLDER  # noqa: E402

LIMIT_S = 400.0
BARE = """
source slurm/site.sh; workshop_environment
export PYTHONPATH={course} VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
exec srun --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=32 --exclusive bash -c '
  args=({model} --max-model-len 512 --gpu-memory-utilization 0.92 --served-model-name m --tensor-parallel-size 2
        --enforce-eager --kv-cache-memory-bytes 67108864 --nnodes 2 --node-rank "$SLURM_NODEID"
        --master-addr 10.77.0.11 --master-port 29501)
  export VLLM_HOST_IP=10.77.0.1$((SLURM_NODEID + 1)) GLOO_SOCKET_IFNAME=eth0
  [ "$SLURM_NODEID" = 0 ] && args+=(--host 10.77.0.11 --port 8000) || args+=(--headless)
  exec {python} -m workshop.servers.vllm_main serve "${{args[@]}}"'
"""
ASK = """
import json, sys, time, urllib.request
url, key, model, limit = sys.argv[1], sys.stdin.readline().strip(), sys.argv[2], time.monotonic() + float(sys.argv[3])
body = json.dumps({"model": model, "prompt": "The", "max_tokens": 8}).encode()
request = urllib.request.Request(url + "/completions", body,
                                 {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
while time.monotonic() < limit:
    try:
        sys.exit(0 if json.load(urllib.request.urlopen(request, timeout=60))["usage"]["completion_tokens"] else 1)
    except OSError:
        time.sleep(0.2)
sys.exit(1)
"""


def ask(cluster: Cluster, url: str, key: str, model: str) -> None:
    """Return when the server completes a prompt; asked from the login node, by one process that stays."""
    enter = cluster._enter("login")
    subprocess.run(
        [*enter, sys.executable, "-c", ASK, url, model, str(LIMIT_S)],
        input=f"{key}\n",
        text=True,
        check=True,
        env=cluster._env(),
    )


def idle(cluster: Cluster) -> None:
    """Wait until both nodes are free again."""
    cluster.wait(
        lambda: cluster.run("login", "sinfo", "-h", "-o", "%T %D").strip() == "idle 2",
        60,
        "nodes are not idle",
    )


def bare(cluster: Cluster) -> float:
    """Return the seconds from `srun vllm serve` to a completion."""
    script = cluster.course / "bare.sh"
    script.write_text(
        BARE.format(course=cluster.course, model=cluster.model, python=sys.executable)
    )
    began = time.perf_counter()
    process = subprocess.Popen(
        [
            *cluster._enter("login"),
            "setpriv",
            "--reuid=7001",
            "--regid=7001",
            "--init-groups",
            "env",
            "-C",
            str(cluster.course),
            "bash",
            str(script),
        ],
        env=cluster._env("teacher"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ask(cluster, "http://10.77.0.11:8000/v1", "none", "m")
    took = time.perf_counter() - began
    cluster.run("login", "scancel", "--user=teacher")
    process.wait()
    idle(cluster)
    return took


def ours(cluster: Cluster) -> float:
    """Return the seconds from `sbatch 405b.sbatch` to a completion."""
    record = cluster.bed / "home/teacher/.workshop/servers/405b.json"
    record.unlink(missing_ok=True)
    began = time.perf_counter()
    job = cluster.submit("405b.sbatch", "--nodes=2", "--gpus-per-node=1")
    cluster.wait(record.exists, 60, "no record came", job.text)
    facts = json.loads(record.read_text())
    ask(cluster, facts["url"], facts["api_key"], facts["model"])
    took = time.perf_counter() - began
    cluster.run("login", "scancel", str(job.id))
    idle(cluster)
    return took


def warm(cluster: Cluster) -> None:
    """One start that does not count: what vLLM then knows about the model's class is there for both ways."""
    ours(cluster)
    copy = "mkdir -p ~/.cache/vllm && cp -r ~/.workshop/cache/modelinfos ~/.cache/vllm/"
    cluster.run("login", "bash", "-c", copy, user="teacher")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--model", type=Path, default=TEACHING_FOLDER)
    options = parser.parse_args()
    if missing := what_is_missing():
        sys.exit(missing)
    cluster = Cluster(options.model)
    ratios = []
    try:
        cluster.up()
        warm(cluster)
        for number in range(options.pairs):
            first, second = (bare, ours) if number % 2 else (ours, bare)
            times = {first.__name__: first(cluster), second.__name__: second(cluster)}
            ratios.append(times["ours"] / times["bare"])
            print(f"ours {times['ours']:.2f} s, bare {times['bare']:.2f} s, {ratios[-1]:.3f} times")
    finally:
        cluster.down()
    print(f"median {statistics.median(ratios):.3f} times, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
