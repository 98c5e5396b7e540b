"""A fake NVML for tests: GPUs whose energy counters the test sets."""

from __future__ import annotations

from types import SimpleNamespace


class Refused(Exception):
    """Stands for NVMLError."""


def fake_nvml(counters: dict[str, int]) -> SimpleNamespace:
    """Return a module like pynvml whose GPUs have these counters, in millijoules."""

    def consumption(handle: str) -> int:
        if handle not in counters:
            raise Refused("Not Supported")
        return counters[handle]

    return SimpleNamespace(
        NVMLError=Refused,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=consumption,
    )
