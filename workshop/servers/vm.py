"""`workshop plan --as systemd`: the plan for one machine, as a systemd unit and as command lines of containers.

The weights go to a disk that holds them, the API listens on 127.0.0.1, and the key lies in a file.
"""

import os
import re
import shlex
from pathlib import Path

import jinja2
from inference_planner.answer import machines
from inference_planner.answer.command import check_fits, check_starts, flag_words, flags, served
from inference_planner.answer.parallelism import Plan
from inference_planner.answer.report import plus_minus
from inference_planner.catalog import load_gpu

from workshop.errors import BadInput
from workshop.guard.auth import GUARD, KEY_FILE_VARIABLE
from workshop.servers.start_time import start_budget_s

PORT = 8000
COURSE = "/opt/workshop"  # the checkout
PYTHON = "/opt/vllm/bin/python"  # of an environment with vLLM
KEY_FILE = "/etc/workshop/api-key"
TOKEN_FILE = "/etc/workshop/hf.env"
OS_DISK_GB = 120  # of the machine in the workshop's first document, and common elsewhere
TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates/vm"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    autoescape=False,  # a shell's and systemd's words, each quoted or checked
)
TEMPLATES.globals.update(
    plus_minus=plus_minus,
    COURSE=COURSE,
    PORT=PORT,
    PYTHON=PYTHON,
    KEY_FILE=KEY_FILE,
    KEY_FILE_VARIABLE=KEY_FILE_VARIABLE,
    TOKEN_FILE=TOKEN_FILE,
)


class VmServer:
    """A plan for one machine, and what the templates need of it.

    download_dir: the folder for the weights, on a disk that holds them.
    disk_gb: size of that disk in 10**9 bytes; None if it is unknown.
    name: of the systemd unit.

    Raises WorkshopError: it does not fit; BadInput: it cannot run on one machine, or an option
    cannot be right.
    """

    def __init__(
        self,
        plan: Plan,
        download_dir: str = "/mnt/models",
        disk_gb: float | None = None,
        name: str = "vllm",
    ):
        self.plan = plan
        self.download_dir = download_dir
        self.name = name
        self._check_plan()
        # of weights that are here already, and are not downloaded
        self.folder = ""
        if plan.deployment.model.location and not plan.deployment.model.hub_ids:
            self.folder = os.path.abspath(plan.deployment.model.location)
        _check_path("--download-dir", download_dir)
        if self.folder:
            _check_path("The model's folder", self.folder)
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", name):
            raise BadInput(
                f"{name!r} cannot be the name of a unit.", "Use lower-case letters, digits and '-'."
            )
        self.hub = self.folder or served(plan.deployment)
        self._check_disk(disk_gb)
        self.image = f"vllm/vllm-openai:v{plan.deployment.settings.vllm_version}"
        weight_bytes = machines.checkpoint_bytes(self.hub)
        self.weights_gb = weight_bytes / 1e9
        self.start_budget_s = round(start_budget_s(weight_bytes))

    def _check_plan(self) -> None:
        plan = self.plan
        check_fits(plan)
        check_starts(plan)
        if plan.nodes > 1:
            remedy = (
                "Give the machine's GPUs as --gpus-per-node; "
                "--as kubernetes and --as sbatch do several."
            )
            raise BadInput(f"The plan takes {plan.nodes} nodes, and a VM is one.", remedy)
        if not load_gpu(plan.gpu).kubernetes_product:
            raise BadInput(
                "The unit and the containers are for NVIDIA GPUs.", "Choose another --gpu."
            )

    def _check_disk(self, disk_gb: float | None) -> None:
        if disk_gb is None:
            return
        problem = machines.disk_problem(self.hub, disk_gb)
        if problem:
            raise BadInput(
                problem,
                "Give --download-dir a bigger disk or a mounted share, and --disk-gb its size.",
            )

    @property
    def flags(self) -> list[str]:
        """The plan's flags and those of one closed machine but `--host`, quoted for a shell."""
        own = {"--download-dir": self.download_dir, "--port": str(PORT), "--middleware": GUARD}
        quoted = [shlex.quote(self.hub)]
        for flag, value in (flags(self.plan.deployment) | own).items():
            quoted.append(shlex.join(flag_words({flag: value})))
        return quoted


def _check_path(name: str, path: str) -> None:
    """Raise BadInput if a path cannot stand in a unit without quotes."""
    if not re.fullmatch(r"/[\w./-]*", path):
        remedy = "Give the mounted disk or share, for example /mnt/models."
        raise BadInput(f"{name} {path} is no whole path without spaces.", remedy)


def disk_notes(case: VmServer) -> list[str]:
    """Return how much space weights that are not here need, and why not on the system's disk."""
    if case.folder:
        return []
    notes = [f"{case.weights_gb:.1f} GB of weights go to {case.download_dir}."]
    if machines.disk_problem(case.hub, OS_DISK_GB):
        notes.append(
            "Not to ~/.cache/huggingface, vLLM's default: "
            f"an OS disk of {OS_DISK_GB} GB cannot hold them."
        )
    return notes


def unit(case: VmServer) -> str:
    """Return a systemd unit that starts at boot, after the mount, and again if vLLM fails."""
    return render(case, "unit")


def container(case: VmServer, engine: str) -> str:
    """Return the `run` command of an engine ("podman" or "docker"), one group of flags a line."""
    return render(case, "podman", engine=engine)


def render(case: VmServer, template: str = "page", **more: object) -> str:
    """Return one of templates/vm as text; the page, for the terminal, has all of them."""
    return TEMPLATES.get_template(f"{template}.j2").render(
        case=case, disk_notes=disk_notes(case), **more
    )
