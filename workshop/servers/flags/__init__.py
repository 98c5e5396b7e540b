"""The flags of `vllm serve`: read in every spelling, and refused where they would go around us.

vLLM takes the shortest form that is clear (`--api-ke`), underscores for dashes, `--a.b` for a part
of `--a`, and a file (`--config`). A flag that opened a way past the guard, or moved the server from
where its record says that it is, must be seen in all of them.
"""

import argparse
import json
import os
import re
import shlex
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from inference_planner.arguments import ARGUMENTS
from inference_planner.catalog.quantization import METHODS
from inference_planner.releases.versions import DEFAULT
from inference_planner.request import SETTINGS, VLLM_ARGUMENTS
from inference_planner.split.settings import DTYPES

from workshop.errors import BadInput
from workshop.servers.flags import release

TABLES = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
REFUSED = TABLES["refused"]
# Values that the plan knows; vLLM may know more.
VALUES = {
    setting.name.replace("_", "-"): [*map(str, setting.metadata["choices"])]
    for setting in SETTINGS
    if setting.metadata["choices"]
}
VALUES |= {"dtype": [*DTYPES], "quantization": [*METHODS]}
JOB_REMEDY = (
    "Leave it out. GPUs: --nodes, --gpus-per-node, --pipeline; settings of the site: slurm/site.sh."
)


def flags_of(args: Iterable[str]) -> dict[str, str]:
    """Return the flags in `args`, written out as vLLM understands them, with their values ('' if none).

    Each of these spellings is read: `--a=b`, `--a b`, `--a_long_name b`, `--a-long b`, `-tp 2`, `-n4`. A short form is
    read as by the newest release whose flags are recorded.
    """
    names = release.newest()
    flags: dict[str, str] = {}
    previous = None
    for arg in args:
        if re.match(r"--?[A-Za-z]", arg):
            flag, _, value = arg.partition("=")
            if flag not in names.full_names and flag[:2] in names.full_names:
                flag, value = arg[:2], arg[2:]
            previous = names.full_name(flag.replace("_", "-"))
            flags[previous] = value
        elif previous and not flags[previous]:
            flags[previous] = arg
    return flags


def for_plan(args: Iterable[str]) -> dict[str, Any]:
    """Return the flags in `args` that change the plan, as plan() takes them.

    A value that it does not know is left out.
    """
    with suppress(release.Refusal):  # a part of a flag without a value
        args = release.spelled_out(args)
    flags = flags_of(args)
    settings: dict[str, Any] = {}
    for name, value in flags.items():
        if value not in VALUES.get(name, (value,)):
            continue
        word = f"--{name}={value}" if value else f"--{name}"
        with suppress(argparse.ArgumentError):  # --max-model-len auto
            settings |= vars(PLAN_PARSER.parse_known_args([word])[0])
    return {
        name: value
        for name, value in settings.items()
        if isinstance(value, (str, bool)) or value > 0
    }


def _plan_parser() -> argparse.ArgumentParser:
    """Return a parser of the plan's arguments that are flags of vLLM, without defaults."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    for flags, keywords in ARGUMENTS.items():
        if flags[0].removeprefix("--").replace("-", "_") in VLLM_ARGUMENTS:
            parser.add_argument(*flags, **{**keywords, "default": argparse.SUPPRESS})
    return parser


PLAN_PARSER = _plan_parser()


def unchecked(args: tuple[str, ...], version: str = DEFAULT) -> str:
    """Say that the flags in `args` were not checked for a release of vLLM; '' if they were."""
    if args and not release.recorded(version):
        return f"The flags of vLLM {version} are not recorded here: none was checked."
    return ""


def checked(
    args: tuple[str, ...],
    version: str = DEFAULT,
    *,
    anyway: bool = False,
    own_flags: Iterable[str] = (),
) -> dict[str, str]:
    """Return the flags of `args` with those of the file that --config names.

    Args:
        args: what stands behind the model.
        version: of the vLLM that will read them.
        anyway: also flags and values that this release does not take.
        own_flags: as in `check_release`.

    Raises:
        BadInput: one of them is not for us, or vLLM would not take it.
    """
    if os.environ.get("VLLM_API_KEY"):
        problem = "VLLM_API_KEY is set: vLLM would want that key beside the workshop's own, "
        problem += "and answer nobody."
        remedy = "Unset it: the workshop makes a key for each server, and connect() finds it."
        raise BadInput(problem, remedy)
    if "--" in args:
        raise BadInput("-- alone is no flag.", "Leave it out.")
    flags = flags_of(args)
    every_arg = args
    if "config" in flags:
        from_file = _arguments_in(flags["config"], separate="--config" in args)
        every_arg = (*from_file, *args)
        flags = flags_of(from_file) | flags
    for name in flags:
        _refuse(name.partition(".")[0].rstrip("+"))
    if any("RequireKey" in text for text in (*args, flags.get("middleware", ""))):
        raise BadInput("The workshop's middleware is put in by itself.", "Leave --middleware out.")
    if not anyway:
        check_release(every_arg, version, own_flags)
    return flags


def check_release(
    args: Iterable[str], version: str = DEFAULT, own_flags: Iterable[str] = (), where: str = ""
) -> None:
    """Refuse arguments that a release of vLLM would not take. Where its flags are not recorded, it would take all.

    Args:
        args: what stands behind the model.
        own_flags: those of the command itself, one of which may be what was meant.
        where: what begins the sentence: where the arguments stand.

    Raises:
        BadInput: vLLM would end at its start.
    """
    record = release.recorded(version)
    problem = record.problem(args, own_flags) if record else ""
    if problem:
        raise BadInput(f"{where}{problem}", "Correct it, or send it all the same with --anyway.")


def _refuse(name: str) -> None:
    """Refuse a flag that is not for us, and a short form that could be one."""
    if name in REFUSED:
        why, instead = REFUSED[name]
        raise BadInput(f"--{name} is not for vLLM here. {why}", instead)
    if f"--{name}" in release.newest().full_names:
        return
    for longer in REFUSED:
        if longer.startswith(name):
            problem = f"--{name} could be short for --{longer}."
            raise BadInput(problem, "Write the names of flags out.")


def _arguments_in(path: str, separate: bool) -> tuple[str, ...]:
    """Return what a file for `--config` sets, as vLLM puts it in front of the other arguments."""
    if not separate:
        raise BadInput("vLLM overlooks --config=FILE.", "Write --config FILE, with a space.")
    how = "Write one flag a line, as in `max-model-len: 4096`."
    if not os.path.isfile(path):
        raise BadInput(
            f"--config: there is no file {path!r}.", "Give a YAML file with flags of `vllm serve`."
        )
    if not path.endswith((".yaml", ".yml")):
        raise BadInput(f"--config {path}: vLLM reads .yaml and .yml.", "Rename the file.")
    try:
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        raise BadInput(f"--config {path}: this is no YAML that can be read.", how) from None
    if not isinstance(settings, dict):
        raise BadInput(f"--config {path} sets no flags.", how)
    arguments: list[str] = []
    for name, value in settings.items():
        if value is False:
            arguments.append(f"--no-{name}")
        elif value is True:
            arguments.append(f"--{name}")
        elif isinstance(value, dict):
            arguments += [f"--{name}", json.dumps(value, default=str)]
        elif not isinstance(value, list):
            arguments += [f"--{name}", str(value)]
        elif value:
            arguments += [f"--{name}", *map(str, value)]
    return tuple(arguments)


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


def check_for_job(args: tuple[str, ...], *, anyway: bool = False) -> None:
    """Refuse flags that a SLURM job sets itself, in every spelling, and those that `checked` refuses.

    A job that fails at its start has waited for nothing.
    """
    if args and not args[0].startswith("-"):
        remedy = "A flag begins with --; the model stands before it."
        raise BadInput(f"--vllm: {args[0][:80]!r} is no flag.", remedy)
    if any("\n" in argument for argument in args):
        raise BadInput("An argument of vLLM holds a line break.", "Give it on one line.")
    _refuse_of_job(flags_of(args))
    _refuse_of_job(checked(args, anyway=anyway))  # also what is in the file of --config


def _refuse_of_job(names: Iterable[str]) -> None:
    """Refuse what is of a group, or short for one of it."""
    for name in names:
        for why, owned in TABLES["of-the-job"].items():
            for own in owned:
                if name.startswith(own) or own.startswith(name):
                    raise BadInput(f"--{name[:80]} is the job's own to set. {why}", JOB_REMEDY)
