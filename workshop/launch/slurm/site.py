"""The site's settings: which file counts, what it sets, and what to change in it when sbatch refuses."""

import os
import re
from pathlib import Path

from workshop.errors import BadInput, WorkshopError
from workshop.launch.local import course
from workshop.launch.programs import ask
from workshop.plan.catalog import load_gpu

READ_S = 30
FOR_ALL = Path("/etc/workshop/site.sh")  # an administrator's, for all users: slurm/site.sh, as it came, reads it


def scripts_folder() -> Path:
    """Return the folder of the scripts: $WORKSHOP_SLURM, else the course's."""
    chosen = os.environ.get("WORKSHOP_SLURM")
    return Path(chosen).expanduser().resolve() if chosen else course.course_folder("slurm")


def site_file() -> Path:
    """Return the file that is read: $WORKSHOP_SITE, else site.sh beside the scripts."""
    chosen = os.environ.get("WORKSHOP_SITE")
    path = Path(chosen).expanduser().resolve() if chosen else scripts_folder() / "site.sh"
    if not path.is_file():
        remedy = "Copy slurm/site.sh, edit it, and set WORKSHOP_SITE to it."
        raise WorkshopError(f"There is no site file {path}.", remedy)
    return path


def environment() -> dict[str, str]:
    """Return the environment after `source site.sh`, or say what bash said against it.

    WORKSHOP_SITE is in it where another file than slurm/site.sh counts; site_serve_args, an array, with a word a line.
    """
    if b"\r\n" in (file := site_file()).read_bytes():
        raise WorkshopError(f"{file} has the line ends of Windows.", f"bash reads none: sed -i 's/\\r$//' {file}")
    read = 'set -a; source "$1" >/dev/null && env -0 "site_serve_args=$(printf "%s\\n" "${site_serve_args[@]-}")"'
    env = {**os.environ, "WORKSHOP_ROOT": str(scripts_folder().parent)}
    code, out, said = ask("bash", "-c", read, "bash", str(file), within_s=READ_S, env=env)
    if code:
        raise WorkshopError(f"bash could not source {file}: {said}", "Compare it with the examples in slurm/sites/.")
    return dict(part.split("=", 1) for part in out.split("\0") if "=" in part)


def models_folder(site: dict[str, str] | None = None) -> Path:
    """Return the folder of the models, WORKSHOP_MODELS; a WorkshopError where that is not set, or no whole path."""
    said = (environment() if site is None else site).get("WORKSHOP_MODELS", "")
    if not (folder := Path(said).expanduser()).is_absolute():
        why = f"is {said!r}, no whole path" if said else "is not set, so nobody knows where the models are"
        remedy = "Set it in slurm/site.sh: a folder that every node sees, such as your project's."
        raise WorkshopError(f"WORKSHOP_MODELS {why}.", remedy)
    return folder


def gres(site: dict[str, str]) -> str:
    """Return the GPUs' part of the site's SBATCH_GRES, such as gpu:a100:4; '' where it has none."""
    return next((part for part in site.get("SBATCH_GRES", "").split(",") if part.split(":")[0] == "gpu"), "")


def gpus(site: dict[str, str]) -> tuple[str, int]:
    """Return SLURM's type and number of GPUs a node, as the site's SBATCH_GPUS_PER_NODE or SBATCH_GRES has them."""
    said = gres(site).removeprefix("gpu").lstrip(":") or site.get("SBATCH_GPUS_PER_NODE", "")
    kind, _, count = said.rpartition(":")
    return kind, int(count) if re.fullmatch("[0-9]{1,3}", count) else 0


def known_gpu(kind: str) -> str | None:
    """Return the catalogue's name of SLURM's type, such as nvidia_h100_80gb_hbm3; None where the site has no type."""
    if not kind:
        return None
    try:
        return load_gpu(kind).name
    except BadInput:
        remedy = "Set WORKSHOP_GPU in slurm/site.sh to one of `workshop plan --list-gpus`, or give --gpu."
        raise BadInput(f"SLURM's GPU type {kind[:80]!r} is not in the catalogue.", remedy) from None


def number(site: dict[str, str], name: str, otherwise: int) -> int:
    """Return a whole number that the site sets, or what is taken where it sets none."""
    said = site.get(name, "")
    if said and not re.fullmatch("[0-9]{1,9}", said):
        raise BadInput(f"{name} is {said[:40]!r}, no whole number.", "Edit the site's file.")
    return int(said or otherwise)


def refusal_remedy(said: str) -> str:
    """Return what to do about sbatch's own words."""
    for words, remedy in (
        ("qos", "Set SBATCH_QOS in slurm/site.sh, or ask for less; sacctmgr show qos lists them with their limits."),
        ("account", "Set SBATCH_ACCOUNT in slurm/site.sh to yours, with its partition: sacctmgr show assoc user=$USER"),
        ("partition", "Set SBATCH_PARTITION in slurm/site.sh to one that `sinfo` lists."),
        ("node configuration", "No node has so many GPUs or processors, or so much memory: sinfo -o '%P %G %m %c'."),
        ("time limit", "Ask for less: --time; `sinfo -o '%P %l'` shows each partition's longest."),
    ):
        if words in said.lower():
            return remedy
    return "`workshop doctor` checks slurm/site.sh against this cluster."
