"""What `workshop doctor` says on a SLURM cluster: slurm/site.sh, line by line, against what the cluster has."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.launch.checks import LACK, NOTE, OK, Check
from workshop.launch.disk import quotas, who_sees
from workshop.launch.home import home
from workshop.launch.slurm import site as slurm_site

TIMEOUT_S = 20.0
MODEL_BYTES = 141e9  # of Llama 3.1 70B in 16 bits, the smallest of the recipes
ENVIRONMENT_TIMEOUT_S = 60.0  # conda and module on a busy shared file system


def examine() -> Iterator[Check]:
    """Yield the checks of the cluster and of the site's settings; nothing is submitted."""
    if not shutil.which("sbatch"):
        yield Check("SLURM", NOTE, "none here: everything else works", "On a cluster, log in to a login node.")
        return
    code, out, said = _run("sinfo", "--noheader", "--format=%R|%D|%G|%f")
    if code:
        yield Check(
            "SLURM",
            NOTE,
            said or "sinfo failed",
            "No controller answers from here: log in to a login node, or ask the cluster's administrators.",
        )
        return
    rows = [line.split("|") for line in out.splitlines() if line.count("|") == 3]
    gpu = dict.fromkeys(row[0] for row in rows if "gpu" in row[2].lower())
    yield Check("SLURM", OK, f"{len({row[0] for row in rows})} partitions, with GPUs: {', '.join(gpu) or 'none'}")
    try:
        site = slurm_site.environment()
    except WorkshopError as error:
        yield Check("Site's settings", LACK, error.message, error.remedy)
        return
    file = site.get("WORKSHOP_SITE") or str(slurm_site.site_file())
    yield Check("Site's settings", OK, file + (", set for all users" if file == str(slurm_site.FOR_ALL) else ""))
    yield from _partition(site, rows, list(gpu))
    yield _accepted(site)
    yield from _folders(site)
    yield _environment(site, file)


def _run(*command: str, env: dict[str, str] | None = None, timeout: float = TIMEOUT_S) -> tuple[int, str, str]:
    """Return (exit code, output, last line of what it said against it)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1]


def _partition(site: dict[str, str], rows: list[list[str]], gpu: list[str]) -> Iterator[Check]:
    name = site.get("SBATCH_PARTITION", "")
    known = dict.fromkeys(row[0] for row in rows)
    choices = f"Those with GPUs: {', '.join(gpu) or 'none'}."
    if name and not set(name.split(",")) <= set(known):
        yield Check("site.sh: partition", LACK, f"{name} is not here", f"Edit SBATCH_PARTITION. {choices}")
    elif name and not set(name.split(",")) & set(gpu):
        yield Check(
            "site.sh: partition", NOTE, f"{name} has no GPUs that SLURM knows", f"Edit SBATCH_PARTITION. {choices}"
        )
    else:
        yield Check("site.sh: partition", OK, name or "the cluster's default")
    wanted = site.get("SBATCH_CONSTRAINT", "")
    features = {feature for row in rows for feature in row[3].split(",") if not name or row[0] in name.split(",")}
    if wanted and wanted.isalnum() and wanted not in features:
        yield Check(
            "site.sh: constraint",
            LACK,
            f"no node has the feature {wanted}",
            f"Edit SBATCH_CONSTRAINT. Features: {', '.join(sorted(features - {'(null)'})) or 'none'}.",
        )


def _accepted(site: dict[str, str]) -> Check:
    """Let sbatch itself judge partition, account and QOS, with the smallest script: it tells when a job would start."""
    script = slurm_site.scripts_folder() / "70b.sbatch"
    code, _, said = _run("sbatch", "--test-only", str(script), env={**os.environ, **site})
    said = said.removeprefix("sbatch: ").removeprefix("error: ")
    if code:
        return Check("sbatch 70b.sbatch", LACK, f"would be refused: {said}", slurm_site.refusal_remedy(said))
    return Check("sbatch 70b.sbatch", OK, f"would be accepted ({said})")


def _folders(site: dict[str, str]) -> Iterator[Check]:
    models = Path(site.get("WORKSHOP_MODELS", "")).expanduser()
    small = next((quota for quota in quotas(models) if quota.limit_bytes < MODEL_BYTES), None)
    if small:
        yield Check(
            "site.sh: models",
            NOTE if models.is_dir() else LACK,
            f"{models} is too small for 70B (141 GB): {small}",
            "Edit WORKSHOP_MODELS: a folder on a file system of the project, which every node sees.",
        )
    elif not models.is_dir():
        yield Check(
            "site.sh: models",
            LACK,
            f"there is no folder {models}",
            "Edit WORKSHOP_MODELS, or: workshop prefetch MODEL --to " + shlex.quote(str(models)),
        )
    else:
        whole = sorted(path.parent.name for path in models.glob("*/config.json"))
        yield from _seen("site.sh: models", models, f"{', '.join(whole) or 'no model yet'}; ")
    yield from _seen("Workshop folder", home(), "records of servers; ")
    if shared := site.get("WORKSHOP_SHARED"):
        there = Path(shared).is_dir()
        yield Check(
            "site.sh: class folder",
            OK if there else NOTE,
            shared if there else f"{shared} does not exist",
            "" if there else "Make it before `workshop share`: mkdir, chgrp to the class, chmod 2750.",
        )


def _seen(name: str, folder: Path, before: str) -> Iterator[Check]:
    words = who_sees(folder)
    local = "will NOT see" in words
    yield Check(
        name,
        NOTE if local else OK,
        before + words.replace("see the model", "see it"),
        "Use a folder on the file system that all nodes share." if local else "",
    )


def _environment(site: dict[str, str], file: str) -> Check:
    """Run the site's workshop_environment here, and ask the Python that it chose for vLLM."""
    line = (
        'set +u; source "$1" >/dev/null && workshop_environment >/dev/null && "${python[@]}" -c '
        '"from workshop.launch.vllm_main import installed; print(*installed())"'
    )
    root = str(slurm_site.scripts_folder().parent)
    env = {**os.environ, "WORKSHOP_ROOT": root, "PYTHONPATH": root}
    code, out, said = _run("bash", "-c", line, "bash", file, env=env, timeout=ENVIRONMENT_TIMEOUT_S)
    build, gpu = (out.strip().splitlines() or [""])[-1], "conda env create -f environment.yml"
    if code:
        found = f"workshop_environment fails here: {said}"
        remedy = "Edit workshop_environment; slurm/sites/ has examples. (Some login nodes run no containers.)"
    elif not build:
        found, remedy = "its Python has no vLLM", f"Edit workshop_environment, or install vLLM: {gpu}"
    elif "cpu" in build and not site.get("WORKSHOP_ALLOW_CPU"):
        found, remedy = f"{build} is the CPU build: jobs with GPUs are refused", f"Install the one for GPUs: {gpu}"
    else:
        return Check("site.sh: environment", OK, build)
    return Check("site.sh: environment", LACK, found, remedy)
