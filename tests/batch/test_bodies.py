"""Each request goes out as it was given: the order of keys tells a model what to write first (vLLM's pull request 3945)."""

from __future__ import annotations

import json

import pyarrow
import pyarrow.parquet
import pytest

from workshop import batch
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.batch.read.rows import CHAT, COMPLETIONS, Builder
from workshop.client.strict_json import decode, members

MESSAGES = '[{"role": "user", "content": "Is it?"}]'
SCHEMA = (
    '{"type": "json_schema", "json_schema": {"name": "judged", "schema": {"type": "object", "properties": '
    '{"reasoning": {"type": "string", "default": null}, "answer": {"enum": ["yes", "no", null]}}, '
    '"required": ["reasoning", "answer"]}}}'
)
BODIES = {
    "schema": f'{{"model": "stub", "messages": {MESSAGES}, "temperature": 0, "response_format": {SCHEMA}}}',
    "numbers": f'{{"model": "stub", "temperature": 1.0, "top_p": 1e0, "seed": 123456789012345678901234567890, '
    f'"min_p": 0.10, "messages": {MESSAGES}}}',
    "escapes": '{"model": "stub", "messages": [{"role": "user", "content": "caf\\u00e9 \\/ \\ud83d\\ude00 é"}]}',
    "spaces": f'{{ "stream" : false ,\t"model" :"stub", "messages":  {MESSAGES} , "user": null }}',
    "tools": f'{{"tools": [{{"function": {{"parameters": {{"z": 1, "a": 2}}, "name": "f"}}, "type": "function"}}], '
    f'"messages": {MESSAGES}, "model": "stub"}}',
    "escaped name": f'{{"mod\\u0065l": "stub", "messages": {MESSAGES}}}',
}


def line(body: str, url: str = CHAT, number: int = 0) -> str:
    return f'{{"custom_id": "q{number}", "method": "POST", "url": "{url}", "body": {body}}}\n'


def sent(path, wire, quick, tmp_path, **options) -> list[bytes]:
    server = wire()
    summary = batch.run(
        path, tmp_path / "out.jsonl", url=server.url, limits=quick, concurrency=1, **options
    )
    assert summary.exit_code == 0
    return [request.body for request in server.asked]


def test_a_body_goes_out_byte_for_byte(wire, quick, tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(
        "".join(line(body, number=number) for number, body in enumerate(BODIES.values()))
    )
    assert sent(path, wire, quick, tmp_path) == [body.encode() for body in BODIES.values()]


def test_a_missing_model_and_the_runs_parameters_are_put_in_front(wire, quick, tmp_path):
    rest = f'"temperature": 1.0, "messages": {MESSAGES}, "response_format": {SCHEMA}}}'
    (tmp_path / "in.jsonl").write_text(line("{" + rest))
    (body,) = sent(tmp_path / "in.jsonl", wire, quick, tmp_path, temperature=0.5, top_k=5)
    assert body.decode() == '{"model":"stub","top_k":5,' + rest


@pytest.mark.parametrize("row_model", ['"other"', "null", '""'])
def test_a_model_that_is_not_the_servers_is_replaced_in_its_place(row_model, wire, quick, tmp_path):
    (tmp_path / "in.jsonl").write_text(
        line(f'{{"messages": {MESSAGES}, "model": {row_model}, "seed": 1}}')
    )
    (body,) = sent(tmp_path / "in.jsonl", wire, quick, tmp_path, model="stub")
    assert body.decode() == f'{{"messages": {MESSAGES}, "model": "stub", "seed": 1}}'


def test_the_runs_own_schema_keeps_its_order_and_its_nulls(wire, quick, tmp_path):
    (tmp_path / "in.json").write_text('["caf\\u00e9"]')
    (body,) = sent(tmp_path / "in.json", wire, quick, tmp_path, response_format=json.loads(SCHEMA))
    compact = json.dumps(json.loads(SCHEMA), separators=(",", ":"))
    assert body.decode() == f'{{"model":"stub","response_format":{compact},"prompt":"caf\\u00e9"}}'


@pytest.mark.parametrize("chat", [False, True])
def test_fields_of_a_plain_row_keep_their_writing(chat, wire, quick, tmp_path):
    row = f'{{"response_format": {SCHEMA}, "prompt": "a \\u00e9", "label": 1, "temperature": 1e-1}}'
    (tmp_path / "in.jsonl").write_text(row + "\n")
    (body,) = sent(tmp_path / "in.jsonl", wire, quick, tmp_path, chat=chat)
    prompt_member = (
        '"messages":[{"role":"user","content":"a \\u00e9"}]' if chat else '"prompt":"a \\u00e9"'
    )
    assert (
        body.decode()
        == f'{{"model":"stub","response_format":{SCHEMA},"temperature":1e-1,{prompt_member}}}'
    )


def test_cells_of_a_table_that_hold_json_keep_their_writing(wire, quick, tmp_path):
    quoted = [text.replace('"', '""') for text in (MESSAGES, SCHEMA)]
    (tmp_path / "in.csv").write_text(
        'messages,response_format,seed\n"{}","{}",1e0\n'.format(*quoted)
    )
    (body,) = sent(tmp_path / "in.csv", wire, quick, tmp_path, column="messages")
    assert (
        body.decode()
        == f'{{"model":"stub","response_format":{SCHEMA},"seed":1e0,"messages":{MESSAGES}}}'
    )


def test_a_table_may_hold_whole_bodies_as_json(wire, quick, tmp_path):
    pyarrow.parquet.write_table(
        pyarrow.table({"body": [BODIES["schema"]]}), tmp_path / "in.parquet"
    )
    assert sent(tmp_path / "in.parquet", wire, quick, tmp_path) == [BODIES["schema"].encode()]


def rows(path) -> list:
    source = Source(path)
    work = Work(source, Builder(column=source.column, table=source.table))
    work.check()
    valid_rows = [row for row in work.rows() if row]
    work.index.close()
    return valid_rows


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


def test_nulls_that_the_user_wrote_are_sent(tmp_path):
    body = f'{{"messages": {MESSAGES}, "user": null, "response_format": {SCHEMA}}}'
    (tmp_path / "in.jsonl").write_text(line(body))
    assert [row.given_request for row in rows(tmp_path / "in.jsonl")] == [body]


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


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("/chat/completions", CHAT),
        ("/v1/chat/completions/", CHAT),
        ("v1/chat/completions", CHAT),
        ("chat/completions?api-version=2024-10-21", CHAT),
        ("/openai/deployments/gpt/chat/completions", CHAT),
        ("/completions", COMPLETIONS),
        ("/v1/completions", COMPLETIONS),
        ("/openai/v1/completions", COMPLETIONS),
    ],
)
def test_an_endpoint_is_known_however_its_url_is_written(url, endpoint, tmp_path):
    content = '"prompt": "x"' if endpoint == COMPLETIONS else f'"messages": {MESSAGES}'
    (tmp_path / "in.jsonl").write_text(line(f"{{{content}}}", url).replace("POST", "post"))
    assert [row.url for row in rows(tmp_path / "in.jsonl")] == [endpoint]


@pytest.mark.parametrize(
    "url",
    [
        "/v1/responses",
        "/v1/audio/speech",
        "https://api.openai.com/v1/chat/completions",
        "/xcompletions",
        7,
    ],
)
def test_another_endpoint_is_refused(url, tmp_path):
    from workshop.errors import BadInput

    (tmp_path / "in.jsonl").write_text(
        line(f'{{"messages": {MESSAGES}}}').replace(f'"{CHAT}"', json.dumps(url))
    )
    with pytest.raises(BadInput, match="its url is"):
        rows(tmp_path / "in.jsonl")


def test_members_are_where_the_text_has_them():
    text = '\n{ "a" : [1, {"b": "}"}] ,"\\u0062":-1.5e3,\t"c":"x\\"y" , "d": {} }'
    values = {name: text[begin:end] for name, (begin, end) in members(text).items()}
    assert values == {"a": '[1, {"b": "}"}]', "b": "-1.5e3", "c": '"x\\"y"', "d": "{}"}
    assert list(values) == list(decode(text)) and members("{ }") == {}
