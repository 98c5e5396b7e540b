"""The flags of `vllm serve` that somebody gives: read in every spelling, and refused where they would go around us.

vLLM takes the shortest form that is clear (`--api-ke`), underscores for dashes, `--a.b` for a part of `--a`, and a file
(`--config`). A flag that opened a way past the guard, or moved the server from where its record says that it is, must
be seen in all of them.
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
}
SHORT |= {"dpa": "data-parallel-address", "sc": "speculative-config"}
TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
REFUSED, LOOKED_AT = TABLES["refused"], TABLES["looked-at"]
# Flags that change the plan: with the values that it knows, without a value, and with a number.
WORDS = {"dtype": DTYPES, "quantization": METHODS, "kv-cache-dtype": KV_CACHE_DTYPES}
SWITCHES = ("enforce-eager", "enable-expert-parallel")
COUNTS = ("max-model-len", "max-num-batched-tokens", "max-num-seqs", "decode-context-parallel-size")
JOB_REMEDY = "Leave it out. GPUs: --nodes, --gpus-per-node, --pipeline; the engine: --ray; settings of the site: slurm/site.sh."


def flags_of(args: tuple[str, ...]) -> dict[str, str]:
    """Return the flags in `args`, dashes for underscores, with their values ('' if none): `--a=b`, `--a b`, `-tp 2`, `-n4`."""
    found, previous = {}, None
    for arg in args:
        if re.match(r"--?[A-Za-z]", arg):
            flag, _, value = re.sub(r"^-([nr])(\d+)$", r"\1=\2", arg).lstrip("-").partition("=")
            previous = SHORT.get(flag, flag.replace("_", "-"))
            found[previous] = value
        elif previous and not found[previous]:
            found[previous] = arg
    return found


def for_plan(args: tuple[str, ...]) -> dict[str, object]:
    """Return the flags in `args` that change the plan, as plan() takes them; a value that it does not know is left out."""
    given = flags_of(args)
    if "hf-overrides" in given:  # it may read more tokens than its config.json says
        given.pop("max-model-len", None)
    found = {name: given[name] for name, known in WORDS.items() if given.get(name) in known}
    found |= {name: True for name in SWITCHES if name in given}
    for name, read in {**dict.fromkeys(COUNTS, tokens), "gpu-memory-utilization": float}.items():
        with suppress(ValueError):  # --max-model-len auto
            if (value := read(given.get(name, ""))) > 0:
                found[name] = value
    return {name.replace("-", "_"): value for name, value in found.items()}


def uncounted(args: tuple[str, ...]) -> list[str]:
    """Say what a plan leaves out of the flags in `args`."""
    names = {name.partition(".")[0] for name in flags_of(args)}
    left_out = [f"--{name}: {what}" for name, what in TABLES["uncounted"].items() if name in names]
    return [f"The plan does not count {text}; the KV cache has so much less." for text in left_out]


def checked(args: tuple[str, ...]) -> dict[str, str]:
    """Return the flags of `args` with those of the file that --config names; a BadInput where one is not for us."""
    if os.environ.get("VLLM_API_KEY"):
        said = "VLLM_API_KEY is set: vLLM would want that key beside the workshop's own, and answer nobody."
        raise BadInput(
            said, "Unset it: the workshop makes a key for each server, and connect() finds it."
        )
    given = flags_of(args)
    names = [arg[2:].partition("=")[0].replace("_", "-") for arg in args if arg.startswith("--")]
    _refuse(names)
    if "config" in given:
        file = _flags_in(given["config"], separate="--config" in args)
        _refuse(list(file))
        given = file | given
    if any("RequireKey" in text for text in (*args, given.get("middleware", ""))):
        raise BadInput("The workshop's middleware is put in by itself.", "Leave --middleware out.")
    return given


def _refuse(names: list[str]) -> None:
    for name in (each.partition(".")[0].rstrip("+") for each in names):
        if not name:
            raise BadInput("-- alone is no flag.", "Leave it out.")
        if name in REFUSED:
            why, instead = REFUSED[name]
            raise BadInput(f"--{name} is not for vLLM here. {why}", instead)
        longer = [
            each
            for each in (*REFUSED, *LOOKED_AT)
            if each.startswith(name) and name not in LOOKED_AT
        ]
        if longer:
            raise BadInput(
                f"--{name} could be short for --{longer[0]}.", "Write the names of flags out."
            )


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
    named = {str(key).replace("_", "-"): value for key, value in settings.items()}
    return {
        f"no-{key}" if value is False else key: "" if isinstance(value, bool) else str(value)
        for key, value in named.items()
    }


def words(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments in each text, as a shell reads them."""
    found: list[str] = []
    for text in texts:
        try:
            found += shlex.split(text)
        except ValueError:
            said = f"--vllm {text[:80]!r} has a quotation mark without its partner, or ends in a backslash."
            remedy = "Write it as for a shell: --vllm \"--seed 1 --generation-config 'my folder'\"."
            raise BadInput(said, remedy) from None
    return tuple(found)


def check_for_job(given: tuple[str, ...]) -> None:
    """Refuse flags that a SLURM job sets itself, in every spelling: one that fails at its start has waited for nothing."""
    if given and not given[0].startswith("-"):
        raise BadInput(
            f"--vllm: {given[0][:80]!r} is no flag.",
            "A flag begins with --; the model stands before it.",
        )
    if any("\n" in word for word in given):
        raise BadInput("An argument of vLLM holds a line break.", "Give it on one line.")
    _refuse_of_job(flags_of(given))
    _refuse_of_job(checked(given))  # also what is in the file of --config


def _refuse_of_job(names: Iterable[str]) -> None:
    """Refuse what is of a group, or short for one of it."""
    for name in names:
        for why, owned in TABLES["of-the-job"].items():
            if any(name.startswith(own) or own.startswith(name) for own in owned):
                raise BadInput(f"--{name[:80]} is the job's own to set. {why}", JOB_REMEDY)
