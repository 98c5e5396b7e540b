"""`workshop plan … --vm`: the plan on one machine, as a systemd unit and as container lines.

    from workshop.launch import vm
    case = vm.Case(plan("llama-3.3-70b", "h100-nvl", gpus_per_node=2, usage="serve"), download_dir="/mnt/models")
    print(vm.unit(case), vm.container(case, "podman"), vm.apptainer(case), sep="\\n")

The weights go to a disk that holds them, the API listens on 127.0.0.1, and the key lies in a file.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from workshop.errors import BadInput, WorkshopError
from workshop.launch.auth import KEY_FILE_VARIABLE
from workshop.launch.slurm.job import LOAD_GB_PER_S, START_ALLOWANCE_S
from workshop.plan import machines
from workshop.plan.command import flags, words
from workshop.plan.parallelism import Plan

PORT = 8000
COURSE, PYTHON = "/opt/workshop", "/opt/vllm/bin/python"  # the checkout; an environment with vLLM
SETTINGS, KEY_FILE, TOKEN_FILE = "/etc/workshop", "/etc/workshop/api-key", "/etc/workshop/hf.env"
GUARD = "workshop.launch.auth.RequireKey"
ENGINES = ("podman", "docker")
OS_DISK_GB = 120  # of the machine in the workshop's first document, and common elsewhere


@dataclass(frozen=True)
class Case:
    """A plan on one machine. disk_gb: size of the disk of download_dir in 10**9 bytes, None if it is not known.

    Raises:
        WorkshopError: the plan does not fit.
        BadInput: more than one node, a relative folder, a GPU that is none of NVIDIA's, or a disk that is too small.
    """

    plan: Plan
    download_dir: str = "/mnt/models"
    disk_gb: float | None = None
    name: str = "vllm"

    def __post_init__(self):
        p = self.plan
        if not p.fits:
            raise WorkshopError(f"{p.model} does not fit on {p.gpus} × {p.gpu}: {p.reasons[0]}", " ".join(p.advice))
        if p.nodes > 1:
            raise BadInput(
                f"The plan takes {p.nodes} nodes, and a VM is one.",
                "Give the machine's GPUs as --gpus-per-node; --kubernetes and `workshop slurm` do several.",
            )
        if p.gpu == "mi300x":
            raise BadInput("The unit and the containers are for NVIDIA GPUs.", "Choose another --gpu.")
        if not re.fullmatch(r"/[\w./-]*", self.download_dir):
            raise BadInput(
                f"--download-dir {self.download_dir} is no whole path without spaces.",
                "Give the mounted disk or share, for example /mnt/models.",
            )
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,40}", self.name):
            raise BadInput(f"{self.name!r} cannot be the name of a unit.", "Use lower-case letters, digits and '-'.")
        if self.disk_gb is not None and (problem := machines.disk_problem(self.hub, self.disk_gb)):
            raise BadInput(problem, "Give --download-dir a bigger disk or a mounted share, and --disk-gb its size.")

    @property
    def hub(self) -> str:
        """What vLLM is given: the Hub id, or the folder of a model without one."""
        config = self.plan.config
        return config.hub_ids[0] if config.hub_ids else config.location

    @property
    def image(self) -> str:
        return f"vllm/vllm-openai:v{self.plan.vllm_version}"

    @property
    def start_budget_s(self) -> int:
        """Bytes of the weights / an assumed 0.25 GB/s, and 15 minutes to compile and to capture CUDA graphs."""
        return round(machines.checkpoint_bytes(self.hub) / 1e9 / LOAD_GB_PER_S + START_ALLOWANCE_S)

    @property
    def flags(self) -> list[str]:
        """The plan's flags, and those of one closed machine; `--host` is the caller's."""
        return [
            self.hub,
            *words(flags(self.plan.deployment)),
            "--download-dir",
            self.download_dir,
            "--port",
            str(PORT),
            "--middleware",
            GUARD,
        ]


def disk_words(case: Case) -> list[str]:
    """Return what the weights need, and what a usual OS disk says to that."""
    needed = machines.checkpoint_bytes(case.hub) / 1e9
    words = [f"{needed:.1f} GB of weights go to {case.download_dir}."]
    problem = machines.disk_problem(case.hub, OS_DISK_GB)
    if problem:
        words.append(f"Not to ~/.cache/huggingface, vLLM's default: an OS disk of {OS_DISK_GB} GB cannot hold them.")
    return words


def unit(case: Case) -> str:
    """Return a systemd unit: started at boot, after the share is mounted, restarted if vLLM fails."""
    command = shlex.join([PYTHON, "-m", "workshop.launch.vllm_main", "serve", *case.flags, "--host", "127.0.0.1"])
    return f"""# /etc/systemd/system/{case.name}.service
[Unit]
Description=vLLM: {case.hub}
After=network-online.target
Wants=network-online.target
# The disk of the weights is mounted first; else vLLM would fill the OS disk.
RequiresMountsFor={case.download_dir}
StartLimitIntervalSec=1h
StartLimitBurst=3

[Service]
User=vllm
# The key of the API; and HF_TOKEN=… for a gated model ("-": the file may be missing).
Environment={KEY_FILE_VARIABLE}={KEY_FILE}
EnvironmentFile=-{TOKEN_FILE}
Environment=PYTHONPATH={COURSE} HF_HOME={case.download_dir}/.hf VLLM_NO_USAGE_STATS=1
# vLLM gives up on an engine after 600 s unless told otherwise.
Environment=VLLM_ENGINE_READY_TIMEOUT_S={case.start_budget_s}
ExecStart={command}
Restart=on-failure
RestartSec=10
TimeoutStopSec=60
# NCCL pins memory, and every connection is a file.
LimitMEMLOCK=infinity
LimitNOFILE=65536
UMask=0077
# Files in /home/vllm (compile caches) and on the share, and nothing else of the machine.
ProtectSystem=strict
ReadWritePaths={case.download_dir} /home/vllm
PrivateTmp=yes
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


def container(case: Case, engine: str = "podman") -> str:
    """Return the `podman run` or `docker run` line, one argument group a line.

    Raises:
        BadInput: another engine.
    """
    if engine not in ENGINES:
        raise BadInput(f"engine {engine!r} is not known.", f"Choose from: {', '.join(ENGINES)}.")
    gpus = (
        ["--device", "nvidia.com/gpu=all", "--security-opt", "label=disable"]
        if engine == "podman"
        else ["--gpus", "all"]
    )
    image = f"docker.io/{case.image}" if engine == "podman" else case.image
    groups = [
        [engine, "run", "--detach", "--name", case.name, "--restart", "on-failure"],
        gpus,
        ["--ipc", "host"],  # /dev/shm of the machine: tensor parallel needs it
        ["--publish", f"127.0.0.1:{PORT}:{PORT}"],
        ["--volume", f"{case.download_dir}:{case.download_dir}"],
        ["--volume", f"{COURSE}:{COURSE}:ro", "--env", f"PYTHONPATH={COURSE}"],
        ["--volume", f"{KEY_FILE}:{KEY_FILE}:ro", "--env", f"{KEY_FILE_VARIABLE}={KEY_FILE}"],
        ["--env-file", TOKEN_FILE, "--env", f"VLLM_ENGINE_READY_TIMEOUT_S={case.start_budget_s}"],
        [image],
        case.flags[:1],
        *_pairs(case.flags[1:]),
        ["--host", "0.0.0.0"],
    ]
    return _lines(groups)


def apptainer(case: Case) -> str:
    """Return the lines for Apptainer, for somebody without root: key, image and course are one's own."""
    own = "$HOME/.workshop"
    groups = [
        ["apptainer", "exec", "--nv", "--bind", case.download_dir],
        ['--bind "$PWD":' + f"{COURSE}:ro"],  # the shell's to fill in
        [f'--env {KEY_FILE_VARIABLE}="{own}/api-key"'],
        # The host's Python packages and those of ~/.local are of another Python.
        ["--env", f"PYTHONPATH={COURSE},PYTHONNOUSERSITE=1,VLLM_ENGINE_READY_TIMEOUT_S={case.start_budget_s}"],
        [f'--env-file "{own}/hf.env"'],
        ["vllm.sif", "vllm", "serve"],
        case.flags[:1],
        *_pairs(case.flags[1:]),
        ["--host", "127.0.0.1"],
    ]
    key = f'"{own}/api-key"'
    return "\n".join(
        [
            "# in the course's folder; once: a key that only you can read, and the image",
            f'(umask 077; mkdir -p "{own}"; touch "{own}/hf.env"; test -s {key} || openssl rand -hex 32 > {key})',
            f"test -e vllm.sif || apptainer pull vllm.sif docker://{case.image}",
            _lines(groups),
        ]
    )


def _pairs(flags: list[str]) -> list[list[str]]:
    """Return flags with their values, a group each."""
    groups: list[list[str]] = []
    for word in flags:
        if word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _lines(groups: list[list[str]]) -> str:
    """Return groups of words, a line each; a group of one word with spaces is for the shell as it is."""
    return " \\\n    ".join(group[0] if len(group) == 1 and " " in group[0] else shlex.join(group) for group in groups)


def render(case: Case) -> str:
    """Return everything as one text, for the terminal."""
    p = case.plan
    words = [
        f"# {case.hub} on {p.gpus} × {p.gpu}: {p.kv_cache_tokens:,} tokens of KV cache, "
        f"{p.max_concurrency:.2f} requests of {p.max_model_len:,} tokens at once.",
        *(f"# {line}" for line in disk_words(case)),
        f"# The key: {KEY_FILE}, mode 0640, group vllm. Everything else is in docs/vm.md.",
        "",
    ]
    return "\n".join(
        [
            *words,
            unit(case),
            "# or podman",
            container(case, "podman"),
            "",
            "# or docker",
            container(case, "docker"),
            "",
            "# or Apptainer",
            apptainer(case),
        ]
    )
