"""The command `inference-planner`: `workshop plan` with the standard library alone."""

# ruff: noqa: E402      nothing else may be imported before the current folder is out of the way

from __future__ import annotations

from inference_planner.search_path import leave_current_folder

leave_current_folder()

import argparse
import io
import os
import re
import sys
from typing import Any

from inference_planner.answer import machines, report
from inference_planner.answer.parallelism import plan
from inference_planner.arguments import ARGUMENTS, check_no_card, required, tokens, with_json
from inference_planner.errors import BadInput, PlannerError, plain

ABOUT = (
    "Predict memory, parallelism and speed of MODEL on GPUs. Exit code "
    "0 if it fits, 1 if not, 2 for wrong use."
)
EXAMPLES = """\
  inference-planner llama-3.1-70b --gpu h100 --gpus-per-node 4
  inference-planner ./my-model --gpu h200 --max-model-len 32K --json
  inference-planner llama-3.3-70b --machines

vLLM's own classes (--exact), manifests and units (--as) are in the course: `workshop plan`."""
ELSEWHERE = ("--exact", "--no-exact", "--as")
ANSI = re.compile(r"\x1b\[\d*m")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    options = argparse.ArgumentParser(
        "inference-planner",
        usage="%(prog)s [OPTIONS] [MODEL]",
        description=ABOUT,
        epilog=EXAMPLES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="A catalog name, or a folder with a config.json.",
    )
    for flags, keywords in ARGUMENTS.items():
        settings: dict[str, Any] = dict(keywords)
        if settings.get("type") is tokens:
            settings["type"] = whole
        options.add_argument(*flags, **settings)
    for kind in ("models", "gpus"):
        options.add_argument(
            f"--list-{kind}",
            action="store_const",
            const=kind,
            dest="listed",
            help=f"Print the catalog's {kind.replace('gpus', 'GPUs')}.",
        )
    options.add_argument(
        "--machines",
        action="store_true",
        dest="on_machines",
        help="Print which common cloud VMs hold the model (no --gpu needed).",
    )
    return options


def whole(text: str) -> int:
    """Read a number of tokens. argparse shows the message of its own error class only."""
    try:
        return tokens(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def say(text: str) -> None:
    """Print a text, with colors only on a terminal."""
    print(text if sys.stdout.isatty() and os.name != "nt" else ANSI.sub("", text), flush=True)


def run(
    model: str | None,
    gpu: str | None,
    *,
    listed: str | None,
    on_machines: bool,
    as_json: bool,
    explain: bool,
    **settings: Any,
) -> int:
    """Print what the arguments ask for, and return the exit code: 1 if the plan does not fit.

    Args:
        listed: "models" or "gpus", to print their names instead of a plan.
        on_machines: print which cloud machines hold the model.
        settings: the settings of `plan`.

    Raises PlannerError: `plan` refuses the arguments, or no machine holds the model.
    """
    if listed:
        say(report.names(listed, as_json))
        return 0
    if model and on_machines:
        check_no_card(settings)
        offers = machines.offers(model, **settings)
        say(report.machines_json(offers) if as_json else report.machines_text(offers))
        machines.check_any_fits(offers, model)
        return 0
    model, gpu = required(model, gpu, settings["gpu_memory_gib"])
    result = plan(model, gpu, **settings)
    if as_json:
        say(report.plan_json(result))
    else:
        say(report.plan_text(result, report.columns(), explain))
    return 0 if result.starts else 1


def main() -> int:
    """Read the command line and run it. An error is printed as one sentence and a remedy."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments, unknown = parser().parse_known_args(with_json(sys.argv[1:]))
        check_known(unknown)
        return run(**vars(arguments))
    except PlannerError as error:
        print(f"✗ {error.message}", file=sys.stderr)
        if error.remedy:
            print(f"→ {error.remedy}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader has enough, as in `inference-planner … | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def check_known(unknown: list[str]) -> None:
    """Refuse arguments that the table does not have.

    Raises BadInput for those that only the course has.
    """
    for word in unknown:
        if word in ELSEWHERE:
            remedy = "`workshop plan` of the course has it."
            raise BadInput(f"{word} is not in the planner alone.", remedy)
    if unknown:
        parser().error(plain(f"unrecognized arguments: {' '.join(unknown)}"))


if __name__ == "__main__":
    sys.exit(main())
