"""Nothing is written over that a batch did not write, and one output is one output by whatever name it is called."""

from __future__ import annotations

import errno
import os
import threading
import time

import pytest

from workshop import batch
from workshop.batch.keep import paths as paths_module
from workshop.batch.keep import store
from workshop.batch.keep.paths import Paths
from workshop.batch.keep.store import Journal, Output
from workshop.errors import BadInput, WorkshopError

BESIDE = (".errors.jsonl", ".meta.json", ".jsonl")


@pytest.fixture
def prompts(put):
    return put([{"custom_id": str(n), "prompt": f"p{n}"} for n in range(4)])


def tree(folder) -> dict:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_no_file_that_a_run_writes_may_be_its_input(prompts, tmp_path):
    for link in (os.symlink, os.link):
        for beside in ("", *BESIDE):
            target = tmp_path / f"out.parquet{beside}"
            link(prompts, target)
            before = tree(tmp_path)
            with pytest.raises(BadInput, match="input and output at once"):
                batch.Batch(prompts, tmp_path / "out.parquet")
            assert tree(tmp_path) == before, target
            target.unlink()
    with pytest.raises(BadInput, match="input and output at once"):
        batch.Batch(prompts, prompts)


def test_nor_may_two_of_its_files_be_one(prompts, tmp_path):
    (tmp_path / "out.jsonl").touch()
    os.symlink("out.jsonl", tmp_path / "out.jsonl.errors.jsonl")
    with pytest.raises(BadInput, match="at once"):
        batch.Batch(prompts, tmp_path / "out.jsonl")


def test_what_no_batch_wrote_is_left_as_it_is(prompts, tmp_path, faulty, run):
    server = faulty()
    for output, ending in (("out.jsonl", ""), *(("out.parquet", ending) for ending in BESIDE)):
        for content in (b"mine\n", b'{"a": 1}\n', b'{"runs": 3}', b"\0\0\0"):
            user_file = tmp_path / f"{output}{ending}"
            user_file.write_bytes(content)
            before = tree(tmp_path)
            with pytest.raises(BadInput, match="left as it is"):
                run(server, prompts, output)
            assert tree(tmp_path) == before and not server.asked, (user_file, content)
            user_file.unlink()


def test_nor_is_what_its_user_put_in_the_place_of_a_batchs_file(prompts, faulty, run):
    """Such as a table with a column of scores, under the old name."""
    server = faulty()
    out = run(server, prompts, "out.parquet").output
    table = batch.load(out)
    prompts.write_text(prompts.read_text().replace("p3", "changed"))
    for ending in (".errors.jsonl", ""):
        user_file = out.with_name(f"out.parquet{ending}")
        table.to_parquet(user_file)
        before = user_file.read_bytes()
        with pytest.raises(BadInput, match="left as it is"):
            run(server, prompts, "out.parquet")
        assert user_file.read_bytes() == before
        user_file.unlink()


def test_answers_without_their_record_are_not_mixed_with_others(prompts, faulty, run):
    server = faulty()
    out = run(server, prompts).output
    out.with_name("out.jsonl.meta.json").unlink()
    before = out.read_bytes()
    with pytest.raises(BadInput, match="says what it came from, is lost"):
        run(server, prompts, max_tokens=3)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("output", "journal", "other", "link"),
    [
        ("out.jsonl", "out.jsonl", "out.jsonl", None),
        ("out.jsonl", "out.jsonl", "sub/far.jsonl", os.symlink),
        ("out.parquet", "out.parquet.jsonl", "journal.jsonl", os.link),
        ("out.parquet", "out.parquet.jsonl", "out.parquet.jsonl", None),
    ],
)
def test_a_second_run_is_refused_by_whatever_name_the_output_is_called(
    output, journal, other, link, tmp_path, faulty, run, new_batch
):
    """Also once every file beside it that looks like a lock was removed."""
    (tmp_path / "sub").mkdir()
    server = faulty(delay_s=0.05)
    thread = threading.Thread(target=new_batch(server, 30, output, concurrency=1).run)
    thread.start()
    while not (tmp_path / journal).exists() or not (tmp_path / journal).stat().st_size:
        assert thread.is_alive()
        time.sleep(0.005)
    for path in tmp_path.glob("*.lock"):
        path.unlink()
    if link:
        link(tmp_path / journal, tmp_path / other)
    says = r"Another run writes|has the name of|says what it came from, is lost"
    with pytest.raises(WorkshopError, match=says):
        run(server, tmp_path / "in.jsonl", other)
    thread.join()
    assert sorted(server.asked) == sorted(f"row {number}" for number in range(30))  # once each


def test_a_hard_link_with_a_copy_of_the_record_is_the_same_output(tmp_path):
    first = Output(Paths(tmp_path / "out.jsonl"))
    os.link(tmp_path / "out.jsonl", tmp_path / "hard.jsonl")
    with pytest.raises(WorkshopError, match="Another run writes"):
        Output(Paths(tmp_path / "hard.jsonl"))
    first.close()


NO_OUTPUTS = (
    *("x.parquet.jsonl", "x.jsonl.errors.jsonl", "x.parquet.errors.jsonl", "x.json", "x"),
    *("folder.jsonl", "pipe.jsonl", "null.jsonl", "no/x.jsonl", "x\0.jsonl", "loop.jsonl"),
    *("x" * 300 + ".jsonl", "x" * 240 + ".jsonl"),
)


def test_a_name_that_can_be_no_output_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "null.jsonl").symlink_to("/dev/null")
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    before = sorted(tmp_path.iterdir())
    for name in NO_OUTPUTS:
        with pytest.raises(BadInput):
            Paths(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_through_a_link_everything_lies_beside_the_file_itself(prompts, tmp_path, faulty, run):
    (tmp_path / "there").mkdir()
    (tmp_path / "out.jsonl").symlink_to("there/real.jsonl")
    server = faulty()
    run(server, prompts)
    assert run(server, prompts, "there/real.jsonl").new == 0
    names = {path.name for path in (tmp_path / "there").iterdir()}
    assert names == {"real.jsonl", "real.jsonl.meta.json"}


@pytest.mark.parametrize("what", ["removed", "replaced", "written to"])
def test_a_journal_that_another_touches_ends_the_run_at_the_next_commit(what, tmp_path):
    path = tmp_path / "out.jsonl"
    journal = Journal(path)
    journal.add(b"{}")
    journal.write(journal.take())
    if what == "written to":
        with path.open("ab") as file:
            file.write(b"theirs\n")
    else:
        path.unlink()
        if what == "replaced":
            path.write_bytes(b"{}\n")
    before = path.read_bytes() if path.exists() else None
    journal.add(b"{}")
    with pytest.raises(WorkshopError, match="while this run wrote to it"):
        journal.write(journal.take())
    assert (path.read_bytes() if path.exists() else None) == before


def test_a_lock_goes_over_to_the_file_that_takes_the_journals_place(tmp_path):
    paths = Paths(tmp_path / "out.jsonl")
    lock = Output(paths)
    lock.replace([b"{}\n"])
    paths_module.write_meta(paths, {"input": {}, "sampling_parameters": {}, "runs": []})
    with pytest.raises(WorkshopError, match="Another run"):
        Output(paths)
    lock.close()
    Output(paths).close()
    assert paths.journal.read_bytes() == b"{}\n" and len(list(tmp_path.iterdir())) == 2


def test_a_journal_that_was_replaced_while_its_lock_was_taken_is_opened_anew(tmp_path, monkeypatch):
    paths, real, others = Paths(tmp_path / "out.jsonl"), store.lock, [tmp_path / "other"]

    def lock_late(file):
        if others:  # between opening and locking another run's file takes its place
            others[0].touch()
            others.pop().replace(paths.journal)
        return real(file)

    monkeypatch.setattr(store, "lock", lock_late)
    lock = Output(paths)
    with pytest.raises(WorkshopError, match="Another run"):
        Output(paths)
    lock.close()


def test_on_a_file_system_without_locks_a_run_is_possible(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", none)
    Output(Paths(tmp_path / "out.jsonl")).close()


def test_a_folder_that_one_may_not_look_into_is_one_sentence(prompts, tmp_path, monkeypatch):
    def denied(path, **_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(paths_module.Path, "stat", denied)
    with pytest.raises(BadInput, match=r"cannot be written \(Permission denied"):
        Paths(tmp_path / "out.jsonl")
