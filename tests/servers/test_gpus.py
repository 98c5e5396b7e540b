"""GPUs as the drivers' own tools tell: recorded outputs, and what the environment leaves of them to a session."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from types import SimpleNamespace

import pytest

from workshop.engine.log.reader import Reader
from workshop.servers.host import gpus, machine
from workshop.servers.host.gpus import Gpu, Look
from workshop.servers.host.programs import Finished
from workshop.servers.vllm_main import name_gpus

GIB = 2**30
# One H200, driver 580.159.04, recorded on it (2026-11-22): the query, `nvidia-smi -L`.
H200 = "0, GPU-1d07ff8f-5a76-95de-015c-ba05e453d14f, NVIDIA H200, 143771, 143156, 580.159.04\n"
H200_LIST = "GPU 0: NVIDIA H200 (UUID: GPU-1d07ff8f-5a76-95de-015c-ba05e453d14f)\n"
# `nvidia-smi -L` of two H100, one of them divided: vllm-project/vllm pull request 41850.
MIG_LIST = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5)
  MIG 2g.20gb     Device  0: (UUID: MIG-377e0049-554c-540b-93c6-d0976f8426cb)
  MIG 1g.10gb     Device  1: (UUID: MIG-f39aa248-6f1b-5769-b119-8d650bb34b27)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-8c7c9c30-f12f-20bf-e14e-d3c4c965af32)
"""
MIG = """\
0, GPU-7f57f032-34ab-a064-c37c-7a4f75601cc5, NVIDIA H100 80GB HBM3, 81559, 81008, 580.105.08
1, GPU-8c7c9c30-f12f-20bf-e14e-d3c4c965af32, NVIDIA H100 80GB HBM3, 81559, 81008, 580.105.08
"""
# A DGX Spark, whose memory is the processor's: snowflakedb/ArcticTraining pull request 345.
GB10 = "0, GPU-00000000-0000-0000-0000-000000000000, NVIDIA GB10, [N/A], [N/A], 580.126.09\n"
# intel/llvm issue 17614.
MISMATCH = (
    "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n"
)
# `amd-smi static` of an MI210 in the tests of ROCm/device-metrics-exporter, and the memory of an MI300X
# (206141652992 bytes: ROCm/legacy-rocm-build issue 4750); fields that nobody reads are left out.
MI210 = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI210", "target_graphics_version": "gfx90a"},
    "driver": {"name": "amdgpu", "version": "6.14.0"},
    "vram": {
        "type": "HBM",
        "size": {"value": 65520, "unit": "MB"},
        "max_bandwidth": {"value": "N/A", "unit": "GB/s"},
    },
}
MI300X = {
    "gpu": 1,
    "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0xDC91284879207F2B"},
    "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}},
}


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    for name in ("CUDA", "ROCR", "HIP"):
        monkeypatch.delenv(f"{name}_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def tools(monkeypatch):
    """Programs of the drivers: the beginning of a command line → (exit code, what it prints); no NVML."""
    answers: dict[str, tuple[int, str]] = {}
    monkeypatch.setattr(gpus, "_nvml", lambda: None)
    monkeypatch.setattr(
        gpus.shutil,
        "which",
        lambda name: name if any(key.startswith(name) for key in answers) else None,
    )

    def run(*command: str) -> Finished:
        line = " ".join(command)
        code, text = next(
            (answer for key, answer in answers.items() if line.startswith(key)), (1, "")
        )
        return Finished(code, text, "")

    monkeypatch.setattr(gpus, "run", run)
    return answers


def test_an_h200_as_nvidia_smi_tells(tools):
    tools.update({"nvidia-smi --query": (0, H200), "nvidia-smi -L": (0, H200_LIST)})
    card = Gpu(
        "NVIDIA H200", 143771 * 2**20, 143156 * 2**20, "GPU-1d07ff8f-5a76-95de-015c-ba05e453d14f"
    )
    assert gpus.look() == Look((card,), "nvidia", "580.159.04")


def test_slices_stand_in_the_place_of_their_gpu_and_are_chosen_by_uuid(tools, monkeypatch):
    tools.update({"nvidia-smi --query": (0, MIG), "nvidia-smi -L": (0, MIG_LIST)})
    look = gpus.look()
    assert [gpu.name for gpu in look.gpus] == [
        "NVIDIA H100 80GB HBM3 MIG 2g.20gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H100 80GB HBM3",
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-f39aa248-6f1b-5769-b119-8d650bb34b27")
    assert [gpu.memory_bytes for gpu in gpus.visible(look)] == [10 * GIB]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8c7c9c30")
    assert [gpu.memory_bytes for gpu in gpus.visible(look)] == [81559 * 2**20], (
        "a UUID may be shortened"
    )


def test_memory_that_the_driver_does_not_tell_is_no_reason_to_overlook_a_gpu(tools):
    tools["nvidia-smi --query"] = (0, GB10)
    assert gpus.look().gpus == (
        Gpu("NVIDIA GB10", 0, 0, "GPU-00000000-0000-0000-0000-000000000000"),
    )


def test_a_driver_that_cannot_answer_is_quoted(tools):
    tools["nvidia-smi --query"] = (18, MISMATCH)
    look = gpus.look()
    assert not look.gpus
    assert look.problem == f"nvidia-smi: {' '.join(MISMATCH.split())}"


def test_a_driver_without_devices_shows_none(tools):
    for answer in [(0, ""), (0, "No devices were found")]:
        tools["nvidia-smi --query"] = answer
        assert gpus.look().gpus == (), answer


@pytest.mark.parametrize("wrap", [lambda cards: cards, lambda cards: {"gpu_data": cards}])
def test_amd_s_gpus_with_what_is_free_of_them(tools, monkeypatch, wrap):
    usage = {"gpu": 1, "mem_usage": {"free_vram": {"value": 196308, "unit": "MB"}}}
    tools["amd-smi static"] = (0, json.dumps(wrap([MI210, MI300X])))
    tools["amd-smi metric"] = (0, json.dumps(wrap([usage])))
    look = gpus.look()
    assert (look.maker, look.driver, look.problem) == ("amd", "6.14.0", "")
    assert [(gpu.name, gpu.memory_bytes) for gpu in look.gpus] == [
        ("AMD Instinct MI210", 65520 * 2**20),
        ("AMD Instinct MI300X", 206141652992),
    ]
    assert [gpu.free_bytes for gpu in look.gpus] == [0, 196308 * 2**20]
    # as rocminfo names it, in the same issue
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "GPU-dc91284879207f2b")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0")
    assert [gpu.name for gpu in gpus.visible(look)] == ["AMD Instinct MI300X"], (
        "HIP counts what ROCR leaves"
    )
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "")
    assert gpus.visible(look) == []


def test_an_amd_smi_that_answers_otherwise_is_quoted(tools):
    for text in ["", "[]x", '{"gpu_data": [{"gpu": 0}]}', "amd-smi: error: argument --asic"]:
        tools.update({"amd-smi static": (2, text), "amd-smi metric": (0, "[]")})
        look = gpus.look()
        assert look.maker == "amd" and not look.gpus, text
        assert look.problem == f"amd-smi: {text or 'exit code 2'}", text


class Nvml:
    """NVML of two GPUs: an H100 with one MIG slice (of seven places), and a GB10, which does not tell its memory."""

    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9

    class NVMLError(Exception):
        value = 18

        def __str__(self):
            return "Driver/library version mismatch"

    class NVMLError_NotSupported(NVMLError):
        value = 3

    class NVMLError_NotFound(NVMLError):
        value = 6

    class NVMLError_InvalidArgument(NVMLError):
        value = 2

    Handle = namedtuple("Handle", "name uuid memory mig")
    SLICE = Handle("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MIG-f39aa248", 9984 * 2**20, None)
    GPUS = (
        Handle("NVIDIA H100 80GB HBM3", "GPU-7f57f032", 1, (1, 1)),
        Handle("NVIDIA GB10", "GPU-0", None, None),
    )

    def __init__(self, start: Exception | None = None):
        self.start, self.ended = start, False

    def nvmlInit(self):
        if self.start:
            raise self.start

    def nvmlShutdown(self):
        self.ended = True

    def nvmlSystemGetDriverVersion(self):
        return "580.105.08"

    def nvmlDeviceGetCount(self):
        return len(self.GPUS)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.GPUS[index]

    def nvmlDeviceGetMigMode(self, handle):
        if handle.mig is None:
            raise self.NVMLError_NotSupported
        return handle.mig

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, number):
        if number:
            raise self.NVMLError_NotFound
        return self.SLICE

    def nvmlDeviceGetMemoryInfo(self, handle):
        if handle.memory is None:
            raise self.NVMLError_NotSupported
        return SimpleNamespace(total=handle.memory, free=handle.memory)

    def nvmlDeviceGetName(self, handle):
        return handle.name

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid


def test_nvml_s_slices_and_untold_memory(monkeypatch):
    nvml = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    slice_ = Gpu(Nvml.SLICE.name, Nvml.SLICE.memory, Nvml.SLICE.memory, Nvml.SLICE.uuid)
    assert gpus.look() == Look((slice_, Gpu("NVIDIA GB10", 0, 0, "GPU-0")), "nvidia", "580.105.08")
    assert nvml.ended


def test_nvml_that_does_not_fit_the_driver_is_quoted_and_without_one_others_are_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(Nvml.NVMLError()))
    assert gpus.look() == Look(maker="nvidia", problem="NVML: Driver/library version mismatch")
    absent = Nvml.NVMLError()
    absent.value = 12
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(absent))
    assert gpus._nvml() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert gpus._nvml() is None


def test_the_least_driver_of_a_cuda_version(monkeypatch):
    for driver, cuda, least in [
        # NVIDIA's table of minor version compatibility (CUDA Toolkit release notes): 13.x 580, 12.x 525, 11.x 450.
        ("580.65.06", "13.0", None),
        ("590.48.01", "13.0", None),
        ("570.124.06", "13.0", "580.65.06"),
        ("535.129.03", "12.9", None),
        ("470.256.02", "12.9", "525.60.13"),
        ("", "13.0", None),
        ("[N/A]", "13.0", None),
    ]:
        monkeypatch.setattr(gpus, "cuda_needed", lambda cuda=cuda: cuda)
        problem = gpus.driver_problem(driver)
        if least is None:
            assert problem is None, driver
        else:
            assert driver in problem[0] and least in problem[0] and "newer driver" in problem[1], (
                driver
            )
            assert ("+cu129" in problem[1]) == driver.startswith("570"), "CUDA 12 needs 525"


def test_without_nvidia_s_libraries_the_locked_build_counts():
    assert gpus.cuda_needed() == gpus.LOCKED_CUDA


def test_the_engine_s_log_begins_with_what_gpus_there_are(monkeypatch, capsys):
    cards = [Gpu("NVIDIA H100 80GB HBM3", 80 * GIB, 0, f"GPU-{number}") for number in range(2)]
    cards.append(Gpu("NVIDIA L4", 23 * GIB, 0, "GPU-2"))

    def logged_gpus(all_gpus: list[Gpu], chosen: str | None = None) -> tuple[str, str | None]:
        monkeypatch.setattr(gpus, "look", lambda: Look(tuple(all_gpus), "nvidia"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if chosen is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
        name_gpus()
        text, reader = capsys.readouterr().out, Reader()
        reader.feed(text)
        return text, reader.log.gpu

    two = "[workshop] GPUs: 2 x NVIDIA H100 80GB HBM3, 80.0 GiB each\n"
    assert (
        logged_gpus(cards[:2])
        == logged_gpus(cards, "1,0")
        == logged_gpus(cards[:2], "6,7")
        == (two, "NVIDIA H100 80GB HBM3")
    )
    assert (
        logged_gpus(cards, "2")
        == logged_gpus(cards, "GPU-2")
        == ("[workshop] GPUs: 1 x NVIDIA L4, 23.0 GiB each\n", "NVIDIA L4")
    )
    text, gpu = logged_gpus(cards)
    assert "several kinds" in text and gpu is None, "which of them it is, the log cannot say"
    assert logged_gpus([]) == ("", None)
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: 120 * GIB)
    assert logged_gpus([Gpu("NVIDIA GB10", 0, 0)]) == (
        "[workshop] GPUs: 1 x NVIDIA GB10, 120.0 GiB each\n",
        "NVIDIA GB10",
    )
