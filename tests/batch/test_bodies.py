"""Each request goes out with its values and the order of its keys, which tells a model what to write first (vLLM's pull request 3945)."""

from __future__ import annotations

import csv
import json

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workshop import batch
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.batch.read.rows import CHAT, COMPLETIONS, Builder
from workshop.errors import BadInput

MESSAGES = '[{"role": "user", "content": "Is it?"}]'
SCHEMA = (
    '{"type": "json_schema", "json_schema": {"name": "judged", "schema": {"type": "object", "properties": '
    '{"reasoning": {"type": "string", "default": null}, "answer": {"enum": ["yes", "no", null]}}, '
    '"required": ["reasoning", "answer"]}}}'
)


def line(body: str, url: str = CHAT) -> str:
    return f'{{"custom_id": "q", "method": "POST", "url": "{url}", "body": {body}}}\n'


def in_order(body: bytes | str) -> list:
    """Return JSON with its objects as lists of pairs, so that the order of keys is compared, too."""
    return json.loads(body, object_pairs_hook=list)


def rows(path, **options) -> list:
    source = Source(path, options.pop("column", None))
    work = Work(source, Builder(column=source.column, table=source.table, **options))
    work.check()
    valid_rows = [row for row in work.rows() if row]
    work.index.close()
    return valid_rows


def sent(path, **options) -> list:
    (row,) = rows(path, **options)
    return in_order(row.payload("stub"))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    fields=st.dictionaries(
        st.sampled_from(["z", "response_format", "tools", "a", "seed", "user"]), VALUES
    ),
    ascii=st.booleans(),
)
@example(
    fields={"response_format": json.loads(SCHEMA), "seed": 10**29, "temperature": 1.0}, ascii=False
)
def test_a_body_goes_out_with_its_values_and_its_order(fields, ascii, tmp_path):
    body = {**fields, "messages": json.loads(MESSAGES)}
    (tmp_path / "in.jsonl").write_text(line(json.dumps(body, ensure_ascii=ascii)))
    assert sent(tmp_path / "in.jsonl") == in_order(json.dumps({"model": "stub", **body}))


def test_the_servers_model_and_the_runs_parameters_are_put_in_front(wire, quick, tmp_path):
    rest = f'"messages": {MESSAGES}, "temperature": 1.0, "response_format": {SCHEMA}}}'
    (tmp_path / "in.jsonl").write_text(line('{"model": "other", "stream": false, ' + rest))
    server = wire()
    options = {"temperature": 0.5, "top_k": 5, "response_format": {"type": "text"}}
    batch.run(
        tmp_path / "in.jsonl",
        tmp_path / "o.jsonl",
        url=server.url,
        limits=quick,
        model="stub",
        **options,
    )
    (request,) = server.asked
    assert in_order(request.body) == in_order('{"model":"stub","top_k":5,' + rest)


def test_fields_of_a_plain_row_keep_their_order(tmp_path):
    row = f'{{"response_format": {SCHEMA}, "prompt": "a \\u00e9", "label": 1, "temperature": 1e-1}}'
    (tmp_path / "in.jsonl").write_text(row + "\n")
    messages = '"messages":[{"role":"user","content":"a \\u00e9"}]'
    for chat, content in ((False, '"prompt":"a \\u00e9"'), (True, messages)):
        expected = f'{{"model":"stub","response_format":{SCHEMA},"temperature":0.1,{content}}}'
        assert sent(tmp_path / "in.jsonl", chat=chat) == in_order(expected)


def test_cells_of_a_table_that_hold_json_keep_their_order_and_their_nulls(tmp_path):
    with (tmp_path / "in.csv").open("w") as file:
        csv.writer(file).writerows(
            [["messages", "response_format", "seed"], [MESSAGES, SCHEMA, "1e0"]]
        )
    expected = f'{{"model":"stub","response_format":{SCHEMA},"seed":1.0,"messages":{MESSAGES}}}'
    assert sent(tmp_path / "in.csv", column="messages") == in_order(expected)
    calls = '[{"role": "assistant", "content": null, "tool_calls": []}]'
    body = f'{{"model": "stub", "messages": {calls}, "response_format": {SCHEMA}}}'
    pyarrow.parquet.write_table(pyarrow.table({"body": [body]}), tmp_path / "in.parquet")
    assert sent(tmp_path / "in.parquet") == in_order(body)


def test_nulls_that_arrow_made_are_not_sent(tmp_path):
    """Arrow gives every struct of a column all fields; servers refuse `name: null` (400 for every row)."""
    tools = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        [{"role": "user", "content": "hello"}],
        [
            {"role": "user", "name": "ada", "content": "x"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{**tools, "id": "1"}, {"id": "2"}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ],
    ]
    bodies = [
        {"messages": conversation, "seed": seed}
        for conversation, seed in zip(messages, (None, 3), strict=True)
    ]
    for column, values in (("messages", messages), ("body", bodies)):
        pyarrow.parquet.write_table(pyarrow.table({column: values}), tmp_path / "in.parquet")
        first, second = (json.loads(row.given_request) for row in rows(tmp_path / "in.parquet"))
        assert first == {"messages": messages[0]}
        del messages[1][1]["content"]
        assert second["messages"] == messages[1] and second.get("seed") == (
            3 if column == "body" else None
        )
        messages[1][1]["content"] = None


def test_offline_the_engine_is_given_the_same_order(tmp_path, monkeypatch):
    from workshop.batch import engine_rows

    class Chat:
        def __init__(self, **body):
            self.__dict__.update(body)
            raise ValueError(json.dumps(body))

    maker = engine_rows.Maker.__new__(engine_rows.Maker)
    maker._chat, maker.refusals = Chat, (ValueError,)
    (tmp_path / "in.jsonl").write_text(
        line(f'{{"model": "stub", "response_format": {SCHEMA}, "messages": {MESSAGES}}}')
    )
    refused = maker._attempt(maker._draft, rows(tmp_path / "in.jsonl")[0])
    assert str(refused) == f'{{"response_format": {SCHEMA}, "messages": {MESSAGES}}}'


def test_an_endpoint_is_known_however_its_url_is_written_and_another_is_refused(tmp_path):
    chats = ("/chat/completions", "/v1/chat/completions/", "v1/chat/completions")
    azure = ("chat/completions?api-version=2024-10-21", "/openai/deployments/gpt/chat/completions")
    endpoints = dict.fromkeys((*chats, *azure), CHAT)
    endpoints |= dict.fromkeys(("/completions", "/openai/v1/completions"), COMPLETIONS)
    path = tmp_path / "in.jsonl"
    for url, endpoint in endpoints.items():
        content = '"prompt": "x"' if endpoint == COMPLETIONS else f'"messages": {MESSAGES}'
        path.write_text(line(f"{{{content}}}", url).replace("POST", "post"))
        assert [row.url for row in rows(path)] == [endpoint], url
    elsewhere = "https://api.openai.com/v1/chat/completions"
    for url in ("/v1/responses", elsewhere, "/xcompletions", 7):
        path.write_text(line(f'{{"messages": {MESSAGES}}}').replace(f'"{CHAT}"', json.dumps(url)))
        with pytest.raises(BadInput, match="its url is"):
            rows(path)
