"""The options of a cluster that a plan does not have, and how each of them must look."""

import re
from dataclasses import dataclass, field, fields
from typing import Any

from workshop.errors import BadInput
from workshop.servers.start_time import LOAD_GB_PER_S

# Kubernetes' own rules for names, labels and resources
SLUG = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
LABEL = r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)"
IMAGE = r"\w[\w./:-]*(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})"
ADDRESS = r"https?://[\w.-]+(:\d+)?(/[\w./-]*)?"
FOLDER = r"(?!.*\.\.)[\w.-]+(/[\w.-]+)*"
SERVICE = r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?"
IMAGE_MEANING = "an image with its version, as registry/vllm:v0.32.0"
OF_OUR_VOLUME = ("pvc_size", "storage_class", "hf_endpoint")


def _checked(form: str, meaning: str, default: Any = None) -> Any:
    """Return a field of Options whose texts must match `form`; `meaning` says the same in words."""
    return field(default=default, metadata={"form": form, "meaning": meaning})


@dataclass(frozen=True)
class Options:
    """The facts of a cluster that a plan does not have.

    name: of the Service; None: made of the model and the GPUs.
    pvc_size: GiB of the volume; None: computed from the weights.
    load_gb_per_s: speed of the volume, in 10**9 bytes a second.
    claim: a PersistentVolumeClaim that is there, with the model in it; None: one is made, and a Job
        downloads the model.
    model_path: the model's folder in that claim, from the claim's root, without a leading "/".
    image: None: vLLM's own, of the version that the plan is for.
    guard_image: made from kubernetes/Dockerfile, with the workshop's guard and its liveness probe;
        None: vLLM's own --api-key.
    node_selector: labels ("key=value") in place of the GPU's.
    """

    name: str | None = None
    pvc_size: int | None = None
    storage_class: str | None = _checked(SLUG, "the name of a StorageClass")
    load_gb_per_s: float = LOAD_GB_PER_S
    claim: str | None = _checked(SLUG, "the name of a PersistentVolumeClaim")
    model_path: str | None = _checked(FOLDER, "a path inside the claim, as models/my-llama")
    replicas: int = 1
    image: str | None = _checked(IMAGE, IMAGE_MEANING)
    guard_image: str | None = _checked(IMAGE, IMAGE_MEANING)
    pull_secret: str | None = _checked(SLUG, "the name of a Secret")
    hf_endpoint: str | None = _checked(ADDRESS, "an address, as https://mirror.example")
    node_selector: tuple[str, ...] = _checked(rf"({SLUG}/)?{LABEL}={LABEL}?", "KEY=VALUE", ())
    ingress: str | None = _checked(SLUG, "a host's name, as llm.example.org")
    openshift: bool = False

    def check(self, name: str) -> None:
        """Raise BadInput for what Kubernetes would refuse; name: the Service's."""
        if not 0 < self.load_gb_per_s <= 1000:
            raise BadInput(
                f"{self.load_gb_per_s:g} GB/s is no speed of a volume.",
                "Give GB/s above 0, for example 0.25.",
            )
        if not re.fullmatch(SERVICE, name):
            remedy = "Use up to 40 lower-case letters, digits and '-', beginning with a letter."
            raise BadInput(f"{name!r} cannot be the name of a Service.", remedy)
        for option in fields(self):
            if option.metadata:
                self._check_form(option.name, option.metadata["form"], option.metadata["meaning"])
        if bool(self.claim) != bool(self.model_path):
            remedy = "Give the claim, and the model's folder in it."
            raise BadInput("--claim and --model-path belong together.", remedy)
        if self.image and self.guard_image:
            raise BadInput(
                "--image and --guard-image name the same image.",
                "Give --guard-image if kubernetes/Dockerfile made it, else --image.",
            )
        for option in OF_OUR_VOLUME:
            if self.claim and getattr(self, option):
                flag = flag_of(option)
                raise BadInput(
                    f"{flag} is for a volume of ours and its download; --claim has neither.",
                    f"Leave {flag} out.",
                )

    def _check_form(self, name: str, form: str, meaning: str) -> None:
        value = getattr(self, name)
        texts = value
        if not isinstance(value, tuple):
            texts = (value,)
        for text in texts:
            if text is not None and not re.fullmatch(form, text):
                flag = flag_of(name)
                raise BadInput(f"{flag} {text!r} is not {meaning}.", f"Give {meaning}.")


def flag_of(name: str) -> str:
    """Return the command line's flag for an option: pvc_size → --pvc-size."""
    return f"--{name.replace('_', '-')}"
