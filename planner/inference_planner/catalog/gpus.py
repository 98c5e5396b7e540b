"""GPUs, each with a source. Memory is given as the driver reports it and as the engine sees it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from inference_planner.catalog.fields import nearest
from inference_planner.errors import BadInput

GIB, MIB = 1 << 30, 1 << 20
MOST_GIB = 4096  # of one card
SAME_MEMORY = 0.005  # what logs of one card differ by, with other drivers
BFLOAT16 = 8.0  # least compute capability; platforms/cuda.py check_if_supports_dtype, 0.25.1
HOPPER = 9.0
SLICE_LINK_GB_S = 32  # a slice has PCIe alone


@dataclass(frozen=True)
class GPU:
    """One GPU. The engine sees less memory than the driver, which keeps page tables and ECC."""

    name: str
    title: str
    marketing_gb: int  # what the vendor writes on the box: GiB, rounded, whatever it says
    driver_mib: int  # what nvidia-smi or rocm-smi reports
    engine_bytes: int  # total of cudaMemGetInfo, which vLLM multiplies by gpu_memory_utilization
    # peak of the memory, 10**9 bytes a second; 0: unknown, and so is the speed
    bandwidth_gb_s: float
    # dense matrix peak; 0: the GPU has no such units (fp16 is taken for bf16 on a T4)
    bf16_tflops: float
    # dense; 0: the GPU has no FP8 units (vLLM then unpacks FP8 weights to 16 bits)
    fp8_tflops: float
    link: str  # NVLink, PCIe, Infinity Fabric; MIG for a slice, which has none
    link_gb_s: float  # GPU to GPU inside a node, one direction, 10**9 bytes a second
    compute_capability: str
    l2_mib: int  # L2 cache and multiprocessors decide some of the engine's scratch buffers
    sm_count: int
    source: str
    # what NVIDIA's feature discovery writes on a node: the driver's name, "-" for " "
    kubernetes_product: str = ""
    aliases: tuple[str, ...] = ()
    fp4_tflops: float = 0.0  # dense; 0: the GPU has no FP4 units
    matmul_tflops: float = 0.0  # what large bf16 products were measured to reach; 0: not published
    unified_memory: bool = False  # the CPU and the system use the same memory

    @property
    def engine_gib(self) -> float:
        return self.engine_bytes / GIB

    @property
    def has_known_speed(self) -> bool:
        """False for a card of which only the memory is known."""
        return self.bandwidth_gb_s > 0

    @property
    def hides_memory(self) -> bool:
        """True if NVML does not say its memory, which vLLM then takes for 0 (pull request 57378)."""
        return self.unified_memory and self.capability < math.inf

    @property
    def is_slice(self) -> bool:
        return self.link == "MIG"

    @cached_property
    def capability(self) -> float:
        """The CUDA compute capability; infinite for other vendors, who do all that it decides."""
        number = re.fullmatch(r"\d+\.\d+", self.compute_capability)
        return float(number[0]) if number else math.inf

    @property
    def has_bfloat16(self) -> bool:
        return self.capability >= BFLOAT16

    @property
    def is_hopper(self) -> bool:
        """Compute capability 9.0, the only one with FlashAttention 3."""
        return self.capability == HOPPER

    @property
    def hopper_or_newer(self) -> bool:
        return 9 <= self.capability < math.inf


@lru_cache(maxsize=1)
def _gpus() -> dict[str, GPU]:
    folder = Path(__file__).parent
    entries = json.loads((folder / "gpus.json").read_text(encoding="utf-8"))["gpus"]
    gpus = {name: _gpu(name, entry) for name, entry in entries.items()}
    mig = json.loads((folder / "mig.json").read_text(encoding="utf-8"))
    for name, profiles in mig["profiles"].items():
        for profile, (share, sm_count, gib) in profiles.items():
            whole = gpus[name]
            memory_gib = gib or share * whole.engine_gib * mig["least_share"]
            part = _slice(whole, profile, share, sm_count, memory_gib)
            gpus[part.name] = replace(part, source=mig["source"])
    return gpus


def _gpu(name: str, entry: Mapping[str, Any]) -> GPU:
    facts = dict(entry)
    facts["aliases"] = tuple(facts.get("aliases", ()))
    return GPU(name=name, **facts)


def _slice(whole: GPU, profile: str, share: float, sm_count: int, gib: float) -> GPU:
    """Return a slice of a GPU (MIG).

    Args:
        profile: its name, such as 3g.40gb, whose last number is the memory in GB.
        share: of the whole GPU's memory, which is also that of its bandwidth and L2 cache.
        gib: its memory.
    """
    of_products = sm_count / whole.sm_count
    return replace(
        whole,
        name=f"{whole.name}-mig-{profile}",
        title=f"{whole.title} MIG {profile}",
        kubernetes_product=f"{whole.kubernetes_product}-MIG-{profile}",
        aliases=(f"{whole.name}-mig-{profile}+me",),
        marketing_gb=int(re.findall(r"\d+", profile)[-1]),
        driver_mib=int(gib * 1024),
        engine_bytes=int(gib * 1024) * MIB,
        bandwidth_gb_s=whole.bandwidth_gb_s * share,
        bf16_tflops=whole.bf16_tflops * of_products,
        fp8_tflops=whole.fp8_tflops * of_products,
        fp4_tflops=whole.fp4_tflops * of_products,
        matmul_tflops=whole.matmul_tflops * of_products,
        link="MIG",
        link_gb_s=SLICE_LINK_GB_S,
        l2_mib=round(whole.l2_mib * share),
        sm_count=sm_count,
    )


# Words of a full name that tell no card from another: "NVIDIA GeForce RTX 4090" is "RTX 4090".
MAKERS = ("nvidia", "amd", "intel", "geforce", "tesla", "instinct", "radeon", "gpu")


def _spelt(name: str) -> str:
    """Return a spelling in lower case with hyphens, without the maker, and with "rtx-"."""
    text = re.sub(r"[\s_/()-]+", "-", name.strip().lower()).strip("-")
    parts = [part for part in text.split("-") if part not in MAKERS]
    text = re.sub(r"\brtx(?=[a-z]*\d)", "rtx-", "-".join(parts))
    text = re.sub(r"(?<=\d)ti\b", "-ti", text)
    return re.sub(r"\b(\d+)-?gi?b?\b", r"\1gb", text)


@lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Return whose name each spelling is: NVML's, Kubernetes', also without "rtx-", with the size."""
    names: dict[str, str] = {}
    for name, gpu in _gpus().items():
        for alias in (name, gpu.title, gpu.kubernetes_product, *gpu.aliases):
            if alias:
                names[_spelt(alias)] = name
    for alias, name in list(names.items()):
        for spelling in (alias, re.sub("^(rtx|rx)-", "", alias)):
            names.setdefault(spelling, name)
            names.setdefault(f"{spelling}-{_gpus()[name].marketing_gb}gb", name)
    return names


def list_gpus() -> list[str]:
    """Return the catalog's GPU names."""
    return list(_gpus())


def load_gpu(name: str | GPU) -> GPU:
    """Return a GPU by name; the number in `h100:4` is left aside.

    Raises BadInput with the nearest names for one that is not in the catalog.
    """
    if isinstance(name, GPU):
        return name
    if name in _gpus():
        return _gpus()[name]
    names = _names()
    key = _spelt(split_count(str(name))[0])
    if key in names:
        return _gpus()[names[key]]
    remedy = (
        f"{nearest(key, names, 3)}`workshop models --gpus`, or `inference-planner --list-gpus`, "
        f"prints the {len(_gpus())} names; "
        "--gpu-memory GIB plans a card of which only the memory is known."
    )
    raise BadInput(f"The GPU {str(name)!r} is not in the catalog.", remedy)


def split_count(name: str) -> tuple[str, int | None]:
    """Return name and GPUs a node of `h100:4`; None for a name without a number.

    Raises BadInput: what stands after the colon is no number above 0.
    """
    gpu, colon, count = name.partition(":")
    if not colon:
        return name, None
    if not re.fullmatch("[1-9][0-9]{0,3}", count, re.ASCII):
        raise BadInput(
            f"{name[:80]!r} names no number of GPUs after the colon.",
            "Give it as in h100:4, which is four H100 a node.",
        )
    return gpu, int(count)


def load_card(name: str | GPU | None, memory_gib: float | None = None) -> GPU:
    """Return a GPU by its name, by its memory, or by both: then the named card with another memory.

    Args:
        memory_gib: the memory of one GPU in GiB as vLLM sees it; None for that of the catalog.

    Raises BadInput: neither is given, the name is not in the catalog, or the memory is no number
    above 0.
    """
    if memory_gib is None:
        if name is None:
            raise BadInput(
                "The GPU is missing.",
                "Give its name, or its memory (gpu_memory_gib, --gpu-memory).",
            )
        return load_gpu(name)
    size = checked_gib("gpu_memory_gib", memory_gib)
    box, driver, engine = max(1, round(size)), math.ceil(size * 1024), round(size * GIB)
    if name is not None:
        named = load_gpu(name)
        return replace(named, marketing_gb=box, driver_mib=driver, engine_bytes=engine)
    return GPU(
        name=f"card of {size:g} GiB",
        title=f"card of {size:g} GiB",
        marketing_gb=box,
        driver_mib=driver,
        engine_bytes=engine,
        bandwidth_gb_s=0,
        bf16_tflops=0,
        fp8_tflops=0,
        link="unknown link",
        link_gb_s=0,
        compute_capability="unknown",
        l2_mib=0,
        sm_count=0,
        source="the memory that was given",
        unified_memory=_is_of_shared_memory(engine),
    )


def _is_of_shared_memory(engine_bytes: int) -> bool:
    """Return True for a memory that only cards have which share it with the CPU (GB10, Thor)."""
    same = [
        gpu.unified_memory
        for gpu in _gpus().values()
        if abs(gpu.engine_bytes / engine_bytes - 1) <= SAME_MEMORY
    ]
    return bool(same) and all(same)


def checked_gib(name: str, value: object) -> float:
    """Return a size in GiB. Raises BadInput: it is no number above 0 and at most MOST_GIB."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST_GIB:
        raise BadInput(
            f"{name} is {value!r}, and must be above 0 and at most {MOST_GIB}.",
            "It counts GiB (2**30 bytes) of one GPU: 23.52 for an RTX 4090.",
        )
    return float(value)
