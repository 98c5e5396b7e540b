"""Every format gives the same rows, and what cannot be a row is told with its place, before anything is sent."""

from __future__ import annotations

import csv
import gzip
import json
import random

import pyarrow
import pyarrow.parquet
import pytest

from workshop.batch.read import inputs
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.batch.read.rows import COMPLETIONS, Builder, check_sampling
from workshop.errors import BadInput

PROMPTS = ["San Francisco is a", "Zürich, 東京 and 🚀", 'with "quotes", and a comma', "x" * 3000]


def write(path, prompts=PROMPTS):
    if path.suffix.lower() == ".gz":
        write(path.with_suffix(""), prompts)
        path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))
        path.with_suffix("").unlink()
    elif path.suffix == ".json":
        path.write_text(json.dumps(prompts, ensure_ascii=False))
    elif path.suffix == ".txt":
        path.write_text("\n".join(prompts) + "\n\n")
    elif path.suffix.lower() in (".jsonl", ".ndjson"):
        path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([["prompt"], *[[prompt] for prompt in prompts]])
    else:
        pyarrow.parquet.write_table(pyarrow.table({"prompt": prompts}), path)
    return path


def work_on(path, column=None, skip_bad=False, **options):
    source = Source(path, column)
    work = Work(source, Builder(column=source.column, table=source.table, **options))
    work.check(skip_bad)
    return work


def rows(path, **options):
    return [row for row in work_on(path, **options).rows() if row is not None]


COMPRESSED = [f"{ending}.gz" for ending in inputs.FORMATS if ending != ".parquet"]


def test_every_format_gives_the_same_rows(tmp_path):
    keys = [row.key for row in rows(write(tmp_path / "other.json"))]
    for ending in (*inputs.FORMATS, *COMPRESSED, ".NDJSON.gz", ".csv.GZ"):
        file_rows = rows(write(tmp_path / f"in{ending}"))
        assert [json.loads(row.request)["prompt"] for row in file_rows] == PROMPTS, ending
        assert [row.key for row in file_rows] == keys, ending
        assert {row.url for row in file_rows} == {COMPLETIONS}
        assert [row.number for row in file_rows] == [0, 1, 2, 3]


def test_a_gzip_file_that_was_cut_or_damaged_is_refused(tmp_path):
    long = random.Random(0).randbytes(100_000).hex()
    for ending in COMPRESSED:
        path = write(tmp_path / f"in{ending}", [long, long])
        data = path.read_bytes()
        at = 3 * len(data) // 4
        for damaged in (data[:-1], data[:-1000], data[:at] + data[at + 1000 :]):
            path.write_bytes(damaged)
            with pytest.raises(BadInput, match="cannot be read as gzip"):
                rows(path, skip_bad=True)


def openai(url: str, fields: str) -> bytes:
    return f'{{"custom_id": "1", "method": "POST", "url": "{url}", "body": {{{fields}}}}}'.encode()


BAD_LINES = (
    (b'{"prompt": "a"', "not JSON"),
    (b"[1]", "not a string or an object"),
    (b'{"x": 1}', "neither prompt nor messages"),
    (b'{"prompt": ""}', "empty"),
    (b'{"prompt": 3}', "a number, not text"),
    (b'{"prompt": "\xff"}', "not UTF-8"),
    (b'{"prompt": "a", "temperature": NaN}', "NaN"),
    (b'{"custom_id": true, "prompt": "a"}', "custom_id is True"),
    (b'{"messages": []}', "messages"),
    (b'{"prompt": "a", "n": 0}', "n is 0"),
    (b'{"prompt": "a", "n": 1.5}', "n is 1.5"),
    (b'{"prompt": "a", "n": true}', "n is True"),
    (openai(COMPLETIONS, '"prompt": "a"').replace(b"POST", b"GET"), "POST"),
    (openai("/v1/embeddings", '"prompt": "a"'), "/v1/embeddings"),
    (openai(COMPLETIONS, '"prompt": ["a", "b"]'), "one prompt"),
    (openai(COMPLETIONS, '"prompt": "a", "stream": true'), "stream"),
    (openai(COMPLETIONS, '"prompt": "a", "model": "gpt-4o"'), "gpt-4o"),
    (b'{"prompt": "a", "reasoning_effort": "low"}', "reasoning_effort is for messages"),
    (b'{"custom_id": "same", "prompt": "b"}', "that of line 1 already"),
)


def test_a_bad_line_is_told_with_its_number_and_what_is_wrong(tmp_path):
    path = tmp_path / "in.jsonl"
    for line, says in BAD_LINES:
        path.write_bytes(b'{"custom_id": "same", "prompt": "fine"}\n\n' + line + b"\n")
        with pytest.raises(BadInput, match="line 3: ") as error:
            work_on(path, model="stub")
        assert says in str(error.value) and "Nothing was started" in str(error.value), line
        assert len([row for row in work_on(path, model="stub", skip_bad=True).rows() if row]) == 1


def test_a_parameter_of_chats_is_sent_with_messages_and_refused_for_prompts(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("How many legs has a spider?\n")
    sampling = {"reasoning_effort": "low"}
    (row,) = work_on(path, chat=True, sampling=sampling).rows()
    assert json.loads(row.payload("m"))["reasoning_effort"] == "low"
    with pytest.raises(BadInput, match=r"reasoning_effort is for messages.*--chat"):
        work_on(path, sampling=sampling)
    path = tmp_path / "in.jsonl"
    path.write_bytes(openai(COMPLETIONS, '"prompt": "a", "top_logprobs": 5'))
    (row,) = rows(path)
    assert json.loads(row.payload("m"))["top_logprobs"] == 5, "a request goes out as it was given"
    with pytest.raises(BadInput, match="reasoning_effort is for messages"):
        work_on(path, sampling=sampling)


def test_a_table_with_gaps_says_whole_numbers_with_a_point(tmp_path):
    path = tmp_path / "in.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "n": [2.0, None]}), path)
    assert [row.samples for row in work_on(path).rows()] == [2, 1]


def test_a_bad_line_far_into_a_file_is_told_by_its_number(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a"}\n' * 7_342 + '{"prompt: "a"}\n' + '{"prompt": "a"}\n' * 10)
    with pytest.raises(BadInput, match="line 7,343: it is not JSON"):
        work_on(path)


def test_fields_that_are_no_parameters_go_along(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a", "label": "x", "temperature": 0.5}\n')
    (row,) = rows(path)
    assert json.loads(row.metadata) == {"label": "x"} and json.loads(row.request) == {
        "prompt": "a",
        "temperature": 0.5,
    }


def test_a_table_without_the_column_is_refused_with_those_it_has(tmp_path):
    (tmp_path / "in.csv").write_text("question,label\nwhy?,1\n")
    with pytest.raises(BadInput, match=r"--column: question, label"):
        Source(tmp_path / "in.csv")
    with pytest.raises(BadInput, match="no column 'promt'"):
        Source(tmp_path / "in.csv", "promt")
    assert json.loads(rows(tmp_path / "in.csv", column="question")[0].request)["prompt"] == "why?"


def test_a_row_put_in_front_changes_the_key_of_no_other(tmp_path):
    before = rows(write(tmp_path / "in.txt", ["a", "b", "a", "a"]))
    after = rows(write(tmp_path / "in.txt", ["new", "a", "b", "a", "a"]))
    assert [row.key for row in before] == [row.key for row in after[1:]]
    assert len({row.custom_id for row in after}) == 5


def test_the_key_is_of_everything_that_is_asked(tmp_path):
    path = write(tmp_path / "in.txt", ["a"])
    keys = {
        rows(path, sampling=sampling)[0].key
        for sampling in ({}, {"max_tokens": 1}, {"max_tokens": 2}, {"seed": 1})
    }
    assert len(keys) == 4


def test_the_key_is_the_same_for_0_and_0_0_which_the_command_line_gives(tmp_path):
    path = write(tmp_path / "in.txt", ["a"])
    keys = {
        rows(path, sampling=check_sampling({"temperature": temperature, "top_p": top_p}))[0].key
        for temperature, top_p in ((0, 1), (0.0, 1.0))
    }
    assert len(keys) == 1


def test_a_misspelt_parameter_is_refused_with_the_nearest():
    with pytest.raises(BadInput, match="temperature"):
        check_sampling({"temprature": 0})
    with pytest.raises(BadInput, match="At temperature 0"):
        check_sampling({"temperature": 0, "n": 3})


def test_an_impossible_value_is_refused_before_anything_is_sent():
    for name, value, sentence in (
        ("temperature", -1, "temperature is -1.*0 .greedy. to 2"),
        ("top_k", 2.5, "top_k is 2.5"),
        ("max_tokens", -5, "max_tokens is -5.*whole number, 0 or more"),
        ("logprobs", -2, "logprobs is -2"),
        ("n", 0, "n is 0"),
    ):
        with pytest.raises(BadInput, match=sentence):
            check_sampling({name: value})


def test_values_that_vllm_takes_are_taken():
    taken = {"top_k": -1, "logprobs": -1, "prompt_logprobs": 0, "max_tokens": 0, "seed": -3}
    assert check_sampling(taken) == taken
    assert check_sampling({"logprobs": True, "top_logprobs": 2})  # as a chat has them


def test_what_is_no_input_is_refused(tmp_path):
    for name in ("in.pdf", "in", "in.gz", "in.pdf.gz", "in.parquet.gz", "in.tar.gz"):
        (tmp_path / name).write_text("a")
        with pytest.raises(BadInput, match="names no format"):
            Source(tmp_path / name)
    with pytest.raises(BadInput, match="no input file"):
        Source(tmp_path / "missing.txt")
