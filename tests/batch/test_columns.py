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
MESSAGES = {
    "tools": {"role": "assistant", "content": None, "tool_calls": CALLS},
    "reasoning": {"role": "assistant", "content": "42", "reasoning": "because"},
    "older reasoning": {"role": "assistant", "content": "42", "reasoning_content": "because"},
    "refusal": {"role": "assistant", "content": None, "refusal": "no"},
    "plain": {"role": "assistant", "content": "42", "tool_calls": [], "reasoning": None},
}


@pytest.fixture
def server(wire):
    return wire(lambda request: wire_stub.answer(request, message=MESSAGES[request.text]))


def test_tool_calls_and_reasoning_have_columns(server, run):
    for output in ("out.jsonl", "out.parquet"):
        summary = run(server, list(MESSAGES), output, chat=True)
        frame = batch.load(summary.output).set_index(pandas.Index(MESSAGES))
        assert frame.tool_calls["tools"] == CALLS
        assert frame.reasoning["reasoning"] == frame.reasoning["older reasoning"] == "because"
        assert frame.refusal["refusal"] == "no"
        assert frame.text["plain"] == "42"
        assert frame.loc["plain", ["tool_calls", "reasoning", "refusal"]].isna().all()
    column = pandas.read_parquet(summary.output).set_index("row").tool_calls
    assert json.loads(column[0]) == CALLS and pandas.isna(column[4])  # other programs read them


def test_columns_in_which_nothing_stands_are_left_out(server, run):
    frame = batch.load(run(server, ["plain"], "out.parquet", chat=True).output)
    assert not {"tool_calls", "reasoning", "refusal"} & set(frame)
