"""The scripts of slurm/ and site.sh without a cluster: their rules."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from workshop.servers.slurm.submit import recipes, submission

ROOT = Path(__file__).parents[3]
BEHIND = ("job", "node", "environment")
ALONE = ("plain", "ray")  # need nothing of the workshop: tests/slurm
SCRIPTS = [path for path in sorted((ROOT / "slurm").glob("*.sbatch")) if path.stem not in ALONE]


def test_scripts_keep_the_house_rules(subtests):
    for script in SCRIPTS:
        with subtests.test(str(script)):
            text = script.read_text()
            assert (
                "set -euo pipefail" in text and "What you should see" in text
            ) or script.stem == "model"
            directives = [line for line in text.splitlines() if line.startswith("#SBATCH")]
            assert not any("$" in line.split("  ")[0] for line in directives), (
                "sbatch expands no variables there"
            )
            assert not any("/" in line.split()[1] for line in directives if "--output" in line), (
                "sbatch makes no folders"
            )
            assert "sleep" not in text and "/home/" not in text


def test_scripts_say_from_where_to_call_sbatch(tmp_path, monkeypatch, subtests):
    for script in SCRIPTS:
        with subtests.test(str(script)):
            monkeypatch.delenv("WORKSHOP_SLURM", raising=False)
            monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
            done = subprocess.run(["bash", script], cwd=tmp_path, capture_output=True, text=True)
            assert (
                done.returncode == 3
                and f"refused: There is no {tmp_path}/slurm/job.sh." in done.stderr
            )
            assert (
                "sbatch from the folder above slurm/" in done.stderr
                and "set WORKSHOP_SLURM" in done.stderr
            )


def test_only_site_sh_has_lines_to_edit():
    marked = [
        path.name
        for path in (ROOT / "slurm").iterdir()
        if path.is_file() and "# EDIT" in path.read_text()
    ]
    assert sorted(marked) == ["plain.sbatch", "ray.sbatch", "site.sh"]


def test_script_asks_for_what_its_recipe_plans(subtests):
    for name in recipes.RECIPES:
        with subtests.test(name):
            recipe, text = recipes.RECIPES[name], (ROOT / "slurm" / f"{name}.sbatch").read_text()
            options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", text, re.MULTILINE))
            assert (int(options["nodes"]), int(options["gpus-per-node"])) == (
                recipe.nodes[-1],
                submission.SITE_GPUS_PER_NODE,
            )
            folder = f"$WORKSHOP_MODELS/{recipe.model.split('/')[1]}"
            assert options["job-name"] == name
            assert f"\nmodel=${{WORKSHOP_MODEL:-${{WORKSHOP_MODELS:+{folder}}}}}\n" in text
            assert f"\nmax_model_len={recipe.max_model_len}\n" in text
            assert f"--gpu-memory-utilization {recipe.gpu_memory_utilization:.2f}" in text
            split = re.findall(r"\w+_parallel_size=(\S+)", text)[-2:]
            tensor = ["$((gpus_per_node", "1"]
            assert split == (
                tensor if recipe.split == "tensor" else ["$gpus_per_node", "$SLURM_NNODES"]
            )


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


def test_what_runs_on_each_node_stands_in_the_script(subtests):
    for script in SCRIPTS:
        with subtests.test(str(script)):
            text = script.read_text()
            serve, srun = text.index('serve=(vllm serve "$model"'), text.index("\nsupervise srun ")
            assert text.index("--tensor-parallel-size") > serve and srun > serve
            assert '"${serve[@]}"' in text[srun:]


def test_the_bash_behind_the_scripts_is_short():
    lines = sum(len((ROOT / "slurm" / f"{name}.sh").read_text().splitlines()) for name in BEHIND)
    assert lines <= 120


def test_no_setting_passes_from_the_shell_to_a_script_but_the_documented_ones():
    used = set()
    for script in SCRIPTS:
        used |= set(re.findall(r"WORKSHOP_\w+", script.read_text()))
    assert used == {"WORKSHOP_SLURM", "WORKSHOP_MODEL", "WORKSHOP_MODELS", "WORKSHOP_SHARDS"}


def test_a_site_without_scratch_has_tmp_and_is_read_as_by_a_login_shell(
    tmp_path, monkeypatch, subtests
):
    for line in ["", "unset WORKSHOP_SCRATCH", "false\nexport WORKSHOP_SCRATCH=$NOT_SET"]:
        with subtests.test(line):
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
            assert (
                done.returncode == 3
                and f"refused: {tmp_path}/site.sh ends with an error" in done.stderr
            )
