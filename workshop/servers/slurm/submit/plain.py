"""`workshop plan MODEL --as sbatch`: slurm/plain.sbatch for a plan, with SLURM and vLLM alone."""

import re
import shlex
from pathlib import PurePath

from inference_planner.answer.command import check_starts, flag_words, flags, served
from inference_planner.answer.parallelism import Plan

from workshop.servers.slurm import options
from workshop.servers.slurm import site as slurm_site
from workshop.servers.slurm.submit import job_script

SCRIPT = "plain.sbatch"
CPUS_PER_GPU = 4
GIB_PER_GPU = 50  # weights pass through the page cache, which is not counted
STAGES = "--pipeline-parallel-size"
LINE_WIDTH = 86  # room for the backslash at its end
INDENT = 8
# what stands between them in the script are the plan's flags
FLAGS = re.compile(r'(?<=exec vllm serve "\$MODEL" ).*?(?= \\\n *--nnodes)', re.DOTALL)


def render(plan: Plan, name: str | None = None, site: dict[str, str] | None = None) -> str:
    """Return a job script that starts `vllm serve` on each node of a plan.

    Where each node has a stage of the pipeline of its own, the number of stages is $SLURM_NNODES,
    so that `sbatch --nodes=N` changes both.

    Args:
        name: the job's name; None: the last part of the model's.
        site: a site's settings, as `site.environment` returns them, for partition, account and the
            form in which GPUs are asked for; None: those of any site.

    Raises BadInput if vLLM would not load the model.
    """
    check_starts(plan)
    model = served(plan.deployment)
    gpus_per_node = plan.gpus // plan.nodes
    lines = {
        "#SBATCH --job-name=": job_name(name or model),
        "#SBATCH --nodes=": str(plan.nodes),
        "#SBATCH --gpus-per-node=": str(gpus_per_node),
        "#SBATCH --cpus-per-task=": str(CPUS_PER_GPU * gpus_per_node),
        "#SBATCH --mem=": f"{GIB_PER_GPU * gpus_per_node}G",
        "export MODEL=": shlex.quote(model),
    }
    script = (slurm_site.scripts_folder() / SCRIPT).read_text()
    for start, value in lines.items():
        script = _replaced(re.compile(rf"(?<=^{re.escape(start)})\S+", re.MULTILINE), value, script)
    script = _replaced(FLAGS, _flag_lines(plan), script)
    if site is None:
        return script
    gpu_request = slurm_site.gpu_request(site, slurm_site.gpus(site)[0], gpus_per_node)
    head = options.written((slurm_site.named_options(site) | gpu_request).items())
    return job_script.changed(script, site, slurm_site.Changes(frozenset(), {}), head)


def job_name(model: str) -> str:
    """Return the last part of a name or path, as a job's name that need not be quoted."""
    return re.sub(r"[^\w.-]+", "-", PurePath(model).name)


def _replaced(place: re.Pattern[str], value: str, script: str) -> str:
    """Put a value in the one place of the script that the pattern names."""
    script, count = place.subn(lambda _: value, script)
    if count != 1:
        raise ValueError(f"{SCRIPT} has {count} places that match {place.pattern}.")
    return script


def _flag_lines(plan: Plan) -> str:
    """Return the plan's flags, over several lines where one is too short for them."""
    values = flags(plan.deployment)
    parts = {flag: shlex.join(flag_words({flag: value})) for flag, value in values.items()}
    if plan.pipeline_parallel_size == plan.nodes and plan.data_parallel_size == 1:
        parts = {"--tensor-parallel-size": parts["--tensor-parallel-size"]} | {
            STAGES: f'{STAGES} "$SLURM_NNODES"',
            **{flag: part for flag, part in parts.items() if flag != STAGES},
        }
    first_column = len('    exec vllm serve "$MODEL" ')
    wrapped: list[str] = [" " * first_column]
    for part in parts.values():
        if len(wrapped[-1]) + len(part) > LINE_WIDTH and wrapped[-1].strip():
            wrapped.append(" " * INDENT)
        wrapped[-1] += part + " "
    return " \\\n".join(line.rstrip() for line in wrapped)[first_column:]
