"""No answer stands beside another prompt, however the input changed between the runs, and wherever it is now."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workshop import batch
from workshop.errors import BadInput, WorkshopError


def write(path, rows) -> None:
    path.write_text(
        "".join(json.dumps({"custom_id": name, "prompt": prompt}) + "\n" for name, prompt in rows)
    )


def check(frame, rows) -> None:
    """Every row of the input is there once, in its order, with its own prompt and its own answer."""
    assert list(zip(frame.custom_id, frame.prompt, strict=True)) == list(rows)
    assert list(frame.text) == [f" {prompt}" for _, prompt in rows] and list(frame.row) == list(
        range(len(rows))
    )


VERSIONS = {
    "A, B, A": ([("q1", "A")], [("q1", "B")], [("q1", "A")]),
    "rows in front": ([("a", "1"), ("b", "2")], [("new", "0"), ("a", "1"), ("b", "2")]),
    "another order": ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")]),
    "a row less": ([("a", "1"), ("b", "2"), ("c", "3")], [("a", "1"), ("c", "3")]),
    "ids swapped": ([("a", "1"), ("b", "2")], [("a", "2"), ("b", "1")], [("a", "1"), ("b", "2")]),
}


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
def test_an_answer_stands_beside_its_own_prompt(versions, output, tmp_path, faulty, quick):
    path, out, server = tmp_path / "in.jsonl", tmp_path / output, faulty()
    for rows in versions:
        write(path, rows)
        assert batch.run(path, out, url=server.url, limits=quick).exit_code == 0
        check(batch.load(out), rows)
    # and none is asked twice
    assert len(server.asked) == len({row for rows in versions for row in rows})
    moved = path.rename(tmp_path / "moved.jsonl")
    if output.endswith(".jsonl"):  # a Parquet output has the prompts itself
        with pytest.raises(WorkshopError, match="several versions"):
            batch.load(out)
        check(batch.load(out, input=moved), versions[-1])
        with pytest.raises(BadInput, match="is not the input"):
            write(path, versions[0][:0])
            batch.load(out, input=path)
    else:
        check(batch.load(out), versions[-1])


def test_a_parquet_output_older_than_its_journal_is_not_what_is_read(tmp_path, faulty, quick):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    write(path, [("q1", "A")])
    batch.run(path, out, url=faulty().url, limits=quick)
    write(path, [("q1", "B"), ("q2", "C")])
    refusing = faulty(lambda prompt, times: (400, b"{}") if prompt == "C" else None)
    running = batch.Batch(path, out, url=refusing.url, limits=quick)
    content = out.read_bytes()
    assert running.run().errors == 1
    out.write_bytes(content)  # as if it had been killed before
    check(batch.load(out), [("q1", "B")])


def test_where_the_input_never_changed_it_need_not_be_there(tmp_path, faulty, quick):
    path, out, server = tmp_path / "in.jsonl", tmp_path / "out.jsonl", faulty()
    write(path, [("a", "1"), ("b", "2")])
    for _ in range(2):
        batch.run(path, out, url=server.url, limits=quick)
    path.unlink()
    assert list(batch.load(out).text) == [" 1", " 2"] and "prompt" not in batch.load(out)


def test_another_column_of_the_same_input_is_another_version_of_it(tmp_path, faulty, quick):
    path, out, server = tmp_path / "in.csv", tmp_path / "out.jsonl", faulty()
    path.write_text("prompt,other\np,o\n")
    for column in ("prompt", "other"):
        batch.run(path, out, url=server.url, limits=quick, column=column)
    assert list(batch.load(out).text) == [" o"]
    path.unlink()
    with pytest.raises(WorkshopError, match="several versions"):
        batch.load(out)


def test_fields_of_the_input_take_no_columns_name(tmp_path, faulty, quick):
    path, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    path.write_text(
        json.dumps({"prompt": "p", "text": "mine", "input_text": "also mine", "row": 7}) + "\n"
    )
    batch.run(path, out, url=faulty().url, limits=quick)
    row = batch.load(out).iloc[0]
    assert (row.text, row.input_text, row.input_input_text) == (" p", "mine", "also mine")
    assert (row.row, row.input_row) == (0, 7)


def test_rows_of_another_shard_are_neither_counted_nor_put_into_its_output(tmp_path, faulty, quick):
    path, out, server = tmp_path / "in.jsonl", tmp_path / "out.jsonl", faulty()
    rows = [(str(n), str(n)) for n in range(8)]
    write(path, rows)
    batch.run(path, out, url=server.url, limits=quick, shard="1/2")
    for other in ("2/2", None):
        with pytest.raises(BadInput, match="holds shard 1/2"):
            batch.run(path, out, url=server.url, limits=quick, shard=other)
    write(path, [("new", "new"), *rows])  # every row changes its shard
    summary = batch.run(path, out, url=server.url, limits=quick, shard="1/2")
    assert (summary.rows, summary.answered, summary.new, summary.superseded) == (5, 5, 5, 4)
    assert list(batch.load(out).custom_id) == ["new", "1", "3", "5", "7"]


def test_an_input_that_changes_after_it_was_checked_is_answered_as_it_was(
    tmp_path, faulty, quick, monkeypatch
):
    from workshop.batch.keep import provenance

    path, out, server = tmp_path / "in.jsonl", tmp_path / "out.jsonl", faulty()
    first, then = [("a", "1"), ("b", "2"), ("c", "3")], [("a", "1"), ("b", "other"), ("d", "3")]
    write(path, first)
    real = provenance.begin

    def begin(*args):
        write(path, then)
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(provenance, "begin", begin)
        summary = batch.run(path, out, url=server.url, limits=quick)
    assert (summary.answered, sorted(server.asked)) == (3, ["1", "2", "3"])
    assert "The input changed meanwhile" in summary.reason
    again = batch.run(path, out, url=server.url, limits=quick)
    assert (again.new, again.superseded, again.exit_code) == (2, 2, 0)
    check(batch.load(out), then)


def test_the_rows_that_were_checked_are_those_that_are_sent(tmp_path):
    from workshop.batch.read.inputs import Source
    from workshop.batch.read.prepare import Work
    from workshop.batch.read.rows import Builder

    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "x"}\n{"prompt": "y", "label": 1}\n')
    work = Work(Source(path), Builder())
    work.check()
    path.write_text("{")
    requests = [(row.number, row.request, row.metadata) for row in work.rows() if row]
    assert requests == [(0, '{"prompt":"x"}', ""), (1, '{"prompt":"y"}', '{"label": 1}')]
    work.index.close()


NAMES, TEXTS = st.sampled_from("abc"), st.sampled_from("123")
INPUTS = st.lists(
    st.dictionaries(NAMES, TEXTS, min_size=1).flatmap(
        lambda rows: st.permutations(list(rows.items()))
    ),
    min_size=1,
    max_size=5,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(versions=INPUTS)
@example(versions=[[("a", "1")], [("a", "2")], [("a", "1")]])
@example(versions=[[("a", "1"), ("b", "2")], [("b", "1"), ("a", "2")], [("b", "2"), ("a", "1")]])
def test_whatever_the_versions_of_an_input_each_prompt_has_its_answer(versions, tmp_path_factory):
    """With the journal alone: what a run would write, without a server."""
    from workshop.batch.keep import lines, paths, provenance, store
    from workshop.batch.read.inputs import Source
    from workshop.batch.read.prepare import Work
    from workshop.batch.read.rows import Builder

    folder = tmp_path_factory.mktemp("versions")
    where = paths.Paths(folder / "out.jsonl")
    for rows in versions:
        write(folder / "in.jsonl", rows)
        lock, work = store.Output(where), Work(Source(folder / "in.jsonl"), Builder())
        work.check()
        work.resume(where.journal)
        provenance.begin(where, work.source, work, {"model": "m"}, {})
        journal = store.Journal(where.journal, work.keep_bytes)
        for row in filter(None, work.rows()):
            text = f" {json.loads(row.request)['prompt']}"
            journal.add(
                lines.answer_line(
                    row.custom_id,
                    row.key,
                    row.number,
                    json.dumps({"choices": [{"text": text}]}).encode(),
                )
            )
        journal.close()
        work.index.close()
        lock.close()
        check(batch.load(where.output), rows)
