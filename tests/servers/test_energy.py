"""Energy: NVML's counter before and after, and nothing where there is none. The NVML here is a fake one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small_nvml import fake_nvml

from workshop.batch.progress import Summary
from workshop.servers.host import energy, gpus
from workshop.servers.host.gpus import Gpu


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


def test_a_missing_reading_gives_no_energy():
    for before, after, tokens in [
        (None, 1.0, 1),
        (1.0, None, 1),
        (5.0, 5.0, 1),
        (9.0, 1.0, 1),
        (1.0, 2.0, 0),
    ]:
        assert energy.between(before, after, tokens) is None, before


def test_the_summary_of_a_batch_has_the_energy_of_its_answers():
    taken = energy.Energy(joules=700.0, tokens=1000)
    summary = Summary("complete", 1, 1, 1, 0, 0, 0, 10.0, 5, 1000, Path("o"), None, energy=taken)
    assert summary.to_dict()["energy"]["joules_per_token"] == 0.7
    assert "0.70 joules per written token" in str(summary)
    without = Summary("complete", 1, 1, 1, 0, 0, 0, 10.0, 5, 1000, Path("o"), None)
    assert without.to_dict()["energy"] is None
