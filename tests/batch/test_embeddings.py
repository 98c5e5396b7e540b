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


def line(custom_id, value, **more):
    body = {"model": "stub", "input": value, **more}
    row = {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}
    return json.dumps(row)


@pytest.fixture
def embedder(wire):
    return wire()


def test_embeddings_are_answered_once_and_loaded_as_vectors(tmp_path, embedder, quick):
    path = tmp_path / "in.jsonl"
    path.write_text(
        "\n".join([line("a", "Boston"), line("b", [1, 2, 3]), line("c", ["one", "three"])])
    )
    out = tmp_path / "out.jsonl"
    summary = batch.run(path, out, url=embedder.url, limits=quick)
    assert (summary.exit_code, summary.answered, summary.finish_reasons) == (0, 3, {})
    assert batch.run(path, out, url=embedder.url, limits=quick).new == 0
    assert len(embedder.asked) == 3
    frame = batch.load(out)
    assert list(frame.custom_id) == ["a", "b", "c", "c"]
    assert list(frame.embedding) == [[6, 0.5], [3, 0.5], [3, 0.5], [5, 0.5]]


def test_sampling_parameters_are_not_sent_with_embeddings(tmp_path, embedder, quick):
    path = tmp_path / "in.jsonl"
    path.write_text(line("a", "Boston", dimensions=2))
    batch.run(path, tmp_path / "out.jsonl", url=embedder.url, limits=quick, max_tokens=7)
    assert [request.json for request in embedder.asked] == [
        {"model": "stub", "input": "Boston", "dimensions": 2}
    ]


def test_a_parquet_of_embeddings_reads_back(tmp_path, embedder, quick):
    path = tmp_path / "in.jsonl"
    path.write_text(line("a", "Boston"))
    batch.run(path, tmp_path / "out.parquet", url=embedder.url, limits=quick)
    assert batch.load(tmp_path / "out.parquet").embedding[0] == [6, 0.5]


@pytest.mark.parametrize("value", [None, "", [], [""], [[]], 7, ["a", 7], {"text": "a"}])
def test_an_input_of_which_no_embedding_can_be_made_is_refused(value, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(line("a", value))
    work = Work(Source(path), Builder())
    with pytest.raises(BadInput, match="line 1: its input is"):
        work.check()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}]},
    ],
)
def test_an_answer_without_the_embedding_is_no_answer(data):
    with pytest.raises(Malformed):
        received.embeddings(json.dumps(data).encode(), 1)
