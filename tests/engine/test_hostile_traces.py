"""`workshop xray TRACE` with traces that are odd or mean harm: a page or one sentence, and nobody waits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import workshop
from workshop.cli.xray import command
from workshop.engine import trace
from workshop.errors import BadInput

RECORDED = Path(workshop.__file__).parent / "data" / "traces" / "teaching_model.jsonl"
FIRST = json.loads(RECORDED.read_text().splitlines()[0])


def line(**fields: object) -> bytes:
    return json.dumps(FIRST | fields).encode() + b"\n"


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000 + b"\n",
        b'{"step":' * 50_000 + b"\n",
        b'{"step": ' + b"9" * 5000 + b"}\n",
        b'{"step": NaN}\n',
        b"\0" * 1000 + b"\n",
        b"\xff\xfe\n",
        line(step=10**400),
        line(step=float("inf")),
        line(num_blocks=10**30),
        line(num_blocks=-5),
        line(num_blocks=0),
        line(block_size=0),
        line(budget=0),
        line(taken=[10**400]),
        line(taken="abc"),
        line(arrived=[["a"]]),
        line(requests=5),
        line(time_s=10**400),
        line(kv_cache_usage="much"),
    ],
)
def test_what_is_no_step_is_one_sentence(content, tmp_path):
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(BadInput, match=r"Line 1 of .* is no step of a trace"):
        trace.read(tmp_path / "trace")


@pytest.mark.parametrize(
    "content", [line(num_blocks=10**12, taken=[10**12 - 1]), line(arrived=[["\ud800", 5]])]
)
def test_odd_numbers_and_names_become_a_page(content, tmp_path):
    (tmp_path / "trace").write_bytes(content)
    done = CliRunner().invoke(command, [str(tmp_path / "trace")])
    assert done.exit_code == 0, done.exception
    assert (tmp_path / "trace.html").stat().st_size < 1 << 20


def test_a_pipe_is_no_trace_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="it is a pipe"):
        trace.read(tmp_path / "pipe")


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
