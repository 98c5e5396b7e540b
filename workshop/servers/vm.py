"""`workshop vm`: the plan on one machine, as a systemd unit and as container lines.

The weights go to a disk that holds them, the API listens on 127.0.0.1, and the key lies in a file.
"""

import os
import re
import shlex
from pathlib import Path

import jinja2
from inference_planner import machines
from inference_planner.catalog import load_gpu
from inference_planner.command import check_starts, flag_words, flags, served
from inference_planner.parallelism import Plan

from workshop.errors import BadInput, WorkshopError
from workshop.servers.guard.auth import GUARD, KEY_FILE_VARIABLE
from workshop.servers.start_time import start_budget_s

PORT = 8000
COURSE, PYTHON = "/opt/workshop", "/opt/vllm/bin/python"  # the checkout; an environment with vLLM
KEY_FILE, TOKEN_FILE = "/etc/workshop/api-key", "/etc/workshop/hf.env"
OS_DISK_GB = 120  # of the machine in the workshop's first document, and common elsewhere
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates/vm"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    autoescape=False,  # a shell's and systemd's words, each quoted or checked
)
TEMPLATES.globals |= {"COURSE": COURSE, "PORT": PORT, "PYTHON": PYTHON}
TEMPLATES.globals |= {
    "KEY_FILE": KEY_FILE,
    "KEY_FILE_VARIABLE": KEY_FILE_VARIABLE,
    "TOKEN_FILE": TOKEN_FILE,
}


class Case:
    """A plan on one machine. disk_gb: size of the disk of download_dir in 10**9 bytes, None if it is not known."""

    def __init__(
        self,
        plan: Plan,
        download_dir: str = "/mnt/models",
        disk_gb: float | None = None,
        name: str = "vllm",
    ):
        p = self.plan = plan
        self.download_dir, self.name = download_dir, name
        if not p.fits:
            raise WorkshopError(
                f"{p.model} does not fit on {p.gpus} × {p.gpu}: {p.reasons[-1]}", " ".join(p.advice)
            )
        check_starts(p.deployment)
        if p.nodes > 1:
            remedy = "Give the machine's GPUs as --gpus-per-node; `workshop kubernetes` and `workshop slurm` do several."
            raise BadInput(f"The plan takes {p.nodes} nodes, and a VM is one.", remedy)
        if not load_gpu(p.gpu).kubernetes_product:
            raise BadInput(
                "The unit and the containers are for NVIDIA GPUs.", "Choose another --gpu."
            )
        local = p.config.location if not p.config.hub_ids else ""
        # of weights that are here, and not downloaded
        self.folder = os.path.abspath(local) if local else ""
        for said, path in (
            ("--download-dir", download_dir),
            ("The model's folder", self.folder or "/"),
        ):
            if not re.fullmatch(r"/[\w./-]*", path):
                remedy = "Give the mounted disk or share, for example /mnt/models."
                raise BadInput(f"{said} {path} is no whole path without spaces.", remedy)
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name):
            raise BadInput(
                f"{name!r} cannot be the name of a unit.", "Use lower-case letters, digits and '-'."
            )
        self.hub = self.folder or served(p.deployment)
        if disk_gb is not None and (problem := machines.disk_problem(self.hub, disk_gb)):
            raise BadInput(
                problem,
                "Give --download-dir a bigger disk or a mounted share, and --disk-gb its size.",
            )
        self.image = f"vllm/vllm-openai:v{p.vllm_version}"
        weight_bytes = machines.checkpoint_bytes(self.hub)
        self.weights_gb = weight_bytes / 1e9
        self.start_budget_s = round(start_budget_s(weight_bytes))

    @property
    def flags(self) -> list[str]:
        """The plan's flags, and those of one closed machine, each with its value, for a shell; `--host` is the caller's."""
        own = {"--download-dir": self.download_dir, "--port": str(PORT), "--middleware": GUARD}
        given = flags(self.plan.deployment) | own
        return [
            shlex.quote(self.hub),
            *(shlex.join(flag_words({flag: value})) for flag, value in given.items()),
        ]


def disk_words(case: Case) -> list[str]:
    """Return what the weights need, and what a usual OS disk says to that; nothing where they are here."""
    if case.folder:
        return []
    found = [f"{case.weights_gb:.1f} GB of weights go to {case.download_dir}."]
    if machines.disk_problem(case.hub, OS_DISK_GB):
        found.append(
            f"Not to ~/.cache/huggingface, vLLM's default: an OS disk of {OS_DISK_GB} GB cannot hold them."
        )
    return found


def unit(case: Case) -> str:
    """Return a systemd unit: started at boot, after the share is mounted, restarted if vLLM fails."""
    return render(case, "unit")


def container(case: Case, engine: str) -> str:
    """Return the line of `engine`, "podman" or "docker": `run`, one argument group a line."""
    return render(case, "podman", engine=engine)


def render(case: Case, template: str = "page", **more: object) -> str:
    """Return one of templates/vm as text; the page, for the terminal, has all of them."""
    return TEMPLATES.get_template(f"{template}.j2").render(
        case=case, disk_words=disk_words(case), **more
    )
