"""`workshop slurm submit`: plan → sbatch, with the reasons, the exact command and the job's number."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from workshop.errors import BadInput, WorkshopError
from workshop.launch import records
from workshop.launch.home import private_folder, write_private
from workshop.launch.local import course
from workshop.launch.slurm import flags as slurm_flags
from workshop.launch.slurm.queue import job_number
from workshop.plan.catalog.read import existing


@dataclass(frozen=True)
class Recipe:
    """One of the scripts with a name of its own: what it asks for when nothing else is said."""

    script: str
    folder: str  # of the model, below WORKSHOP_MODELS
    model: str  # in the catalogue
    gpu: str
    nodes: int
    gpus_per_node: int
    max_model_len: int
    gpu_memory_utilization: float
    split: str  # "tensor": TP over all GPUs; "pipeline": TP in a node, one stage a node


RECIPES = {
    "70b": Recipe("70b.sbatch", "Llama-3.1-70B-Instruct", "llama-3.1-70b", "h100", 1, 4, 32768, 0.90, "tensor"),
    "405b": Recipe("405b.sbatch", "Llama-3.1-405B-Instruct", "llama-3.1-405b", "h100", 4, 4, 16384, 0.92, "tensor"),
    "405b-fp8": Recipe(
        "405b-fp8.sbatch", "Llama-3.1-405B-Instruct-FP8", "llama-3.1-405b-fp8", "h100", 2, 4, 16384, 0.92, "pipeline"
    ),
}
NODES_TRIED = (1, 2, 3, 4, 6, 8, 12, 16)  # for a model without a script of its own: the fewest that hold it
GPUS_PER_NODE = 4
SBATCH_TIMEOUT_S = 60
GPU_MEMORY_SHARE = 0.95  # a GPU of the planned kind has at least this share of its memory, whatever ECC takes


@dataclass(frozen=True)
class Request:
    """What a person asked for; None: the script's or the plan's choice."""

    what: str
    nodes: int | None = None
    gpus_per_node: int | None = None
    gpu: str | None = None
    time: str | None = None
    pipeline: bool = False
    ray: bool = False
    learners: int = 0
    name: str | None = None
    max_model_len: int | None = None
    vllm: tuple[str, ...] = ()  # more flags of `vllm serve`
    sbatch_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Submission:
    """What `submit` runs: `source site && ENVIRONMENT sbatch ARGUMENTS script`."""

    script: Path
    site: Path
    arguments: list[str]
    environment: dict[str, str]
    reasons: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    fits: bool = True

    @property
    def command(self) -> str:
        """The same by hand, to be pasted into a shell."""
        variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment.items())
        words = " ".join(map(shlex.quote, ["sbatch", *self.arguments, str(self.script)]))
        return f"source {shlex.quote(str(self.site))} && {variables} {words}".replace("  ", " ")


def scripts_folder() -> Path:
    """Return the folder of the scripts: $WORKSHOP_SLURM, else the course's."""
    chosen = os.environ.get("WORKSHOP_SLURM")
    return Path(chosen).expanduser().resolve() if chosen else course.course_folder("slurm")


def site_file() -> Path:
    """Return the site's settings: $WORKSHOP_SITE, else site.sh beside the scripts."""
    chosen = os.environ.get("WORKSHOP_SITE")
    path = Path(chosen).expanduser().resolve() if chosen else scripts_folder() / "site.sh"
    if not path.is_file():
        raise WorkshopError(
            f"There is no site file {path}.", "Copy slurm/site.sh, edit it, and set WORKSHOP_SITE to it."
        )
    return path


def site_environment() -> dict[str, str]:
    """Return the environment after `source site.sh`, or say what bash said against it."""
    read = 'set -a; source "$1" >/dev/null && env -0'
    try:
        done = subprocess.run(
            ["bash", "-c", read, "bash", str(site_file())],
            capture_output=True,
            timeout=30,
            env={**os.environ, "WORKSHOP_ROOT": str(scripts_folder().parent)},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkshopError(f"{site_file()} cannot be read by bash: {error}.", "It must only set variables.") from None
    if done.returncode:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise WorkshopError(f"{site_file()} has a mistake: {said}", "Compare it with the examples in slurm/sites/.")
    pairs = (part.split("=", 1) for part in done.stdout.decode(errors="replace").split("\0") if "=" in part)
    return dict(pairs)


def prepare(request: Request) -> Submission:
    """Plan, and return what would be submitted; `fits` is False where the plan says that it cannot work.

    Raises:
        BadInput: an unknown model, or numbers that cannot be.
    """
    if request.name:
        records.path_of(request.name)  # refuses what is no name of a server
    slurm_flags.check(request.vllm)
    if request.sbatch_args and not request.sbatch_args[0].startswith("-"):
        raise BadInput(f"{request.sbatch_args[0][:80]!r} is no option of sbatch.", "Its options begin with -.")
    site = site_environment()
    for name, value in (("--nodes", request.nodes), ("--gpus-per-node", request.gpus_per_node)):
        if value is not None and not 1 <= value <= 1024:
            raise BadInput(f"{name} {value} is not possible.", "Give a whole number from 1.")
    if request.time and not re.fullmatch(r"([0-9]{1,4}-)?[0-9]{1,6}(:[0-9]{1,2}){0,2}", request.time):
        raise BadInput(f"--time {request.time[:40]!r} is no time.", "Give HH:MM:SS, minutes, or D-HH:MM:SS.")
    recipe = RECIPES.get(request.what)
    return _of_recipe(request, recipe, site) if recipe else _of_plan(request, site)


def _of_recipe(request: Request, recipe: Recipe, site: dict[str, str]) -> Submission:
    from workshop.plan.parallelism import plan

    nodes, gpus = request.nodes or recipe.nodes, request.gpus_per_node or recipe.gpus_per_node
    usual = Path(site.get("WORKSHOP_MODELS", "~/models")) / recipe.folder
    folder = Path(site.get("WORKSHOP_MODEL") or usual).expanduser()
    pipeline = recipe.split == "pipeline" or request.pipeline
    tp, pp = (gpus, nodes) if pipeline else (gpus * nodes, 1)
    length = request.max_model_len or _site_length(site) or recipe.max_model_len
    planned = plan(
        folder if (folder / "config.json").is_file() else recipe.model,
        request.gpu or recipe.gpu,
        nodes=nodes,
        gpus_per_node=gpus,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        max_model_len=length,
        gpu_memory_utilization=recipe.gpu_memory_utilization,
        usage="serve",
    )
    environment = _environment(request, planned, changed_gpu=bool(request.gpu))
    if request.max_model_len:
        environment["WORKSHOP_MAX_MODEL_LEN"] = str(length)
    if request.pipeline and recipe.split != "pipeline":
        environment["PARALLEL"] = "pipeline"
    arguments = _arguments(request, nodes if request.nodes else None, gpus if request.gpus_per_node else None)
    return _submission(request, recipe.script, arguments, environment, planned, folder)


def _site_length(site: dict[str, str]) -> int:
    said = site.get("WORKSHOP_MAX_MODEL_LEN", "")
    if said and not re.fullmatch("[0-9]{1,9}", said):
        raise BadInput(f"WORKSHOP_MAX_MODEL_LEN is {said[:40]!r}, no number of tokens.", "Edit the site's file.")
    return int(said or 0)


def _of_plan(request: Request, site: dict[str, str]) -> Submission:
    """Any model: a catalogue name (its folder lies below WORKSHOP_MODELS) or a folder; the plan chooses the split."""
    from workshop.plan.catalog import load_model
    from workshop.plan.parallelism import plan

    folder = _model_folder(request.what, site)
    known = (folder / "config.json").is_file()
    if not known:
        load_model(request.what)  # an unknown name ends here, with the choices
    for nodes in (request.nodes,) if request.nodes else NODES_TRIED:
        per_node = request.gpus_per_node or GPUS_PER_NODE
        split = {"tensor_parallel_size": per_node, "pipeline_parallel_size": nodes} if request.pipeline else {}
        planned = plan(
            folder if known else request.what,
            request.gpu or "h100",
            nodes=nodes,
            gpus_per_node=per_node,
            max_model_len=request.max_model_len,
            usage="serve",
            **split,
        )
        if planned.fits:
            break
    environment = {
        "WORKSHOP_MODEL": str(folder),
        "WORKSHOP_TP": str(planned.tensor_parallel_size),
        "WORKSHOP_PP": str(planned.pipeline_parallel_size),
        **_environment(request, planned, changed_gpu=True),
    }
    if request.max_model_len:
        environment["WORKSHOP_MAX_MODEL_LEN"] = str(request.max_model_len)
    nodes = request.nodes or planned.nodes
    arguments = _arguments(request, nodes, planned.gpus // nodes)
    if not request.name:
        arguments.insert(0, f"--job-name={_job_name(folder.name)}")
    if nodes > 1:
        arguments += ["--exclusive", "--mem=0"]
    return _submission(request, "model.sbatch", arguments, environment, planned, folder)


def _model_folder(what: str, site: dict[str, str]) -> Path:
    given = existing(what)
    if (given and given.is_dir()) or what.startswith(("/", ".", "~")):
        if not given or not (given / "config.json").is_file():
            raise BadInput(
                f"The folder {what[:200]} holds no config.json, so it is no model.",
                "Give the folder that `workshop prefetch` filled.",
            )
        return given.resolve()
    from workshop.plan.catalog import load_model

    models, names = Path(site.get("WORKSHOP_MODELS", "~/models")).expanduser(), [what.split("/")[-1]]
    model = load_model(what)
    names += [hub.split("/")[-1] for hub in model.hub_ids]
    present = [models / name for name in names if (models / name / "config.json").is_file()]
    return present[0] if present else models / names[1 if model.hub_ids else 0]


def _job_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.").lower()[:40] or "model"


def _environment(request: Request, planned, changed_gpu: bool) -> dict[str, str]:
    """Return what the scripts read; only what differs from their own choice."""
    found = {"WORKSHOP_SLURM": str(scripts_folder())}
    if os.environ.get("WORKSHOP_SITE"):
        found["WORKSHOP_SITE"] = str(site_file())
    if changed_gpu:
        found["WORKSHOP_MIN_GPU_GIB"] = f"{planned.gpu_memory_gib * GPU_MEMORY_SHARE:.0f}"
    if request.ray:
        found["ENGINE"] = "ray"
    if request.learners:
        found["WORKSHOP_LEARNERS"] = str(request.learners)
    if request.name:
        found["WORKSHOP_NAME"] = request.name
    if request.vllm:
        found["WORKSHOP_SERVE_ARGS_FILE"] = str(_argument_file(request.vllm))
    return found


def _argument_file(flags: tuple[str, ...]) -> Path:
    """Return a file with one argument a line: an environment variable could not tell `a b` from two arguments."""
    text = "\n".join(flags) + "\n"
    path = private_folder("slurm") / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.args"
    write_private(path, text)
    return path


def _arguments(request: Request, nodes: int | None, gpus_per_node: int | None) -> list[str]:
    arguments = []
    if request.name:
        arguments.append(f"--job-name={request.name}")
    if nodes:
        arguments.append(f"--nodes={nodes}")
    if gpus_per_node:
        arguments.append(f"--gpus-per-node={gpus_per_node}")
    if request.time:
        arguments.append(f"--time={request.time}")
    return [*arguments, *request.sbatch_args]


def _submission(
    request: Request, script: str, arguments: list[str], environment: dict[str, str], planned, folder: Path
) -> Submission:
    own = [
        f"{planned.model}: {planned.nodes} node{'s' * (planned.nodes > 1)}, {planned.gpus} × {planned.gpu}, "
        f"TP {planned.tensor_parallel_size} × PP {planned.pipeline_parallel_size}.",
    ]
    advice = list(planned.advice)
    if not (folder / "config.json").is_file():
        advice.append(f"The model is not in {folder} yet: workshop prefetch {request.what} --to {folder.parent}")
    return Submission(
        scripts_folder() / script,
        site_file(),
        arguments,
        environment,
        own + [reason for reason in planned.reasons if reason not in own],
        advice,
        planned.fits,
    )


def submit(submission: Submission) -> str:
    """Call sbatch with the site's settings; return the job's number.

    Raises:
        WorkshopError: the plan does not fit, there is no sbatch, or it refuses (in its words, with the remedy).
    """
    if not submission.fits:
        raise WorkshopError(
            "The plan does not fit: " + submission.reasons[0],
            (submission.advice or ["Ask for more GPUs: --nodes, --gpus-per-node."])[0],
        )
    if not shutil.which("sbatch"):
        raise WorkshopError(
            "There is no sbatch here: this is no login node of a SLURM cluster.",
            "Log in to one; or see the whole command with --dry-run.",
        )
    private_folder("servers")  # the job writes the record there: better to find out now
    line = 'source "$1" && shift && exec sbatch --parsable "$@"'
    environment = {**os.environ, "WORKSHOP_ROOT": str(scripts_folder().parent), **submission.environment}
    try:
        done = subprocess.run(
            ["bash", "-c", line, "bash", str(submission.site), *submission.arguments, str(submission.script)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SBATCH_TIMEOUT_S,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkshopError(
            f"sbatch does not answer: {error}.",
            "Look whether the job is there, before you submit it again: squeue --me",
        ) from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1].removeprefix("sbatch: error: ")
        raise WorkshopError(f"sbatch refused: {said}", refusal_remedy(said))
    said = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        return job_number(said.split(";")[0])
    except BadInput:
        raise WorkshopError(
            f"sbatch answered {said[:200]!r}, and not with the number of a job.",
            "Look whether the job is there: squeue --me",
        ) from None


def refusal_remedy(said: str) -> str:
    """Return what to do about sbatch's own words."""
    for words, remedy in (
        ("partition", "Set SBATCH_PARTITION in slurm/site.sh to one that `sinfo` lists."),
        ("account", "Set SBATCH_ACCOUNT in slurm/site.sh to yours: sacctmgr show assoc user=$USER"),
        ("qos", "Set SBATCH_QOS in slurm/site.sh; sacctmgr show qos lists them."),
        ("node configuration", "No node has so many GPUs or so much memory: sinfo -o '%P %G %m %c'."),
        ("time limit", "Ask for less: --time; `sinfo -o '%P %l'` shows each partition's longest."),
    ):
        if words in said.lower():
            return remedy
    return "`workshop doctor` checks slurm/site.sh against this cluster."
