"""A log that is cut, doubled, mixed up or lies gives rows or one sentence: no traceback, no number that is none."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.cli.use.reconcile import number
from workshop.engine import log as engine_log
from workshop.engine.log.lines import MAX_LINE_CHARS, parse_line
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import BadInput, WorkshopError

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
FACTS = json.loads((LOGS / "index.json").read_text(encoding="utf-8"))["logs"]
NAMES = sorted(str(path.relative_to(LOGS)) for path in LOGS.rglob("*.log"))
NUMBERS = (
    st.sampled_from(["", "1.2.3", "...", "None", "1,2,3", "3 KiB", "٣", "0." + "0" * 320 + "1"])
    | st.floats().map(str)
    | st.integers(-1, 99).map(str)
    | st.sampled_from([30, 400, 4000, 5000]).map(lambda digits: "9" * digits)
    | st.just("-" + "9" * 400)
)
NOISE = ["\x1b[31m", "\x1b]0;title\x07", "\0", "\r", "\u2028", "\x85", "\ufffd", "\ud800"]
GPU_LOG, CPU_LOG = "llama-3.1-8b_tp1_pp2_h200.log", "cpu_tp2.log"


@lru_cache
def lines_of(name: str) -> tuple[str, ...]:
    return tuple((LOGS / name).read_text(encoding="utf-8").split("\n"))


@st.composite
def broken(draw) -> tuple[str, str]:
    """A recorded log, and its text after a few accidents."""
    name = draw(st.sampled_from(NAMES))
    lines = list(lines_of(name))
    for _ in range(draw(st.integers(1, 5))):
        place = st.integers(0, len(lines) - 1)
        here, there = draw(place), draw(place)
        accident = draw(
            st.sampled_from(
                ["cut", "twice", "swap", "join", "noise", "end", "number", "number", "number"]
            )
        )
        if accident == "cut":
            lines[here] = lines[here][: draw(st.integers(0, len(lines[here])))]
        elif accident == "twice":
            lines.insert(there, lines[here])
        elif accident == "swap":
            lines[here], lines[there] = lines[there], lines[here]
        elif accident == "join":
            lines[here] += lines[there]
        elif accident == "noise":
            lines[here] = lines[here][:9] + draw(st.sampled_from(NOISE)) + lines[here][9:]
        elif accident == "end":
            del lines[here + 1 :]
        elif matches := list(re.finditer(r"-?\d[\d.,_]*", lines[here])):
            match = draw(st.sampled_from(matches))
            lines[here] = lines[here][: match.start()] + draw(NUMBERS) + lines[here][match.end() :]
    return name, "\n".join(lines)


# (log, pattern, what stands in its place): each was a traceback, or a number that is none, once.
KV_CACHE = r"Available KV cache memory: [\d.]+"
ONCE_BROKEN = [
    (GPU_LOG, r"INFO \d\d-\d\d (\d\d:\d\d:\d\d)", r"INFO 13-45 \1"),
    (CPU_LOG, r"INFO \d\d-\d\d (\d\d:\d\d:\d\d)", r"INFO 13-45 \1"),
    *(
        (GPU_LOG, KV_CACHE, f"Available KV cache memory: {number}")
        for number in ("0.0", "9" * 400, "0." + "0" * 320 + "1")
    ),
    (GPU_LOG, r"Model loading took [\d.]+", "Model loading took " + "9" * 400),
    (GPU_LOG, r"KV cache size: [\d,]+", "KV cache size: " + "9" * 4000),
    (GPU_LOG, r"PP\d", "PP" + "9" * 5000),
    (GPU_LOG, r"engine \(v[\d.]+", "engine (v0." + "9" * 5000),
    (GPU_LOG, r"\| \d+/\d+ \[", "| " + "9" * 4000 + "/" + "9" * 5000 + " ["),
    *(
        (CPU_LOG, r"tensor_parallel_size=\d", f"{name}=" + "9" * 12)
        for name in ("tensor_parallel_size", "pipeline_parallel_size")
    ),
    (
        "failures/unknown_flag.log",
        r"unrecognized arguments: (\S+)",
        "unrecognized arguments: --" + "x" * 5000,
    ),
]


def once_broken(test: Callable) -> Callable:
    for name, pattern, new in ONCE_BROKEN:
        text, changes = re.subn(pattern, new, "\n".join(lines_of(name)))
        assert changes, f"{pattern} is not in {name}"
        test = example((name, text))(test)
    return test


@settings(max_examples=int(os.environ.get("WORKSHOP_EXAMPLES", "60")), deadline=None)
@given(broken())
@once_broken
def test_broken_log_gives_rows_or_one_short_sentence(case):
    name, text = case
    facts = FACTS.get(name, {})
    try:
        log = engine_log.parse(text, name)
        json.dumps(asdict(log), allow_nan=False)
        comparison = reconcile(log, facts.get("model"), facts.get("gpu"))
    except WorkshopError as error:
        assert error.message.isprintable() and len(error.message) < 700
    else:
        json.dumps(comparison.to_dict(), allow_nan=False)
        assert all(
            number(row.predicted) and number(row.actual) and row.reason for row in comparison.rows
        )
        assert all(advice.value not in (0, -128) for advice in comparison.advice)


def test_dangerous_arguments_stay_text():
    """1e999 is no number of JSON, and sets and bytes are nothing that an argument of vLLM holds."""
    text = "INFO 11-20 10:02:25 [utils.py:2] non-default args: {'a': 1e999, 'b': {1, 2}, 'c': b'x', 'd': [1, {'e': 2}]}"
    assert engine_log.parse(text).args == {
        "a": "1e999",
        "b": "{1, 2}",
        "c": "b'x'",
        "d": [1, {"e": 2}],
    }


# Files that are no log


def test_file_that_is_no_log_is_one_sentence(tmp_path, subtests):
    for data in [
        b"",
        b"\0" * 4096,
        b"\xff\xfe" * 4096,
        b"\x89PNG\r\n",
        b"[" * 100_000,
        b"x" * (20 << 20),
        b"\r" * 99,
    ]:
        with subtests.test(repr(data[:6])):
            (tmp_path / "log").write_bytes(data)
            with pytest.raises(BadInput, match=r"not a (text file|vLLM log)") as caught:
                engine_log.read(tmp_path / "log")
            assert len(caught.value.message) < 500


def test_what_is_no_log_file_is_refused_and_nobody_waits(tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    for name in ("pipe", "device", "socket", "a\0b", "x" * 5000):
        with subtests.test(name[:9]), pytest.raises(BadInput):
            engine_log.read(name)


# Long lines: a log costs time in proportion to its length, whatever stands in it

LINE_CHARS = MAX_LINE_CHARS // 2
LIMIT_S = 2.0  # of processor time; a text takes less than half, and took minutes where a pattern was quadratic
HEADER = "INFO 11-20 10:02:25 [model.py:733] "
END = "x it/s] with config: took version backend.\n"
# beginnings of what a rule looks for
PIECES = [" ", "\t", "a", "(", "[", "'", "1,", "\x1b[", "\\", "(a pid=1)", "it/s](", "token ",
          "api_key='", "token  '", "Loading a", "Loading shards:", "Capturing a ",
          "Capturing CUDA graphs (", "engine (v", "init engine (", "args: {", "version ",
          "Using a ", ".safetensors", "Error: ", "A.", "[repeated 1", "Engine 1: ",
          "\u2588 version 1", "PermissionError",
          "Avg prompt throughput: 1 tokens/s, Avg generation throughput: 1 tokens/s, Running: 1 reqs",
          "[32m", "\\x1b[", "[1;", "INFO 11-20 ",
          "INFO 11-20 10:00:00 [", "NVIDIA ", "NVIDIA H", "GPU 0: NVIDIA ",
          "1: ", "rank 0 in world size 1", "Free memory on device (",
          "Actual usage is 1 GiB for ", "(a pid=1, ip="]  # fmt: skip


def test_a_long_text_is_read_in_linear_time(subtests):
    """One line, the same behind a header, and many of some thousand letters."""
    for piece in PIECES:
        with subtests.test(piece):
            line = piece * (LINE_CHARS // len(piece))
            short = HEADER + piece * (4000 // len(piece)) + END
            reader, began_s = engine_log.Reader(), time.process_time()
            for text in (line + "\n", HEADER + line + END, short * 25):
                reader.feed(text)
            reader.close()
            assert time.process_time() - began_s < LIMIT_S


def test_what_is_longer_than_any_line_of_a_log_is_cut():
    line = parse_line(HEADER + "x" * (MAX_LINE_CHARS + 1000))
    assert line.level == "INFO" and len(line.text) < MAX_LINE_CHARS


def test_a_line_that_never_ends_is_read_in_pieces():
    reader, began_s = engine_log.Reader(), time.process_time()
    for _ in range(200):
        reader.feed("Loading a | 1/1 [ it/s] " * 400)
    assert time.process_time() - began_s < LIMIT_S


def test_many_prefixes_leave_the_last_one():
    line = parse_line(
        "(EngineCore pid=1) " * 5000 + "(Worker_TP1 pid=2) INFO 11-20 10:02:25 [a.py:7] ready"
    )
    assert (line.process, line.text) == ("Worker_TP1", "ready")


def test_rays_note_of_repetitions_is_left_out(subtests):
    for gap in [" ", "", "   "]:
        with subtests.test(gap):
            line = parse_line(
                f"(RayWorkerWrapper pid=7, ip=10.0.0.2) loaded{gap}[repeated 3x across cluster] (Ray …)"
            )
            assert line.text == "loaded"
