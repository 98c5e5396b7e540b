"""Files that are no records: whatever lies beside a good one, the good one is found and nothing else is done."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workshop.cli import group
from workshop.client import reach
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord

GOOD = ServerRecord(
    name="good",
    url="http://10.1.2.3:8000/v1",
    model="m",
    api_key="secret",
    host="elsewhere",
    pid=4242,
    process_started=1,
    boot_id="b",
    state="ready",
    started="2026-11-20T10:00:00.000+00:00",
)
BAD = {**asdict(GOOD), "name": "bad"}
WRONG = [
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    2**70,
    "",
    "x",
    "\x1b[31mred",
    "a\nb",
    "\ud800",
    "x" * 5000,
    [],
    [1],
    {},
]
TEXTS = [
    "",
    " ",
    "{",
    "[]",
    "null",
    "1",
    '"x"',
    json.dumps(BAD)[:-40],
    json.dumps([BAD]),
    "[" * 100_000,
    '{"name": "bad", "pid": ' + "9" * 5000 + "}",
    json.dumps(BAD) + "x",
    "\ufeff" + json.dumps(BAD),
]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**36)


KINDS = {
    "a FIFO": fifo,
    "a folder": Path.mkdir,
    "a huge file": huge,
    "a link to itself": lambda path: path.symlink_to(path),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
    "bytes that are no text": lambda path: path.write_bytes(b"\xff\xfe\x00{" * 9),
    "UTF-16": lambda path: path.write_text(json.dumps(BAD), encoding="utf-16"),
    **{
        f"text {text[:30]!r} of {len(text)}": lambda path, text=text: path.write_text(text)
        for text in TEXTS
    },
}


@pytest.fixture
def places(workshop_home, tmp_path, monkeypatch):
    """Both places in which records are looked for, each with a good one."""
    folder = tmp_path / "class"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("WORKSHOP_SHARED", str(folder))
    records.write(GOOD)
    (folder / "good.json").write_text(json.dumps(asdict(GOOD)))
    return [workshop_home / "servers", folder]


def everything_goes_on(*others: str) -> None:
    """Fail unless the good record is found in both places and every command does what it should."""
    for servers in (records.own(), records.shared()):
        assert GOOD in servers
    assert reach.choose("good") == GOOD
    lists = [run("servers"), run("servers", "--json")]
    assert all(code == 0 for code, _ in lists)
    assert [server["name"] for server in json.loads(lists[1][1])].count("good") == 2
    assert not any(
        ord(character) < 32 and character != "\n" for _, output in lists for character in output
    )
    assert "secret" not in lists[0][1] + lists[1][1]
    for name in others:
        for command in (("share", "--group", "root"), ("share", "--stop"), ("stop",)):
            assert run(command[0], name, *command[1:])[0] in (0, 1, 2)


def run(*args: str) -> tuple[int, str]:
    """Return the exit code and the output of a command; only errors of ours are allowed."""
    done = CliRunner().invoke(group, args)
    if done.exception and not isinstance(done.exception, (WorkshopError, SystemExit)):
        raise done.exception
    return getattr(done.exception, "exit_code", done.exit_code), done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_record_is_passed_over(kind, places):
    for folder in places:
        KINDS[kind](folder / "bad.json")
    everything_goes_on("bad")


@pytest.mark.parametrize("key", BAD)
def test_fields_of_wrong_kinds_stop_nobody(key, places):
    """Files of all wrong values lie side by side; “bad” has none of the field."""
    texts = {f"bad-{n}": {**BAD, "name": f"bad-{n}", key: value} for n, value in enumerate(WRONG)}
    texts["bad"] = {name: value for name, value in BAD.items() if name != key}
    for folder in places:
        for name, fields in texts.items():
            (folder / f"{name}.json").write_text(json.dumps(fields))
    everything_goes_on(*texts)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    changes=st.dictionaries(
        st.sampled_from(sorted(BAD)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=4,
        ),
        min_size=1,
        max_size=4,
    ),
    cut=st.integers(0, 500),
    unknown=st.text(max_size=9),
)
@example(changes={"started": "2026-11-20T10:00:00", "state": "ready"}, cut=500, unknown="")
@example(changes={"reason": "\x1b]0;title\x07\x9b31m", "state": "failed"}, cut=500, unknown="later")
@example(changes={"name": "good"}, cut=500, unknown="")
@example(changes={"url": "http://[::1/v1"}, cut=500, unknown="")
@example(changes={"url": "http://h:99999/v1"}, cut=500, unknown="")
def test_no_record_that_was_changed_breaks_anything(places, changes, cut, unknown):
    text = json.dumps({**BAD, unknown: 1, **changes})
    for folder in places:
        (folder / "bad.json").write_text(text if cut == 500 else text[:cut])
    everything_goes_on("bad")
