"""sbatch's own options, read as sbatch reads them from its command line and `#SBATCH` lines.

Like getopt_long(3): short options may stand together and hold their value (-HAlab is -H -A lab), a
long one may be cut short (--part=gpu), and its value may be the next word. Source: slurm_opt.c of
22.05 to 25.05, sbatch(1).

>>> from workshop.servers.slurm import options
>>> [(option.name, option.value) for option in options.read(["-AN25", "--part", "gpu", "-HN2"])[0]]
[('account', 'N25'), ('partition', 'gpu'), ('hold', None), ('nodes', '2')]
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Option:
    """One option of sbatch."""

    name: str  # long, without dashes
    value: str | None  # None: it has none
    arguments: tuple[str, ...]  # as it stood on the command line


def full_name(name: str) -> str:
    """Return the long option that a name stands for: itself, or the only one that begins so.

    An unknown name is returned as it is.
    """
    if name in KNOWN:
        return name
    longer = [option for option in KNOWN if option.startswith(name)]
    if len(longer) == 1:
        return longer[0]
    return name


def read(arguments: Sequence[str]) -> tuple[list[Option], list[str]]:
    """Return the options in these arguments, and the arguments that belong to none of them."""
    parsed: list[Option] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            rest += waiting
            break
        if is_option(word):
            parsed += take(word, waiting)
        else:
            rest.append(word)
    return parsed, rest


def is_option(word: str) -> bool:
    """Return whether a word is one option or several; "-" is none."""
    return word.startswith("-") and len(word) > 1


def take(word: str, waiting: list[str]) -> list[Option]:
    """Return the options in a word.

    The value of the last one is taken from the words behind it, if it needs one.
    """
    if word.startswith("--"):
        return [_long(word, waiting)]
    return _short(word, waiting)


def _long(word: str, waiting: list[str]) -> Option:
    text, equals, value = word[2:].partition("=")
    name = full_name(text)
    if equals:
        return Option(name, value, (word,))
    if name in FLAGS or name in VALUE_IN_THE_SAME_WORD or not waiting:
        return Option(name, None, (word,))
    # An option of a site's plugin: a word behind it that is no option is taken for its value.
    if name not in WITH_VALUE and waiting[0].startswith("-"):
        return Option(name, None, (word,))
    value = waiting.pop(0)
    return Option(name, value, (word, value))


def _short(word: str, waiting: list[str]) -> list[Option]:
    parsed: list[Option] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = SHORT.get(letter, letter)
        if name in FLAGS:
            parsed.append(Option(name, None, (f"-{letter}",)))
        elif letters:
            parsed.append(Option(name, letters, (f"-{letter}{letters}",)))
            break
        elif name in WITH_VALUE and waiting:
            value = waiting.pop(0)
            parsed.append(Option(name, value, (f"-{letter}", value)))
        else:
            parsed.append(Option(name, None, (f"-{letter}",)))
    return parsed


def _words(line: str) -> list[str]:
    """Return the words of an #SBATCH line.

    None where a quotation mark has no partner: sbatch will say so.
    """
    try:
        return shlex.split(line.removeprefix("#SBATCH"), comments=True)
    except ValueError:
        return []


def written(values: Mapping[str, str | None]) -> list[str]:
    """Return options as they are written: {"mem": "0", "exclusive": None} → --mem=0, --exclusive."""
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in values.items()]


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
            remaining = [option for option in options if not removed(option.name, option.value)]
            if not remaining and options:
                continue
            if len(remaining) < len(options):
                parts = ["#SBATCH"]
                for option in remaining:
                    parts += map(shlex.quote, option.arguments)
                line = " ".join([*parts, *rest])
            lines.append(line)
            place = len(lines)
        else:
            lines.append(line)
    lines[place:place] = [f"#SBATCH {option}" for option in added]
    return "\n".join(lines) + "\n"
