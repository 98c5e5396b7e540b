"""What a plan means on Kubernetes: name, image, arguments, sizes and budgets, each computed from the plan."""

import hashlib
import math
import re
import shlex
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from workshop.errors import BadInput, WorkshopError
from workshop.launch.auth import GUARD
from workshop.launch.slurm.job import LOAD_GB_PER_S, START_ALLOWANCE_S
from workshop.plan import weights
from workshop.plan.catalog import list_gpus, load_gpu, load_model
from workshop.plan.command import flags
from workshop.plan.command import words as flag_words
from workshop.plan.parallelism import Plan
from workshop.plan.settings import DEFAULT_VERSION

GIB = 1 << 30
PORT, MASTER_PORT = 8000, 29501
MODELS = "/models"
PROBE_EVERY_S = 10
PVC_MARGIN, PVC_SPARE_GIB, PVC_STEP_GIB = 1.05, 2, 10  # file system, tokenizer and configs; a round number
MOUNT_SPARE_BYTES = 1 * GIB  # what the download leaves free (launch.prefetch)


SLUG = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"  # Kubernetes' own rules for names, labels and resources
LABEL = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)"
HOST = (SLUG, "a host's name, as llm.example.org")


def _like(form: str, meant: str, default: Any = None) -> Any:
    """An option with what it must look like, and that in words."""
    return field(default=default, metadata={"form": form, "meant": meant})


@dataclass(frozen=True)
class Options:
    """What a plan does not say. pvc_gib None: computed from the weights; name None: model, GPUs; image None: vLLM's own.

    node_selector: labels ("key=value") in place of the GPU's; rdma: a resource such as "rdma/ib", one for each pod.
    """

    name: str | None = None
    pvc_gib: int | None = None
    storage_class: str | None = None
    load_gb_per_s: float = LOAD_GB_PER_S
    replicas: int = 1
    image: str | None = _like(
        r"\S+(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})", "an image with its version, as registry/vllm:v0.25.1"
    )
    pull_secret: str | None = _like(SLUG, "the name of a Secret")
    hf_endpoint: str | None = _like(r"https?://[\w.-]+(:\d+)?(/[\w./-]*)?", "an address, as https://mirror.example")
    node_selector: tuple[str, ...] = _like(rf"({SLUG}/)?{LABEL}={LABEL}?", "KEY=VALUE", ())
    ingress: str | None = _like(*HOST)
    http_route: str | None = _like(*HOST)
    gateway: str | None = _like(rf"({SLUG}/)?{SLUG}", "the name of a Gateway, as NAME or NAMESPACE/NAME")
    priority_class: str | None = _like(SLUG, "the name of a PriorityClass")
    queue: str | None = _like(SLUG, "the name of a LocalQueue of Kueue")
    rdma: str | None = _like(rf"{SLUG}/{LABEL}", "the name of a resource, as rdma/ib")
    openshift: bool = False


@dataclass(frozen=True)
class Case:
    """A plan and its options. WorkshopError: it does not fit; BadInput: it cannot become manifests."""

    plan: Plan
    options: Options = Options()

    def __post_init__(self):
        p, o = self.plan, self.options
        if not p.fits:
            raise WorkshopError(f"{p.model} does not fit on {p.gpus} × {p.gpu}: {p.reasons[0]}", " ".join(p.advice))
        if not self.product:
            known = ", ".join(name for name in list_gpus() if load_gpu(name).kubernetes_product)
            raise BadInput(f"The manifests are for NVIDIA GPUs, and {p.gpu} is none.", f"Choose from: {known}.")
        if p.gpus % p.nodes:
            raise BadInput(
                f"{p.gpus} GPUs cannot be spread evenly over {p.nodes} pods.",
                "Give sizes whose product divides: --tensor-parallel-size GPUs of a node, --pipeline-parallel-size nodes.",
            )
        if not 0 < o.load_gb_per_s <= 1000:
            raise BadInput(f"{o.load_gb_per_s:g} GB/s is no speed of a volume.", "Give GB/s above 0, for example 0.25.")
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", self.name):
            remedy = "Use up to 40 lower-case letters, digits and '-', beginning with a letter."
            raise BadInput(f"{self.name!r} cannot be the name of a Service.", remedy)
        for option in filter(lambda each: each.metadata, fields(o)):
            given, meant = getattr(o, option.name), option.metadata["meant"]
            for text in given if isinstance(given, tuple) else (given,):
                if text is not None and not re.fullmatch(option.metadata["form"], text):
                    raise BadInput(f"--{option.name.replace('_', '-')} {text!r} is not {meant}.", f"Give {meant}.")
        if bool(o.http_route) != bool(o.gateway):
            raise BadInput("--http-route and --gateway belong together.", "Give the host's name, and the Gateway's.")
        self._check_model()
        self._check_volume()

    def _check_model(self) -> None:
        config = self.plan.config
        if not config.hub_ids:
            remedy = "Give a catalogue name or its Hub id, or change weights.yaml to copy from elsewhere."
            raise BadInput(f"{self.plan.model} has no address on the Hub, so a pod could not download it.", remedy)
        flag, given = config.quantization, "--quantization" in self.flags
        if given and flag and not flag.online and not load_model(self.hub).quantization:
            remedy = "Give the Hub id or the config.json of a checkpoint that is quantised so already."
            raise BadInput(f"vLLM cannot make {flag.method} weights while it loads {self.hub}.", remedy)

    def _check_volume(self) -> None:
        given = self.options.pvc_gib
        if given is not None and given * GIB < self.weight_bytes + MOUNT_SPARE_BYTES:
            said = f"A volume of {given} GiB cannot hold {self.plan.model}: its weights take {self.weight_bytes / GIB:.1f} GiB, and {MOUNT_SPARE_BYTES // GIB} GiB must stay free."
            raise BadInput(said, f"Give --pvc-size {self.wanted_pvc_gib} or more, or leave it out.")

    @property
    def hub(self) -> str:
        """The Hub id that is downloaded and served."""
        return self.plan.config.hub_ids[0]

    @property
    def folder(self) -> str:
        """Where the weights are in the pods."""
        return f"{MODELS}/{self.hub.split('/')[-1]}"

    @property
    def name(self) -> str:
        if self.options.name:
            return self.options.name
        slug = re.sub(r"[^a-z0-9]+", "-", self.plan.model.lower()).strip("-")[:28].strip("-")
        return f"{slug}-{self.plan.gpus}x{re.sub(r'[^a-z0-9]+', '-', self.plan.gpu)}"[:40]

    @property
    def image(self) -> str:
        """The given image, or vLLM's own of the version that the plan's formulas are of."""
        return self.options.image or f"vllm/vllm-openai:v{self.plan.vllm_version}"

    @property
    def download(self) -> str:
        """Name of the Job: a Job cannot be changed, so one of another image is another."""
        return f"{self.name}-weights-{hashlib.sha256(self.image.encode()).hexdigest()[:6]}"

    @property
    def node_labels(self) -> dict[str, str]:
        """What a node must be labelled with: as given, or the GPU's name as NVIDIA's feature discovery writes it."""
        return dict(word.split("=") for word in self.options.node_selector) or {"nvidia.com/gpu.product": self.product}

    @property
    def shared_volume(self) -> bool:
        """Several nodes mount the weights at once."""
        return self.many or self.options.replicas > 1

    @property
    def product(self) -> str:
        return load_gpu(self.plan.gpu).kubernetes_product

    @property
    def many(self) -> bool:
        """More than one pod makes the server."""
        return self.plan.nodes > 1

    @property
    def gpus_per_pod(self) -> int:
        return self.plan.gpus // self.plan.nodes

    @property
    def flags(self) -> dict[str, str]:
        """The plan's flags of `vllm serve`, without those that differ from node to node; '' for a flag alone."""
        return flags(self.plan.deployment)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of the checkpoint: what is downloaded, in its own precision, whatever vLLM makes of it."""
        return weights.whole_bytes(load_model(self.hub))

    @property
    def wanted_pvc_gib(self) -> int:
        needed = self.weight_bytes / GIB * PVC_MARGIN + PVC_SPARE_GIB
        return math.ceil(needed / PVC_STEP_GIB) * PVC_STEP_GIB

    @property
    def pvc_gib(self) -> int:
        return self.options.pvc_gib or self.wanted_pvc_gib

    @property
    def start_budget_s(self) -> int:
        """Bytes of the weights / speed of the volume, and an allowance to compile and to capture CUDA graphs."""
        seconds = self.weight_bytes / 1e9 / self.options.load_gb_per_s + START_ALLOWANCE_S
        return math.ceil(seconds / PROBE_EVERY_S) * PROBE_EVERY_S

    @property
    def shm_gib(self) -> int:
        """GiB of /dev/shm: vLLM's queues (10 × 16 MiB each) and NCCL's buffers where GPUs have no direct way."""
        return 1 + self.gpus_per_pod

    @property
    def memory_gib(self) -> int:
        """GiB of host memory of a pod: 8 for the API server and the engine, 8 a worker, and /dev/shm, which counts."""
        return 8 + 8 * self.gpus_per_pod + self.shm_gib

    @property
    def cpus(self) -> int:
        """vLLM's guide asks for at least 2 + a core for each GPU."""
        return 2 + self.gpus_per_pod

    @property
    def command(self) -> str:
        """The command line that makes these manifests."""
        p, o = self.plan, self.options
        words = ["workshop", "plan", self.hub, "--gpu", load_gpu(p.gpu).name, "--gpus-per-node", str(self.gpus_per_pod)]
        words += ["--nodes", str(p.nodes)] if self.many else []
        words += flag_words(self.flags)
        words += ["--vllm-version", p.vllm_version] if p.vllm_version != DEFAULT_VERSION else []
        default = Options()
        words.append("--kubernetes")
        for name, usual in vars(default).items():
            flag, value = f"--{name.replace('_', '-').replace('pvc-gib', 'pvc-size')}", getattr(o, name)
            for each in (value if isinstance(value, tuple) else [value]) if value != usual else []:
                words += [flag] if each is True else [flag, f"{each:g}" if isinstance(each, float) else str(each)]
        return shlex.join(words)

    def arguments(self, headless: bool = False) -> list[str]:
        """Return the arguments of `vllm serve`: the plan's, the folder, and what makes one server of the pods."""
        args = [self.folder, *(f"{flag}={value}" if value else flag for flag, value in self.flags.items())]
        if self.many:
            args += ["--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)"]
            args += ["--master-addr=$(LWS_LEADER_ADDRESS)", f"--master-port={MASTER_PORT}"]
        if headless:
            return [*args, "--headless"]
        # The guard: vLLM's own --api-key leaves paths open, and would stand in the arguments.
        return [*args, f"--served-model-name={self.hub}", "--host=0.0.0.0", f"--port={PORT}", f"--middleware={GUARD}"]
