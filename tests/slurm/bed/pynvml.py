"""Stands for NVML on the test bed's nodes: the GPUs that the bed's nvidia-smi prints, a line each."""

import subprocess
from types import SimpleNamespace


class NVMLError(Exception):
    """What NVML cannot do."""


class NVMLError_NotSupported(NVMLError):
    """It does not do that for this GPU."""


class NVMLError_InvalidArgument(NVMLError):
    """There is no such thing."""


def rows():
    done = subprocess.run(["@BED@/bin/nvidia-smi"], capture_output=True, text=True, check=True)
    return [line.split(", ") for line in done.stdout.splitlines()]


def nvmlInit():
    """Nothing is to be opened."""


def nvmlShutdown():
    """Nothing is to be closed."""


def nvmlSystemGetDriverVersion():
    return ""


def nvmlDeviceGetCount():
    return len(rows())


def nvmlDeviceGetHandleByIndex(index):
    return rows()[index]


def nvmlDeviceGetMigMode(handle):
    raise NVMLError_NotSupported


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=int(handle[3]) * 2**20, free=int(handle[4]) * 2**20)


def nvmlDeviceGetName(handle):
    return handle[2]


def nvmlDeviceGetUUID(handle):
    return handle[1]
