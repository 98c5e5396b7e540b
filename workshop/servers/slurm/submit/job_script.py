"""The script of a submission: one of slurm/, with the #SBATCH lines and the settings that were chosen."""

import hashlib
import os
import re
import shlex
from pathlib import Path

from inference_planner.answer.command import ALLOWED, flags
from inference_planner.answer.parallelism import Plan

from workshop.engine import trace_writer
from workshop.guard import fairshare
from workshop.home import home, private_folder, write_private
from workshop.servers.flags import flags_of
from workshop.servers.slurm import options
from workshop.servers.slurm import site as slurm_site
from workshop.servers.slurm.site import scripts_folder
from workshop.servers.slurm.submit.recipes import RECIPES, SubmitRequest

UNSET = "$WORKSHOP_MODELS"
CPUS_BASE = 4  # for the API's and the engine's own processes
CPUS_PER_GPU = 4  # for the worker of each GPU
MEMORY_BASE_GIB = 16
MEMORY_PER_GPU_GIB = 48  # weights pass through the page cache
# a GPU of the planned kind has at least this share of its memory, whatever ECC takes
GPU_MEMORY_SHARE = 0.95


def of_person(request: SubmitRequest) -> slurm_site.Changes:
    """Return the options of sbatch that a person requests, as changes to a script."""
    return slurm_site.Changes(frozenset(), dict(options.read(request.sbatch_args)[0]))


def head_options(
    request: SubmitRequest, site: dict[str, str], name: str | None, plan: Plan, slurm_kind: str
) -> list[str]:
    """Return the options of sbatch that the script gets beside its own.

    What the site removes or replaces (`site_sbatch`), or the person requests, is left out.

    name: of a job without a recipe; None: the script has a name.
    slurm_kind: SLURM's type of the GPUs; '' for none.
    """
    choices = _choices(request, site, name, plan, slurm_kind)
    person = of_person(request)  # sbatch refuses, for example, --mem beside --mem-per-gpu
    changed = slurm_site.changes(site)
    head: list[str] = []
    chosen = {option: value for option, value in choices.items() if value is not None}
    for option, value in {**slurm_site.named_options(site), **chosen}.items():
        if not person.drops(option, str(value)):
            head.append(f"--{option}={value}")
    needs_whole_nodes = name is not None and plan.nodes > 1
    if needs_whole_nodes and not changed.drops("exclusive") and not person.drops("exclusive"):
        head.append("--exclusive")
    return head


def _choices(
    request: SubmitRequest, site: dict[str, str], name: str | None, plan: Plan, slurm_kind: str
) -> dict[str, object]:
    """Return {option of sbatch: value}; None where the script's own line or the cluster decides."""
    changes = slurm_site.changes(site)
    gpus_per_node = plan.gpus // plan.nodes
    gpus = gpus_per_node
    script_nodes = None
    if name is None:  # a recipe's script has its own numbers
        gpus = request.gpus_per_node
        script_nodes = RECIPES[request.what].nodes[-1]
    nodes = request.nodes
    if nodes is None and plan.nodes != script_nodes:
        nodes = plan.nodes
    choices: dict[str, object] = {"job-name": request.name or name, "nodes": nodes}
    choices |= slurm_site.gpu_request(site, slurm_kind, gpus)
    choices["time"] = request.time
    ours: dict[str, object] = {}
    # What the site gives for each GPU is a GPU's share of a node: nothing is asked for beside it.
    if site.get("WORKSHOP_CPUS_PER_GPU"):
        cpus_per_gpu = slurm_site.number(site, "WORKSHOP_CPUS_PER_GPU", CPUS_PER_GPU)
        ours["cpus-per-task"] = cpus_per_gpu * gpus_per_node
    elif name:
        ours["cpus-per-task"] = CPUS_BASE + CPUS_PER_GPU * gpus_per_node
    takes_whole_nodes = plan.nodes > 1
    if name and takes_whole_nodes:
        ours["mem"] = 0  # all of a node's
    elif site.get("WORKSHOP_GIB_PER_GPU") and not takes_whole_nodes:
        gib_per_gpu = slurm_site.number(site, "WORKSHOP_GIB_PER_GPU", MEMORY_PER_GPU_GIB)
        ours["mem"] = f"{gib_per_gpu * gpus_per_node}G"
    elif name:
        ours["mem"] = f"{MEMORY_BASE_GIB + MEMORY_PER_GPU_GIB * gpus_per_node}G"
    for option, value in ours.items():
        if not changes.drops(option):
            choices[option] = value
    return choices


def script_settings(
    request: SubmitRequest, plan: Plan, folder: Path, changed_gpu: bool
) -> dict[str, str]:
    """Return the lines of the script that differ from its own choice: {name: value, as in bash}."""
    recipe = RECIPES.get(request.what)
    place = shlex.quote(str(scripts_folder()))
    if slurm_site.chosen_file():
        place += f" WORKSHOP_SITE={shlex.quote(str(slurm_site.site_file()))}"
    if os.environ.get("WORKSHOP_HOME"):  # where the record goes
        place += f"; export WORKSHOP_HOME={shlex.quote(str(home()))}"
    lines = {"slurm_folder": place}
    more_flags = [flag for flag in flags(plan.deployment) if flag == ALLOWED and recipe is None]
    if UNSET not in folder.parts:
        lines["model"] = shlex.quote(str(folder))
    elif recipe is None:
        lines["model"] = str(folder)  # $WORKSHOP_MODELS is for the shell to replace
    if recipe is None:
        lines["tensor_parallel_size"] = str(plan.tensor_parallel_size)
        lines["pipeline_parallel_size"] = str(plan.pipeline_parallel_size)
        if request.max_model_len is not None:
            more_flags += ["--max-model-len", str(request.max_model_len)]
    elif request.max_model_len is not None:
        lines["max_model_len"] = str(request.max_model_len)
    if request.pipeline and recipe and recipe.split == "tensor":
        lines["parallel"] = "pipeline"
    if changed_gpu:
        lines["min_gpu_gib"] = f"{plan.deployment.gpu.engine_gib * GPU_MEMORY_SHARE:.0f}"
    if request.learners:
        more_flags += fairshare.class_arguments(flags_of(request.vllm))
    if request.trace:
        more_flags += ["--scheduler-cls", trace_writer.SCHEDULER]
    more_flags += request.vllm
    if more_flags:
        lines["more_flags"] = f"({shlex.join(more_flags)})"
    return lines


def write_script(
    script: Path,
    site: dict[str, str],
    person: slurm_site.Changes,
    head: list[str],
    settings: dict[str, str],
) -> Path:
    """Write the script of a submission into this user's folder, and return where it is.

    Args:
        script: of slurm/.
        site: the site's settings.
        person: the options of sbatch that the person requests.
        head: further options for its #SBATCH lines.
        settings: lines `name=value` of it to replace; the value as bash reads it.
    """
    text = changed(script.read_text(encoding="utf-8"), site, person, head)
    for name, value in settings.items():
        text = re.sub(rf"^{name}=.*$", lambda _, line=f"{name}={value}": line, text, flags=re.M)
    text = text.replace("\n", f"\n# Made of {script} by `workshop slurm submit`.\n", 1)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    path = private_folder("slurm") / f"{script.stem}-{digest}{script.suffix}"
    write_private(path, text)
    return path


def changed(text: str, site: dict[str, str], person: slurm_site.Changes, head: list[str]) -> str:
    """Return a script with the #SBATCH lines that a site and a submission need.

    What `site_sbatch` or the head replaces goes, and each line beside which sbatch refuses an
    option of the person's. With SBATCH_GRES its --gpus-per-node goes as well: SLURM would add one
    to the other, or refuse both.
    """
    changes = slurm_site.changes(site)
    by_gres = slurm_site.gpu_option(site) == "gres"
    in_head = {option.name for option in options.read(head)[0]}

    def dropped(name: str, value: str | None) -> bool:
        replaced = name not in person.added and person.drops(name, value)
        ours = name in in_head or (by_gres and name == "gpus-per-node")
        return changes.drops(name, value) or replaced or ours

    added = [option for option in changes.added.items() if option[0] not in in_head]
    return options.change_script(text, dropped, map(shlex.quote, [*options.written(added), *head]))
