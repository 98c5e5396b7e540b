"""What is on disk is whole answers and nothing else, wherever a kill or a full disk cut it."""

from __future__ import annotations

import errno
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workshop.batch.keep import lines, paths, store
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.batch.read.rows import Builder
from workshop.errors import BadInput, WorkshopError


def line(number: int, text: str = "answer") -> bytes:
    return lines.answer_line(
        f'id "{number}"\\',
        bytes([number]) * 16,
        number,
        json.dumps({"choices": [{"text": text}]}).encode(),
        '{"label": 1}' if number % 2 else "",
    )


def test_a_file_that_no_batch_wrote_is_refused_and_left_as_it_is(tmp_path):
    journal = tmp_path / "out.jsonl"
    cut = b'{"custom_id": "1", "response": 3}\n{}\n'  # as ours, but not the last line
    for content in (b"a file of mine\n", b"a file of mine", b"of mine\0\n", cut):
        journal.write_bytes(content)
        with pytest.raises(BadInput, match="no answer of a batch"):
            list(store.scan(journal))
        assert journal.read_bytes() == content


def test_every_line_is_openais_batch_output():
    read = json.loads(line(1))
    assert (
        read["response"]["status_code"] == 200
        and read["response"]["body"]["choices"]
        and read["error"] is None
    )
    assert {"id", "custom_id", "response", "error"} <= set(read)


def test_an_answer_of_several_lines_becomes_one():
    made = lines.answer_line("a", b"1" * 16, 0, b'{\n "choices": []\n}\n')
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
    lock = store.Output(paths.Paths(tmp_path / "out.jsonl"))
    with pytest.raises(WorkshopError, match="Another run writes"):
        store.Output(paths.Paths(tmp_path / "out.jsonl"))
    lock.close()
    store.Output(paths.Paths(tmp_path / "out.jsonl")).close()
    assert not (tmp_path / "out.jsonl").exists()  # nothing was put into it


def test_an_answer_counts_once_it_is_on_disk(tmp_path, monkeypatch):
    """What a power cut takes no test can see; that fsync comes after each write, and before `write` returns, it can."""
    calls, out = [], tmp_path / "out.jsonl"

    def told(name, real):
        return lambda file, *data: (
            calls.append((name, os.readlink(f"/proc/self/fd/{file}"))),
            real(file, *data),
        )[1]

    monkeypatch.setattr(os, "write", told("write", os.write))
    monkeypatch.setattr(os, "fsync", told("fsync", os.fsync))
    journal = store.Journal(out)
    assert calls == [("fsync", str(out)), ("fsync", str(tmp_path))]  # its name, too
    journal.write([b"{}"])
    assert calls[2:] == [("write", str(out)), ("fsync", str(out))]
    journal.close()


def test_the_end_of_a_run_takes_away_only_an_empty_file_that_it_made(tmp_path):
    where = paths.Paths(tmp_path / "out.jsonl")
    where.journal.touch()
    store.Output(where).close()
    assert where.journal.exists()  # it was there before
    where.journal.unlink()
    lock = store.Output(where)
    where.journal.write_bytes(line(1) + b"\n")
    lock.close()
    assert where.journal.read_bytes() == line(1) + b"\n"
    where.journal.unlink()
    lock = store.Output(where)
    paths.write_meta(where, {"input": {}, "sampling_parameters": {}, "runs": []})
    lock.close()
    assert where.journal.exists()  # an output without an answer


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """An input of four rows, the output's record, and what the journal holds once all are answered."""
    # thousands of runs; what it does is not tested here
    monkeypatch.setattr(store.os, "fsync", lambda _: None)
    (tmp_path / "in.txt").write_text("a\nb\nc\nd\n")
    where = paths.Paths(tmp_path / "out.jsonl")
    paths.write_meta(where, {"input": {}, "sampling_parameters": {}, "runs": []})
    go_on(where)
    return where, where.journal.read_bytes()


def go_on(where: paths.Paths, most: int = 99) -> list[int]:
    """Run again as a batch does, and answer what is left, so many rows at most; return which."""
    lock = store.Output(where)
    work = Work(Source(where.output.with_name("in.txt")), Builder())
    work.check()
    work.resume(where.journal)
    journal = store.Journal(where.journal, work.keep_bytes)
    rows = [row for row in work.rows() if row][:most]
    for row in rows:
        body = b'{"choices": [{"text": "x"}]}'
        journal.add(lines.answer_line(row.custom_id, row.key, row.number, body))
    journal.close()
    work.index.close()
    lock.close()
    return [row.number for row in rows]


def test_after_a_power_cut_anywhere_in_the_last_two_answers_those_alone_are_asked_again(begun):
    where, data = begun
    ends = [number + 1 for number, byte in enumerate(data) if byte == ord("\n")]
    for at in range(ends[1], len(data) + 1, 3):
        for broken in (
            data[:at],  # cut
            data[:at] + bytes(len(data) - at),  # zeros to the end
            data[:at] + bytes(len(data[at : at + 40])) + data[at + 40 :],  # a hole
        ):
            where.journal.write_bytes(broken)
            intact = {
                row
                for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
                # a line end that is missing alone takes no answer with it
                if (broken + b"\n")[max(0, start - 1) : end] == data[max(0, start - 1) : end]
            }
            new_rows = go_on(where)
            assert {0, 1} <= intact and set(new_rows) == set(range(4)) - intact, broken
            rows = [answer.row for answer in store.scan(where.journal)]
            assert sorted(rows) == [0, 1, 2, 3], broken
            assert go_on(where) == [] and where.journal.read_bytes().startswith(data[: ends[1]])


def test_one_answer_of_three_samples_is_none(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"prompt": "a", "n": 3}\n{"prompt": "b"}\n')
    journal, rows = tmp_path / "out.jsonl", {}
    bodies = ([{"index": 1}], [{"index": 0}, {"index": 0}, {"index": 1}], [{}, {}, {}])
    for choices, done in zip(bodies, (1, 1, 2), strict=True):
        work = Work(Source(tmp_path / "in.jsonl"), Builder())
        work.check()
        for row in work.rows():
            rows[row.number] = row
        answer_lines = [
            lines.answer_line(
                row.custom_id,
                row.key,
                row.number,
                json.dumps({"choices": choices if row.number == 0 else [{}]}).encode(),
            )
            for row in rows.values()
        ]
        journal.write_bytes(b"\n".join([*answer_lines, b""]))
        work.resume(journal)
        assert work.index.done.count == done
        work.index.close()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 12),
    cuts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4000)), max_size=5),
)
def test_however_often_it_is_killed_every_row_is_there_once(rows, cuts, tmp_path_factory):
    """Each run answers some rows, then is cut somewhere in what it has not committed; the last one is left alone."""
    folder = tmp_path_factory.mktemp("kill")
    (folder / "in.txt").write_text("".join(f"prompt {number % 5}\n" for number in range(rows)))
    where = paths.Paths(folder / "out.jsonl")
    paths.write_meta(where, {"input": {}, "sampling_parameters": {}, "runs": []})
    for answered, lost in [*cuts, (rows, 0)]:
        whole = where.journal.read_bytes() if where.journal.exists() else b""
        safe = whole.rfind(b"\n") + 1
        go_on(where, answered)
        os.truncate(where.journal, max(safe, where.journal.stat().st_size - lost))
    records = [json.loads(answer_line) for answer_line in where.journal.read_text().splitlines()]
    assert sorted(record["row"] for record in records) == list(range(rows))
    assert len({record["custom_id"] for record in records}) == rows
