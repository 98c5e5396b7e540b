"""The flags of `vllm serve`: read in every spelling, and refused where they would go around us.

vLLM takes the shortest form that is clear (`--api-ke`), underscores for dashes, `--a.b` for a part
of `--a`, and a file (`--config`). A flag that opened a way past the guard, or moved the server from
where its record says that it is, must be seen in all of them.
"""

import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import yaml
from inference_planner.arguments import tokens
from inference_planner.catalog.quantization import METHODS
from inference_planner.kv_cache import KV_CACHE_DTYPES
from inference_planner.settings import DTYPES

from workshop.errors import BadInput

SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "n": "nnodes",
    "r": "node-rank",
    "dpa": "data-parallel-address",
    "sc": "speculative-config",
}
TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
REFUSED, LOOKED_AT = TABLES["refused"], TABLES["looked-at"]
# Flags that change the plan: with the values that it knows, without a value, and with a number.
WORDS = {"dtype": DTYPES, "quantization": METHODS, "kv-cache-dtype": KV_CACHE_DTYPES}
SWITCHES = ("enforce-eager", "enable-expert-parallel")
COUNTS = ("max-model-len", "max-num-batched-tokens", "max-num-seqs", "decode-context-parallel-size")
JOB_REMEDY = (
    "Leave it out. GPUs: --nodes, --gpus-per-node, --pipeline; the engine: --ray; "
    "settings of the site: slurm/site.sh."
)


def flags_of(args: tuple[str, ...]) -> dict[str, str]:
    """Return the flags in `args`, dashes for underscores, with their values ('' if none).

    Each of these spellings is read: `--a=b`, `--a b`, `-tp 2`, `-n4`.
    """
    flags: dict[str, str] = {}
    previous = None
    for arg in args:
        if re.match(r"--?[A-Za-z]", arg):
            flag, _, value = re.sub(r"^-([nr])(\d+)$", r"\1=\2", arg).lstrip("-").partition("=")
            previous = SHORT.get(flag, flag.replace("_", "-"))
            flags[previous] = value
        elif previous and not flags[previous]:
            flags[previous] = arg
    return flags


def for_plan(args: tuple[str, ...]) -> dict[str, object]:
    """Return the flags in `args` that change the plan, as plan() takes them.

    A value that it does not know is left out.
    """
    flags = flags_of(args)
    if "hf-overrides" in flags:  # it may read more tokens than its config.json says
        flags.pop("max-model-len", None)
    settings: dict[str, object] = {}
    for name, values in WORDS.items():
        if flags.get(name) in values:
            settings[name] = flags[name]
    for name in SWITCHES:
        if name in flags:
            settings[name] = True
    numbers = {**dict.fromkeys(COUNTS, tokens), "gpu-memory-utilization": float}
    for name, read in numbers.items():
        with suppress(ValueError):  # --max-model-len auto
            number = read(flags.get(name, ""))
            if number > 0:
                settings[name] = number
    return {name.replace("-", "_"): value for name, value in settings.items()}


def uncounted(args: tuple[str, ...]) -> list[str]:
    """Say what a plan leaves out of the flags in `args`."""
    names = [name.partition(".")[0] for name in flags_of(args)]
    sentences: list[str] = []
    for name, what in TABLES["uncounted"].items():
        if name in names:
            less = "the KV cache has so much less"
            sentences.append(f"The plan does not count --{name}: {what}; {less}.")
    return sentences


def checked(args: tuple[str, ...]) -> dict[str, str]:
    """Return the flags of `args` with those of the file that --config names.

    Raises:
        BadInput: one of them is not for us.
    """
    if os.environ.get("VLLM_API_KEY"):
        problem = "VLLM_API_KEY is set: vLLM would want that key beside the workshop's own, "
        problem += "and answer nobody."
        remedy = "Unset it: the workshop makes a key for each server, and connect() finds it."
        raise BadInput(problem, remedy)
    flags = flags_of(args)
    for arg in args:
        if arg.startswith("--"):
            _refuse(arg[2:].partition("=")[0].replace("_", "-"))
    if "config" in flags:
        file = _flags_in(flags["config"], separate="--config" in args)
        for name in file:
            _refuse(name)
        flags = file | flags
    if any("RequireKey" in text for text in (*args, flags.get("middleware", ""))):
        raise BadInput("The workshop's middleware is put in by itself.", "Leave --middleware out.")
    return flags


def _refuse(flag: str) -> None:
    """Refuse a flag that is not for us, and a short form that could be one."""
    name = flag.partition(".")[0].rstrip("+")
    if not name:
        raise BadInput("-- alone is no flag.", "Leave it out.")
    if name in REFUSED:
        why, instead = REFUSED[name]
        raise BadInput(f"--{name} is not for vLLM here. {why}", instead)
    if name in LOOKED_AT:
        return
    for longer in (*REFUSED, *LOOKED_AT):
        if longer.startswith(name):
            problem = f"--{name} could be short for --{longer}."
            raise BadInput(problem, "Write the names of flags out.")


def _flags_in(path: str, separate: bool) -> dict[str, str]:
    """Return what a file for `--config` sets, as flags with values."""
    if not separate:
        raise BadInput("vLLM overlooks --config=FILE.", "Write --config FILE, with a space.")
    how = "Write one flag a line, as in `max-model-len: 4096`."
    if not os.path.isfile(path):
        raise BadInput(
            f"--config: there is no file {path!r}.", "Give a YAML file with flags of `vllm serve`."
        )
    try:
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        raise BadInput(f"--config {path}: this is no YAML that can be read.", how) from None
    if not isinstance(settings, dict):
        raise BadInput(f"--config {path} sets no flags.", how)
    flags: dict[str, str] = {}
    for key, value in settings.items():
        name = str(key).replace("_", "-")
        if value is False:
            flags[f"no-{name}"] = ""
        elif value is True:
            flags[name] = ""
        else:
            flags[name] = str(value)
    return flags


def split(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments in each text, as a shell reads them."""
    arguments: list[str] = []
    for text in texts:
        try:
            arguments += shlex.split(text)
        except ValueError:
            mark = "has a quotation mark without its partner, or ends in a backslash"
            remedy = "Write it as for a shell: --vllm \"--seed 1 --generation-config 'my folder'\"."
            raise BadInput(f"--vllm {text[:80]!r} {mark}.", remedy) from None
    return tuple(arguments)


def check_for_job(args: tuple[str, ...]) -> None:
    """Refuse flags that a SLURM job sets itself, in every spelling.

    A job that fails at its start has waited for nothing.
    """
    if args and not args[0].startswith("-"):
        remedy = "A flag begins with --; the model stands before it."
        raise BadInput(f"--vllm: {args[0][:80]!r} is no flag.", remedy)
    if any("\n" in argument for argument in args):
        raise BadInput("An argument of vLLM holds a line break.", "Give it on one line.")
    _refuse_of_job(flags_of(args))
    _refuse_of_job(checked(args))  # also what is in the file of --config


def _refuse_of_job(names: Iterable[str]) -> None:
    """Refuse what is of a group, or short for one of it."""
    for name in names:
        for why, owned in TABLES["of-the-job"].items():
            for own in owned:
                if name.startswith(own) or own.startswith(name):
                    raise BadInput(f"--{name[:80]} is the job's own to set. {why}", JOB_REMEDY)
