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
WRONG = [None, True, -1, 0, 1.5, float("nan"), 2**70, "", "x", "a\nb", "\x1b[31mred", "\ud800", "x" * 5000, [], [1], {}]  # fmt: skip
TEXTS = [
    *("", " ", "{", "[]", "null", "1", '"x"', "[" * 100_000),
    json.dumps(BAD)[:-40],
    json.dumps([BAD]),
    json.dumps(BAD) + "x",
    "\ufeff" + json.dumps(BAD),
    '{"name": "bad", "pid": ' + "9" * 5000 + "}",
    json.dumps(BAD | {"started": "2026-11-20T10:00:00"}),
    json.dumps(BAD | {"reason": "\x1b]0;title\x07\x9b31m", "state": "failed"}),
    json.dumps(BAD | {"name": "good"}),
    json.dumps(BAD | {"url": "http://[::1/v1"}),
    json.dumps(BAD | {"url": "http://h:99999/v1"}),
]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**36)


KINDS = (
    fifo,
    Path.mkdir,
    huge,
    lambda path: path.symlink_to(path),  # a link to itself
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("/dev/tty"),
    lambda path: path.write_bytes(b"\xff\xfe\x00{" * 9),
    lambda path: path.write_text(json.dumps(BAD), encoding="utf-16"),
)


@st.composite
def damaged(draw) -> str:
    """A record in which values are others, fields are missing, or the end is."""
    value = st.sampled_from(WRONG) | st.text(max_size=40) | st.integers() | st.floats()
    changes = draw(st.dictionaries(st.sampled_from([*BAD, "later"]), value, max_size=4))
    missing = draw(st.sets(st.sampled_from(sorted(BAD)), max_size=2))
    text = json.dumps({name: part for name, part in (BAD | changes).items() if name not in missing})
    if draw(st.booleans()):
        text = text[: draw(st.integers(0, len(text)))]
    return text


@pytest.fixture
def places(workshop_home, tmp_path, monkeypatch):
    """Both places in which records are looked for, each with a good one."""
    folder = tmp_path / "class"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("WORKSHOP_SHARED", str(folder))
    records.write(GOOD)
    (folder / "good.json").write_text(json.dumps(asdict(GOOD)))
    return [workshop_home / "servers", folder]


def everything_goes_on(names: tuple[str, ...] = ("bad",)) -> None:
    """Fail unless the good record is found in both places and every command does what it should."""
    for servers in (records.own(), records.shared()):
        assert GOOD in servers
    assert reach.ready_server("good") == GOOD
    lists = [run("servers"), run("servers", "--json")]
    assert all(code == 0 for code, _ in lists)
    assert [server["name"] for server in json.loads(lists[1][1])].count("good") == 2
    assert not any(
        ord(character) < 32 and character != "\n" for _, output in lists for character in output
    )
    assert "secret" not in lists[0][1] + lists[1][1]
    for name in names:
        for command in (
            ("stop", name),
            ("share", name, "--group", "root"),
            ("share", name, "--stop"),
        ):
            assert run(*command)[0] in (0, 1, 2), command


def run(*args: str) -> tuple[int, str]:
    """Return the exit code and the output of a command; only errors of ours are allowed."""
    done = CliRunner().invoke(group, args)
    if done.exception and not isinstance(done.exception, (WorkshopError, SystemExit)):
        raise done.exception
    return getattr(done.exception, "exit_code", done.exit_code), done.stdout


def test_what_is_no_record_is_passed_over(places):
    names = dict(zip("abcdefghi", KINDS, strict=True))
    for name, make in names.items():
        for folder in places:
            make(folder / f"{name}.json")
    everything_goes_on((*names,))


def with_texts(test):
    for text in TEXTS:
        test = example(text=text)(test)
    return test


@with_texts
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=damaged())
def test_no_damaged_record_breaks_anything(places, text):
    for folder in places:
        (folder / "bad.json").write_text(text)
    everything_goes_on()
