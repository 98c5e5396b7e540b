"""`workshop plan MODEL --as sbatch`: slurm/plain.sbatch, filled in for a plan.

The script needs SLURM and vLLM, and nothing of this package.
"""

import re
import shlex
from pathlib import PurePath

from inference_planner.answer.command import check_starts, flag_words, flags, served
from inference_planner.answer.parallelism import Plan

from workshop.servers.slurm.site import head_lines, scripts_folder

SCRIPT = "plain.sbatch"
CPUS_PER_GPU = 4
GIB_PER_GPU = 50  # weights pass through the page cache, which is not counted
STAGES = "--pipeline-parallel-size"
LINE_WIDTH = 86  # room for the backslash at its end
INDENT = 8
# what stands between them in the script are the plan's flags
FLAGS = re.compile(r'(?<=exec vllm serve "\$MODEL" ).*?(?= \\\n *--nnodes)', re.DOTALL)


# the lines of the head that a site may want otherwise
HEAD = re.compile(
    r"(?:^#SBATCH --(?:nodes|gpus-per-node|ntasks-per-node|cpus-per-task|mem|time)=.*\n)+",
    re.MULTILINE,
)
TIME = re.compile(r"#SBATCH --time=(\S+)")


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
    script = (scripts_folder() / SCRIPT).read_text()
    for start, value in lines.items():
        script = _replaced(re.compile(rf"(?<=^{re.escape(start)})\S+", re.MULTILINE), value, script)
    script = _replaced(FLAGS, _flag_lines(plan), script)
    if site is None:
        return script
    return HEAD.sub(lambda match: _head(match[0], plan, site), script, count=1)


def _head(lines: str, plan: Plan, site: dict[str, str]) -> str:
    """Return the head of a script as a site wants it; what is the same keeps its comment."""
    gpus_per_node = plan.gpus // plan.nodes
    wanted = head_lines(
        site,
        nodes=plan.nodes,
        gpus_per_node=gpus_per_node,
        cpus=CPUS_PER_GPU * gpus_per_node,
        mem=f"{GIB_PER_GPU * gpus_per_node}G",
        time=TIME.findall(lines)[0],
    )
    commented = {line.partition("  ")[0]: line for line in lines.splitlines()}
    return "".join(commented.get(line, line) + "\n" for line in wanted)


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
