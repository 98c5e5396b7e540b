"""A log costs time in proportion to its length, whatever stands in its lines."""

from __future__ import annotations

import time

import pytest

from workshop.engine.log import Reader
from workshop.engine.log.lines import parse_line

LINE_CHARS = 1 << 20
LIMIT_S = 10.0  # of processor time; a line takes less than one, and took minutes where a pattern was quadratic
HEADER = "ERROR 11-20 10:02:25 [model.py:733] "
PIECES = (
    *(
        " ",
        "\t",
        "a",
        "(",
        "[",
        "'",
        "1,",
        "\x1b[",
        "\\",
        "(a pid=1)",
        "it/s](",
        "token ",
        "api_key='",
        "token  '",
    ),
    *(
        "Loading a",
        "Loading shards:",
        "Capturing a ",
        "Capturing CUDA graphs (",
        "engine (v",
        "init engine (",
        "args: {",
    ),
    *(
        "version ",
        "Using a ",
        ".safetensors",
        "Error: ",
        "A.",
        "[repeated 1",
        "Engine 1: ",
        "█ version 1",
        "PermissionError",
    ),
    "Avg prompt throughput: 1 tokens/s, Avg generation throughput: 1 tokens/s, Running: 1 reqs",
)


def processor_seconds(text: str) -> float:
    reader, began_s = Reader(), time.process_time()
    reader.feed(text)
    reader.close()
    return time.process_time() - began_s


@pytest.mark.parametrize("piece", PIECES)
def test_one_long_line_is_read_in_linear_time(piece):
    line = (
        HEADER + piece * (LINE_CHARS // len(piece)) + "x it/s] with config: took version backend."
    )
    assert processor_seconds(line) < LIMIT_S


@pytest.mark.parametrize(
    "piece", [" ", ".safetensors", "Loading a", "(", "Error: ", "init engine ("]
)
def test_many_lines_of_some_thousand_letters_are_read_in_linear_time(piece):
    line = HEADER + piece * (4000 // len(piece)) + "x it/s] with config: took version backend.\n"
    assert processor_seconds(line * 25) < LIMIT_S


def test_a_line_that_never_ends_is_read_in_pieces():
    reader, began_s = Reader(), time.process_time()
    for _ in range(200):
        reader.feed("Loading a | 1/1 [ it/s] " * 400)
    assert time.process_time() - began_s < LIMIT_S


def test_many_prefixes_leave_the_last_one():
    line = parse_line(
        "(EngineCore pid=1) " * 5000 + "(Worker_TP1 pid=2) INFO 11-20 10:02:25 [a.py:7] ready"
    )
    assert (line.process, line.text) == ("Worker_TP1", "ready")


@pytest.mark.parametrize("gap", [" ", "", "   "])
def test_rays_note_of_repetitions_is_left_out(gap):
    line = parse_line(
        f"(RayWorkerWrapper pid=7, ip=10.0.0.2) loaded{gap}[repeated 3x across cluster] (Ray …)"
    )
    assert line.text == "loaded"
