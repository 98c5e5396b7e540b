"""The faults of `faults.toml` still fit the code and the tests; `plant.py` plants them by hand."""

from __future__ import annotations

import re

import pytest
from power import plant

FAULTS = plant.read_faults()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_one_place_and_names_tests_that_there_are(fault):
    text = (plant.ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.planted_in(text) != text
    for test in fault.tests:
        file, *_, function = test.partition("[")[0].split("::")
        source = (plant.ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *def {function}\(", source, re.MULTILINE)


def test_there_are_forty_faults_with_names_of_their_own():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40


def test_a_fault_whose_place_has_moved_is_refused():
    fault = FAULTS[0]
    with pytest.raises(ValueError, match="update the fault"):
        fault.planted_in("another text")
