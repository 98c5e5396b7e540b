"""Each answer that is written can be read back: by us, by json.loads a line, by pandas, and as Parquet."""

from __future__ import annotations

import io
import json
import math

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workshop import batch
from workshop.batch.keep import lines, paths
from workshop.batch.keep.answers import write_parquet

KEY = b"k" * 16
BODY = '{"choices": [{"index": 0, "text": %s, "logprobs": {"token_logprobs": [%s]}}], "usage": {"prompt_tokens": 1}}'
TEXTS = {  # what a server said -> what stands in the output
    '"plain"': "plain",
    '"日本 é 😀"': "日本 é 😀",
    r'"\ud83d\ude00"': "😀",
    r'"\u0000\n\r"': "\0\n\r",
    r'"a literal \\ud83d, and NaN"': r"a literal \ud83d, and NaN",
    "null": None,
}
NUMBERS = {
    "-0.5": -0.5,
    "NaN": None,
    "-Infinity": None,
    "Infinity": None,
    "-9999.0": -9999.0,
    "0.12345678901234567": 0.12345678901234567,
}


def check(line: bytes, folder) -> dict:
    """Read it in all four ways; return what json.loads gives."""
    text = line.decode()
    assert len(text.split("\n")) == 1
    record = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    json.dumps(record, ensure_ascii=False).encode()
    assert lines.read_answer(line + b"\n", 0).line == record
    import pandas

    assert pandas.read_json(io.StringIO(text + "\n"), lines=True).custom_id[0] is not None
    where = paths.Paths(folder / "out.parquet")
    where.journal.write_bytes(line + b"\n")
    paths.write_meta(where, {"input": {"rows": 1}, "sampling_parameters": {}, "runs": []})
    write_parquet(where)
    frame = batch.load(where.output)
    answer_text = record["response"]["body"]["choices"][0]["text"]
    # a column of Parquet has one type
    answer_text = answer_text if isinstance(answer_text, str | None) else json.dumps(answer_text)
    assert frame.text.isna()[0] if answer_text is None else frame.text[0] == answer_text
    where.output.unlink()
    assert len(batch.load(where.output)) == len(frame)
    return record


def test_a_text_is_read_back_as_it_was_said_and_nan_as_null(tmp_path):
    for literal, text in TEXTS.items():
        record = check(lines.answer_line("id", KEY, 0, (BODY % (literal, "0")).encode()), tmp_path)
        assert record["response"]["body"]["choices"][0]["text"] == text, literal
    for literal, number in NUMBERS.items():
        body = (BODY % ('"x"', literal)).encode()
        record = check(lines.answer_line("id", KEY, 0, body), tmp_path)
        (logprob,) = record["response"]["body"]["choices"][0]["logprobs"]["token_logprobs"]
        assert logprob == number, literal


def test_the_rows_own_fields_are_read_back_too(tmp_path):
    fields = {"a": math.nan, "b": -math.inf, "c": b"bytes", "d": {"nested": [math.nan]}, "e": 1j}
    body = (BODY % ('"x"', "0")).encode()
    record = check(lines.answer_line("id", KEY, 0, body, lines.metadata_text(fields)), tmp_path)
    expected = {"a": None, "b": None, "c": "b'bytes'", "d": {"nested": [None]}, "e": "1j"}
    assert record["metadata"] == expected


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text()
    | st.text(st.characters(categories=["Cc", "Zl"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    custom_id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    more=ANYTHING,
    text=ANYTHING,
    extra=st.dictionaries(st.text(), ANYTHING, max_size=2),
    ascii=st.booleans(),
)
@example(custom_id="a", more={"index": "0"}, text=["a"], extra={"é": 1}, ascii=False)
@example(custom_id='"\\', more=None, text="\x7f\x80\x85", extra={"custom_id": "b"}, ascii=False)
def test_whatever_a_server_says_is_read_back(custom_id, more, text, extra, ascii, tmp_path_factory):
    body = {
        "choices": [{"index": 0, "text": text, "finish_reason": more, "message": more}],
        "usage": more,
        "id": more,
    }
    data = json.dumps(body, ensure_ascii=ascii).encode()
    check(
        lines.answer_line(custom_id, KEY, 0, data, lines.metadata_text(extra)),
        tmp_path_factory.mktemp("line"),
    )


def test_what_is_no_answer_is_none():
    whole = lines.answer_line("id", KEY, 0, (BODY % ('"x"', "0")).encode()) + b"\n"
    assert lines.read_answer(whole, 0)
    glued = whole[:150] + whole
    for wrong in (
        glued,
        whole[:-1],
        whole.replace(b"text", b"te\0t"),
        whole.replace(b's": [', b's": [1, '),
        whole.replace(b'"body": {', b'"body": 5, "x": {'),
        b"[]\n",
        b'{"custom_id": "a"}\n',
    ):
        assert lines.read_answer(wrong, 0) is None


def test_a_number_of_a_row_is_put_right_in_its_place_alone():
    line = (
        lines.answer_line('"row": 1, ', KEY, 12, (BODY % ('"x"', "0")).encode(), '{"row": 12}')
        + b"\n"
    )
    record = json.loads(lines.read_answer(line, 0).renumbered(7))
    assert (record["row"], record["metadata"]["row"], record["custom_id"]) == (7, 12, '"row": 1, ')
