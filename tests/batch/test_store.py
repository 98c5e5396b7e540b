"""What is on disk is whole answers and nothing else, wherever a kill or a full disk cut it."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workshop.batch import lines, paths, store
from workshop.batch.inputs import Source
from workshop.batch.prepare import Work
from workshop.batch.rows import Builder
from workshop.errors import BadInput, WorkshopError


def line(number: int, text: str = "answer") -> bytes:
    return lines.answer_line(
        f'id "{number}"\\',
        bytes([number]) * 16,
        number,
        json.dumps({"choices": [{"text": text}]}).encode(),
        {"label": number} if number % 2 else {},
    )


def test_a_journal_cut_at_any_byte_gives_the_whole_lines_before_it(tmp_path):
    journal = tmp_path / "out.jsonl"
    data = b"".join(line(number) + b"\n" for number in range(4))
    ends = [number for number in range(len(data) + 1) if data[:number].endswith(b"\n")]
    for cut in range(len(data) + 1):
        journal.write_bytes(data[:cut])
        found = list(store.scan(journal))
        assert len(found) == sum(end <= cut for end in ends)
        assert [each.custom_id for each in found] == [f'id "{number}"\\' for number in range(len(found))]
    assert list(store.scan(journal))[-1].end == len(data)


def test_lines_that_a_power_cut_left_as_zeros_are_cut_off(tmp_path):
    journal = tmp_path / "out.jsonl"
    journal.write_bytes(line(1) + b"\n" + b"\0" * 500)
    assert len(list(store.scan(journal))) == 1


@pytest.mark.parametrize(
    "content", [b"a file of mine\n", b"a file of mine", b'{"custom_id": "1", "response": 3}\n{}\n']
)
def test_a_file_that_no_batch_wrote_is_refused_and_left_as_it_is(content, tmp_path):
    journal = tmp_path / "out.jsonl"
    journal.write_bytes(content)
    with pytest.raises(BadInput, match="no answer of a batch"):
        list(store.scan(journal))
    assert journal.read_bytes() == content


def test_every_line_is_openais_batch_output():
    read = json.loads(line(1))
    assert read["response"]["status_code"] == 200 and read["response"]["body"]["choices"] and read["error"] is None
    assert {"id", "custom_id", "response", "error"} <= set(read)


def test_an_answer_of_several_lines_becomes_one():
    made = lines.answer_line("a", b"1" * 16, 0, b'{\n "choices": []\n}\n', {})
    assert b"\n" not in made and json.loads(made)["response"]["body"] == {"choices": []}


def test_a_full_disk_leaves_what_was_committed(tmp_path, monkeypatch):
    journal = store.Journal(tmp_path / "out.jsonl", 0)
    journal.add(line(1))
    journal.write(journal.take())
    real, calls = os.write, []

    def full(file, data):
        calls.append(1)
        if len(calls) == 1:
            return real(file, bytes(data)[:20])  # half a line goes through
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.os, "write", full)
    journal.add(line(2))
    with pytest.raises(WorkshopError, match="No space is left"):
        journal.write(journal.take())
    monkeypatch.undo()
    assert (tmp_path / "out.jsonl").read_bytes() == line(1) + b"\n"


def test_the_second_run_on_one_output_is_refused_and_the_next_after_it_is_not(tmp_path):
    lock = store.Lock(paths.Paths(tmp_path / "out.jsonl"))
    with pytest.raises(WorkshopError, match="Another run writes"):
        store.Lock(paths.Paths(tmp_path / "out.jsonl"))
    lock.release()
    store.Lock(paths.Paths(tmp_path / "out.jsonl")).release()
    assert not (tmp_path / "out.jsonl").exists()        # nothing was put into it


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 12), cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4000)), max_size=5))
def test_however_often_it_is_killed_every_row_is_there_once(rows, cuts, tmp_path_factory):
    """Each run answers some rows, then is cut somewhere in what it has not committed; the last one is left alone."""
    folder = tmp_path_factory.mktemp("kill")
    (folder / "in.txt").write_text("".join(f"prompt {number % 5}\n" for number in range(rows)))
    journal = folder / "out.jsonl"
    for answered, lost in [*cuts, (rows, 0)]:
        work = Work(Source(folder / "in.txt"), Builder())
        work.check()
        work.resume(journal)
        log, safe = store.Journal(journal, work.keep_bytes), work.keep_bytes
        for row in [each for each in work.rows() if each][:answered]:
            log.add(lines.answer_line(row.custom_id, row.key, row.number, b'{"choices": [{}]}', {}))
        log.close()
        work.index.close()
        os.truncate(journal, max(safe, journal.stat().st_size - lost))
    found = [json.loads(each) for each in journal.read_text().splitlines()]
    assert sorted(each["row"] for each in found) == list(range(rows))
    assert len({each["custom_id"] for each in found}) == rows
