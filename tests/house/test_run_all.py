"""`make test` runs each test in one of its parts, and what failed once more."""

from __future__ import annotations

import itertools

import pytest
import run_all
from tree import ROOT, files

MARKERS = ("live", "starts", "browser", "slurm", "notebook")
UPSTREAM = {
    "upstream": False
}  # these run when a locked version changes: tests/workarounds/versions.toml


@pytest.fixture
def run_of(monkeypatch, tmp_path):
    """Replace pytest by exit codes: {part: [first, second]}; return the options of each run."""
    runs = []

    def replace(codes: dict[str, list[int]]) -> list[tuple[str, ...]]:
        def run(part: str, *options: str) -> int:
            runs.append((part, *options))
            return codes[part].pop(0)

        monkeypatch.setattr(run_all, "run", run)
        monkeypatch.setattr(run_all, "run_to_log", run)
        monkeypatch.setattr(run_all, "LOGS", tmp_path)
        for part in run_all.MARKS:
            (tmp_path / f"{part}.log").touch()
        return runs

    return replace


def test_every_test_belongs_to_one_part_and_one_of_upstream_to_none():
    for count in range(len(MARKERS) + 1):
        for marked in itertools.combinations(MARKERS, count):
            values = {marker: marker in marked for marker in MARKERS} | UPSTREAM
            parts = [part for part, marks in run_all.MARKS.items() if eval(marks, {}, values)]
            assert len(parts) == 1, (marked, parts)
            values["upstream"] = True
            assert not any(eval(marks, {}, values) for marks in run_all.MARKS.values()), marked


def test_each_part_is_given_the_files_that_have_its_marks():
    assert run_all.files_of("quick") == []
    slurm = run_all.files_of("slurm")
    assert str(ROOT / "tests/slurm/test_server.py") in slurm
    assert run_all.command("slurm")[-len(slurm) :] == slurm
    for part, texts in run_all.NAMED.items():
        named = {text.removeprefix("mark.") for text in texts}
        for others in itertools.product((False, True), repeat=len(MARKERS)):
            values = dict(zip(MARKERS, others, strict=True)) | UPSTREAM
            if eval(run_all.MARKS[part], {}, values):
                assert any(values[name] for name in named), (part, values)
    # a mark that is not written out would keep a test from running
    assert not [path for path in files("tests", ".py") if "add_" + "marker(" in path.read_text()]


def test_what_failed_runs_once_more_and_decides(run_of):
    runs = run_of({"quick": [0], "servers": [1, 0], "notebooks": [0], "slurm": [0], "browser": [0]})
    assert run_all.run_parts() == 0
    assert runs[-1] == ("servers", "--last-failed", "--last-failed-no-failures", "none")


def test_what_fails_twice_fails(run_of):
    run_of({"quick": [1, 1], "servers": [0], "notebooks": [0], "slurm": [1, 0], "browser": [0]})
    assert run_all.run_parts() == 1


def test_a_part_that_could_not_run_fails_at_once(run_of):
    runs = run_of({"quick": [2], "servers": [0], "notebooks": [0], "slurm": [5], "browser": [0]})
    assert run_all.run_parts() == 5
    assert len(runs) == len(run_all.MARKS)
