"""No prompt of a file vanishes or changes in silence: it is read as it was written, or refused, or told of."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.batch.read.rows import Builder
from workshop.errors import BadInput

LF = "prompt\na\nb\nc\n"
quiet = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def prompts(path, column=None, skip_bad=False) -> list[str]:
    """Return the prompts that would be sent; notes are on stderr."""
    source = Source(path, column)
    work = Work(source, Builder(column=source.column, table=source.table))
    work.check(skip_bad)
    return [json.loads(row.request)["prompt"] for row in work.rows() if row is not None]


def put(tmp_path, name: str, data: bytes | str):
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


REFUSED = (
    ("in.json", '["a"],\n\n["b"]', "after the array's end"),
    ("in.json", '["a", "b', "item 2 is not JSON"),
    ("in.json", '["a", NaN]', "NaN is no JSON number"),
    ("in.json", '[{"prompt": "a", "label": {"b": [1, -1e999]}}]', "-1e999 is too large"),
    ("in.csv", 'body,id\n"{""prompt"": ""a"", ""x"": [1e999]}",1\n', "1e999 is too large"),
    ("in.json", '[{"prompt": "a", "seed": ' + "9" * 5000 + "}]", "digits"),
    ("in.json", "[" * 5000 + '"a"' + "]" * 5000, "nested"),
    ("in.json", '[{"prompt": "a", "prompt": "b"}]', "'prompt' twice"),
    ("in.json", r'["\ud800 half"]', "surrogate"),
    ("in.json", '["a", ""]', "empty"),
    ("in.json", b'\xef\xbb\xbf["a", "\xff"]', "byte 11: 0xff"),
    ("in.csv", "prompt,,\na,x,\n", "line 2: it has a value in one of several columns without"),
    ("in.json", b"\xff\xfe" + '["a"]'.encode("utf-16-le"), "UTF-16"),
    ("in.json", "{}", "not with '['"),
    ("in.json", '["a" "b"]', "lacks a comma"),
    ("in.jsonl", '{"prompt": "a", "label": -Infinity}\n', "-Infinity"),
    # of 940 and more, Python could write the answer's line, and not read it again
    ("in.jsonl", '{"prompt": "a", "label": ' + "[" * 940 + "]" * 940 + "}\n", "more than 100"),
    ("in.jsonl", '{"prompt": "a"} {"prompt": "b"}\n', "line 1"),
    (
        "in.jsonl",
        '{"custom_id": 1, "prompt": "a"}\n{"custom_id": "1", "prompt": "b"}\n',
        "that of line 1",
    ),
    ("in.jsonl", '{"prompt": "a"}\n'.encode("utf-16-be"), "iconv -f UTF-16"),
    ("in.txt", "a\0b\nc\n", "line 1: it holds a NUL byte"),
    ("in.txt", "Zürich\n".encode("latin-1"), "byte 2"),
    ("in.txt", "one\rtwo\nthree\n", "carriage return"),
    ("in.csv", 'prompt\n"a\nb\nc\n', "line 2"),
    ("in.csv", 'prompt,x\na,1\n"b" c,2\nd,3\n', "line 3"),
    ("in.csv", "prompt,x\na,1\nb\nc,3,4\n", "line 3: it has 1 cells"),
    ("in.csv", "prompt\nZürich\n".encode("latin-1"), "line 2"),
    ("in.csv", "pr\xf6mpt\na\n".encode("latin-1"), "UTF-8"),
    ("in.csv", 'prompt\n""\n', "empty"),
    ("in.csv", "prompt,temperature\na,1e999\n", "1e999 is too large"),
    ("in.csv", "question;answer\nwhy?;because\n", "--column: question, answer"),
    ("in.csv", "", "--column"),
    ("in.parquet", b"PAR1 and no more", "Parquet"),
    ("in.jsonl.gz", '{"prompt": "a"}\n', "leave .gz out of its name"),
    ("in.jsonl.gz", gzip.compress(b'{"prompt": "a"}\nx\n', mtime=0), "line 2: it is not JSON"),
)


def test_what_cannot_be_read_whole_is_refused_with_its_place(tmp_path):
    for name, data, says in REFUSED:
        with pytest.raises(BadInput) as error:
            prompts(put(tmp_path, name, data))
        assert says in str(error.value) and len(str(error.value)) < 500, (name, data[:60])


UNDERSTOOD = (
    ("in.csv", "Hello you\nHow are you\n", ["How are you"], "the name of its only column"),
    ("in.csv", "prompt;label\na;1\nb;2\n", ["a", "b"], "';'"),
    ("in.csv", "id\tprompt\n1\ta, b\n", ["a, b"], "tab"),
    ("in.csv", "prompt\na\n\nb\n", ["a", "b"], "1 empty line"),
    ("in.txt", "a\n\n\nb\n\n", ["a", "b"], "3 empty lines"),
)


def test_what_was_understood_is_said(tmp_path, capsys):
    for name, data, read, says in UNDERSTOOD:
        assert prompts(put(tmp_path, name, data)) == read, data
        (line,) = capsys.readouterr().err.splitlines()
        assert says in line and name in line, data


PLAIN = (
    ("in.csv", LF),
    ("in.csv", "\ufeff" + LF),
    ("in.csv", LF.replace("\n", "\r\n")),
    ("in.csv", LF.rstrip()),
    ("in.tsv", LF),
    ("in.tsv", "id\tprompt\n1\ta\n2\tb\n3\tc\n"),
    ("in.txt", "\ufeffa\nb\nc"),
    ("in.txt", "a\r\nb\r\nc\r\n"),
    ("in.json", '\ufeff ["a",\r\n"b" ,"c"] \n\n'),
    ("in.json", '["a","b","c"]\r'),
    ("in.jsonl", '\ufeff"a"\n"b"\r\n{"prompt":"c"}'),
    ("in.csv", LF.replace("\n", "\r")),
)


def test_what_is_plain_is_read_without_a_word(tmp_path, capsys):
    for name, data in PLAIN:
        assert prompts(put(tmp_path, name, data)) == ["a", "b", "c"], data
        assert capsys.readouterr().err == "", data


def test_a_line_of_spaces_is_a_prompt_like_any_other(tmp_path):
    assert prompts(put(tmp_path, "in.txt", "a\n  \n b \n")) == ["a", "  ", " b "]


def test_quotes_that_do_not_match_are_no_bad_rows_that_may_be_left_out(tmp_path):
    with pytest.raises(BadInput, match="line 3"):
        prompts(put(tmp_path, "in.csv", 'prompt\na\n"b\nc\nd\n'), skip_bad=True)


def test_bad_items_of_an_array_may_be_left_out(tmp_path):
    data = '["a", NaN, {"prompt": "b", "prompt": "c"}, "\\ud800", ' + "9" * 5000 + ', [[{}]], "d"]'
    assert prompts(put(tmp_path, "in.json", data), skip_bad=True) == ["a", "d"]


def test_a_row_of_a_hundred_levels_is_read(tmp_path):
    data = '[{"prompt": "a", "label": ' + "[" * 99 + "]" * 99 + "}]"
    assert prompts(put(tmp_path, "in.json", data)) == ["a"]


def test_a_parameter_in_a_table_is_taken_as_it_is_written(tmp_path):
    data = 'prompt,ignore_eos,structured_outputs\na,True,"{""choice"": [""Yes""]}"\n'
    source = Source(put(tmp_path, "in.csv", data))
    (fields,) = (raw for _, raw in source.raws())
    body = Builder(column=source.column, table=True).content(fields).body
    assert body == {"prompt": "a", "ignore_eos": True, "structured_outputs": {"choice": ["Yes"]}}


def test_a_file_of_bad_rows_alone_says_what_is_wrong_with_them(tmp_path):
    path = put(tmp_path, "in.csv", b"prompt\n" + b"K\xf6ln\n" * 4)
    says = r"line 2: it is not UTF-8. 3 more are bad: line 3, 4 …."
    for skip_bad in (False, True):
        with pytest.raises(BadInput, match=says) as error:
            prompts(path, skip_bad=skip_bad)
        assert error.value.remedy == "Correct it."


def test_lines_are_counted_past_empty_ones(tmp_path):
    with pytest.raises(BadInput, match="line 5: its prompt is empty"):
        prompts(put(tmp_path, "in.csv", 'prompt,x\na,1\n\n\n"",2\n'))


def test_the_separator_is_that_of_the_head_whatever_the_prompts_hold(tmp_path):
    lines = [f"question {number}; one or two" for number in range(100)]
    path = put(tmp_path, "in.csv", "\n".join(["prompt", *lines, ""]))
    assert csv.Sniffer().sniff(path.read_text(), delimiters=",;\t|").delimiter == ";"
    assert prompts(path) == lines


def test_a_number_in_a_table_stays_the_text_that_it_is(tmp_path):
    assert prompts(put(tmp_path, "in.csv", "prompt,id\n007,1e3\nNA,\n")) == ["007", "NA"]


def test_columns_of_the_same_name_are_refused(tmp_path):
    columns = [pyarrow.array(values) for values in (["a"], ["first"], ["second"])]
    table = pyarrow.Table.from_arrays(columns, names=["prompt", "label", "label"])
    pyarrow.parquet.write_table(table, tmp_path / "in.parquet")
    put(tmp_path, "in.csv", "prompt,label,label\na,first,second\n")
    for name in ("in.parquet", "in.csv"):
        with pytest.raises(BadInput, match="several columns called 'label'"):
            Source(tmp_path / name)
    # Excel leaves columns without a name behind
    assert prompts(put(tmp_path, "in.csv", "prompt,,\na,,\n")) == ["a"]


def test_a_parquet_file_that_breaks_in_the_middle_is_one_sentence(tmp_path):
    path = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"prompt": [f"{n} " * 50 for n in range(5000)]}), path
    )
    data = bytearray(path.read_bytes())
    data[5000:9000] = bytes(4000)
    path.write_bytes(data)
    with pytest.raises(BadInput, match="cannot be read as Parquet"):
        prompts(path)


def test_what_is_no_file_is_refused_at_once(tmp_path):
    for make in (os.mkfifo, os.mkdir):
        make(tmp_path / f"{make.__name__}.txt")
        with pytest.raises(BadInput, match="is no file"):
            Source(tmp_path / f"{make.__name__}.txt")


# Round trips: what was written comes back from every format, and a file that was damaged gives no other rows.
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
line = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r\n\ufeff"), min_size=1, max_size=20
)


def as_csv(rows: list[str], **options) -> str:
    file = io.StringIO()
    csv.writer(file, **options).writerows([["prompt", "n"], *([row, "1"] for row in rows)])
    return file.getvalue()


WRITERS = {
    ".json": lambda rows: json.dumps(rows, ensure_ascii=False),
    ".jsonl": lambda rows: "".join(json.dumps({"prompt": row}) + "\n" for row in rows),
    ".csv": as_csv,
}


@quiet
@given(rows=st.lists(text, min_size=1, max_size=6))
@example(rows=["\r", "\n", '"', ",", ";", "\t", " ", "\ufeff", "\u2028", "\x85", "\x1c"])
@example(rows=["🚀" * 3, "\\", "\\u0041", "1.", "]", '", "'])
def test_rows_come_back_from_every_format(rows, tmp_path):
    for ending, write in WRITERS.items():
        assert prompts(put(tmp_path, f"in{ending}", write(rows))) == rows
    pyarrow.parquet.write_table(pyarrow.table({"prompt": rows}), tmp_path / "in.parquet")
    assert prompts(tmp_path / "in.parquet") == rows


@quiet
@given(rows=st.lists(line, min_size=1, max_size=6))
@example(rows=[" a", "b ", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", '"', ","])
def test_lines_come_back_from_text(rows, tmp_path):
    for end in ("\n", "\r\n"):
        assert prompts(put(tmp_path, "in.txt", end.join([*rows, ""]))) == rows


@quiet
@given(
    rows=st.lists(text, min_size=2, max_size=5, unique=True),
    ending=st.sampled_from([".json", ".jsonl"]),
    at=st.floats(0, 1, exclude_max=True),
    cut=st.booleans(),
    skip_bad=st.booleans(),
)
def test_a_file_that_was_cut_or_doubled_is_refused_or_read_whole(
    rows, ending, at, cut, skip_bad, tmp_path
):
    whole = WRITERS[ending](rows).rstrip("\n")
    damaged = whole[: int(at * len(whole))] if cut else f"{whole}\n{whole}"
    lines = damaged.count("\n") + bool(damaged.rpartition("\n")[2])
    try:
        texts = prompts(put(tmp_path, f"in{ending}", damaged), skip_bad=skip_bad)
    except BadInput:
        return
    assert ending == ".jsonl" and texts == (rows + rows)[: len(texts)] and len(texts) >= lines - 1


@quiet
@given(
    rows=st.lists(line, min_size=2, max_size=5),
    at=st.integers(0),
    quote=st.sampled_from(['"', '""', ",", "\0"]),
)
def test_a_table_with_one_character_too_many_is_refused_or_holds_it(rows, at, quote, tmp_path):
    """Every row of the file is there with all its text, save for the character that was put in."""
    whole = as_csv([f"<{row}>" for row in rows], quoting=csv.QUOTE_ALL)
    head = len(as_csv([], quoting=csv.QUOTE_ALL))
    at = head + at % (len(whole) - head)
    try:
        texts = prompts(put(tmp_path, "in.csv", whole[:at] + quote + whole[at:]))
    except BadInput:
        return
    assert len(texts) == len(rows)
    assert sorted("".join(texts).replace('"', "")) in (
        sorted("".join(f"<{row}>" for row in rows).replace('"', "")),
        sorted("".join(f"<{row}>" for row in rows).replace('"', "") + quote.replace('"', "")),
    )
