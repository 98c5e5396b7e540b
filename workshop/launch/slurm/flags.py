"""More flags of `vllm serve` for a job (`workshop slurm submit --vllm "…"`): read as a shell would, refused where the
job itself decides. A job that fails at its start has waited in the queue for nothing, so it is told before sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from workshop.errors import BadInput
from workshop.launch import flags

SHORT = {"tp": "tensor-parallel", "pp": "pipeline-parallel", "dp": "data-parallel", "n": "nnodes", "r": "node-rank"}
REMEDY = (
    "Leave it out. GPUs: --nodes, --gpus-per-node, --pipeline; the engine: --ray; settings of the site: slurm/site.sh."
)


def words(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments in each text, as a shell reads them."""
    found: list[str] = []
    for text in texts:
        try:
            found += shlex.split(text)
        except ValueError:
            raise BadInput(
                f"--vllm {text[:80]!r} has a quotation mark without its partner, or ends in a backslash.",
                "Write it as for a shell: --vllm \"--seed 1 --generation-config 'my folder'\".",
            ) from None
    return tuple(found)


def check(given: tuple[str, ...]) -> None:
    """Refuse flags that the job sets itself, in every spelling that vLLM takes."""
    if given and not given[0].startswith("-"):
        raise BadInput(f"--vllm: {given[0][:80]!r} is no flag.", "A flag begins with --; the model stands before it.")
    if any("\n" in word for word in given):
        raise BadInput("An argument of vLLM holds a line break.", "Give it on one line.")
    names = [found[1] for word in given if (found := re.match(r"--([\w-]+)", word))]
    names += [SHORT[found[1]] for word in given if (found := re.match(r"-(tp|pp|dp|n|r)", word))]  # -tp 4, -n4
    _refuse(names)
    _refuse(flags.checked(given))  # also what is in the file of --config


def _refuse(names: Iterable[str]) -> None:
    """Refuse what is of a group, or short for one of it."""
    for name in names:
        name = name.replace("_", "-")
        for why, owned in flags.TABLES["of-the-job"].items():
            if any(name.startswith(own) or own.startswith(name) for own in owned):
                raise BadInput(f"--{name[:80]} is the job's own to set. {why}", REMEDY)
