"""What a message has beside its text is in Parquet and in load(), too."""

from __future__ import annotations

import json

import pandas
import pytest
import wire_stub

from workshop import batch

CALLS = [
    {
        "id": "c1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
    }
]
PARTS = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
MESSAGES = {
    "tools": {"role": "assistant", "content": None, "tool_calls": CALLS},
    "old tools": {"role": "assistant", "content": None, "function_call": CALLS[0]["function"]},
    "reasoning": {"role": "assistant", "content": "42", "reasoning": "because"},
    "older reasoning": {"role": "assistant", "content": "42", "reasoning_content": "because"},
    "refusal": {"role": "assistant", "content": None, "refusal": "no"},
    "parts": {"role": "assistant", "content": PARTS},
    "plain": {"role": "assistant", "content": "42", "tool_calls": [], "reasoning": None},
}


@pytest.fixture
def server(wire):
    return wire(lambda request: wire_stub.answer(request, message=MESSAGES[request.text]))


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
def test_tool_calls_and_reasoning_have_columns(output, server, quick, tmp_path):
    (tmp_path / "in.json").write_text(json.dumps(list(MESSAGES)))
    assert (
        batch.run(
            tmp_path / "in.json", tmp_path / output, url=server.url, chat=True, limits=quick
        ).exit_code
        == 0
    )
    frame = batch.load(tmp_path / output).set_index(pandas.Index(MESSAGES))
    assert (
        frame.tool_calls["tools"] == CALLS
        and frame.tool_calls["old tools"][0]["function"] == CALLS[0]["function"]
    )
    assert frame.reasoning["reasoning"] == frame.reasoning["older reasoning"] == "because"
    assert frame.refusal["refusal"] == "no" and frame.text["parts"] == frame.text["plain"] == "42"
    assert frame.loc["plain", ["tool_calls", "reasoning", "refusal"]].isna().all()
    if output.endswith("parquet"):  # other programs read them, too
        column = pandas.read_parquet(tmp_path / output).set_index("row").tool_calls
        assert json.loads(column[0]) == CALLS and pandas.isna(column[6])


def test_columns_in_which_nothing_stands_are_left_out(server, quick, tmp_path):
    (tmp_path / "in.json").write_text('["plain"]')
    batch.run(
        tmp_path / "in.json", tmp_path / "out.parquet", url=server.url, chat=True, limits=quick
    )
    assert not {"tool_calls", "reasoning", "refusal"} & set(batch.load(tmp_path / "out.parquet"))
