"""The GPUs that this session may use, by NVML or nvidia-smi (NVIDIA), or by amd-smi (AMD)."""

import importlib.metadata
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace

from inference_planner.releases.versions import numbers

from workshop.servers.host.programs import run

QUERY = "index,uuid,name,memory.total,memory.free,driver_version"
# amd-smi says MB and means 2**20 bytes
UNIT_BYTES = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
SLICE = re.compile(r"\s+(MIG \S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")
# CUDA's major version → the least driver for Linux (NVIDIA, CUDA Toolkit release notes, minor
# version compatibility).
LEAST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
# Of torch 2.13.0, which vLLM 0.32.0 (the extra `gpu`) pins: nvidia-cuda-runtime 13.0.96.
LOCKED_CUDA = "13.0"


@dataclass(frozen=True)
class Gpu:
    """One GPU, or one MIG slice of it; sizes are 0 where the memory is the processor's."""

    name: str
    memory_bytes: int
    free_bytes: int
    uuid: str = ""  # GPU-… or MIG-…, as the environment's variables have it


@dataclass(frozen=True)
class Look:
    """The GPUs of this machine, as its drivers show them."""

    gpus: tuple[Gpu, ...] = ()
    maker: str = ""  # "nvidia", "amd" or ""
    driver: str = ""
    problem: str = ""  # the driver's own words if it cannot answer


def look() -> Look:
    """Return what the drivers of this machine show, MIG slices in the place of their GPU."""
    for driver in (_nvml, _nvidia_smi, _amd_smi):
        result = driver()
        if result is not None:
            return result
    return Look()


def visible(shown: Look | None = None) -> list[Gpu]:
    """Return the GPUs that the environment leaves to this session, in its order."""
    shown = shown or look()
    chain = [("CUDA_VISIBLE_DEVICES",)]
    if shown.maker == "amd":  # HIP counts what ROCR leaves
        chain = [("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")]
    gpus = list(shown.gpus)
    for names in chain:
        for name in names:
            if name in os.environ:
                parts = map(str.strip, os.environ[name].split(","))
                gpus = _chosen(gpus, list(filter(None, parts)))
                break
    return gpus


def _chosen(gpus: list[Gpu], names: list[str]) -> list[Gpu]:
    """Return the GPUs that are named by number or UUID, which may be shortened.

    Under a cgroup the driver shows the job's own devices alone, counted from 0, whatever the
    variable says.
    """
    chosen: list[Gpu] = []
    for place, name in enumerate(names):
        number = int(name) if name.isdigit() else _number_of(gpus, name)
        if number >= len(gpus):
            number = place
        if number < len(gpus):
            chosen.append(gpus[number])
    return chosen


def _number_of(gpus: list[Gpu], uuid: str) -> int:
    """Return the place of the GPU whose UUID begins like this; beyond the list if there is none."""
    for number, gpu in enumerate(gpus):
        if gpu.uuid.lower().startswith(uuid.lower()):
            return number
    return len(gpus)


def _nvml() -> Look | None:
    """Ask NVML; None where it, or NVIDIA's driver, is not installed."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except ImportError:  # a container with vLLM and without the course's packages
        return None
    except nvml.NVMLError as error:
        absent = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        code = getattr(error, "value", None)
        if code in absent:
            return None
        return Look(maker="nvidia", problem=f"NVML: {error}")
    try:
        gpus: list[Gpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            gpus += _device(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        return Look(tuple(gpus), "nvidia", nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return Look(maker="nvidia", problem=f"NVML: {error}")
    finally:
        nvml.nvmlShutdown()


def _device(nvml, handle) -> list[Gpu]:
    """Return a GPU, or its MIG slices if it is divided."""
    slices: list[Gpu] = []
    try:
        count = 0
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        for number in range(count):
            try:
                slices += _device(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
            except nvml.NVMLError_NotFound:  # that many are possible, and fewer are made
                continue
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
        pass  # not divisible, or a slice itself
    if slices:
        return slices
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = memory.total, memory.free
    except nvml.NVMLError_NotSupported:
        total = free = 0
    return [Gpu(nvml.nvmlDeviceGetName(handle), total, free, nvml.nvmlDeviceGetUUID(handle))]


def _nvidia_smi() -> Look | None:
    if not shutil.which("nvidia-smi"):
        return None
    done = run("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits")
    if done.code:
        problem = " ".join((done.out or done.complaint).split())[:200]
        return Look(maker="nvidia", problem=f"nvidia-smi: {problem}")
    cards: list[Gpu] = []
    driver = ""
    for line in done.out.splitlines():
        if line.count(",") < 4:
            continue
        _, uuid, name, total, free, *rest = map(str.strip, line.split(","))
        if not cards and rest:
            driver = rest[0]
        cards.append(Gpu(name, _mib(total), _mib(free), uuid))
    return Look(tuple(_with_slices(cards)), "nvidia", driver)


def _mib(text: str) -> int:
    """Return bytes; 0 for `[N/A]` and `[Insufficient Permissions]`."""
    if not text.isdigit():
        return 0
    return int(text) * 2**20


def _with_slices(cards: list[Gpu]) -> list[Gpu]:
    """Put the MIG slices of `nvidia-smi -L` in their GPU's place; their names tell their memory."""
    slices: dict[str, list[Gpu]] = {}
    parent = ""
    for line in run("nvidia-smi", "-L").out.splitlines():
        part = SLICE.match(line)
        uuid = re.search(r"\(UUID: (GPU-[^)]+)\)", line)
        if part:
            memory = 0
            size = re.search(r"\.(\d+)gb", part[1])
            if size:
                memory = int(size[1]) * 2**30
            slices.setdefault(parent, []).append(Gpu(part[1], memory, memory, part[2]))
        elif uuid:
            parent = uuid[1]
    gpus = []
    for card in cards:
        if card.uuid not in slices:
            gpus.append(card)
        for part in slices.get(card.uuid, ()):
            gpus.append(replace(part, name=f"{card.name} {part.name}"))
    return gpus


def _amd_smi() -> Look | None:
    if not shutil.which("amd-smi"):
        return None
    done = run("amd-smi", "static", "--asic", "--vram", "--driver", "--json")
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        cards = _objects(done.out)
        free = {}
        for card in _objects(run("amd-smi", "metric", "--mem-usage", "--json").out):
            free[card["gpu"]] = card["mem_usage"]["free_vram"]
        gpus = []
        for card in cards:
            asic = card["asic"]
            # As rocminfo and ROCR_VISIBLE_DEVICES have it: the serial number in hexadecimal.
            serial = str(asic.get("asic_serial", "")).lower().removeprefix("0x")
            total_bytes = _size(card["vram"]["size"])
            free_bytes = _size(free.get(card["gpu"]))
            gpus.append(Gpu(asic["market_name"], total_bytes, free_bytes, f"GPU-{serial}"))
        driver = ""
        if cards:
            driver = cards[0].get("driver", {}).get("version", "")
        return Look(tuple(gpus), "amd", driver)
    problem = " ".join((done.out or done.complaint).split())[:200]
    return Look(maker="amd", problem=f"amd-smi: {problem}")


def _objects(text: str) -> list[dict]:
    """Return amd-smi's JSON, one object a GPU: newer versions wrap the list."""
    data = json.loads(text)
    if isinstance(data, dict):
        return data["gpu_data"]
    return data


def _size(size: object) -> int:
    """Return the bytes of amd-smi's {"value": 196592, "unit": "MB"}, or 0 if it says N/A."""
    if not isinstance(size, dict):
        return 0
    with suppress(KeyError, TypeError, ValueError):
        return int(size["value"]) * UNIT_BYTES[size["unit"]]
    return 0


def cuda_needed() -> str:
    """Return the CUDA version of the installed vLLM's libraries, else of the locked build's."""
    names = ["nvidia-cuda-runtime"]
    for major in LEAST_DRIVER:
        names.append(f"nvidia-cuda-runtime-cu{major}")
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            return ".".join(importlib.metadata.version(name).split(".")[:2])
    return LOCKED_CUDA


def driver_problem(driver: str) -> tuple[str, str] | None:
    """Return (sentence, way out) if NVIDIA's driver is too old for vLLM's CUDA, else None.

    driver: as "550.54.15"; '': unknown.
    """
    cuda = cuda_needed()
    least = LEAST_DRIVER.get(int(cuda.split(".")[0]))
    if not least or not re.match(r"\d+\.", driver) or numbers(driver) >= numbers(least):
        return None
    ways = [
        "ask for a newer driver",
        f"on a data-centre GPU put NVIDIA's cuda-compat {cuda} first in LD_LIBRARY_PATH",
    ]
    if numbers(driver) >= numbers(LEAST_DRIVER[12]):
        ways.append("install the wheel +cu129 of vLLM's release page with PyTorch for CUDA 12.9")
    problem = f"NVIDIA's driver {driver} is older than {least}, the least for CUDA {cuda}, "
    problem += "for which this vLLM is built."
    return problem, f"One of: {'; '.join(ways)}."
