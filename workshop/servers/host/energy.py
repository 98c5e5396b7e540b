"""The energy that this machine's GPUs take, by NVML's counter (Volta and later, no MIG slices)."""

from __future__ import annotations

from dataclasses import dataclass

from workshop.servers.host import gpus

JOULES_PER_KWH = 3_600_000


@dataclass(frozen=True)
class Energy:
    """The energy that a piece of work took."""

    joules: float  # of all visible GPUs together, idle power included
    tokens: int  # that it wrote

    @property
    def joules_per_token(self) -> float:
        """Joules for one written token."""
        return self.joules / self.tokens

    @property
    def kwh_per_million_tokens(self) -> float:
        """Kilowatt hours for a million written tokens."""
        return self.joules_per_token * 1e6 / JOULES_PER_KWH

    def to_dict(self) -> dict[str, float]:
        """Return plain data, as `--json` prints it."""
        return {
            "joules": round(self.joules, 1),
            "joules_per_token": round(self.joules_per_token, 4),
            "kwh_per_million_tokens": round(self.kwh_per_million_tokens, 4),
        }

    def __str__(self) -> str:
        return (
            f"{self.joules_per_token:.2f} joules per written token, "
            f"{self.kwh_per_million_tokens:.2f} kWh per million tokens (the GPUs alone)"
        )


def taken_joules() -> float | None:
    """Return what the visible GPUs have taken since their driver was loaded, in joules.

    Two of these, before and after, give the energy of what ran between them. None where NVML, or
    the counter of one of the GPUs, is missing.
    """
    visible = gpus.visible()
    if not visible:
        return None
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except ImportError:
        return None
    except nvml.NVMLError:
        return None
    try:
        millijoules = 0
        for gpu in visible:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            millijoules += nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return millijoules / 1000
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def between(before: float | None, after: float | None, tokens: int) -> Energy | None:
    """Return the energy between two readings; None if one is missing or the counter was reset."""
    if before is None or after is None or after <= before or tokens <= 0:
        return None
    return Energy(after - before, tokens)
