"""slurm/ray.sbatch over two nodes. Ray is in no lock of ours (240 MB): this test runs where it is installed, or where
WORKSHOP_TEST_RAY names a folder with it, as in CI."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from needs import lacking
from plain_job import submit

from workshop.servers.slurm.site import scripts_folder

RAY = os.environ.get("WORKSHOP_TEST_RAY", "")
SCRIPT = scripts_folder() / "ray.sbatch"
SMALL = Path(__file__).parent / "small_on_ray"


def test_it_is_short_waits_for_no_fixed_time_and_holds_nothing_of_the_workshop():
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 70
    assert "sleep" not in text and "workshop" not in text.lower() and "site.sh" not in text


RAY_COMMAND = """import sys
from ray.scripts.scripts import main
import ray_node_start
if __name__ == "__main__":
    if sys.argv[1] == "start":
        sys.argv += ray_node_start.apply(300)
    main()
"""
PROGRAMS = {  # stand-ins; where Ray runs it has joined
    "conda": "echo 'conda() { :; }'",
    "getent": "echo '10.0.0.1  STREAM node01'",
    "scontrol": "printf 'node01\\nnode02\\n'",
    "srun": 'while [ "$1" != ray ]; do shift; done; exec "$@"',
    "python": "wc -l <started | tee -a joined",
    "ray": '[ ! -e ray_ends ] || exit 1; echo "$(tail -n 1 joined) ray $*" >>started; exec sleep 60',
    "vllm": 'echo "$(tail -n 1 joined) vllm $*"; [ "$VLLM_API_KEY" = secret ]',
}


def run(folder: Path) -> subprocess.CompletedProcess:
    """Run the script of the two nodes' job 4711 with stand-ins for conda, SLURM, Ray and vLLM."""
    (folder / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\ncd {folder}; {text}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / ".vllm_api_key").write_text("secret")
    (folder / "started").touch()
    (folder / "joined").write_text("0\n")
    # In a session of its own: at a job's end SLURM ends what the script has left.
    process = subprocess.Popen(
        ["bash", str(SCRIPT)],
        env={
            "PATH": f"{folder}/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "SLURM_JOB_ID": "4711",
            "SLURM_NNODES": "2",
            "SLURM_CPUS_PER_TASK": "16",
            "SLURM_GPUS_ON_NODE": "4",
            "SLURM_JOB_NODELIST": "node[01-02]",
        },
        stdout=(folder / "output").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    code = process.wait(60)
    with contextlib.suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess([], code, (folder / "output").read_text())


def test_the_others_join_once_the_head_has_and_vllm_starts_once_all_have(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout
    head, worker = (tmp_path / "started").read_text().splitlines()
    assert (
        head.startswith("0 ray start")
        and " --head --node-ip-address=10.0.0.1 --port=22134 " in head
    )
    assert worker.startswith("1 ray start") and worker.endswith(" --address=10.0.0.1:22134")
    assert done.stdout.splitlines()[-2:] == [
        "http://node01:22133/v1 is the address; it answers when vLLM has loaded the model",
        "2 vllm serve meta-llama/Llama-3.1-70B-Instruct --distributed-executor-backend ray"
        " --tensor-parallel-size 4 --pipeline-parallel-size 2 --max-model-len 32768"
        " --host 0.0.0.0 --port 22133",
    ]


def test_where_ray_ends_the_job_ends(tmp_path):
    (tmp_path / "ray_ends").touch()
    done = run(tmp_path)
    assert done.returncode != 0 and "vllm serve" not in done.stdout


@pytest.fixture
def environment(request) -> str:
    """Put Ray and the small engine where the test bed's users see them; return a line for the script."""
    if not RAY and not importlib.util.find_spec("ray"):
        lacking(
            "Ray is not installed: WORKSHOP_TEST_RAY=FOLDER (pip install --no-deps --target FOLDER ray msgpack)"
        )
    cluster = request.getfixturevalue("cluster")
    folders = [SMALL]
    if RAY:
        folders.append(shutil.copytree(RAY, cluster.bed / "ray"))
    programs = cluster.bed / "on_ray"
    programs.mkdir()
    # The script of `pip install --target` names another Python, and busy cores need more than the 30 s of `ray start`.
    for name, code in (("ray", RAY_COMMAND), ("vllm", (SMALL / "engine.py").read_text())):
        (programs / name).write_text(f"#!{sys.executable}\n{code}")
        (programs / name).chmod(0o755)
    path = ":".join(map(str, folders))
    return (
        f"export PATH={programs}:$PATH PYTHONPATH={path} RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE=1"
        " RAY_gcs_server_request_timeout_seconds=300"
    )


@pytest.mark.slurm
@pytest.mark.timeout(1800)  # a busy machine starts Ray slowly
def test_ray_joins_two_nodes_serves_with_the_key_and_ends(environment, request):
    """Real Ray; where it starts vLLM, the small engine has a rank on a GPU of each node."""
    cluster = request.getfixturevalue("cluster")
    script = SCRIPT.read_text()
    assert script.count("chmod 600") == 1
    script = script.replace("chmod 600", f"{environment}\nchmod 600")
    job = submit(cluster, script, "--gpus-per-node=1")
    job.answers_with_the_key_alone()
    assert "ranks on node01 node02" in job.text()
    assert any("ray::" in line for line in cluster.processes("node02").values())
    job.ends_without_a_process()
