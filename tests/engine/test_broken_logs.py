"""A log that is cut, doubled, mixed up or lies gives rows or one sentence: no traceback, no number that is none."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.cli.reconcile import number
from workshop.engine import log as engine_log
from workshop.engine.log.lines import MAX_LINE_CHARS
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import BadInput, WorkshopError

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
FACTS = json.loads((LOGS / "index.json").read_text(encoding="utf-8"))["logs"]
NAMES = sorted(str(path.relative_to(LOGS)) for path in LOGS.rglob("*.log"))
NUMBERS = [
    "",
    "0",
    "-1",
    "1",
    "99",
    "0.0",
    "1.2.3",
    "...",
    "nan",
    "inf",
    "None",
    "1e308",
    "1,2,3",
    "3 KiB",
    "٣",
    "0." + "0" * 320 + "1",
    "9" * 30,
    "9" * 400,
    "9" * 4000,
    "9" * 5000,
    "-" + "9" * 400,
]
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
            lines[here] = (
                lines[here][: match.start()]
                + draw(st.sampled_from(NUMBERS))
                + lines[here][match.end() :]
            )
    return name, "\n".join(lines)


def with_change(name: str, pattern: str, new: str) -> tuple[str, str]:
    text, changes = re.subn(pattern, new, "\n".join(lines_of(name)))
    assert changes, f"{pattern} is not in {name}"
    return name, text


def changed(name: str, pattern: str, new: str):
    return example(with_change(name, pattern, new))


@settings(max_examples=int(os.environ.get("WORKSHOP_EXAMPLES", "60")), deadline=None)
@given(broken())
@changed(GPU_LOG, r"INFO \d\d-\d\d (\d\d:\d\d:\d\d)", r"INFO 13-45 \1")
@changed(CPU_LOG, r"INFO \d\d-\d\d (\d\d:\d\d:\d\d)", r"INFO 13-45 \1")
@changed(GPU_LOG, r"Available KV cache memory: [\d.]+", "Available KV cache memory: 0.0")
@changed(GPU_LOG, r"Available KV cache memory: [\d.]+", "Available KV cache memory: " + "9" * 400)
@changed(
    GPU_LOG, r"Available KV cache memory: [\d.]+", "Available KV cache memory: 0." + "0" * 320 + "1"
)
@changed(GPU_LOG, r"Model loading took [\d.]+", "Model loading took " + "9" * 400)
@changed(GPU_LOG, r"KV cache size: [\d,]+", "KV cache size: " + "9" * 4000)
@changed(GPU_LOG, r"PP\d", "PP" + "9" * 5000)
@changed(GPU_LOG, r"engine \(v[\d.]+", "engine (v0." + "9" * 5000)
@changed(GPU_LOG, r"\| \d+/\d+ \[", "| " + "9" * 4000 + "/" + "9" * 5000 + " [")
@changed(CPU_LOG, r"tensor_parallel_size=\d", "tensor_parallel_size=" + "9" * 12)
@changed(
    CPU_LOG,
    r"tensor_parallel_size=\d",
    "pipeline_parallel_size=" + "9" * 12 + ", tensor_parallel_size=1",
)
@changed(
    "failures/unknown_flag.log",
    r"unrecognized arguments: (\S+)",
    "unrecognized arguments: --" + "x" * 5000,
)
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


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4096, b"\xff\xfe" * 4096, b"x" * (20 << 20), b"\r" * (1 << 20)]
)
def test_file_that_is_no_log_is_one_sentence(tmp_path, content):
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(BadInput, match=r"not a (text file|vLLM log)") as caught:
        engine_log.read(tmp_path / "log")
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_folders_and_pipes_are_no_logs_and_nobody_waits_for_them(tmp_path, kind):
    path = tmp_path / "log"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(BadInput, match=f"a {kind}"):
        engine_log.read(path)


def test_name_that_no_file_can_have_is_one_sentence():
    with pytest.raises(BadInput):
        engine_log.read("x" * 5000)


def test_line_without_end_takes_no_more_memory_than_a_long_one():
    reader = engine_log.Reader()
    for _ in range(50):
        reader.feed(
            "INFO 11-20 10:02:25 [model.py:733] Resolved architecture: " + "x" * MAX_LINE_CHARS
        )
    assert len(reader._rest) <= MAX_LINE_CHARS
