"""The reader of traces: what lines add up to, and what is no trace."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import workshop
from workshop.engine import trace
from workshop.errors import BadInput


def row(name, prefill=0, decode=0, computed=0, blocks=(), **more):
    return {
        "id": name,
        "prefill_tokens": prefill,
        "decode_tokens": decode,
        "computed_tokens": computed,
        "prefix_hit_tokens": 0,
        "drafted": 0,
        "accepted": 0,
        "blocks": list(blocks),
        **more,
    }


def line(step, requests=(), **more):
    names = ("taken", "freed", "preempted", "arrived", "finished", "stored", "removed")
    fixed = {
        "step": step,
        "time_s": step / 10,
        "budget": 8,
        "kv_cache_usage": 0.5,
        "num_blocks": 4,
        "block_size": 4,
    }
    return {**fixed, "requests": list(requests), **{name: [] for name in names}, **more}


LINES = [  # b shares block 1 with a, is preempted, and comes back
    line(
        0,
        [row("a", prefill=6, blocks=[1, 2])],
        arrived=[["a", 6], ["b", 10]],
        taken=[1, 2],
        stored=[[1, "f1"]],
    ),
    line(
        1,
        [
            row("a", decode=1, computed=6),
            row("b", prefill=4, computed=4, blocks=[1, 3], prefix_hit_tokens=4),
        ],
        taken=[3],
    ),
    line(
        2,
        [row("a", decode=1, computed=7, blocks=[])],
        preempted=["b"],
        freed=[3],
        arrived=[["c", 2]],
    ),
    line(
        3,
        [row("b", prefill=6, computed=4, blocks=[1, 3, 4], prefix_hit_tokens=4)],
        finished=["a"],
        freed=[2],
        taken=[3, 4],
    ),
    line(4, finished=["b"], freed=[1, 3, 4]),
]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(step) + "\n" for step in LINES))
    return file


def test_blocks_add_up_to_tables_and_owners(path):
    seen = []
    for step, pool in trace.replay(trace.read(path)):
        tables = {name: list(blocks) for name, blocks in pool.tables.items()}
        shared = {block: names for block, names in pool.owners.items() if len(names) > 1}
        seen.append((tables, shared, step.num_blocks - len(pool.used_blocks), list(pool.waiting)))
        assert pool.used_blocks == set(pool.owners), step
    assert seen == [
        ({"a": [1, 2]}, {}, 2, ["b"]),
        ({"a": [1, 2], "b": [1, 3]}, {1: ["a", "b"]}, 1, []),
        ({"a": [1, 2]}, {}, 2, ["b", "c"]),
        ({"b": [1, 3, 4]}, {}, 1, ["c"]),
        ({}, {}, 4, ["c"]),
    ]


def test_a_step_says_why_it_is_as_it_is(path):
    steps, sentences, before = trace.read(path), [], trace.Pool()
    for step in steps:
        sentences.append(" ".join(trace.reasons(step, before)))
        before.add(step)
    assert "2 tokens are left" in sentences[1] and "4 tokens in the prefix cache" in sentences[1]
    assert "b is preempted" in sentences[2] and "a ended" in sentences[3]


def test_a_line_that_is_not_whole_yet_waits(path):
    growing, text = trace.Trace(path), path.read_bytes()
    path.write_bytes(text[:-30])
    assert [step.step for step in growing.more()] == [0, 1, 2, 3]
    assert growing.more() == []
    path.write_bytes(text)
    assert [step.step for step in growing.more()] == [4]
    path.write_bytes(text[:-30])
    assert len(trace.read(path)) == 4


def test_a_file_without_a_step_is_one_sentence(tmp_path, subtests):
    for text in ["", '{"step": 0']:
        with subtests.test(text):
            (tmp_path / "other").write_text(text)
            with pytest.raises(BadInput, match="holds no step"):
                trace.read(tmp_path / "other")


def test_a_line_that_is_no_step_is_named(tmp_path, subtests):
    first = json.dumps(LINES[0]).encode() + b"\n"
    for number in (1, 2):
        for content in [
            b"INFO 11-20 vLLM",
            b'{"step": 0}',
            b"[" * 100_000,
            b'{"step":' * 50_000,
            b"\0\xff",
            b"\xff\xfe",
            b'{"step": ' + b"9" * 5000 + b"}",
            b'{"step": NaN}',
        ]:
            with subtests.test(f"{number}, {content[:12]!r}"):
                (tmp_path / "other").write_bytes((number - 1) * first + content + b"\n")
                with pytest.raises(BadInput, match=f"Line {number} of .* is no step"):
                    trace.read(tmp_path / "other")


IMPOSSIBLE = [
    ("block_size", 0),
    ("step", math.inf),
    ("time_s", "soon"),
    ("taken", "abc"),
    ("arrived", [["a"]]),
    ("requests", 5),
    ("requests", [row("a", blocks=["x"])]),
]


def test_a_field_that_cannot_be_makes_a_line_no_step(tmp_path, subtests):
    for name, value in IMPOSSIBLE:
        refused = pytest.raises(BadInput, match=r"Line 1 of .* is no step of a trace")
        with subtests.test(f"{name} {value!s:.20}"), refused:
            (tmp_path / "trace").write_text(json.dumps({**LINES[0], name: value}) + "\n")
            trace.read(tmp_path / "trace")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path in (tmp_path / "none", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(BadInput, match="cannot be read"):
            trace.read(path)


RECORDED = Path(workshop.__file__).parent / "data" / "traces" / "teaching_model.jsonl"


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "PART_BYTES", 1000)
    (tmp_path / "trace").write_bytes(b"x" * 5000)
    with pytest.raises(BadInput, match="is longer than"):
        trace.read(tmp_path / "trace")


def test_a_long_trace_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "PART_BYTES", 20_000)
    assert trace.read(RECORDED) == [step for part in parts(RECORDED) for step in part]
    assert len(trace.read(RECORDED)) == len(RECORDED.read_text().splitlines())


def parts(path: Path) -> list[list[trace.Step]]:
    growing, pieces = trace.Trace(path), []
    while more := growing.more():
        pieces.append(more)
    assert len(pieces) > 1
    return pieces
