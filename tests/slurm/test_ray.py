"""slurm/ray.sbatch over two nodes. Ray is in no lock of ours (240 MB): this test runs where it is installed, or where
WORKSHOP_TEST_RAY names a folder with it, as in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest
from needs import lacking
from plain_job import submit

from workshop.servers.slurm.site import scripts_folder

RAY = os.environ.get("WORKSHOP_TEST_RAY", "")
SCRIPT = scripts_folder() / "ray.sbatch"
SHIM = Path(__file__).parent / "ray_on_cpu"  # vLLM refuses Ray on a CPU: test only


def test_it_is_short_waits_for_no_fixed_time_and_holds_nothing_of_the_workshop():
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 70
    assert "sleep" not in text and "workshop" not in text.lower() and "site.sh" not in text


@pytest.fixture
def environment(request) -> str:
    """Copy Ray and the shim to where the test bed's users see them; return a line for the script."""
    if not RAY and not importlib.util.find_spec("ray"):
        lacking(
            "Ray is not installed: WORKSHOP_TEST_RAY=FOLDER (pip install --no-deps --target FOLDER ray msgpack)"
        )
    cluster = request.getfixturevalue("cluster")
    places = [shutil.copytree(SHIM, cluster.bed / "ray_on_cpu")]
    if RAY:
        places.append(shutil.copytree(RAY, cluster.bed / "ray"))
    command = cluster.bed / "bin/ray"  # the script of `pip install --target` names another Python
    command.write_text(f'#!/bin/bash\nexec {sys.executable} -m ray.scripts.scripts "$@"\n')
    command.chmod(0o755)
    path = ":".join(map(str, places))
    return f"export PATH={command.parent}:$PATH PYTHONPATH={path} RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE=1"


@pytest.mark.slurm
@pytest.mark.timeout(1800)  # a busy machine starts engines slowly
def test_ray_serves_over_two_nodes_and_ends(environment, request):
    cluster = request.getfixturevalue("cluster")
    edits = {
        "chmod 600": f"{environment}\nchmod 600",
        "MODEL=meta-llama/Llama-3.1-70B-Instruct": f"MODEL={cluster.model}",
        "--tensor-parallel-size 4": "--tensor-parallel-size 2 --enforce-eager",
        '--pipeline-parallel-size "$SLURM_NNODES" --max-model-len 32768': "--max-model-len 512",
    }
    script = SCRIPT.read_text()
    for text, other in edits.items():
        assert script.count(text) == 1
        script = script.replace(text, other)
    job = submit(cluster, script, "--gpus-per-node=1")
    job.answers_with_the_key_alone()
    assert any(
        "RayWorker" in line or "ray::" in line for line in cluster.processes("node02").values()
    )
    job.ends_without_a_process()
