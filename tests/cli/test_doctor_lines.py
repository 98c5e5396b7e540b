"""What doctor prints: a line a check, its name apart from what was found, in text and as data."""

from __future__ import annotations

import json

from click.testing import CliRunner

from workshop.cli.start.doctor import command
from workshop.lab import doctor
from workshop.lab.doctor import LACK, NOTE, OK, Check

NAMES = [
    "vLLM",
    "JupyterLab of this session",
    "Server teaching-model",
    "Server " + "x" * 64,
    "site.sh: class folder",
]


def test_name_and_finding_stand_apart(monkeypatch, subtests):
    for state in [OK, NOTE, LACK]:
        for name in NAMES:
            with subtests.test(f"{state}, {name}"):
                checks = [Check("Python", OK, "3"), Check(name, state, "teaching-model", "end")]
                monkeypatch.setattr(doctor, "examine", lambda checks=checks: checks)
                done = CliRunner().invoke(command)
                line = next(
                    line
                    for line in done.output.splitlines()
                    if "teaching-model" in line.replace(name, "")
                )
                assert line.split("  ")[0][2:] == name and line.endswith("  teaching-model")
                assert done.exit_code == (state == LACK) and ("→ end" in done.output) == (
                    state != OK
                )


def test_findings_stand_in_one_column(monkeypatch):
    monkeypatch.setattr(
        doctor, "examine", lambda: [Check(name, OK, "FOUND") for name in ("a", *NAMES[:3])]
    )
    lines = CliRunner().invoke(command).output.splitlines()
    assert len({line.index("FOUND") for line in lines if "FOUND" in line}) == 1


def test_words_of_others_are_shown_and_stay_data(monkeypatch):
    odd = Check("Server x\x1b[2J", NOTE, "failed:\nsaid \x1b]0;x\x07\udcff", "workshop stop [/]")
    monkeypatch.setattr(doctor, "examine", lambda: [odd])
    shown = CliRunner().invoke(command, color=True).output
    assert (
        "\x1b[2J" not in shown
        and "\x07" not in shown
        and r"\x1b]0;x\x07\udcff" in shown
        and "[/]" in shown
    )
    data = json.loads(CliRunner().invoke(command, ["--json"]).output)
    assert data["ok"] and data["checks"] == [vars(odd)]


def test_probe_that_breaks_does_not_hide_the_others(monkeypatch, workshop_home):
    def broken():
        yield Check("first", OK, "there")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(doctor, "_gpus", broken)
    checks = {check.name: check for check in doctor.examine()}
    assert (
        checks["first"].state == OK
        and "Input/output error" in checks["GPUs"].found
        and "Python" in checks
    )
    assert checks["GPUs"].remedy
