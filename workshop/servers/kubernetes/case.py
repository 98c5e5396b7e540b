"""Compute what the templates need from a plan and the options of a cluster."""

import hashlib
import math
import re

from inference_planner.answer import machines
from inference_planner.answer.command import check_fits, check_starts, flags, served
from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import list_gpus, load_gpu
from inference_planner.catalog.gpus import GIB

from workshop.errors import BadInput
from workshop.guard.auth import GUARD
from workshop.servers.kubernetes.options import Options
from workshop.servers.kubernetes.rendering import (
    LEFT_OUT,
    MODELS,
    PORT,
    PROBE_EVERY_S,
    read_template,
)
from workshop.servers.start_time import start_budget_s

MASTER_PORT = 29501
PVC_MARGIN = 1.05  # of the volume over the weights: the file system
PVC_SPARE_GIB = 2  # tokenizer and configs
PVC_STEP_GIB = 10  # a round number
OTHER_THAN_DNS = r"[^a-z0-9]+"
# Labels of --node-selector that hold for the download too: a volume may exist only where it runs,
# and its image is the server's.
PLACE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "kubernetes.io/arch",
)
ARM_PRODUCTS = ("NVIDIA-GH", "NVIDIA-GB")  # GPUs that NVIDIA sells with its own processor, Grace


class KubernetesServer:
    """A plan and its options, and what the templates need of them, computed from the plan.

    Raises WorkshopError: it does not fit; BadInput: it cannot become manifests.
    """

    def __init__(self, plan: Plan, options: Options | None = None):
        self.plan = plan
        self.options = options or Options()
        self.product = load_gpu(plan.gpu).kubernetes_product
        self.name = self.options.name or default_name(plan)
        # without those that differ from node to node; '' for a flag alone
        self.flags = flags(plan.deployment)
        self._check_plan()
        self.options.check(self.name)
        self._check_model()
        check_starts(plan)
        # what requests name: the Hub id, or the folder's name
        self.served_name = (*plan.deployment.model.hub_ids, plan.model)[0]
        inside = self.options.model_path or self.served_name.split("/")[-1]
        self.folder = f"{MODELS}/{inside}"  # of the weights, in the pods
        self.claim = self.options.claim or f"{self.name}-weights"
        self.has_guard = self.options.guard_image is not None
        # of the version that the plan's formulas are of
        own_image = self.options.guard_image or self.options.image
        self.image = own_image or f"vllm/vllm-openai:v{plan.deployment.settings.vllm_version}"
        self.node_labels = self._node_labels()
        self.download_labels = download_labels(self.product, self.node_labels)
        self.many = plan.nodes > 1  # pods make the server
        # several nodes mount the weights at once
        self.shared_volume = self.many or self.options.replicas > 1
        self.download = f"{self.name}-weights-{self._download_digest()}"
        self._set_sizes()

    def _node_labels(self) -> dict[str, str]:
        """Return the labels of the server's nodes.

        By default the GPU's, which NVIDIA's feature discovery writes.
        """
        labels: dict[str, str] = {}
        for text in self.options.node_selector:
            label, _, value = text.partition("=")
            labels[label] = value
        return labels or {"nvidia.com/gpu.product": self.product}

    def _download_digest(self) -> str:
        """Return six digits of what the Job runs: it cannot be changed, so another is made."""
        parts: list[object] = [
            self.image,
            self.served_name,
            self.folder,
            self.options.pull_secret,
            self.options.hf_endpoint,
            self.shared_volume,
            LEFT_OUT,
            sorted(self.download_labels.items()),
            read_template("weights.yaml.j2"),
            read_template("pods.j2"),
        ]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:6]

    def _check_plan(self) -> None:
        plan = self.plan
        check_fits(plan)
        if not self.product:
            choices = ", ".join(name for name in list_gpus() if load_gpu(name).kubernetes_product)
            raise BadInput(
                f"The manifests are for NVIDIA GPUs, and {plan.gpu} is none.",
                f"Choose from: {choices}.",
            )

    def _check_model(self) -> None:
        if not self.plan.deployment.model.hub_ids and not self.options.claim:
            raise BadInput(
                f"{self.plan.model} has no address on the Hub, so a pod could not download it.",
                "Copy it into a PersistentVolumeClaim of the cluster, and give "
                "--claim NAME --model-path FOLDER.",
            )

    def _set_sizes(self) -> None:
        """Set the sizes of volume, memory and processors, and the time that a start may take."""
        self.gpus_per_pod = self.plan.gpus // self.plan.nodes
        # Of the checkpoint: what is downloaded, in its own precision, whatever vLLM makes of it.
        self.weight_bytes = machines.checkpoint_bytes(served(self.plan.deployment))
        self.pvc_gib = self._volume_gib()
        seconds = start_budget_s(self.weight_bytes, self.options.load_gb_per_s)
        self.start_budget_s = math.ceil(seconds / PROBE_EVERY_S) * PROBE_EVERY_S
        # /dev/shm: vLLM's queues (10 × 16 MiB each), and NCCL's buffers where GPUs have no direct
        # way.
        self.shm_gib = 1 + self.gpus_per_pod
        # API server and engine, workers; /dev/shm counts
        self.memory_gib = 8 + 8 * self.gpus_per_pod + self.shm_gib
        self.cpus = 2 + self.gpus_per_pod  # the least of vLLM's guide

    def _volume_gib(self) -> int:
        """Return the size of the volume. Raises BadInput: --pvc-size cannot hold the weights."""
        weights_gib = self.weight_bytes / GIB
        needed_gib = weights_gib * PVC_MARGIN + PVC_SPARE_GIB
        default_gib = math.ceil(needed_gib / PVC_STEP_GIB) * PVC_STEP_GIB
        size = self.options.pvc_size
        if size is None:
            return default_gib
        if size * GIB < self.weight_bytes + machines.SPARE_BYTES:
            spare_gib = machines.SPARE_BYTES // GIB
            raise BadInput(
                f"A volume of {size} GiB cannot hold {self.plan.model}: its weights take "
                f"{weights_gib:.1f} GiB, and {spare_gib} GiB must stay free.",
                f"Give --pvc-size {default_gib} or more, or leave it out.",
            )
        return size

    @property
    def open_to_cluster(self) -> bool:
        """Return whether pods of every namespace may reach the server's port.

        An Ingress is served from a namespace, or a network, that a plan cannot name.
        """
        return bool(self.options.ingress) and not self.options.openshift

    def arguments(self, headless: bool = False) -> list[str]:
        """Return the arguments of `vllm serve`.

        The folder, the plan's flags, and what makes one server of the pods.

        headless: for a pod that only works for the server, and has no API.
        """
        arguments = [self.folder]
        for flag, value in self.flags.items():
            if value:
                arguments.append(f"{flag}={value}")
            else:
                arguments.append(flag)
        if self.many:
            arguments += ["--nnodes=$(LWS_GROUP_SIZE)", "--node-rank=$(LWS_WORKER_INDEX)"]
            arguments += ["--master-addr=$(LWS_LEADER_ADDRESS)", f"--master-port={MASTER_PORT}"]
        if headless:
            return [*arguments, "--headless"]
        arguments += [f"--served-model-name={self.served_name}", "--host=0.0.0.0", f"--port={PORT}"]
        if self.has_guard:
            arguments.append(f"--middleware={GUARD}")
        return arguments


def default_name(plan: Plan) -> str:
    """Return a Service's name made of the model and the GPUs, of at most 40 characters."""
    model = re.sub(OTHER_THAN_DNS, "-", plan.model.lower()).strip("-")[:28].strip("-")
    gpu = re.sub(OTHER_THAN_DNS, "-", plan.gpu)
    return f"{model}-{plan.gpus}x{gpu}"[:40].strip("-")


def download_labels(product: str, node_labels: dict[str, str]) -> dict[str, str]:
    """Return the labels that a node must have for the download.

    Args:
        product: the GPU's name as NVIDIA's feature discovery writes it.
        node_labels: the labels that a node must have for the server.

    The image runs on Linux. Older images are for amd64 alone, as are all GPU nodes but those with
    Grace; there the other nodes may be either.
    """
    labels = {"kubernetes.io/os": "linux"}
    if not product.startswith(ARM_PRODUCTS):
        labels["kubernetes.io/arch"] = "amd64"
    for label, value in node_labels.items():
        if label in PLACE_LABELS:
            labels[label] = value
    return labels
