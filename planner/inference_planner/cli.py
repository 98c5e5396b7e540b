"""`inference-planner MODEL --gpu GPU`: what `workshop plan` of the course says, with the standard library alone."""

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

from inference_planner import words
from inference_planner.arguments import ARGUMENTS, tokens
from inference_planner.errors import BadInput, PlannerError, plain

ABOUT = "Predict memory, parallelism and speed of MODEL on GPUs. Exit code 0 if it fits, 1 if not, 2 for wrong use."
EXAMPLES = """\
  inference-planner llama-3.1-70b --gpu h100 --gpus-per-node 4
  inference-planner ./my-model --gpu h200 --max-model-len 32K --json
  inference-planner llama-3.3-70b --machines

vLLM's own classes (--exact), manifests and units are in the course: `workshop plan`, `workshop kubernetes`, `workshop vm`."""
ELSEWHERE = ("--exact", "--no-exact", "--kubernetes", "--vm")
ANSI = re.compile(r"\x1b\[\d*m")


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line."""
    found = argparse.ArgumentParser(
        "inference-planner",
        usage="%(prog)s [OPTIONS] [MODEL]",
        description=ABOUT,
        epilog=EXAMPLES,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="A catalogue name, or a folder with a config.json.",
    )
    for flags, how in ARGUMENTS.items():
        settings: dict[str, Any] = dict(how)
        if settings.get("type") is tokens:
            settings["type"] = whole
        found.add_argument(*flags, **settings)
    found.add_argument(
        "--machines",
        action="store_true",
        dest="on_machines",
        help="Print which common cloud VMs hold the model (no --gpu needed).",
    )
    return found


def whole(text: str) -> int:
    """Read a number of tokens; argparse shows the words of its own error alone."""
    try:
        return tokens(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def say(text: str) -> None:
    """Print a text, in colours on a terminal alone."""
    print(text if sys.stdout.isatty() and os.name != "nt" else ANSI.sub("", text), flush=True)


def main() -> int:
    """Answer; what goes wrong is one sentence."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given, unknown = parser().parse_known_args()
    try:
        if course := [word for word in unknown if word in ELSEWHERE]:
            raise BadInput(
                f"{course[0]} is not in the planner alone.", "`workshop plan` of the course has it."
            )
        if unknown:
            parser().error(plain(f"unrecognized arguments: {' '.join(unknown)}"))
        return words.answer(say, **vars(given))
    except PlannerError as error:
        print(
            f"✗ {error.message}",
            *([f"→ {error.remedy}"] if error.remedy else []),
            sep="\n",
            file=sys.stderr,
        )
        return error.exit_code
    except BrokenPipeError:  # the reader has enough, as in `inference-planner … | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
