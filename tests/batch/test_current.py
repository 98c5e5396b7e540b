"""No answer stands beside another prompt, however the input changed between the runs, and wherever it is now."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workshop import batch
from workshop.batch.keep import lines, paths, provenance, store
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.batch.read.rows import Builder
from workshop.errors import BadInput, WorkshopError


def records(rows) -> list[dict]:
    return [{"custom_id": name, "prompt": prompt} for name, prompt in rows]


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
def test_an_answer_stands_beside_its_own_prompt(output, tmp_path, faulty, run, put):
    for number, versions in enumerate(VERSIONS.values()):
        name, server = f"{number}.{output}", faulty()
        out = tmp_path / name
        for rows in versions:
            assert run(server, records(rows), name).exit_code == 0
            check(batch.load(out), rows)
        # and none is asked twice
        assert len(server.asked) == len({row for rows in versions for row in rows})
        moved = (tmp_path / "in.jsonl").rename(tmp_path / "moved.jsonl")
        if output.endswith(".jsonl"):  # a Parquet output has the prompts itself
            with pytest.raises(WorkshopError, match="several versions"):
                batch.load(out)
            check(batch.load(out, input=moved), versions[-1])
            with pytest.raises(BadInput, match="is not the input"):
                batch.load(out, input=put([]))
        else:
            check(batch.load(out), versions[-1])


def test_a_parquet_output_older_than_its_journal_is_not_what_is_read(faulty, run):
    out = run(faulty(), records([("q1", "A")]), "out.parquet").output
    content = out.read_bytes()
    refusing = faulty(lambda prompt, times: (400, b"{}") if prompt == "C" else None)
    assert run(refusing, records([("q1", "B"), ("q2", "C")]), "out.parquet").errors == 1
    out.write_bytes(content)  # as if it had been killed before
    check(batch.load(out), [("q1", "B")])


def test_where_the_input_never_changed_it_need_not_be_there(tmp_path, faulty, run):
    server = faulty()
    for _ in range(2):
        out = run(server, records([("a", "1"), ("b", "2")])).output
    (tmp_path / "in.jsonl").unlink()
    assert list(batch.load(out).text) == [" 1", " 2"] and "prompt" not in batch.load(out)


def test_another_column_of_the_same_input_is_another_version_of_it(tmp_path, faulty, run):
    path, server = tmp_path / "in.csv", faulty()
    path.write_text("prompt,other\np,o\n")
    for column in ("prompt", "other"):
        out = run(server, path, column=column).output
    assert list(batch.load(out).text) == [" o"]
    path.unlink()
    with pytest.raises(WorkshopError, match="several versions"):
        batch.load(out)


def test_fields_of_the_input_take_no_columns_name(faulty, run):
    fields = {"prompt": "p", "text": "mine", "input_text": "also mine", "row": 7}
    row = batch.load(run(faulty(), [fields]).output).iloc[0]
    assert (row.text, row.input_text, row.input_input_text) == (" p", "mine", "also mine")
    assert (row.row, row.input_row) == (0, 7)


def test_rows_of_another_shard_are_neither_counted_nor_put_into_its_output(faulty, run):
    server, rows = faulty(), [(str(n), str(n)) for n in range(8)]
    run(server, records(rows), shard="1/2")
    for other in ("2/2", None):
        with pytest.raises(BadInput, match="holds shard 1/2"):
            run(server, records(rows), shard=other)
    # every row changes its shard
    summary = run(server, records([("new", "new"), *rows]), shard="1/2")
    assert (summary.rows, summary.answered, summary.new, summary.superseded) == (5, 5, 5, 4)
    assert list(batch.load(summary.output).custom_id) == ["new", "1", "3", "5", "7"]


def test_an_input_that_changes_after_it_was_checked_is_answered_as_it_was(
    faulty, run, put, monkeypatch
):
    server, real = faulty(), provenance.begin
    first, then = [("a", "1"), ("b", "2"), ("c", "3")], [("a", "1"), ("b", "other"), ("d", "3")]

    def begin(*args):
        put(records(then))
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(provenance, "begin", begin)
        summary = run(server, records(first))
    assert (summary.answered, sorted(server.asked)) == (3, ["1", "2", "3"])
    assert "The input changed meanwhile" in summary.reason
    again = run(server, records(then))
    assert (again.new, again.superseded, again.exit_code) == (2, 2, 0)
    check(batch.load(again.output), then)


def test_the_rows_that_were_checked_are_those_that_are_sent(put):
    path = put([{"prompt": "x"}, {"prompt": "y", "label": 1}])
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
    folder = tmp_path_factory.mktemp("versions")
    where = paths.Paths(folder / "out.jsonl")
    for rows in versions:
        lines_of_input = [f"{json.dumps(record)}\n" for record in records(rows)]
        (folder / "in.jsonl").write_text("".join(lines_of_input))
        lock, work = store.Output(where), Work(Source(folder / "in.jsonl"), Builder())
        work.check()
        work.resume(where.journal)
        provenance.begin(where, work.source, work, {"model": "m"}, {})
        journal = store.Journal(where.journal, work.keep_bytes)
        for row in filter(None, work.rows()):
            text = f" {json.loads(row.request)['prompt']}"
            body = json.dumps({"choices": [{"text": text}]}).encode()
            journal.add(lines.answer_line(row.custom_id, row.key, row.number, body))
        journal.close()
        work.index.close()
        lock.close()
        check(batch.load(where.output), rows)
