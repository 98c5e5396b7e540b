"""`workshop slurm submit`: plan → sbatch, with the reasons, the exact command and the job's number."""

import hashlib
import os
import re
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from inference_planner.arguments import ARGUMENTS
from inference_planner.catalog import load_model
from inference_planner.catalog.read import existing, name_of
from inference_planner.command import ALLOWED, check_starts, flags
from inference_planner.ranks import tp_problem

from workshop.engine.exact import plan
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.flags import check_for_job, for_plan, uncounted
from workshop.servers.home import private_folder, write_private
from workshop.servers.programs import LATE, run
from workshop.servers.record_file import CLUSTER
from workshop.servers.slurm import options
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm import site as slurm_site
from workshop.servers.slurm.recipes import RECIPES, Recipe
from workshop.servers.slurm.site import scripts_folder

GPU = "h100"
GPUS_PER_NODE = 4
UNSET = "$WORKSHOP_MODELS"
OF_VLLM = {names[0] for names in ARGUMENTS} - {"--network"}  # which is sbatch's, too
SBATCH_TIMEOUT_S = 60
CPUS_BASE, CPUS_PER_GPU = 4, 4  # one process a GPU, and the API's and the engine's own
MEMORY_BASE_GIB, MEMORY_PER_GPU_GIB = 16, 48  # weights pass through the page cache
GPU_MEMORY_SHARE = (
    0.95  # a GPU of the planned kind has at least this share of its memory, whatever ECC takes
)


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
    folder: Path = Path()  # of the model

    @property
    def command(self) -> str:
        """The same by hand, to be pasted into a shell."""
        variables = " ".join(
            f"{name}={value if value.startswith(UNSET) else shlex.quote(value)}"
            for name, value in self.environment.items()
        )
        words = " ".join(map(shlex.quote, ["sbatch", *self.arguments, str(self.script)]))
        return f"source {shlex.quote(str(self.site))} && {variables} {words}".replace("  ", " ")


def prepare(request: Request) -> Submission:
    """Plan, and return what would be submitted; `fits` is False where the plan says that it cannot work."""
    _refuse(request)
    site, own = slurm_site.environment(), request.what in RECIPES
    recipe = RECIPES.get(request.what) or Recipe(request.what)
    kind, per_node = slurm_site.gpus(site)
    if not slurm_site.gpu_option(site):  # a job has all GPUs of its nodes
        if request.gpus_per_node not in (None, per_node):
            said = f"--gpus-per-node {request.gpus_per_node} cannot be asked for: site_sbatch takes that option away."
            raise BadInput(
                said,
                f"A node has {per_node or 'as many as WORKSHOP_GPUS_PER_NODE says'}: leave it out.",
            )
        request = replace(request, gpus_per_node=per_node or None)
    gpu = request.gpu or site.get("WORKSHOP_GPU") or slurm_site.known_gpu(kind)
    folder = _folder(request.what, site)
    name = (
        None
        if own
        else re.sub(r"[^A-Za-z0-9._-]+", "-", name_of(folder)).strip("-.").lower()[:40] or "model"
    )
    known = (folder / "config.json").is_file()
    flags = (*site.get("site_serve_args", "").splitlines(), *request.vllm)  # in the order of job.sh
    planned = _planned(
        folder if known else recipe.model, gpu or GPU, recipe, replace(request, vllm=flags), site
    )
    check_starts(planned.deployment)
    environment = _environment(request, planned, changed_gpu=bool(gpu) or not own)
    if not own:
        environment["WORKSHOP_MODEL"] = str(folder)
        environment["WORKSHOP_TP"] = str(planned.tensor_parallel_size)
        environment["WORKSHOP_PP"] = str(planned.pipeline_parallel_size)
    elif request.pipeline and recipe.split != "pipeline":
        environment["PARALLEL"] = "pipeline"
    script = scripts_folder() / f"{request.what if own else 'model'}.sbatch"
    first = f"{planned.model}: {planned.nodes} node{'s' * (planned.nodes > 1)}, {planned.gpus} × {planned.gpu}, TP {planned.tensor_parallel_size} × PP {planned.pipeline_parallel_size}, by vLLM {planned.vllm_version}'s formulas."
    if UNSET in folder.parts:
        absent = "WORKSHOP_MODELS is not set in slurm/site.sh: the folder of the models, which every node sees."
    else:
        absent = f"The model is not in {folder} yet: workshop prefetch {request.what} --to {folder.parent}"
    return Submission(
        rendered(script, site),
        slurm_site.site_file(),
        _arguments(request, site, name, planned, kind),
        environment,
        [first, *uncounted(flags), *planned.reasons],
        [*planned.advice, *([] if known else [absent])],
        planned.fits,
        folder,
    )


def _arguments(
    request: Request, site: dict[str, str], name: str | None, planned, kind: str
) -> list[str]:
    """Return what sbatch is told beside the script's own lines; `name`: of a job that has no recipe.

    What the site takes away or replaces (`site_sbatch`) is left out, unless the person asks for it.
    """
    changes = slurm_site.changes(site)
    usual = None if name else RECIPES[request.what].nodes[-1]  # as the script has them
    total = planned.gpus // planned.nodes
    whole = planned.nodes > 1  # several nodes are taken whole
    nodes = request.nodes or (planned.nodes if planned.nodes != usual else None)
    choices = {"job-name": request.name or name, "nodes": nodes}
    choices |= _gpu_choices(site, kind, total if name else request.gpus_per_node, planned.nodes)
    choices["time"] = request.time
    ours = {}
    if name or site.get("WORKSHOP_CPUS_PER_GPU"):
        ours["cpus-per-task"] = (
            CPUS_BASE + slurm_site.number(site, "WORKSHOP_CPUS_PER_GPU", CPUS_PER_GPU) * total
        )
    if name or (site.get("WORKSHOP_GIB_PER_GPU") and not whole):
        memory = (
            MEMORY_BASE_GIB
            + slurm_site.number(site, "WORKSHOP_GIB_PER_GPU", MEMORY_PER_GPU_GIB) * total
        )
        ours["mem"] = 0 if whole else f"{memory}G"
    ours["export"] = (
        "ALL"  # whatever the site's own setting is: the job needs what stands in `environment`
    )
    choices |= {option: value for option, value in ours.items() if not changes.drops(option)}
    given = {option.name: option.value for option in options.read(request.sbatch_args)[0]}
    # sbatch refuses, for example, --mem beside --mem-per-gpu
    person = slurm_site.Changes(frozenset(), given)
    arguments = [
        f"--{option}={value}"
        for option, value in choices.items()
        if value is not None and not person.drops(option, str(value))
    ]
    if name and whole and not changes.drops("exclusive") and not person.drops("exclusive"):
        arguments.append("--exclusive")
    return [*arguments, *request.sbatch_args]


def _gpu_choices(
    site: dict[str, str], kind: str, gpus: int | None, nodes: int
) -> dict[str, object]:
    """Return the option that asks for so many GPUs a node, as this site counts them; `gpus` None: the usual number."""
    option = slurm_site.gpu_option(site)
    typed = f"{kind}:{gpus}" if kind else gpus
    if option == "gres":
        own = slurm_site.gres(site)
        parts = slurm_site.gres_parts(
            slurm_site.changes(site).added.get("gres") or site.get("SBATCH_GRES", "")
        )
        return {
            "gres": ",".join(f"gpu:{typed}" if gpus and part == own else part for part in parts)
        }
    if not option or not gpus:
        return {}
    if option == "gpus":
        return {option: f"{kind}:{gpus * nodes}" if kind else gpus * nodes}
    return {option: typed}


def rendered(script: Path, site: dict[str, str]) -> Path:
    """Return a script as this site needs it: itself, or a copy with what `site_sbatch` changes in its #SBATCH lines.

    With SBATCH_GRES its --gpus-per-node goes as well: SLURM would add one to the other, or refuse both.
    """
    changes = slurm_site.changes(site)
    by_gres = slurm_site.gpu_option(site) == "gres"

    def dropped(name: str, value: str | None) -> bool:
        return changes.drops(name, value) or (by_gres and name == "gpus-per-node")

    text = script.read_text(encoding="utf-8")
    changed = options.change_script(text, dropped, changes.words)
    if changed == text:
        return script
    digest = hashlib.sha256(changed.encode()).hexdigest()[:8]
    path = private_folder("slurm") / f"{script.stem}-{digest}{script.suffix}"
    write_private(path, changed)
    return path


def script_for_site(name: str) -> str:
    """Return the text of a script of slurm/, as this site needs it: what plain `sbatch` can be given."""
    scripts = {path.stem: path for path in scripts_folder().glob("*.sbatch")}
    path = scripts.get(name.removesuffix(".sbatch"))
    if path is None:
        raise BadInput(
            f"There is no script {name[:80]!r}.", f"There are: {', '.join(sorted(scripts))}."
        )
    return rendered(path, slurm_site.environment()).read_text(encoding="utf-8")


def _refuse(request: Request) -> None:
    """Refuse what sbatch, or the job at its start, would stumble over."""
    _refuse_unprintable(request)
    if request.name:
        records.path_of(request.name)  # refuses what is no name of a server
    check_for_job(request.vllm)
    given, rest = options.read(request.sbatch_args)
    foreign = [option.words[0] for option in given if option.words[0].partition("=")[0] in OF_VLLM]
    for word in (*foreign, *rest):
        remedy = "Its options begin with -. Flags of vLLM go into --vllm, as --vllm '--kv-cache-dtype fp8'; which version runs is for the site's environment to say."
        raise BadInput(f"{word[:80]!r} is no option of sbatch.", remedy)
    for option in given:
        value = option.value or ""
        if option.name == "job-name":
            records.path_of(value)  # the record and the job's folder are called so
        if option.name in ("export", "export-file") and "ALL" not in value.split(","):
            remedy = "Leave it out: the site's workshop_environment decides what the engine sees. Or: --export=ALL,NAME=VALUE."
            raise BadInput(
                f"--{option.name}={value[:80]} keeps the plan's settings from the job.", remedy
            )
    for name, value in (("--nodes", request.nodes), ("--gpus-per-node", request.gpus_per_node)):
        if value is not None and not 1 <= value <= 1024:
            raise BadInput(f"{name} {value} is not possible.", "Give a whole number from 1.")
    if request.time and not re.fullmatch(
        r"([0-9]{1,4}-)?[0-9]{1,6}(:[0-9]{1,2}){0,2}", request.time
    ):
        raise BadInput(
            f"--time {request.time[:40]!r} is no time.", "Give HH:MM:SS, minutes, or D-HH:MM:SS."
        )


def _refuse_unprintable(request: Request) -> None:
    """Refuse what no argument of a program can hold: a null byte, or half of a surrogate pair."""
    texts = (
        request.what,
        request.name,
        request.gpu,
        request.time,
        *request.vllm,
        *request.sbatch_args,
    )
    for text in filter(None, texts):
        try:
            possible = b"\0" not in os.fsencode(text)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            remedy = "Take it out: no argument of a program can hold it."
            raise BadInput(f"{text[:80]!r} holds a null byte, or is no text.", remedy)


def _planned(model: Path | str, gpu: str, recipe: Recipe, request: Request, site: dict[str, str]):
    """Return the plan of the recipe's split, or of the fewest nodes that hold the model (where none do: of the most).

    GPUs and nodes that were asked for are all used: tensor parallel in a node, as far as the heads allow.
    """
    per_node = request.gpus_per_node or slurm_site.gpus(site)[1] or GPUS_PER_NODE
    own = {"gpus_per_node": per_node, "max_model_len": request.max_model_len, "usage": "serve"}
    if recipe.split:
        own["gpu_memory_utilization"] = recipe.gpu_memory_utilization
        if request.max_model_len is None:
            own["max_model_len"] = slurm_site.number(
                site, "WORKSHOP_MAX_MODEL_LEN", recipe.max_model_len
            )
    own |= for_plan(request.vllm)
    asked = not recipe.split and (request.gpus_per_node or (request.nodes or 1) > 1)
    inside = per_node
    if asked:
        model = load_model(model)
        inside = next(
            t for t in range(per_node, 0, -1) if per_node % t == 0 and not tp_problem(model, t)
        )
    for nodes in (request.nodes,) if request.nodes else recipe.nodes:
        if asked or request.pipeline or recipe.split == "pipeline":
            own |= {
                "tensor_parallel_size": inside,
                "pipeline_parallel_size": per_node // inside * nodes,
            }
        elif recipe.split:
            own |= {"tensor_parallel_size": per_node * nodes, "pipeline_parallel_size": 1}
        planned = plan(model, gpu, nodes=nodes, **own)
        if planned.fits:
            break
    return planned


def _folder(what: str, site: dict[str, str]) -> Path:
    """Return the model's folder: as given, or below WORKSHOP_MODELS under its recipe's, catalogue's or Hub's name."""
    if what in RECIPES and site.get("WORKSHOP_MODEL"):
        return Path(site["WORKSHOP_MODEL"]).expanduser()
    models = Path(UNSET)
    with suppress(WorkshopError):  # the plan is shown all the same
        models = slurm_site.models_folder(site)
    if what in RECIPES:
        return models / RECIPES[what].model.split("/")[-1]
    given = existing(what)
    if (given and given.is_dir()) or what.startswith(("/", ".", "~")):
        if not given or not (given / "config.json").is_file():
            remedy = "Give the folder that `workshop prefetch` filled."
            raise BadInput(
                f"The folder {what[:200]} holds no config.json, so it is no model.", remedy
            )
        return given.resolve()
    model = load_model(what)  # an unknown name ends here, with the choices
    names = [what.split("/")[-1], *(hub.split("/")[-1] for hub in model.hub_ids)]
    present = [models / name for name in names if (models / name / "config.json").is_file()]
    return present[0] if present else models / names[1 if model.hub_ids else 0]


def _environment(request: Request, planned, changed_gpu: bool) -> dict[str, str]:
    """Return what the scripts read; only what differs from their own choice."""
    more = (*(flag for flag in flags(planned.deployment) if flag == ALLOWED), *request.vllm)
    chosen = {
        "WORKSHOP_SLURM": scripts_folder(),
        "WORKSHOP_SITE": slurm_site.site_file() if os.environ.get("WORKSHOP_SITE") else None,
        "WORKSHOP_MIN_GPU_GIB": f"{planned.gpu_memory_gib * GPU_MEMORY_SHARE:.0f}"
        if changed_gpu
        else None,
        "WORKSHOP_MAX_MODEL_LEN": request.max_model_len,
        "ENGINE": "ray" if request.ray else None,
        "WORKSHOP_LEARNERS": request.learners or None,
        "WORKSHOP_NAME": request.name,
        "WORKSHOP_SERVE_ARGS_FILE": _argument_file(more) if more else None,
    }
    return {name: str(value) for name, value in chosen.items() if value is not None}


def _argument_file(words: tuple[str, ...]) -> Path:
    """Return a file with one argument a line: an environment variable could not tell `a b` from two arguments."""
    text = "\n".join(words) + "\n"
    path = private_folder("slurm") / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.args"
    write_private(path, text)
    return path


def submit(submission: Submission) -> str:
    """Call sbatch with the site's settings; return the job's number, or raise a WorkshopError in sbatch's own words.

    The cluster that has the job is noted, so that the commands about it ask that one (`queue.remembered`).
    """
    if not submission.fits:
        advice = submission.advice or ["Ask for more GPUs: --nodes, --gpus-per-node."]
        raise WorkshopError(
            f"The plan does not fit: {submission.reasons[0]} {submission.reasons[-1]}", advice[0]
        )
    if not shutil.which("sbatch"):
        said = "There is no sbatch here: this is no login node of a SLURM cluster."
        raise WorkshopError(said, "Log in to one; or see the whole command with --dry-run.")
    if UNSET in submission.folder.parts:
        slurm_site.models_folder()  # says what is wrong with it
    private_folder("servers")  # the job writes the record there: better to find out now
    if not os.access(".", os.W_OK):
        why = f"The job's files would go to {os.getcwd()}, where you may not write."
        raise WorkshopError(why, "Go to a folder of yours: cd ~")
    line = 'source "$1" && shift && exec sbatch --parsable "$@"'
    environment = {
        **os.environ,
        "WORKSHOP_ROOT": str(scripts_folder().parent),
        **submission.environment,
    }
    words = ["bash", str(submission.site), *submission.arguments, str(submission.script)]
    done = run("bash", "-c", line, *words, within_s=SBATCH_TIMEOUT_S, env=environment)
    remedy = "Look whether the job is there, before you submit it again: squeue --me"
    if done.code == LATE:
        raise WorkshopError(f"sbatch does not answer: {done.err}.", remedy)
    if done.code:
        said = " / ".join(done.lines) or f"exit code {done.code}"
        raise WorkshopError(f"sbatch refused: {said}", slurm_site.refusal_remedy(said))
    job_id, cluster = _answered(done.lines)
    if not job_id:
        answer = " / ".join(done.lines)
        raise WorkshopError(
            f"sbatch answered {answer[:1000]!r}, and not with the number of a job.", remedy
        )
    if cluster := cluster or slurm_queue.cluster_here():
        slurm_queue.remember(job_id, cluster)
    return job_id


def _answered(lines: list[str]) -> tuple[str, str]:
    """Return the number of the job, and its cluster, from the last line that `sbatch --parsable` can have printed."""
    for line in reversed(lines):
        job_id, _, cluster = line.partition(";")
        if not re.fullmatch(f"({CLUSTER})?", cluster):
            continue
        with suppress(BadInput):
            return slurm_queue.job_number(job_id), cluster
    return "", ""
