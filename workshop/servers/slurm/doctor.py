"""Compare slurm/site.sh with what the cluster has, for `workshop doctor`."""

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.home import home
from workshop.servers.checks import LACK, NOTE, OK, Check
from workshop.servers.host.disk import quotas, who_sees
from workshop.servers.host.programs import Finished, run
from workshop.servers.slurm import site as slurm_site
from workshop.servers.slurm.submit import partitions, submission

MODEL_BYTES = 141e9  # of Llama 3.1 70B in 16 bits, the smallest of the recipes
ENVIRONMENT_TIMEOUT_S = 60.0  # conda and module on a busy shared file system
MAX_WORDS_CHARS = 1000  # of what modules and conda say
THEIR_OWN_WORDS = (
    "These are the cluster's own words, and its documentation explains them. "
    "`workshop slurm submit 70b --dry-run` shows what is sent; "
    "SBATCH_… and site_sbatch in slurm/site.sh change it."
)


def examine() -> Iterator[Check]:
    """Yield the checks of the cluster and of the site's settings; nothing is submitted."""
    if not shutil.which("sbatch"):
        yield Check(
            "SLURM",
            NOTE,
            "none here: everything else works",
            "On a cluster, log in to a login node.",
        )
        return
    try:
        rows = partitions.of_cluster()
    except WorkshopError as error:
        remedy = (
            "No controller answers from here: log in to a login node, "
            "or ask the cluster's administrators."
        )
        yield Check("SLURM", NOTE, error.message, remedy)
        return
    names = dict.fromkeys(row.partition for row in rows)
    gpu = dict.fromkeys(row.partition for row in rows if row.gpu_types)
    with_gpus = ", ".join(gpu) or "none"
    yield Check("SLURM", OK, f"{len(names)} partitions, with GPUs: {with_gpus}")
    try:
        site = slurm_site.environment()
    except WorkshopError as error:
        yield Check("Site's settings", LACK, error.message, error.remedy)
        return
    file = site.get("WORKSHOP_SITE") or str(slurm_site.site_file())
    description = file
    if file == str(slurm_site.FOR_ALL):
        description += ", set for all users"
    yield Check("Site's settings", OK, description)
    yield from _partition(site, rows, list(gpu))
    _, assumption = submission.gpu_of(
        submission.SubmitRequest("70b"), site, site.get("SBATCH_PARTITION", "")
    )
    if assumption:
        yield Check("site.sh: GPUs", NOTE, f"plans assume {submission.GPU}", assumption)
    yield _accepted(site)
    yield from _folders(site)
    yield from _environment(site, file)


def _partition(
    site: dict[str, str], rows: list[partitions.Nodes], gpu: list[str]
) -> Iterator[Check]:
    name = site.get("SBATCH_PARTITION", "")
    constraint = site.get("SBATCH_CONSTRAINT", "")
    names = set(name.split(","))
    chosen = rows
    if name:
        chosen = partitions.of_job(rows, name)
    features: set[str] = set()
    for row in chosen:
        features.update(row.features.split(","))
    remedy = f"Edit SBATCH_PARTITION in slurm/site.sh. Those with GPUs: {', '.join(gpu) or 'none'}."
    if name and not names <= {row.partition for row in rows}:
        yield Check("site.sh: partition", LACK, f"{name} is not here", remedy)
    elif name and not names & set(gpu):
        problem = f"{name} has no GPUs that SLURM knows"
        yield Check("site.sh: partition", NOTE, problem, remedy)
    else:
        yield Check("site.sh: partition", OK, name or "the cluster's default")
    if constraint and constraint.isalnum() and constraint not in features:
        listed = ", ".join(sorted(features - {"(null)"})) or "none"
        remedy = f"Edit SBATCH_CONSTRAINT in slurm/site.sh. Features: {listed}."
        yield Check("site.sh: constraint", LACK, f"no node has the feature {constraint}", remedy)


def _accepted(site: dict[str, str]) -> Check:
    """Let sbatch judge the smallest job of `workshop slurm submit`, and say when it would start."""
    try:
        job = submission.prepare(submission.SubmitRequest("70b"))
    except WorkshopError as error:
        return Check("sbatch 70b.sbatch", LACK, error.message, error.remedy)
    done = run("sbatch", "--test-only", *job.passed, str(job.script))
    answer = " / ".join(done.lines)
    if done.code:
        remedy = slurm_site.refusal_remedy(answer, otherwise=THEIR_OWN_WORDS)
        problem = f"would be refused: {answer or f'exit code {done.code}'}"
        return Check("sbatch 70b.sbatch", LACK, problem, remedy)
    description = "would be accepted"
    if answer:
        description = f"would be accepted ({answer})"
    return Check("sbatch 70b.sbatch", OK, description)


def _folders(site: dict[str, str]) -> Iterator[Check]:
    yield _models(site)
    yield _seen("Workshop folder", home(), "records of servers; ")
    shared = site.get("WORKSHOP_SHARED")
    if shared:
        if Path(shared).is_dir():
            yield Check("site.sh: class folder", OK, shared)
        else:
            remedy = "Make it before `workshop share`: mkdir, chgrp to the class, chmod 2750."
            yield Check("site.sh: class folder", NOTE, f"{shared} does not exist", remedy)


def _models(site: dict[str, str]) -> Check:
    name = "site.sh: models"
    try:
        models = slurm_site.models_folder(site)
    except WorkshopError as error:
        return Check(name, LACK, error.message, error.remedy)
    for quota in quotas(models):
        if quota.limit_bytes < MODEL_BYTES:
            remedy = (
                "Edit WORKSHOP_MODELS in slurm/site.sh: a folder on a file system of the project, "
                "which every node sees."
            )
            problem = f"{models} is too small for 70B (141 GB): {quota}"
            state = LACK
            if models.is_dir():
                state = NOTE
            return Check(name, state, problem, remedy)
    if not models.is_dir():
        remedy = (
            "Edit WORKSHOP_MODELS in slurm/site.sh, or: "
            f"workshop prefetch MODEL --to {shlex.quote(str(models))}"
        )
        return Check(name, LACK, f"there is no folder {models}", remedy)
    whole = sorted(path.parent.name for path in models.glob("*/config.json"))
    return _seen(name, models, f"{', '.join(whole) or 'no model yet'}; ")


def _seen(name: str, folder: Path, before: str) -> Check:
    description = before + who_sees(folder).replace("see the model", "see it")
    if "will NOT see" in description:
        return Check(
            name, NOTE, description, "Use a folder on the file system that all nodes share."
        )
    return Check(name, OK, description)


def _environment(site: dict[str, str], file: str) -> Iterator[Check]:
    """Run the site's workshop_environment here, and ask the Python that it chose for vLLM."""
    line = (
        'source "$1/environment.sh" >/dev/null; set +u; '
        "workshop_environment >/dev/null && set_python_path && "
        '"${python[@]}" -c '
        '"from workshop.vllm_package import bytecode_problem, installed; '
        "print(' '.join(installed()), *(bytecode_problem() or ()), sep='\\t')\""
    )
    done = _in_environment(line, file)
    build, *uncompiled = (done.out.rstrip().splitlines() or [""])[-1].split("\t")
    install_command = "conda env create -f environment.yml"
    if done.code:
        complaint = " / ".join(done.err.split("\n")).strip(" /") or f"exit code {done.code}"
        problem = f"workshop_environment fails here: {complaint[-MAX_WORDS_CHARS:]}"
        remedy = (
            "Edit workshop_environment in slurm/site.sh; slurm/sites/ has examples. "
            "(Some login nodes run no containers.)"
        )
    elif not build:
        problem = "its Python has no vLLM"
        remedy = f"Edit workshop_environment in slurm/site.sh, or install vLLM: {install_command}"
    elif "cpu" in build and not site.get("WORKSHOP_ALLOW_CPU"):
        problem = f"{build} is the CPU build: jobs with GPUs are refused"
        remedy = f"Install the one for GPUs: {install_command}"
    else:
        yield Check("site.sh: environment", OK, build)
        if uncompiled:
            yield Check("site.sh: bytecode of vLLM", NOTE, *uncompiled)
        else:
            yield Check("site.sh: bytecode of vLLM", OK, "compiled")
        return
    yield Check("site.sh: environment", LACK, problem, remedy)


def _in_environment(line: str, file: str) -> Finished:
    """Run bash that calls the site's Python with this package, without the current folder."""
    root = slurm_site.scripts_folder().parent
    with tempfile.TemporaryDirectory(prefix="workshop-") as folder:
        env = dict(os.environ)
        env.pop("PYTHONPATH", None)
        env.pop("PYTHONHOME", None)
        env |= {
            "WORKSHOP_ROOT": str(root),
            "WORKSHOP_SLURM": str(slurm_site.scripts_folder()),
            "WORKSHOP_SITE": file,
        }
        if (root / "workshop").is_dir():
            (Path(folder) / "workshop").symlink_to(root / "workshop")
            env["package"] = folder  # read by environment.sh
        scripts = str(slurm_site.scripts_folder())
        return run("bash", "-c", line, "bash", scripts, env=env, within_s=ENVIRONMENT_TIMEOUT_S)
