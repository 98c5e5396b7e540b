"""Whichever call to the system fails, whenever: one sentence, nothing lost, and the same command goes on afterwards."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import pathlib
import sqlite3
from types import SimpleNamespace

import pytest

from workshop import batch
from workshop.batch.keep.answers import current
from workshop.batch.keep.paths import Paths
from workshop.batch.keep.store import Journal
from workshop.batch.read.prepare import Index
from workshop.batch.read.rows import InputRow
from workshop.batch.session import Ledger
from workshop.errors import WorkshopError

N = 6
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)


class Failing:
    """Counts the calls that write into a folder, and fails the one whose number was given, and all after it."""

    def __init__(self, monkeypatch, folder):
        self.count, self.fail_from, self.number, self._folder = 0, None, errno.ENOSPC, str(folder)
        for name in ("open", "write", "fsync", "ftruncate", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))
        monkeypatch.setattr(io, "open", self._wrapped(io.open))

    def _wrapped(self, real):
        def call(first, *args, **kwargs):
            reads = real is builtins.open and not set("wxa+") & set(
                args[0] if args else kwargs.get("mode", "r")
            )
            if not reads and self._is_here(first):
                self.count += 1
                if self.fail_from is not None and self.count >= self.fail_from:
                    raise OSError(self.number, os.strerror(self.number))
            return real(first, *args, **kwargs)

        return call

    def _is_here(self, which) -> bool:
        path = os.readlink(f"/proc/self/fd/{which}") if isinstance(which, int) else str(which)
        return path.startswith(self._folder)


def test_whichever_write_fails_it_is_one_sentence_and_nothing_is_lost(
    tmp_path, faulty, run, put, monkeypatch, answers
):
    """Of a Parquet output, which writes all that one of JSON lines writes, and more."""
    prompts, folder, output = put(N), tmp_path / "there", "out.parquet"
    folder.mkdir()
    server = faulty(
        lambda prompt, times: (400, b"{}") if prompt == "row 5" and times == 1 else None
    )
    journal = folder / f"{output}.jsonl"
    with monkeypatch.context() as patched:
        failing = Failing(patched, folder)
        run(server, prompts, f"there/{output}")
        calls = failing.count
    assert calls > 10
    for fail_from in range(1, calls + 1):
        for path in folder.iterdir():
            path.unlink()
        with monkeypatch.context() as patched:
            failing = Failing(patched, folder)
            failing.fail_from, failing.number = fail_from, ERRORS[fail_from % len(ERRORS)]
            try:
                run(server, prompts, f"there/{output}")
            except WorkshopError as error:
                assert "\n" not in error.message and error.remedy
        saved_answers = answers(journal) if journal.exists() else []
        again = run(server, prompts, f"there/{output}")
        assert again.exit_code == 0 and again.new == N - len(saved_answers)
        assert sorted(line["row"] for line in answers(journal)) == list(range(N))
        assert sorted(batch.load(folder / output).row) == list(range(N))
        assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


def test_a_commit_that_fails_ends_the_run_at_the_next(faulty, run, monkeypatch):
    """It does not go on asking for answers that cannot be kept."""
    server, real, writes = faulty(delay_s=0.02), Journal.write, []

    def write(journal, lines):
        writes.append(len(lines))
        if len(writes) == 1:
            raise WorkshopError("No space is left.", "Free some.")
        return real(journal, lines)

    monkeypatch.setattr(Journal, "write", write)
    with pytest.raises(WorkshopError, match="No space is left"):
        run(server, 400, concurrency=2)
    assert len(server.asked) < 400


def test_so_does_the_last_one(tmp_path, monkeypatch):
    ledger = Ledger(SimpleNamespace(keep_bytes=0, bad=[]), Paths(tmp_path / "out.jsonl"))
    ledger.answers.add(b"{}")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: 1 / 0)
        ledger.commit()
        with pytest.raises(ZeroDivisionError):
            ledger.close()


def test_a_full_folder_for_temporary_files_is_one_sentence():
    index = Index()
    index.do("PRAGMA max_page_count = 10")
    with pytest.raises(WorkshopError, match=r"temporary file.*full"):
        for number in range(100_000):
            index.add(InputRow(number, number, str(number), "/v1/completions", "{}"))
    index.close()


def test_so_is_having_no_folder_for_them(faulty, run, monkeypatch):
    server = faulty()
    out = run(server, 2).output

    class Broken:
        def execute(self, *_):
            raise sqlite3.OperationalError("unable to open database file")

        def close(self): ...

    monkeypatch.setattr("workshop.batch.read.prepare.sqlite3.connect", lambda *_, **__: Broken())
    for ask in (lambda: run(server, 2), lambda: batch.load(out)):
        with pytest.raises(WorkshopError, match="TMPDIR"):
            ask()


def test_a_disk_that_fails_at_the_close_loses_nothing_that_was_committed(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "out.jsonl")
    journal.add(b"{}")
    journal.write(journal.take())
    real = os.close

    def close(file):
        real(file)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "close", close)
    with pytest.raises(WorkshopError, match="No space is left"):
        journal.close()
    monkeypatch.undo()
    assert (tmp_path / "out.jsonl").read_bytes() == b"{}\n"


def test_an_output_that_cannot_be_read_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "out.jsonl").write_text("{}")
    (tmp_path / "out.jsonl.meta.json").write_text(
        json.dumps({"runs": [], "input": {}, "sampling_parameters": {}})
    )

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(pathlib.Path, "open", denied)
    with pytest.raises(WorkshopError, match=r"cannot be read \(Permission denied"):
        list(
            current({"input": {}, "sampling_parameters": {}, "runs": []}, [tmp_path / "out.jsonl"])
        )
