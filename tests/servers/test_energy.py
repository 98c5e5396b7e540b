"""Energy: NVML's counter before and after, and nothing where there is none. The NVML here is a fake one."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from workshop.servers import energy, gpus
from workshop.servers.gpus import Gpu


class Refused(Exception):
    """Stands for NVMLError."""


def fake_nvml(counters: dict[str, int]):
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


@pytest.fixture
def two_gpus(monkeypatch):
    visible = [Gpu("H100", 1, 1, uuid="GPU-a"), Gpu("H100", 1, 1, uuid="GPU-b")]
    monkeypatch.setattr(gpus, "visible", lambda: visible)


def test_the_counters_of_all_visible_gpus_are_added(two_gpus, monkeypatch):
    monkeypatch.setitem(
        sys.modules, "pynvml", fake_nvml({"GPU-a": 5_000, "GPU-b": 2_500, "GPU-c": 1})
    )
    assert energy.taken_joules() == 7.5


def test_a_gpu_without_a_counter_gives_nothing(two_gpus, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml({"GPU-a": 5_000}))
    assert energy.taken_joules() is None


def test_a_machine_without_gpus_gives_nothing(monkeypatch):
    monkeypatch.setattr(gpus, "visible", list)
    assert energy.taken_joules() is None


def test_joules_become_kilowatt_hours():
    # 350 W for 10 s, in which 1,000 tokens were written: 3.5 J a token, and 3.5 MJ are 0.97 kWh
    taken = energy.between(100.0, 3600.0, 1000)
    assert taken is not None and taken.joules_per_token == 3.5
    assert taken.kwh_per_million_tokens == pytest.approx(3.5e6 / 3.6e6)
    assert str(taken).startswith("3.50 joules per written token, 0.97 kWh per million tokens")


@pytest.mark.parametrize(
    ("before", "after", "tokens"),
    [(None, 1.0, 1), (1.0, None, 1), (5.0, 5.0, 1), (9.0, 1.0, 1), (1.0, 2.0, 0)],
)
def test_a_missing_reading_gives_no_energy(before, after, tokens):
    assert energy.between(before, after, tokens) is None
