"""The report's remedies: never the report itself, and settings of another Python are named."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import small_server

import workshop
from workshop import own_packages
from workshop.errors import WorkshopError
from workshop.lab import doctor
from workshop.servers import records
from workshop.servers.checks import LACK, NOTE, Check

ITSELF = (
    "The words are your cluster's own; `workshop doctor` checks slurm/site.sh against this cluster."
)


@pytest.fixture
def only(monkeypatch):
    """Make the report one part alone."""

    def make(part) -> list[Check]:
        for name in (
            "_packages",
            "_vllm",
            "_gpus",
            "_system",
            "_resources",
            "_folders",
            "_jupyter",
        ):
            monkeypatch.setattr(doctor, name, list)
        monkeypatch.setattr(doctor, "_servers", list)
        monkeypatch.setattr(doctor.slurm_doctor, "examine", part)
        return doctor.examine()

    return make


def test_the_report_is_no_remedy_of_its_own(only, monkeypatch):
    monkeypatch.setattr(doctor, "_python_settings", list)
    [check] = only(lambda: [Check("sbatch", LACK, "would be refused: no", ITSELF)])
    assert "doctor" not in check.remedy and check.remedy and check.found == "would be refused: no"


def test_a_part_that_fails_with_a_remedy_keeps_it(only, monkeypatch):
    monkeypatch.setattr(doctor, "_python_settings", list)

    def breaks():
        raise WorkshopError("The site's file is odd.", "Edit slurm/site.sh.")

    [check] = only(breaks)
    assert (check.state, check.remedy) == (NOTE, "Edit slurm/site.sh.") and "odd" in check.found
    monkeypatch.setattr(doctor.slurm_doctor, "examine", lambda: [][0])
    assert doctor.examine()[0].remedy


def test_settings_of_another_python_are_named_and_our_own_are_not(only, monkeypatch):
    for name in own_packages.FOREIGN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert only(list) == []
    monkeypatch.setenv("PYTHONPATH", str(Path(workshop.__file__).parents[1]))
    assert only(list) == []
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], "/apps/python/2.7/site-packages"])
    )
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    [check] = only(list)
    assert (check.name, check.state, check.remedy) == (
        "Python settings",
        NOTE,
        "unset PYTHONPATH PYTHONOPTIMIZE",
    )


def test_dead_servers_are_one_line_with_one_remedy(workshop_home, monkeypatch):
    for index in range(6):
        started = f"2026-11-2{index}T00:00:00.000+00:00"
        records.write(small_server.record(name=f"s{index}", state="failed", started=started))
    monkeypatch.delenv("WORKSHOP_URL", raising=False)
    monkeypatch.delenv("WORKSHOP_SHARED", raising=False)
    failed, *rest = doctor._servers()
    assert failed.found.startswith("s5, s4, s3 and 3 more") and failed.state == NOTE
    assert "workshop stop --failed" in failed.remedy
    assert [check.name for check in rest] == ["Server"]


def test_a_full_disk_is_called_full(workshop_home, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    [check] = doctor._folders()
    assert check.state == LACK and "No space is left" in check.found
    assert "Free some space" in check.remedy
