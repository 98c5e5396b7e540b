"""Rows of /v1/embeddings, as OpenAI's batch files have them."""

from __future__ import annotations

import json

import pytest

from workshop import batch
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.batch.read.rows import Builder
from workshop.client import received
from workshop.client.strict_json import Malformed
from workshop.errors import BadInput


def row(custom_id, value, **more):
    body = {"model": "stub", "input": value, **more}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


def test_embeddings_are_answered_once_and_loaded_as_vectors(wire, run):
    server = wire()
    rows = [row("a", "Boston"), row("b", [1, 2, 3]), row("c", ["one", "three"])]
    summary = run(server, rows)
    assert (summary.exit_code, summary.answered, summary.finish_reasons) == (0, 3, {})
    assert run(server, rows).new == 0 and len(server.asked) == 3
    run(server, rows, "out.parquet")
    for output in (summary.output, summary.output.with_suffix(".parquet")):
        frame = batch.load(output)
        assert list(frame.custom_id) == ["a", "b", "c", "c"]
        assert [list(vector) for vector in frame.embedding] == [
            [6, 0.5],
            [3, 0.5],
            [3, 0.5],
            [5, 0.5],
        ]


def test_sampling_parameters_are_not_sent_with_embeddings(wire, run):
    server = wire()
    run(server, [row("a", "Boston", dimensions=2)], max_tokens=7)
    assert server.asked[0].json == {"model": "stub", "input": "Boston", "dimensions": 2}


def test_an_input_of_which_no_embedding_can_be_made_is_refused(put):
    for value in (None, "", [], [""], [[]], 7, ["a", 7], {"text": "a"}):
        work = Work(Source(put([row("a", value)])), Builder())
        with pytest.raises(BadInput, match="line 1: its input is"):
            work.check()


def test_an_answer_without_the_embedding_is_no_answer():
    first, second = ({"index": index, "embedding": [1.0]} for index in (0, 1))
    for vectors in ([], [{"index": 0}], [second], [first, second]):
        with pytest.raises(Malformed):
            received.embeddings(json.dumps({"data": vectors}).encode(), 1)
