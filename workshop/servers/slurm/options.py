"""sbatch's own options, read as sbatch reads them from its command line and `#SBATCH` lines.

Short options may stand together and hold their value (-HAlab is -H -A lab), a long one may be cut
short (--part=gpu), and its value may be the next word. Source: slurm_opt.c of 22.05 to 25.05,
sbatch(1).

>>> from workshop.servers.slurm import options
>>> [tuple(option) for option in options.read(["-AN25", "--part", "gpu", "-HN2"])[0]]
[('account', 'N25'), ('partition', 'gpu'), ('hold', None), ('nodes', '2')]
"""

import argparse
import re
import shlex
from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from workshop.errors import BadInput

SHORT = {
    "a": "array",
    "A": "account",
    "b": "begin",
    "B": "extra-node-info",
    "c": "cpus-per-task",
    "C": "constraint",
    "d": "dependency",
    "D": "chdir",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "h": "help",
    "H": "hold",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "m": "distribution",
    "M": "clusters",
    "n": "ntasks",
    "N": "nodes",
    "o": "output",
    "O": "overcommit",
    "p": "partition",
    "q": "qos",
    "Q": "quiet",
    "s": "oversubscribe",
    "S": "core-spec",
    "t": "time",
    "v": "verbose",
    "V": "version",
    "w": "nodelist",
    "W": "wait",
    "x": "exclude",
}
_FLAGS = (
    "consolidate-segments contiguous help hold ignore-pbs no-requeue overcommit oversubscribe "
    "parsable quiet reboot requeue share spread-job spread-segments stepmgr test-only usage "
    "use-min-nodes verbose version wait"
)
# if any
VALUE_IN_THE_SAME_WORD = {
    "exclusive",
    "get-user-env",
    "nice",
    "no-kill",
    "oom-kill-step",
    "propagate",
}
_WITH_VALUE = (
    "account acctg-freq array batch bb bbf begin bell chdir cluster-constraint clusters comment "
    "constraint container container-id core-spec cores-per-socket cpu-freq cpus-per-gpu "
    "cpus-per-task deadline delay-boot dependency distribution error exclude export export-file "
    "extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket "
    "gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type "
    "mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist "
    "nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode "
    "output partition power prefer priority profile qos reservation resv-ports segment signal "
    "sockets-per-node switches thread-spec threads-per-core time time-min tmp tres-bind "
    "tres-per-task uid wait-all-nodes wckey wrap"
)
FLAGS = set(_FLAGS.split())
WITH_VALUE = set(_WITH_VALUE.split())
KNOWN = FLAGS | VALUE_IN_THE_SAME_WORD | WITH_VALUE


class Option(NamedTuple):
    """One option of sbatch."""

    name: str  # long, without dashes
    value: str | None  # None: it has none


class _Note(argparse.Action):
    """Adds an option to those that were read, in their order."""

    def __call__(self, parser, namespace, values, option_string=None):
        value = values if isinstance(values, str) else None
        namespace.options.append(Option(self.dest, value))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"sbatch's options: {message[:300]}.", "`man sbatch` lists them.")


def _parser() -> _Parser:
    parser = _Parser(add_help=False)
    for name in sorted(KNOWN):
        spellings = [f"-{letter}" for letter, long_name in SHORT.items() if long_name == name]
        nargs = 0 if name in FLAGS else None
        parser.add_argument(f"--{name}", *spellings, dest=name, action=_Note, nargs=nargs)
    return parser


PARSER = _parser()


def read(arguments: Iterable[str]) -> tuple[list[Option], list[str]]:
    """Return the options in these arguments, and the arguments that belong to none of them.

    Behind an option that is not sbatch's own, such as a plugin's, and in front of a value that
    begins with a dash, must stand "=".

    Raises BadInput: sbatch would refuse one of them.
    """
    parsed: list[Option] = []
    others: list[str] = []
    for argument in arguments:
        word = re.sub("^-k(?=.)", "--no-kill=", argument)
        word = re.sub("^-k$", "--no-kill", word)
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in VALUE_IN_THE_SAME_WORD:
            parsed.append(Option(name, value if equals else None))
        else:
            others.append(argument)
    _, rest = PARSER.parse_known_args(others, argparse.Namespace(options=parsed))
    return parsed, rest


def _words(line: str) -> list[str]:
    """Return the words of an #SBATCH line; None where a quotation mark has no partner."""
    try:
        return shlex.split(line.removeprefix("#SBATCH"), comments=True)
    except ValueError:
        return []


def written(options: Iterable[tuple[str, str | None]]) -> list[str]:
    """Return options as they are written: [("mem", "0"), ("exclusive", None)] → --mem=0, --exclusive."""
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options]


def in_script(text: str) -> list[Option]:
    """Return the options of a script's #SBATCH lines."""
    options: list[Option] = []
    for line in text.splitlines():
        if re.match(r"#SBATCH\s", line):
            options += read(_words(line))[0]
    return options


def change_script(
    text: str, removed: Callable[[str, str | None], bool], added: Iterable[str]
) -> str:
    """Return a script with some options of its #SBATCH lines removed, and others added.

    Args:
        text: the script.
        removed: returns True for the name and the value of an option to remove.
        added: options as they are written, such as --mem=0; they come behind the others.
    """
    lines: list[str] = []
    place = 1  # behind #!/bin/bash
    for line in text.splitlines():
        if re.match(r"#SBATCH\s", line):
            options, rest = read(_words(line))
            remaining = [option for option in options if not removed(*option)]
            if options and not (remaining or rest):
                continue
            if len(remaining) < len(options):
                line = f"#SBATCH {shlex.join([*written(remaining), *rest])}"
            lines.append(line)
            place = len(lines)
        else:
            lines.append(line)
    lines[place:place] = [f"#SBATCH {option}" for option in added]
    return "\n".join(lines) + "\n"
