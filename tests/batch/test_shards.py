"""Merging writes beside, then renames; over nothing but an earlier merge; and only what belongs together."""

from __future__ import annotations

import json
import os

import pytest

from workshop import batch
from workshop.errors import BadInput, WorkshopError

ROWS = [(f"r{n}", f"p{n}") for n in range(9)]


def records(rows=ROWS) -> list[dict]:
    return [{"custom_id": name, "prompt": prompt} for name, prompt in rows]


@pytest.fixture
def shards(tmp_path, faulty, run):
    """Return a function that runs the three shards, and returns their folder."""
    folder, stub = tmp_path / "shards", faulty()
    folder.mkdir()

    def start(which=(1, 2, 3), of=3, ending=".jsonl", rows=ROWS, server=stub, **options):
        for number in which:
            output = f"shards/{number}{ending}"
            run(server, records(rows), output, shard=f"{number}/{of}", **options)
        return folder

    start.server = stub
    return start


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_each_row_is_there_once_and_a_merge_may_be_repeated(ending, shards, tmp_path, run):
    folder, out = shards(ending=ending), tmp_path / f"out{ending}"
    for _ in range(2):
        assert batch.merge(folder, out) == len(ROWS)
        frame = batch.load(out)
        assert list(zip(frame.custom_id, frame.prompt, strict=True)) == ROWS
        assert list(frame.text) == [f" {prompt}" for _, prompt in ROWS]
        assert batch.merge(folder, folder / "all.jsonl") == len(ROWS)
    assert run(shards.server, records(), out.name).new == 0
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part")]


def test_there_may_be_more_shards_than_rows(shards, tmp_path):
    folder = shards(range(1, 12), 11)
    assert batch.merge(folder, tmp_path / "out.jsonl") == len(ROWS)


def test_a_file_that_no_merge_wrote_is_left_as_it_is(shards, tmp_path):
    folder = shards()
    for ending in ("", ".meta.json", ".errors.jsonl"):
        user_file = tmp_path / f"out.jsonl{ending}"
        user_file.write_text('{"thesis": "three years"}\n')
        with pytest.raises(BadInput, match="left as it is"):
            batch.merge(folder, tmp_path / "out.jsonl")
        assert user_file.read_text() == '{"thesis": "three years"}\n'
        user_file.unlink()


def test_nor_is_the_output_of_a_batch_or_a_shard_written_over(shards, tmp_path, run):
    folder = shards()
    out = run(shards.server, records([("x", "y")])).output
    os.symlink(folder / "1.jsonl", tmp_path / "link.jsonl")
    os.link(folder / "1.jsonl", tmp_path / "hard.jsonl")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    for target in (out, folder / "2.jsonl", tmp_path / "link.jsonl", tmp_path / "hard.jsonl"):
        with pytest.raises(BadInput, match=r"not of a merge|at once"):
            batch.merge(folder, target)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")} == before


def refused(folder, tmp_path, says) -> None:
    """A merge is refused with these words, and writes nothing."""
    with pytest.raises(BadInput, match=says):
        batch.merge(folder, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists() and not (tmp_path / "out.jsonl.meta.json").exists()


DIFFERENCES = (
    ({"model": "another"}, "differ in model: 1.jsonl has stub, 2.jsonl has another"),
    ({"sampling_parameters": {"max_tokens": 5}}, "differ in sampling parameters.*max_tokens"),
    ({"revision": "another"}, "differ in revision"),
    ({"input": {"sha256": "another"}}, "differ in input"),
    ({"input": {"rows": 8}}, "differ in number of rows"),
    ({"input": {"chat": True}}, "differ in chat"),
    ({"input": {"column": "another"}}, "differ in column"),
    ({"input": {"shard": "2/4"}}, "holds the shards 1/3, 2/4, 3/3"),
    ({"runs": [{"state": "running"}]}, "not complete .running"),
)


def test_shards_that_differ_are_refused(shards, tmp_path):
    folder = shards()
    path = folder / "2.jsonl.meta.json"
    record = json.loads(path.read_text())
    for change, says in DIFFERENCES:
        changed = {**record, **change}
        if "input" in change:
            changed["input"] = {**record["input"], **change["input"]}
        path.write_text(json.dumps(changed))
        refused(folder, tmp_path, says)


def test_shards_that_are_not_there_once_and_whole_are_refused(shards, tmp_path):
    folder = shards()
    second = folder / "2.jsonl"
    copies = [folder / "copy.jsonl", folder / "copy.jsonl.meta.json"]
    for copy, end in zip(copies, ("", ".meta.json"), strict=True):
        copy.write_bytes((folder / f"1.jsonl{end}").read_bytes())
    refused(folder, tmp_path, "holds the shards 1/3, 1/3, 2/3, 3/3")
    for copy in copies:
        copy.unlink()
    second.write_bytes(b"".join(second.read_bytes().splitlines(keepends=True)[:-1]))
    refused(folder, tmp_path, "hold 8 answers; their runs counted 9")
    second.unlink()
    refused(folder, tmp_path, "hold 6 answers; their runs counted 9")
    second.with_name("2.jsonl.meta.json").unlink()
    refused(folder, tmp_path, "holds the shards 1/3, 3/3")
    refused(tmp_path / "none", tmp_path, "There is no folder")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "package.meta.json").write_text("{}")
    refused(tmp_path / "empty", tmp_path, "of nothing")


def test_rows_have_the_numbers_that_they_have_now(shards, tmp_path):
    shards()
    rows = [("new", "p"), *ROWS[3:], ("r0", "changed"), *ROWS[:3][1:]]
    for _ in range(2):
        shards(rows=rows)
    batch.merge(tmp_path / "shards", tmp_path / "out.jsonl")
    (tmp_path / "in.jsonl").unlink()
    frame = batch.load(tmp_path / "out.jsonl")
    assert list(frame.custom_id) == [name for name, _ in rows]
    assert list(frame.row) == list(range(len(rows)))
    assert list(frame.text) == [f" {prompt}" for _, prompt in rows]


def test_reasons_of_rows_without_an_answer_come_along(shards, tmp_path, faulty, answers):
    refusing = faulty(lambda prompt, times: (400, b"{}") if prompt in ("p3", "p4") else None)
    folder, errors = shards(server=refusing), tmp_path / "out.jsonl.errors.jsonl"
    for _ in range(2):
        assert batch.merge(folder, tmp_path / "out.jsonl") == len(ROWS) - 2
        assert sorted(line["row"] for line in answers(errors)) == [3, 4]
    shards()
    assert batch.merge(folder, tmp_path / "out.jsonl") == len(ROWS) and not errors.exists()
    os.truncate(folder / "2.jsonl", 0)
    # the last of each, not the first
    with pytest.raises(BadInput, match="hold 6 answers; their runs counted 9"):
        batch.merge(folder, tmp_path / "out.jsonl")


def test_an_answer_to_what_a_row_was_does_not_stand_for_what_it_is(shards, tmp_path, faulty):
    shards((2,))
    rows = [(name, "changed" if name == "r1" else prompt) for name, prompt in ROWS]
    refusing = faulty(lambda prompt, times: (400, b"{}") if prompt == "changed" else None)
    folder = shards(rows=rows, server=refusing)
    (tmp_path / "in.jsonl").unlink()
    with pytest.raises(WorkshopError, match="several versions"):
        batch.merge(folder, tmp_path / "out.jsonl")


def test_a_bad_row_is_told_of_by_its_own_shard_alone(shards, tmp_path, answers):
    rows = [(name, "" if name == "r4" else prompt) for name, prompt in ROWS]
    with pytest.raises(BadInput, match="its prompt is empty"):
        shards((1,), rows=rows)
    folder = shards(rows=rows, skip_bad=True)
    assert batch.merge(folder, tmp_path / "out.jsonl") == len(ROWS) - 1
    assert [line["row"] for line in answers(tmp_path / "out.jsonl.errors.jsonl")] == [4]


def test_a_merge_that_fails_leaves_what_was_there(shards, tmp_path, monkeypatch):
    folder, out = shards(), tmp_path / "out.jsonl"
    batch.merge(folder, out)
    before, real, calls = out.read_bytes(), os.replace, []

    def full(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(WorkshopError, match="No space"):
        batch.merge(folder, out)
    monkeypatch.undo()
    assert out.read_bytes() == before and batch.merge(folder, out) == len(ROWS)


def test_a_record_that_was_damaged_is_one_sentence(shards, tmp_path):
    folder = shards((1, 2), 2)
    path = folder / "1.jsonl.meta.json"
    whole = path.read_bytes()
    damaged = (b"", whole[:100], whole.replace(b'"', b"\xff", 1), bytes(64), b"[" * 5000, b"[]")
    for content in (*damaged, b'{"input": ' + b"9" * 5000 + b"}"):
        path.write_bytes(content)
        for step in (
            lambda: batch.load(folder / "1.jsonl"),
            lambda: batch.merge(folder, tmp_path / "out.jsonl"),
            lambda: shards((1,), 2),
        ):
            with pytest.raises(BadInput) as error:
                step()
            assert error.value.remedy and path.read_bytes() == content
    path.write_bytes(whole)
    assert batch.merge(folder, tmp_path / "out.jsonl") == len(ROWS)
