"""The test bed: one real SLURM cluster for all tests of this folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cluster import Cluster, what_is_missing
from needs import lacking

from workshop.servers.local import TEACHING_FOLDER

# where the seconds in docs/slurm.md come from
REPORT = Path(__file__).parents[2] / ".ci/output/slurm_seconds.json"


def model_folder() -> Path:
    """The teaching model, or another model of its kind: WORKSHOP_TEST_MODEL."""
    return Path(os.environ.get("WORKSHOP_TEST_MODEL") or TEACHING_FOLDER)


@pytest.fixture(scope="session")
def cluster():
    """A controller, two nodes and a learner's host; every test leaves it without jobs."""
    if missing := what_is_missing():
        lacking(missing)
    if not list(model_folder().glob("*.safetensors")):
        lacking(f"the teaching model's weights are not in {model_folder()}")
    bed = Cluster(model_folder())
    try:
        bed.up()
        yield bed
    finally:
        bed.down()
        report(bed.ends)


def report(ends: list[dict]) -> None:
    """Write down what was measured; what other tests of earlier runs measured stays."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(REPORT.read_text()) if REPORT.exists() else []
    other_ends = [entry for entry in before if entry["test"] not in {end["test"] for end in ends}]
    REPORT.write_text(json.dumps([*other_ends, *ends], indent=1, ensure_ascii=False) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """After a test that failed, remember what lies about: the tests that follow it are not to blame."""
    outcome = yield
    bed = getattr(item, "funcargs", {}).get("cluster")
    if outcome.failed and outcome.when == "call" and isinstance(bed, Cluster):
        bed.told.update(bed.leftovers())
    return outcome
