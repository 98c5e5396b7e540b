"""GPUs: memory as the driver reports it and as the engine sees it, bandwidth, FLOP/s and links, each with a source."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.catalog.fields import nearest
from inference_planner.errors import BadInput

GIB, MIB = 1 << 30, 1 << 20
BFLOAT16 = 8.0  # least compute capability; platforms/cuda.py check_if_supports_dtype, 0.25.1


@dataclass(frozen=True)
class GPU:
    """One GPU. The engine sees less memory than the driver reports: the driver keeps page tables and ECC for itself."""

    name: str
    title: str
    marketing_gb: int  # what the vendor writes on the box: GiB, rounded, whatever it says
    driver_mib: int  # what nvidia-smi or rocm-smi reports
    engine_bytes: int  # total of cudaMemGetInfo, which vLLM multiplies by gpu_memory_utilization
    bandwidth_gb_s: float  # peak of the memory, 10**9 bytes a second
    bf16_tflops: (
        float  # dense matrix peak; 0: the GPU has no such units (fp16 is taken for bf16 on a T4)
    )
    fp8_tflops: (
        float  # dense; 0: the GPU has no FP8 units (vLLM then unpacks FP8 weights to 16 bits)
    )
    link: str  # NVLink, PCIe, Infinity Fabric; MIG for a slice, which has none
    link_gb_s: float  # GPU to GPU inside a node, one direction, 10**9 bytes a second
    compute_capability: str
    l2_mib: int  # L2 cache and multiprocessors decide some of the engine's scratch buffers
    sm_count: int
    source: str
    kubernetes_product: str = (
        ""  # what NVIDIA's feature discovery writes on a node: the driver's name, "-" for " "
    )
    aliases: tuple[str, ...] = ()
    fp4_tflops: float = 0.0  # dense; 0: the GPU has no FP4 units

    @property
    def engine_gib(self) -> float:
        return self.engine_bytes / GIB

    @property
    def is_slice(self) -> bool:
        return self.link == "MIG"

    @property
    def capability(self) -> float:
        """The CUDA compute capability as a number; infinite for other vendors' GPUs, which do all that it decides."""
        number = re.fullmatch(r"\d+\.\d+", self.compute_capability)
        return float(number[0]) if number else math.inf

    @property
    def has_bfloat16(self) -> bool:
        return self.capability >= BFLOAT16

    @property
    def hopper_or_newer(self) -> bool:
        return 9 <= self.capability < math.inf


@lru_cache(maxsize=1)
def _gpus() -> dict[str, GPU]:
    entries = json.loads((Path(__file__).parent / "gpus.json").read_text(encoding="utf-8"))["gpus"]
    return {name: _gpu(name, entry) for name, entry in entries.items()}


def _gpu(name: str, entry: Mapping[str, Any]) -> GPU:
    facts = dict(entry)
    facts["aliases"] = tuple(facts.get("aliases", ()))
    return GPU(name=name, **facts)


# Words of a full name that tell no card from another: "NVIDIA GeForce RTX 4090" is "RTX 4090".
MAKERS = ("nvidia", "amd", "geforce", "tesla", "instinct", "radeon")


def _spelt(name: str) -> str:
    """Return the form under which a spelling is looked up: lower case, hyphens, no maker, a hyphen after "RTX"."""
    text = re.sub(r"[\s_/()-]+", "-", name.strip().lower()).strip("-")
    words = [word for word in text.split("-") if word not in MAKERS]
    text = re.sub(r"\brtx(?=[a-z]*\d)", "rtx-", "-".join(words))
    text = re.sub(r"(?<=\d)ti\b", "-ti", text)
    return re.sub(r"\b(\d+)-(gi?b?)\b", r"\1\2", text).replace("gib", "gb")


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Return every spelling and whose it is: NVML's name, too, as Kubernetes' label has it, and the size on the box."""
    names: dict[str, str] = {}
    for name, gpu in _gpus().items():
        for alias in (name, gpu.title, gpu.kubernetes_product, *gpu.aliases):
            if alias:
                names[_spelt(alias)] = name
    for alias, name in list(names.items()):
        names.setdefault(f"{alias}-{_gpus()[name].marketing_gb}gb", name)
    return names


def list_gpus() -> list[str]:
    """Return the catalog's GPU names."""
    return list(_gpus())


def load_gpu(name: str | GPU) -> GPU:
    """Return a GPU by name. Raises BadInput with the nearest names for one that is not in the catalog."""
    if isinstance(name, GPU):
        return name
    names = _names()
    key = _spelt(str(name))
    if key in names:
        return _gpus()[names[key]]
    remedy = (
        f"{nearest(key, names, 3)}--list-gpus prints the {len(_gpus())} names; "
        "--gpu-memory GIB plans a card of which only the memory is known."
    )
    raise BadInput(f"The GPU {str(name)!r} is not in the catalog.", remedy)
