"""One owner each for how a file is replaced, how a time is written, and the bytes of a GiB."""

import os
import re
import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from workshop import files, timestamps

PACKAGE = Path(__file__).parents[2] / "workshop"


def test_a_time_is_iso_8601_in_utc():
    """The example of ISO 8601-1:2019, 5.4.2.1: date, T, time, and the shift from UTC."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", timestamps.now())
    assert re.fullmatch(r".*:\d\d\.\d{3}\+00:00", timestamps.now("milliseconds"))
    written = datetime.fromisoformat(timestamps.now())
    assert abs(datetime.now().astimezone() - written) < timedelta(minutes=1)


def test_no_other_module_writes_the_present_time():
    other = {}
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(PACKAGE).as_posix()
        if name == "timestamps.py":
            continue
        if re.search(r"time\.gmtime\(|utcnow\(|datetime\.now\([^)]+\)\.isoformat", text):
            other[name] = "take workshop/timestamps.py"
    assert not other


@pytest.mark.parametrize("private", [True, False])
def test_a_replacement_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, private):
    path = tmp_path / "record.json"
    path.write_text("old")
    with pytest.raises(KeyError), files.replacement(path, private=private) as file:
        file.write(b"half")
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["record.json"]


def test_a_private_replacement_takes_the_place_of_a_link_and_is_closed_to_others(tmp_path):
    (tmp_path / "elsewhere").write_text("of somebody")
    path = tmp_path / "record.json"
    path.symlink_to("elsewhere")
    with files.replacement(path, private=True) as file:
        file.write(b"new")
    assert path.read_text() == "new" and not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "elsewhere").read_text() == "of somebody"


def test_two_processes_may_replace_a_private_file_at_once(tmp_path):
    path = tmp_path / "record.json"
    with files.replacement(path, private=True) as first:
        first.write(b"first")
        with files.replacement(path, private=True) as second:
            second.write(b"second")
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["record.json"]


def test_no_other_module_makes_a_file_whole_by_itself():
    by_itself = []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"mkstemp\(|NamedTemporaryFile\(", text):
            by_itself.append(path.relative_to(PACKAGE).as_posix())
    assert not by_itself, "take files.replacement"


def owners_of(name: str) -> set[str]:
    """Return the modules of planner and workshop that bind a constant of this name."""
    planner = PACKAGE.parent / "planner" / "inference_planner"
    binding = re.compile(rf"^(\w+, )*{name}\b[^=\n]*=(?!=)", re.MULTILINE)
    owners = set()
    for folder in (PACKAGE, planner):
        for path in folder.rglob("*.py"):
            if binding.search(path.read_text(encoding="utf-8")):
                owners.add(path.relative_to(folder).as_posix())
    return owners


def test_the_bytes_of_a_gib_and_a_mib_have_one_owner():
    """catalog/gpus.py of the planner; servers/host/disk.py runs in pods, which have no catalog."""
    assert owners_of("GIB") == {"catalog/gpus.py", "servers/host/disk.py"}
    assert owners_of("MIB") == {"catalog/gpus.py"}


def test_the_catalog_has_one_spelling():
    planner = PACKAGE.parent / "planner" / "inference_planner"
    for folder in (PACKAGE, planner):
        for path in folder.rglob("*.py"):
            assert "catalogue" not in path.read_text(encoding="utf-8").lower(), path
