"""`workshop slurm submit`: turn a plan into a call of sbatch, with reasons, and a job's number."""

import os
import re
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from inference_planner.answer.command import check_starts
from inference_planner.answer.parallelism import Plan
from inference_planner.arguments import ARGUMENTS
from inference_planner.catalog import load_model
from inference_planner.catalog.read import existing, name_of
from inference_planner.split.ranks import tp_problem

from workshop.engine.planning import plan
from workshop.errors import BadInput, WorkshopError
from workshop.home import private_folder
from workshop.servers import records
from workshop.servers.flags import check_for_job, check_release, for_plan
from workshop.servers.host.programs import LATE, run
from workshop.servers.records.record_file import CLUSTER
from workshop.servers.slurm import options, reasons
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm import site as slurm_site
from workshop.servers.slurm.queue import Standing
from workshop.servers.slurm.site import scripts_folder
from workshop.servers.slurm.submit import job_script, partitions
from workshop.servers.slurm.submit.job_script import UNSET, of_person
from workshop.servers.slurm.submit.recipes import RECIPES, Recipe, SubmitRequest, model_of
from workshop.servers.weights import check as slurm_weights

GPU = "h100"
SITE_GPUS_PER_NODE = 4  # as the scripts of slurm/ ask for, where a site says nothing
# flags of vLLM that sbatch does not know: --network is sbatch's, too
OF_VLLM = {names[0] for names in ARGUMENTS} - {"--network"}
# Settings of which vLLM takes more values than the plan.
UNSURE = (
    *("speculative_config", "spec_method", "spec_model", "spec_tokens", "hf_overrides"),
    *("limit_mm_per_prompt", "language_model_only", "compilation_config", "moe_backend"),
)
SBATCH_TIMEOUT_S = 60


@dataclass(frozen=True)
class Submission:
    """The script that `submit` gives to sbatch, which holds all that was chosen.

    script: written for this submission. arguments: the options of sbatch that were chosen: `head`,
    which stand in the script's #SBATCH lines beside those of the script that it was made of, and
    `passed`, those of the person, which count most. settings: the lines of the script that were
    replaced, by name.
    """

    request: SubmitRequest
    script: Path
    head: list[str]
    passed: list[str]
    settings: dict[str, str]
    reasons: list[str]
    advice: list[str]
    fits: bool
    folder: Path  # of the model
    partition: str  # '' for the cluster's default
    cluster: str  # '' for the one of this login node

    @property
    def command(self) -> str:
        """The command line that does the same, to be typed into a shell."""
        return shlex.join(["sbatch", *self.passed, str(self.script)])

    @property
    def arguments(self) -> list[str]:
        """All options of sbatch that were chosen, the person's last."""
        return [*self.head, *self.passed]


@dataclass(frozen=True)
class Submitted:
    """A job that sbatch has taken.

    cluster: '' where nobody knows its name. standing: why it waits; None where it does not.
    """

    job_id: str
    cluster: str
    standing: Standing | None


def prepare(request: SubmitRequest) -> Submission:
    """Plan, and return what would be submitted; `fits` is False if the plan says it cannot work."""
    _refuse(request)
    site = slurm_site.environment()
    recipe = RECIPES.get(request.what)
    slurm_kind, gpus_of_a_node = slurm_site.gpus(site)
    if not slurm_site.gpu_option(site):
        request = _with_whole_nodes(request, gpus_of_a_node)
    script_name = request.what if recipe else "model"
    script = scripts_folder() / f"{script_name}.sbatch"
    sbatch_options = _sbatch_options(request, site, script)
    partition = sbatch_options.get("partition") or ""
    cluster = sbatch_options.get("clusters") or ""
    gpu, assumption = gpu_of(request, site, partition, cluster)
    folder = _folder(request.what, site)
    name = None if recipe else _job_name(folder)
    is_downloaded = (folder / "config.json").is_file()
    model = folder if is_downloaded else model_of(request.what)
    site_flags = site.get("site_serve_args", "").splitlines()
    if not request.anyway:
        check_release(site_flags, where="site_serve_args: ")
    vllm_flags = (*site_flags, *request.vllm)  # in the order of job.sh
    the_plan, uncounted = _planned(
        model,
        gpu or GPU,
        recipe or Recipe(request.what),
        replace(request, vllm=vllm_flags),
        site,
    )
    check_starts(the_plan)
    if not request.anyway:
        _refuse_other_gpus(request, the_plan)
    head = job_script.head_options(request, site, name, the_plan, slurm_kind)
    settings = job_script.script_settings(
        request, the_plan, folder, changed_gpu=bool(gpu) or not recipe
    )
    advice = list(the_plan.advice)
    if assumption:
        advice.append(f"Assumed: {GPU}. {assumption}")
    if not is_downloaded:
        advice.append(_missing_model(request.what, folder))
    return Submission(
        request=request,
        script=job_script.write_script(script, site, of_person(request), head, settings),
        head=head,
        passed=list(request.sbatch_args),
        settings=settings,
        reasons=[_summary(the_plan), *uncounted, *the_plan.reasons],
        advice=advice,
        fits=the_plan.fits,
        folder=folder,
        partition=partition,
        cluster=cluster if re.fullmatch(CLUSTER, cluster) else "",
    )


def gpu_of(
    request: SubmitRequest, site: dict[str, str], partition: str, cluster: str = ""
) -> tuple[str, str]:
    """Return the GPU to plan for, and what to know if nobody named it: then it is ('', why)."""
    gpu = request.gpu or site.get("WORKSHOP_GPU") or slurm_site.known_gpu(slurm_site.gpus(site)[0])
    if gpu:
        return gpu, ""
    gpu, why = partitions.gpu(partition, cluster)
    if gpu:
        return gpu, ""
    why = why[0].upper() + why[1:]
    return "", f"{why}. Set WORKSHOP_GPU in slurm/site.sh, or give --gpu."


def _sbatch_options(
    request: SubmitRequest, site: dict[str, str], script: Path
) -> dict[str, str | None]:
    """Return the options of the job as sbatch reads them: of the person, the shell, the script."""
    text = script.read_text(encoding="utf-8")
    values = dict(options.in_script(text))
    values |= slurm_site.changes(site).added
    for name in ("partition", "clusters"):
        if site.get(f"SBATCH_{name.upper()}"):
            values[name] = site[f"SBATCH_{name.upper()}"]
    return values | of_person(request).added


def _refuse_other_gpus(request: SubmitRequest, plan: Plan) -> None:
    """Refuse an option of sbatch that asks for another number of GPUs than the plan has."""
    for option in options.read(request.sbatch_args)[0]:
        value = option.value or ""
        if not slurm_site.counts_gpus(option.name, value):
            continue
        _, count = slurm_site.typed_count(slurm_site.gpu_part(value) or value)
        planned = plan.gpus if option.name == "gpus" else plan.gpus // plan.nodes
        if count != planned:
            raise BadInput(
                f"{options.written([option])[0]} contradicts the plan, which has {planned} there.",
                "Give --nodes N and --gpus-per-node N instead. To submit it all the same: --anyway.",
            )


def _with_whole_nodes(request: SubmitRequest, gpus_of_a_node: int) -> SubmitRequest:
    """Return the request with all GPUs of its nodes, where no option of sbatch counts GPUs."""
    if request.gpus_per_node not in (None, gpus_of_a_node):
        number = gpus_of_a_node or "as many as WORKSHOP_GPUS_PER_NODE says"
        raise BadInput(
            f"--gpus-per-node {request.gpus_per_node} cannot be asked for: "
            "site_sbatch takes that option away.",
            f"A node has {number}: leave it out.",
        )
    return replace(request, gpus_per_node=gpus_of_a_node or None)


def _job_name(folder: Path) -> str:
    """Return the name of a job and its server, made of the model's name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", name_of(folder))
    return name.strip("-.").lower()[:40] or "model"


def _summary(plan: Plan) -> str:
    """Return the first of the reasons: the model, the GPUs, the split."""
    nodes = "1 node" if plan.nodes == 1 else f"{plan.nodes} nodes"
    return (
        f"{plan.model}: {nodes}, {plan.gpus} × {plan.gpu}, "
        f"TP {plan.tensor_parallel_size} × PP {plan.pipeline_parallel_size}, "
        f"by vLLM {plan.deployment.settings.vllm_version}'s formulas."
    )


def _missing_model(what: str, folder: Path) -> str:
    """Return the advice for a model that is not on the shared disk yet."""
    if UNSET in folder.parts:
        return (
            "WORKSHOP_MODELS is not set in slurm/site.sh: "
            "the folder of the models, which every node sees."
        )
    return f"The model is not in {folder} yet: workshop prefetch {what} --to {folder.parent}"


def _refuse(request: SubmitRequest) -> None:
    """Refuse what sbatch, or the job at its start, would stumble over."""
    if request.name:
        records.path_of(request.name)  # refuses what is no name of a server
    check_for_job(request.vllm, anyway=request.anyway)
    sbatch_options, rest = options.read(request.sbatch_args)
    for word in rest:
        if word.startswith("-") and word.partition("=")[0] not in OF_VLLM:
            continue  # of a plugin
        remedy = (
            "Its options begin with -. Flags of vLLM go into --vllm, "
            "as --vllm '--kv-cache-dtype fp8'; "
            "which version runs is for the site's environment to say."
        )
        raise BadInput(f"{word[:80]!r} is no option of sbatch.", remedy)
    for option in sbatch_options:
        value = option.value or ""
        if option.name == "job-name":
            records.path_of(value)  # the record and the job's folder are called so
    for name, value in (("--nodes", request.nodes), ("--gpus-per-node", request.gpus_per_node)):
        if value is not None and not 1 <= value <= 1024:
            raise BadInput(f"{name} {value} is not possible.", "Give a whole number from 1.")
    if request.time and not re.fullmatch(
        r"([0-9]{1,4}-)?[0-9]{1,6}(:[0-9]{1,2}){0,2}", request.time
    ):
        raise BadInput(
            f"--time {request.time[:40]!r} is no time.", "Give HH:MM:SS, minutes, or D-HH:MM:SS."
        )


def _planned(
    model: Path | str, gpu: str, recipe: Recipe, request: SubmitRequest, site: dict[str, str]
) -> tuple[Plan, list[str]]:
    """Return the plan with the flags of vLLM, and a sentence on those that it cannot count."""
    flags = for_plan(request.vllm)
    unsure = [name for name in flags if name in UNSURE]
    if "hf_overrides" in flags and "max_model_len" in flags:  # more than its config.json says
        unsure.append("max_model_len")
    sure = {name: value for name, value in flags.items() if name not in unsure}
    try:
        return _plan_of_split(model, gpu, recipe, request, site, flags), []
    except BadInput as problem:
        if not unsure:
            raise
        made = _plan_of_split(model, gpu, recipe, request, site, sure)
        uncounted = ", ".join(f"--{name.replace('_', '-')}" for name in unsure)
        return made, [f"The plan does not count {uncounted}: {problem.message}"]


def _plan_of_split(
    model: Path | str,
    gpu: str,
    recipe: Recipe,
    request: SubmitRequest,
    site: dict[str, str],
    flags: dict[str, Any],
) -> Plan:
    """Return the plan of the recipe's split, or of the fewest nodes that hold the model.

    Where none do, the plan of the most nodes. GPUs and nodes that a person requests are all used:
    tensor parallel in a node, as far as the heads allow.

    flags: of vLLM, as plan() takes them.
    """
    gpus_per_node = request.gpus_per_node or slurm_site.gpus(site)[1] or SITE_GPUS_PER_NODE
    settings: dict[str, Any] = {
        "gpus_per_node": gpus_per_node,
        "max_model_len": request.max_model_len,
        "usage": "serve",
    }
    if recipe.split:
        settings["gpu_memory_utilization"] = recipe.gpu_memory_utilization
        if request.max_model_len is None:
            settings["max_model_len"] = recipe.max_model_len
    settings |= flags
    several_nodes = request.nodes is not None and request.nodes > 1
    use_all = not recipe.split and (request.gpus_per_node is not None or several_nodes)
    tp_in_node = _largest_tp(model, gpus_per_node) if use_all else gpus_per_node
    for nodes in (request.nodes,) if request.nodes else recipe.nodes:
        if use_all or request.pipeline or recipe.split == "pipeline":
            settings["tensor_parallel_size"] = tp_in_node
            settings["pipeline_parallel_size"] = gpus_per_node // tp_in_node * nodes
        elif recipe.split:
            settings["tensor_parallel_size"] = gpus_per_node * nodes
            settings["pipeline_parallel_size"] = 1
        candidate = plan(model, gpu, nodes=nodes, **settings)
        if candidate.fits:
            break
    return candidate


def _largest_tp(model: Path | str, gpus: int) -> int:
    """Return the largest tensor parallel size that divides the model and the GPUs of a node."""
    config = load_model(model)
    for size in range(gpus, 1, -1):
        if gpus % size == 0 and not tp_problem(config, size):
            return size
    return 1


def _folder(what: str, site: dict[str, str]) -> Path:
    """Return the model's folder: `what`, or one below WORKSHOP_MODELS with the model's name."""
    if what in RECIPES and site.get("WORKSHOP_MODEL"):
        return Path(site["WORKSHOP_MODEL"]).expanduser()
    models = Path(UNSET)
    with suppress(WorkshopError):  # the plan is shown all the same
        models = slurm_site.models_folder(site)
    if what in RECIPES:
        return models / RECIPES[what].model.split("/")[-1]
    model_folder = existing(what)
    if (model_folder and model_folder.is_dir()) or what.startswith(("/", ".", "~")):
        if not model_folder or not (model_folder / "config.json").is_file():
            remedy = "Give the folder that `workshop prefetch` filled."
            raise BadInput(
                f"The folder {what[:200]} holds no config.json, so it is no model.", remedy
            )
        return model_folder.resolve()
    model = load_model(what)  # an unknown name ends here, with the choices
    folders = [models / name.split("/")[-1] for name in (what, *model.hub_ids)]
    for folder in folders:
        if (folder / "config.json").is_file():
            return folder
    return folders[1] if model.hub_ids else folders[0]


def submit(submission: Submission) -> Submitted:
    """Call sbatch with the site's settings; return the job.

    Raises:
        WorkshopError: the job is not submitted; it has sbatch's own words.

    The cluster that has the job is noted, so that the commands about it ask that one
    (`queue.remembered`).
    """
    if not submission.fits:
        advice = submission.advice or ["Ask for more GPUs: --nodes, --gpus-per-node."]
        raise WorkshopError(
            f"The plan does not fit: {submission.reasons[0]} {submission.reasons[-1]}", advice[0]
        )
    if not shutil.which("sbatch"):
        problem = "There is no sbatch here: this is no login node of a SLURM cluster."
        raise WorkshopError(problem, "Log in to one; or see the whole command with --dry-run.")
    if UNSET in submission.folder.parts:
        slurm_site.models_folder()  # says what is wrong with it
    if not submission.request.anyway:
        _refuse_missing_model(submission.request.what, submission.folder)
    private_folder("servers")  # the job writes the record there: better to find out now
    if not os.access(".", os.W_OK):
        why = f"The job's files would go to {os.getcwd()}, where you may not write."
        raise WorkshopError(why, "Go to a folder of yours: cd ~")
    # What the script's head says counts, and not what a site.sh has left in this shell.
    in_head = {option.name.upper().replace("-", "_") for option in options.read(submission.head)[0]}
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.removeprefix("SBATCH_") not in in_head or not name.startswith("SBATCH_")
    }
    command = ("sbatch", "--parsable", *submission.passed, str(submission.script))
    done = run(*command, within_s=SBATCH_TIMEOUT_S, env=environment)
    remedy = "Look whether the job is there, before you submit it again: squeue --me"
    if done.code == LATE:
        raise WorkshopError(f"sbatch does not answer: {done.err}.", remedy)
    if done.code:
        problem = " / ".join(done.lines) or f"exit code {done.code}"
        described, _ = partitions.describe(submission.partition, submission.cluster)
        raise WorkshopError(
            " / ".join(filter(None, (f"sbatch refused: {problem}", described))),
            slurm_site.refusal_remedy(problem),
        )
    job_id, cluster = _answered(done.lines)
    if not job_id:
        answer = " / ".join(done.lines)
        raise WorkshopError(
            f"sbatch answered {answer[:1000]!r}, and not with the number of a job.", remedy
        )
    cluster = cluster or slurm_queue.cluster_here()
    slurm_queue.remember(job_id, cluster)
    standing = _first_standing(submission, slurm_queue.named(job_id, cluster))
    return Submitted(job_id, cluster, standing)


def _refuse_missing_model(what: str, folder: Path) -> None:
    """Refuse a folder in which every node would miss the model, or a part of it."""
    problem = ""
    if not (folder / "config.json").is_file():
        problem = f"There is no model in {folder}: it has no config.json."
    else:
        missing = slurm_weights.missing(folder)
        if missing:
            problem = (
                f"The model in {folder} lacks {len(missing)} of its files, {missing[0]} first."
            )
        elif not slurm_weights.weight_bytes(folder):
            problem = f"The model in {folder} has no weights."
    if problem:
        remedy = (
            f"workshop prefetch {what} --to {folder.parent}. While a download still runs, or where "
            "only the nodes see the folder: --anyway."
        )
        raise WorkshopError(problem, remedy)


def _first_standing(submission: Submission, job: str) -> Standing | None:
    """Return what SLURM first says of a job; None where it does not wait.

    A job that its own request keeps from ever starting is cancelled, and SLURM's reason raised.
    sbatch accepts what a partition does not allow (EnforcePartLimits is off by default), and
    `sbatch --test-only` tells less than the reason in the queue: it says nothing of a time limit,
    or of a partition that is down.
    """
    job_id, _, cluster = job.partition(";")
    waiting = slurm_queue.first_answer(job)
    now = waiting and slurm_queue.standing(waiting, cluster)
    if waiting is None or now is None or submission.request.anyway:
        return now
    described, all_up = partitions.describe(submission.partition, submission.cluster)
    # the first look of a slow scheduler: a limit, where no node is down
    if now.impossible or (waiting.reason == reasons.FIRST_LOOK and all_up):
        slurm_queue.cancel(job)
        raise WorkshopError(
            f"SLURM says of job {job_id}: {now.sentence}. It is cancelled. {described}",
            f"{now.remedy} To let it wait all the same: --anyway.",
        )
    return now


def _answered(lines: list[str]) -> tuple[str, str]:
    """Return the job's number and cluster: the last such line of `sbatch --parsable`."""
    for line in reversed(lines):
        job_id, _, cluster = line.partition(";")
        if not re.fullmatch(f"({CLUSTER})?", cluster):
            continue
        with suppress(BadInput):
            return slurm_queue.job_number(job_id), cluster
    return "", ""
