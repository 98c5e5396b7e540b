"""The site's settings: which file counts, what it sets, what to change when sbatch refuses."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from inference_planner.catalog import load_gpu

from workshop import install_words
from workshop.errors import BadInput, WorkshopError
from workshop.home import home, private_folder, write_private
from workshop.servers.host.programs import run
from workshop.servers.slurm import options

READ_S = 30
# Of these sbatch takes one: that of the site stands in for the script's.
GPU_OPTIONS = {"gpus-per-node", "gpus-per-task", "gpus-per-socket", "gpus", "gres"}
ONE_OF = (
    {"mem", "mem-per-cpu", "mem-per-gpu"},
    {"cpus-per-task", "cpus-per-gpu"},
    GPU_OPTIONS,
)
# In the words of SLURM (slurm_errno.c, 22.05 to 25.05): what a cluster's own filter says may hold
# any other word.
REFUSALS = {
    "qos specification": "Set SBATCH_QOS in slurm/site.sh to one that `sacctmgr show qos` lists.",
    "accounting/qos policy": "Set SBATCH_QOS in slurm/site.sh, or ask for less; "
    "`sacctmgr show qos` lists the limits.",
    "invalid account": "Set SBATCH_ACCOUNT in slurm/site.sh to yours, with its partition: "
    "sacctmgr show assoc user=$USER",
    "required partition not available": "Choose another: --partition; `sinfo` shows which are up.",
    "group not permitted": "Choose another: --partition; `scontrol show partition` says for whom.",
    "invalid partition": "Set SBATCH_PARTITION in slurm/site.sh to one that `sinfo` lists.",
    "memory specification": "No node has so much memory, or memory is not to be asked for here: "
    "WORKSHOP_GIB_PER_GPU, or site_sbatch=(--mem=) in slurm/site.sh.",
    "generic resource": "Set SBATCH_GRES or SBATCH_GPUS_PER_NODE in slurm/site.sh to what "
    "`sinfo -o '%P %G'` shows; where it shows no GPUs: site_sbatch=(--gpus-per-node=) and "
    "WORKSHOP_GPUS_PER_NODE.",
    "feature specification": "Set SBATCH_CONSTRAINT in slurm/site.sh to a feature that "
    "`sinfo -o '%P %f'` shows.",
    "mutually exclusive": "Take one of the two away: site_sbatch in slurm/site.sh.",
    "node configuration": "No node has so many GPUs or processors, or so much memory: "
    "sinfo -o '%P %G %m %c'.",
    "time limit": "Ask for less: --time; `sinfo -o '%P %l'` shows each partition's longest.",
}
CLUSTERS_OWN_WORDS = (
    "The words are your cluster's own; `workshop doctor` checks slurm/site.sh against this cluster."
)
IN_CHECKOUT = "slurm/site.sh"  # what remedies call the file: `adapted` names the reader's own
# an administrator's, for all users: slurm/site.sh, as it came, reads it
FOR_ALL = Path("/etc/workshop/site.sh")
# in a user's own file, so that jobs and plain sbatch read it, too
OWN_LINE = (
    'export WORKSHOP_SITE=$(realpath "${BASH_SOURCE[0]}")    '
    "# this file counts, whatever an upgrade brings"
)


def scripts_folder() -> Path:
    """Return the folder of the scripts: $WORKSHOP_SLURM, else the course's."""
    chosen = os.environ.get("WORKSHOP_SLURM")
    if chosen:
        return Path(chosen).expanduser().resolve()
    return install_words.course_folder("slurm")


def own_file() -> Path:
    """Return where a user's own site.sh is, in $WORKSHOP_HOME; `make_own_file` makes it."""
    return home() / "site.sh"


def chosen_file() -> Path | None:
    """Return the user's site file: $WORKSHOP_SITE, else their own if it is there, else None."""
    chosen = os.environ.get("WORKSHOP_SITE")
    if chosen:
        return Path(chosen).expanduser().resolve()
    if own_file().is_file():
        return own_file().resolve()
    return None


def make_own_file() -> tuple[Path, bool]:
    """Copy the site file that counts for this user to the own file, to be edited.

    Returns: (own file, True if it is new).

    An own file that is there is never written over: it may be edited, and an upgrade must not touch
    it.
    """
    own = own_file()
    if own.exists():
        return own, False
    source = FOR_ALL
    if not FOR_ALL.is_file():
        source = scripts_folder() / "site.sh"
    text = source.read_text(encoding="utf-8")
    first, _, rest = text.partition("\n")
    private_folder()
    write_private(own, f"{first}\n{OWN_LINE}\n{rest}", 0o644)
    return own, True


def site_file() -> Path:
    """Return the file that is read: $WORKSHOP_SITE, else the user's own, else slurm/site.sh.

    Raises WorkshopError: $WORKSHOP_SITE names a file that is not there.
    """
    path = chosen_file() or scripts_folder() / "site.sh"
    if not path.is_file():
        remedy = "Unset WORKSHOP_SITE, or set it to a file: `workshop slurm site` makes one."
        raise WorkshopError(f"There is no site file {path}.", remedy)
    return path


def adapted(remedy: str) -> str:
    """Return a remedy with commands that exist here, and the site's file that this user can write.

    Args:
        remedy: as for a checkout of one's own, with slurm/site.sh and make.
    """
    return install_words.adapted(remedy.replace(IN_CHECKOUT, _writable_file()))


def _writable_file() -> str:
    """Return how a remedy calls the site's file that counts, or the one that this user can make."""
    path = chosen_file()
    if path is not None and os.access(path, os.W_OK):
        return str(path)
    if path is not None:
        return "your own site.sh (`workshop slurm site` makes it; then unset WORKSHOP_SITE)"
    if install_words.is_checkout() and os.access(scripts_folder() / "site.sh", os.W_OK):
        return IN_CHECKOUT
    return "your own site.sh (`workshop slurm site` makes it)"


def environment() -> dict[str, str]:
    """Return the environment after `source site.sh`, or say what bash said against it.

    WORKSHOP_SITE is in it where another file than slurm/site.sh counts; site_serve_args and
    site_sbatch, which are arrays, with a word a line.

    Raises WorkshopError: bash cannot source the file.
    """
    file = site_file()
    if b"\r\n" in file.read_bytes():
        raise WorkshopError(
            f"{file} has the line ends of Windows.", f"bash reads none: sed -i 's/\\r$//' {file}"
        )
    script = (
        'set -a; source "$1" >/dev/null && env -0 '
        '"site_serve_args=$(printf "%s\\n" "${site_serve_args[@]-}")" '
        '"site_sbatch=$(printf "%s\\n" "${site_sbatch[@]-}")"'
    )
    env = {**os.environ, "WORKSHOP_ROOT": str(scripts_folder().parent)}
    done = run("bash", "-c", script, "bash", str(file), within_s=READ_S, env=env)
    if done.code:
        raise WorkshopError(
            f"bash could not source {file}: {done.complaint}",
            "Compare it with the examples in slurm/sites/.",
        )
    variables: dict[str, str] = {}
    for part in done.out.split("\0"):
        name, equals, value = part.partition("=")
        if equals:
            variables[name] = value
    return variables


def models_folder(site: dict[str, str] | None = None) -> Path:
    """Return the folder of the models, WORKSHOP_MODELS; `site`: settings that were read already.

    Raises:
        WorkshopError: it is not set, or no whole path.
    """
    if site is None:
        site = environment()
    setting = site.get("WORKSHOP_MODELS", "")
    folder = Path(setting).expanduser()
    if not folder.is_absolute():
        why = "is not set, so nobody knows where the models are"
        if setting:
            why = f"is {setting!r}, no whole path"
        remedy = "Set it in slurm/site.sh: a folder that every node sees, such as your project's."
        raise WorkshopError(f"WORKSHOP_MODELS {why}.", remedy)
    return folder


@dataclass(frozen=True)
class Changes:
    """The changes of a site to the scripts' #SBATCH lines: its `site_sbatch`.

    removed: names of options whose lines go; added: options with their values (None: a switch),
    which replace lines.
    """

    removed: frozenset[str]
    added: dict[str, str | None]

    def drops(self, name: str, value: str | None = None) -> bool:
        """Return whether a line, or an option of ours, with this name does not reach sbatch.

        Of options of which sbatch takes one alone, that of the site replaces the others.
        """
        if name in self.removed or name in self.added:
            return True
        if name == "gres" and not gpu_part(value or ""):
            return False
        alone = {
            added for added, text in self.added.items() if added != "gres" or gpu_part(text or "")
        }
        return any(name in group and group & alone for group in ONE_OF)


def changes(site: dict[str, str]) -> Changes:
    """Return what `site_sbatch` says; --mem= takes that option away, --mem=0 replaces it.

    Raises BadInput: it has something else than long options of sbatch.
    """
    removed: set[str] = set()
    added: dict[str, str | None] = {}
    for word in filter(None, site.get("site_sbatch", "").splitlines()):
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or (name in options.WITH_VALUE and not equals):
            remedy = (
                "Write (--mem=) to take a line away, (--mem=0) to replace it, "
                "(--exclusive) to add a switch."
            )
            raise BadInput(
                f"site_sbatch has {word[:80]!r}, which is no long option of sbatch.", remedy
            )
        parsed, _ = options.read([word])
        if parsed:  # its name may have been cut short
            name = parsed[0].name
        if equals and not value and name not in options.KNOWN:
            remedy = "sbatch --help lists them; the scripts' own stand in the #SBATCH lines."
            raise BadInput(
                f"site_sbatch takes {word[:80]!r} away, which is no option of sbatch.", remedy
            )
        if equals and not value:
            removed.add(name)
        else:
            added[name] = value if equals else None
    return Changes(frozenset(removed), added)


def named_options(site: dict[str, str]) -> dict[str, str]:
    """Return {option of sbatch: value} of what the site's file says for every job by SBATCH_….

    How GPUs are asked for is left out: that depends on their number.
    """
    removed = changes(site)
    takes_value = options.WITH_VALUE | options.VALUE_IN_THE_SAME_WORD
    values: dict[str, str] = {}
    for variable, value in site.items():
        prefix, _, name = variable.partition("_")
        option = name.lower().replace("_", "-").replace("timelimit", "time")
        if prefix != "SBATCH" or not value or option not in takes_value:
            continue
        if not counts_gpus(option, value) and not removed.drops(option, value):
            values[option] = value
    return values


def gpu_request(site: dict[str, str], kind: str, gpus_per_node: int | None) -> dict[str, str]:
    """Return {option of sbatch: value} with which this site is asked for GPUs; {} for none.

    Args:
        site: its settings.
        kind: SLURM's type of the GPUs; '' for none.
        gpus_per_node: how many of a node; None: as many as the site's file or the script says.
    """
    option = gpu_option(site)
    of_site = {"gres": _gres_setting(site), "gpus-per-node": site.get("SBATCH_GPUS_PER_NODE", "")}
    value = of_site.get(option, "")
    if option and gpus_per_node:
        amount = f"{kind}:{gpus_per_node}" if kind else f"{gpus_per_node}"
        if option == "gres":
            value = ",".join(
                f"gpu:{amount}" if part == gres(site) else part for part in gres_parts(value)
            )
        else:
            value = amount
    return {option: value} if value else {}


def counts_gpus(option: str, value: str) -> bool:
    """Return whether an option of sbatch asks for GPUs."""
    return option in GPU_OPTIONS and (option != "gres" or bool(gpu_part(value)))


def gpu_part(gres: str) -> str:
    """Return the GPUs' part of a value of --gres, such as gpu:a100:4; '' where it has none."""
    for part in gres_parts(gres):
        if re.match(r"(gres[:/])?gpu($|[:=])", part):
            return part
    return ""


def gres_parts(gres: str) -> list[str]:
    """Return the parts of a value of --gres, without the sockets that sinfo adds in parentheses."""
    return re.sub(r"\([^)]*\)", "", gres).split(",")


def _gres_setting(site: dict[str, str]) -> str:
    return changes(site).added.get("gres") or site.get("SBATCH_GRES", "")


def gres(site: dict[str, str]) -> str:
    """Return the GPUs' part of the site's --gres, of `site_sbatch` or SBATCH_GRES, or ''."""
    return gpu_part(_gres_setting(site))


def gpu_option(site: dict[str, str]) -> str:
    """Return the option with which GPUs are counted here, gpus-per-node or gres; '' for none."""
    if gres(site):
        return "gres"
    changed = changes(site)
    if "gpus-per-node" not in changed.added and changed.drops("gpus-per-node"):
        return ""
    return "gpus-per-node"


def gpus(site: dict[str, str]) -> tuple[str, int]:
    """Return SLURM's type and number of GPUs a node, as the site has them; ('', 0) if it does not.

    From its --gres, --gpus-per-node, SBATCH_GPUS_PER_NODE, or WORKSHOP_GPUS_PER_NODE where SLURM
    counts none.
    """
    setting = gres(site) or changes(site).added.get("gpus-per-node")
    names = ("SBATCH_GPUS_PER_NODE", "WORKSHOP_GPUS_PER_NODE")
    return typed_count(setting or next(filter(None, map(site.get, names)), ""))


def typed_count(text: str) -> tuple[str, int]:
    """Return (type, number) of GPUs as SLURM writes them: 4, h100:4, gpu:h100:4(S:0-1).

    h100, without a number, is one.

    >>> from workshop.servers.slurm.site import typed_count
    >>> typed_count("gpu:h100:4(S:0-1)"), typed_count("h100"), typed_count("8")
    (('h100', 4), ('h100', 1), ('', 8))
    """
    first = re.sub(r"\([^)]*\)", "", text).split(",")[0].replace("=", ":").strip()
    if first in ("", "none"):
        return "", 0
    first = re.sub(r"^(gres[:/])?gpu(:|$)", "", first)
    if not first:
        return "", 1
    kind, _, count = first.rpartition(":")
    if re.fullmatch("[0-9]{1,3}", count):
        return kind, int(count)
    return first, 1


def known_gpu(kind: str) -> str:
    """Return the catalog's name of SLURM's type, such as nvidia_h100_80gb_hbm3; '' for ''.

    Raises BadInput: the catalog has no such GPU.
    """
    if not kind:
        return ""
    try:
        return load_gpu(kind).name
    except BadInput:
        remedy = (
            "Set WORKSHOP_GPU in slurm/site.sh to one of `workshop models --gpus`, or give --gpu."
        )
        raise BadInput(f"SLURM's GPU type {kind[:80]!r} is not in the catalog.", remedy) from None


def number(site: dict[str, str], name: str, otherwise: int) -> int:
    """Return a whole number that the site sets, or what is taken where it sets none.

    Raises BadInput: it is no whole number.
    """
    text = site.get(name, "")
    if text and not re.fullmatch("[0-9]{1,9}", text):
        raise BadInput(f"{name} is {text[:40]!r}, no whole number.", "Edit it in slurm/site.sh.")
    return int(text or otherwise)


def refusal_remedy(answer: str, otherwise: str = "") -> str:
    """Return what to do about sbatch's own words; `otherwise`, if they are the cluster's own."""
    for text, remedy in REFUSALS.items():
        if text in answer.lower():
            return remedy
    return otherwise or CLUSTERS_OWN_WORDS
