"""The scripts of slurm/ and site.sh without a cluster: their rules, and whose folders a job touches."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from workshop.servers.slurm import recipes, submit

ROOT = Path(__file__).parents[2]
USER = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_keep_the_house_rules(script):
    text = script.read_text()
    assert ("set -euo pipefail" in text and "What you should see" in text) or script.stem == "model"
    directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert not any("$" in line.split("  ")[0] for line in directives), (
        "sbatch expands no variables there"
    )
    assert not any("/" in line.split()[1] for line in directives if "--output" in line), (
        "sbatch makes no folders"
    )
    assert "sleep" not in text and "/home/" not in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_say_from_where_to_call_sbatch(script, tmp_path, monkeypatch):
    monkeypatch.delenv("WORKSHOP_SLURM", raising=False)
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
    done = subprocess.run(["bash", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 3 and f"refused: There is no {tmp_path}/slurm/job.sh." in done.stderr
    assert (
        "sbatch from the folder above slurm/" in done.stderr and "set WORKSHOP_SLURM" in done.stderr
    )


def test_only_site_sh_has_lines_to_edit():
    marked = [
        path.name
        for path in (ROOT / "slurm").iterdir()
        if path.is_file() and "# EDIT" in path.read_text()
    ]
    assert marked == ["site.sh"]


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_script_asks_for_what_its_recipe_plans(name):
    recipe, text = recipes.RECIPES[name], (ROOT / "slurm" / f"{name}.sbatch").read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", text, re.MULTILINE))
    assert (int(options["nodes"]), int(options["gpus-per-node"])) == (
        recipe.nodes[-1],
        submit.GPUS_PER_NODE,
    )
    assert (
        options["job-name"] == name and f"$WORKSHOP_MODELS/{recipe.model.split('/')[1]}}}" in text
    )
    assert f"WORKSHOP_MAX_MODEL_LEN:-{recipe.max_model_len}}}" in text
    assert f"--gpu-memory-utilization {recipe.gpu_memory_utilization:.2f}" in text
    split = re.findall(r"\w+_parallel_size=(\S+)", text)[-2:]
    tensor = ["$((gpus_per_node", "1"]
    assert split == (tensor if recipe.split == "tensor" else ["$gpus_per_node", "$SLURM_NNODES"])


def test_site_sh_knows_that_it_is_as_it_came():
    """An edit makes it count before /etc/workshop/site.sh; after a change here: sha256sum site.sh >site.sha256."""
    done = subprocess.run(
        ["sha256sum", "--check", "site.sha256"], cwd=ROOT / "slurm", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_site_sh_says_that_it_is_for_bash_and_leaves_the_class_folder_that_was_set(monkeypatch):
    def sourced(script):
        done = subprocess.run(
            ["bash", "-c", script, "bash", ROOT / "slurm" / "site.sh"],
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    assert sourced('unset BASH_VERSION; source "$1"') == (
        1,
        "",
        "site.sh is for bash: run bash first\n",
    )
    monkeypatch.setenv("WORKSHOP_SHARED", "/shared/class")
    assert sourced('source "$1" && printenv WORKSHOP_SHARED')[1] == "/shared/class\n"


@pytest.mark.parametrize(
    "line", ["", "unset WORKSHOP_SCRATCH", "false\nexport WORKSHOP_SCRATCH=$NOT_SET"]
)
def test_a_site_without_scratch_has_tmp_and_is_read_as_by_a_login_shell(
    tmp_path, monkeypatch, line
):
    (tmp_path / "site.sh").write_text(line)
    monkeypatch.setenv("WORKSHOP_SITE", str(tmp_path / "site.sh"))
    monkeypatch.delenv("WORKSHOP_SCRATCH", raising=False)
    command = [
        "bash",
        "-euc",
        'source "$1"; printenv WORKSHOP_SCRATCH',
        "bash",
        ROOT / "slurm" / "environment.sh",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "/tmp\n", done.stderr
    (tmp_path / "site.sh").write_text("false")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3 and f"refused: {tmp_path}/site.sh ends with an error" in done.stderr


@pytest.fixture
def node_disk(tmp_path, monkeypatch):
    """The disk of a node on which `rank.sh` of job 77 runs; its environment is `python=(…)` of site.sh."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "site.sh").write_text(f"export WORKSHOP_SCRATCH={disk}\n")
    for name, value in {
        "WORKSHOP_SLURM": ROOT / "slurm",
        "WORKSHOP_SITE": tmp_path / "site.sh",
        "WORKSHOP_REASONS": tmp_path / "reasons",
        "WORKSHOP_HOME": tmp_path / "home",
        "SLURM_JOB_ID": "77",
        "SLURM_NODEID": "1",
    }.items():
        monkeypatch.setenv(name, str(value))
    return disk


@pytest.mark.parametrize("part", ["--clean", "--keep", "model"])
def test_a_folder_that_a_neighbour_made_on_the_nodes_disk_is_not_the_jobs(
    tmp_path, node_disk, part
):
    """Its name can be foretold; what `compiled` in it names would be removed."""
    precious, planted = (tmp_path / name for name in ("precious", "planted"))
    for folder in (
        planted,
        *(precious / name for name in ("vllm/torch_compile_cache", "inductor", "triton")),
    ):
        folder.mkdir(parents=True)
    (precious / "held").touch()
    os.utime(precious / "held", (0, 0))  # so that --keep would find something new in it
    (planted / "compiled").write_text(f"{precious}\n{tmp_path}/archive/1.tar\n")
    # a folder of another user is met in the same way
    (node_disk / f"workshop-{USER}-77").symlink_to(planted)
    shown = 'workshop_environment() { echo "$TMPDIR $WORKSHOP_SERVER_FOLDER"; exit 3; }'
    with (tmp_path / "site.sh").open("a") as site:
        site.write(shown)
    done = subprocess.run(
        ["bash", ROOT / "slurm" / "rank.sh", part], capture_output=True, text=True
    )
    assert done.returncode == (3 if part == "model" else 0), done.stderr
    assert precious.is_dir() and not (tmp_path / "archive").exists()
    assert [path.name for path in planted.iterdir()] == ["compiled"]
    if part == "model":  # the job has a folder of another name, which goes when it ends
        own = re.escape(f"{node_disk}/workshop-{USER}-77.")
        assert re.search(f"^{own}[^/]{{6}}/tmp {own}[^/]{{6}}/shm$", done.stdout, re.MULTILINE), (
            done.stderr
        )
        assert list(node_disk.iterdir()) == [node_disk / f"workshop-{USER}-77"]


def test_the_steps_beside_a_job_find_its_folder_where_a_neighbour_took_the_name(
    tmp_path, node_disk
):
    own, taken = node_disk / f"workshop-{USER}-77.aBcDe1", node_disk / f"workshop-{USER}-77"
    taken.symlink_to(tmp_path / "nowhere")
    (tmp_path / "place/vllm/torch_compile_cache").mkdir(parents=True)
    (tmp_path / "place/held").touch()
    os.utime(tmp_path / "place/held", (0, 0))
    for folder in ("inductor", "triton"):
        (tmp_path / "place" / folder).mkdir()
    own.mkdir()
    (own / "compiled").write_text(f"{tmp_path}/place\n{tmp_path}/archive/1.tar\n")
    for part in ("--keep", "--clean"):
        subprocess.run(["bash", ROOT / "slurm" / "rank.sh", part], check=True)
    assert (tmp_path / "archive/1.tar").is_file() and not own.exists() and taken.is_symlink()


def program(path: Path, text: str) -> Path:
    """Write a shell script that can be called."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("moment", ["mkdir", "flock", "tar"])
def test_a_job_that_ends_while_it_restores_what_was_compiled_leaves_nothing(
    tmp_path, node_disk, moment
):
    facts = program(tmp_path / "bin/python", r"printf '10.0.0.1\tH100-0.32.0\tno\teth0\n'")
    # what scancel does, at the worst moment: as soon as this command has worked
    ended = f'/usr/bin/env -i PATH=/usr/bin:/bin {moment} "$@"; code=$?\n'
    ended += 'case "$*" in *compiled*|--nonblock*) kill -TERM $PPID ;; esac; exit $code'
    program(tmp_path / "commands" / moment, ended)
    with (tmp_path / "site.sh").open("a") as site:
        site.write(
            f"workshop_environment() {{ export PATH={tmp_path}/commands:$PATH; python=({facts}); }}"
        )
    archives = tmp_path / f"home/cache/compiled-{USER}/H100-0.32.0"
    archives.mkdir(parents=True)
    command = ["bash", ROOT / "slurm" / "rank.sh", "model"]
    name = subprocess.run(
        ["bash", "-c", "printf '%s\\0' model | sha256sum | cut -c1-16"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run(["tar", "cf", archives / f"{name}-1.tar", "-C", tmp_path, "bin"], check=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not list(node_disk.iterdir()), done.stderr


@pytest.mark.parametrize("taken", [False, True])
def test_what_was_compiled_is_removed_unless_another_job_has_it(tmp_path, node_disk, taken):
    own, place = node_disk / f"workshop-{USER}-77", node_disk / f"workshop-{USER}-compiled-1"
    for folder in (own, place):
        folder.mkdir()
    (own / "compiled").write_text(f"{place}\n{tmp_path}/archive/1.tar\n")
    with (place / "held").open("w") as lock:
        if taken:
            fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(["bash", ROOT / "slurm" / "rank.sh", "--clean"], check=True, timeout=60)
    assert not own.exists() and place.exists() == taken


def job(
    tmp_path, monkeypatch, script: str, *arguments: str, parts: str
) -> subprocess.CompletedProcess:
    """Run a script as a job of one node whose `parts` of job.sh are others: no srun, no vLLM."""
    folder = tmp_path / "slurm"
    shutil.copytree(ROOT / "slurm", folder)
    with (folder / "job.sh").open("a") as file:
        file.write(parts)
    (tmp_path / "site.sh").write_text("export WORKSHOP_MODELS=/models")
    for name, value in {"SITE": tmp_path / "site.sh", "SLURM": folder}.items():
        monkeypatch.setenv(f"WORKSHOP_{name}", str(value))
    for name, value in {
        "SUBMIT_DIR": tmp_path,
        "JOB_ID": 7,
        "JOB_NAME": "one",
        "NNODES": 1,
        "GPUS_ON_NODE": 4,
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    command = ["bash", folder / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)


def test_a_batch_in_a_job_ends_with_its_engine(tmp_path, monkeypatch):
    (tmp_path / "python").write_text(
        'case "$*" in *--check | -c*) exit ;; esac; trap "exit 75" USR1; sleep 60 >/dev/null 2>&1 & wait'
    )
    parts = """
    open_logs() { python=(bash "$SLURM_SUBMIT_DIR/python"); }
    announce_server() { export WORKSHOP_RECORD=record WORKSHOP_API_HOST=here WORKSHOP_API_PORT=1; }
    start_engine() { (sleep 1; exit 137) & engine=$!; }
    wait_until_ready() { :; }
    """
    done = job(tmp_path, monkeypatch, "70b-offline.sbatch", "in.jsonl", "out.jsonl", parts=parts)
    assert done.returncode == 75 and "the batch ended with exit code 75" in done.stdout, done.stderr


def test_a_batch_that_is_told_to_stop_before_it_listens_goes_back_into_the_queue(
    tmp_path, monkeypatch
):
    (tmp_path / "in.jsonl").touch()
    # Python is still starting when SLURM's signal comes: 128 + 10
    (tmp_path / "python").write_text(
        'case "$*" in *--check | -c*) exit ;; esac; kill -USR1 $PPID; exec sleep 60 >/dev/null 2>&1'
    )
    parts = """
    open_logs() { python=(bash "$SLURM_SUBMIT_DIR/python"); trap 'kill "$engine"; echo "ended: $ended_by"' EXIT; }
    announce_server() { export WORKSHOP_RECORD=record WORKSHOP_API_HOST=here WORKSHOP_API_PORT=1; }
    start_engine() { sleep 60 >/dev/null 2>&1 & engine=$!; }
    wait_until_ready() { :; }
    """
    done = job(tmp_path, monkeypatch, "70b-offline.sbatch", "in.jsonl", "out.jsonl", parts=parts)
    assert done.returncode == 75 and "ended: requeue" in done.stdout, done.stderr


def test_a_job_that_is_cancelled_before_its_engine_starts_has_its_reason_last(
    tmp_path, monkeypatch
):
    parts = """
    open_logs() { trap finish EXIT; }
    write_the_end() { say "ended: $ended_by" >&2; }
    announce_server() { ended_by=cancelled; exit 143; }
    """
    done = job(tmp_path, monkeypatch, "70b.sbatch", parts=parts)
    assert (done.returncode, done.stderr) == (143, "[workshop] ended: cancelled\n")


@pytest.mark.parametrize("learners", ["30", "many"])
def test_a_class_has_its_limits_however_its_size_is_said(tmp_path, monkeypatch, learners):
    monkeypatch.setenv("WORKSHOP_LEARNERS", learners)
    parts = """
    open_logs() { :; }
    announce_server() { served=model; }
    wait_until_ready() { printf '%s\n' "${serve_args[@]}"; exit; }
    """
    done = job(tmp_path, monkeypatch, "70b.sbatch", parts=parts)
    assert "workshop.guard.fairshare.FairShare\n" in done.stdout, done.stderr


@pytest.mark.parametrize(("name", "value"), [("TP", "four"), ("PP", "-1"), ("MIN_GPU_GIB", "75G")])
def test_a_setting_that_is_no_number_is_refused_by_its_name(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(f"WORKSHOP_{name}", value)
    monkeypatch.setenv("WORKSHOP_MODEL", "/models/any")
    done = job(tmp_path, monkeypatch, "model.sbatch", parts="open_logs() { :; }")
    assert done.returncode == 3 and f"refused: {value} is no whole number." in done.stderr, (
        done.stderr
    )
    assert f"WORKSHOP_{name}" in done.stderr
