"""Merging writes beside, then renames; over nothing but an earlier merge; and only what belongs together."""

from __future__ import annotations

import contextlib
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


@contextlib.contextmanager
def edited(path):
    """Give a shard's record to change."""
    record = json.loads(path.read_text())
    yield record
    path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("input", "differ in input"),
        ("model", "differ in model: 1.jsonl has stub, 2.jsonl has another"),
        ("parameters", "differ in sampling parameters.*max_tokens"),
        ("chat", "differ in chat"),
        ("revision", "differ in revision"),
        ("column", "differ in column"),
        ("of", "holds the shards 1/3, 2/4, 3/3"),
        ("twice", "holds the shards 1/3, 1/3, 2/3, 3/3"),
        ("missing", "holds the shards 1/3, 3/3"),
        ("cut", "hold 8 answers; their runs counted 9"),
        ("gone", "hold 6 answers; their runs counted 9"),
        ("running", "not complete .running"),
        ("nothing", "of nothing"),
        ("no folder", "There is no folder"),
    ],
)
def test_what_does_not_belong_together_is_refused(other, says, shards, tmp_path, faulty):
    folder = shards((1, 3))
    options = {
        "input": {"rows": ROWS[:8]},
        "parameters": {"max_tokens": 5},
        "model": {"server": faulty(model="another")},
        "chat": {"chat": True},
        "of": {"of": 4},
    }.get(other, {})
    if other != "missing":
        shards((2,), **options)
    second = folder / "2.jsonl"
    if other == "twice":
        for end in ("", ".meta.json"):
            (folder / f"copy.jsonl{end}").write_bytes((folder / f"1.jsonl{end}").read_bytes())
    elif other == "cut":
        second.write_bytes(b"".join(second.read_bytes().splitlines(keepends=True)[:-1]))
    elif other == "gone":
        second.unlink()
    elif other == "running":
        with edited(folder / "2.jsonl.meta.json") as record:
            record["runs"].append({**record["runs"][-1], "state": "running"})
    elif other in ("revision", "column"):
        with edited(folder / "2.jsonl.meta.json") as record:
            (record["input"] if other in record["input"] else record)[other] = "another"
    elif other == "nothing":
        (folder := tmp_path / "empty").mkdir()
        (folder / "package.meta.json").write_text("{}")
    elif other == "no folder":
        folder = tmp_path / "none"
    with pytest.raises(BadInput, match=says):
        batch.merge(folder, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists() and not (tmp_path / "out.jsonl.meta.json").exists()


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
