"""ENGINE=ray, the way that the material teaches, over the same two nodes. Ray is in no lock of ours (240 MB): this test
runs where it is installed, or where WORKSHOP_TEST_RAY names a folder with it, as in CI."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from needs import lacking

RAY = os.environ.get("WORKSHOP_TEST_RAY", "")
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]  # a busy machine starts engines slowly
SHIM = Path(__file__).parent / "ray_on_cpu"  # vLLM refuses Ray on a CPU: test only


@pytest.fixture
def paths(request) -> str:
    """Copy Ray and the shim to where the test bed's users see them."""
    if not RAY and not importlib.util.find_spec("ray"):
        lacking(
            "Ray is not installed: WORKSHOP_TEST_RAY=FOLDER (pip install --no-deps --target FOLDER ray msgpack)"
        )
    cluster = request.getfixturevalue("cluster")
    places = [shutil.copytree(SHIM, cluster.bed / "ray_on_cpu")]
    if RAY:
        places.append(shutil.copytree(RAY, cluster.bed / "ray"))
    return ":".join(map(str, places))


def test_ray_serves_over_two_nodes_and_ends_with_a_killed_worker(cluster, paths):
    job = cluster.submit(
        "405b.sbatch",
        "--nodes=2",
        "--gpus-per-node=1",
        "--job-name=ray",
        ENGINE="ray",
        site=f"export PYTHONPATH={paths}:${{PYTHONPATH:-}} RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE=1",
    )
    job.until("[workshop] Ray has its 2 nodes", 600)
    job.until("[workshop] ready after", 600)
    ask = "import workshop; print(workshop.connect('ray').complete('The', max_tokens=4).usage.completion_tokens)"
    out = cluster.run(
        "notebook",
        sys.executable,
        "-c",
        ask,
        user="teacher",
        env={"PYTHONPATH": str(cluster.course)},
    )
    assert out.split()[-1] == "4"
    began = time.monotonic()
    pids = [
        pid
        for pid, line in cluster.processes("node02").items()
        if "RayWorkerWrapper" in line or "ray::" in line
    ]
    assert pids, cluster.processes("node02")
    os.kill(pids[0], signal.SIGKILL)
    assert job.until_over(90) == "FAILED"
    assert time.monotonic() - began < 90
    record = json.loads((cluster.bed / "home/teacher/.workshop/servers/ray.json").read_text())
    assert record["state"] == "failed" and record["reason"], job.text("error")[-3000:]
    cluster.wait_until_clean()
