"""Whatever stands in front of the lines of a log, the facts that are read are the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from workshop.engine import log
from workshop.errors import BadInput

LOGS = Path(__file__).parents[2] / "workshop" / "data" / "logs"
NAMES = sorted(str(path.relative_to(LOGS)) for path in LOGS.rglob("*.log"))
CLOCK = "10:{:02}:{:02}"

Wrap = Callable[[int, str], str]


def _clock(number: int) -> str:
    return f"10:{number // 60 % 60:02}:{number % 60:02}"


def _before(prefix: str) -> Wrap:
    """Return a wrapper that writes a prefix, with {clock} for a time that goes on and {number} for the line."""

    def wrap(number: int, line: str) -> str:
        return prefix.format(clock=_clock(number), number=number) + line

    return wrap


def _json(key: str, **more: Any) -> Wrap:
    def wrap(number: int, line: str) -> str:
        record = {"time": f"2026-11-20T{_clock(number)}Z", key: f"{line}\n", **more}
        return json.dumps(record)

    return wrap


def _colored(escape: str) -> Wrap:
    def wrap(number: int, line: str) -> str:
        for level in ("INFO", "WARNING", "ERROR"):
            line = line.replace(f"{level} 11", f"{escape}[32m{level}{escape}[0m 11", 1)
        return line

    return wrap


PREFIXES: dict[str, Wrap] = {
    "Docker Desktop": _before("2026-11-20 {clock}.704 | "),
    "date and time": _before("2026-11-20 {clock} "),
    "date, time, milliseconds": _before("2026-11-20 {clock},123 "),
    "American date": _before("11/20/2026 {clock} AM "),
    "time alone": _before("{clock} "),
    "time in brackets": _before("[{clock}] "),
    "timestamp in brackets": _before("[2026-11-20T{clock}.123Z] "),
    "date in brackets": _before("[2026-11-20 {clock}] "),
    "ts of moreutils": _before("Nov 20 {clock} "),
    "seconds since the start": _before("[  12.{number:06}] "),
    "Unix time": _before("17636{number:05}.123456 "),
    "Markdown code": _before("    "),
    "tab": _before("\t"),
    "comment": _before("# "),
    "quote": _before("> "),
    "quote twice": _before("> > "),
    "list": _before("- "),
    "line numbers": _before("{number:5d}  "),
    "grep -n": _before("{number}:"),
    "grep -H": _before("vllm.log:{number}:"),
    "diff": _before("+"),
    "compose": _before("vllm-1  | "),
    "compose with time": _before("vllm-openai-1  | 2026-11-20T{clock}.123456789Z "),
    "GitHub Actions": _before("2026-11-20T{clock}.1234567Z "),
    "gh run view": _before("serve\tRun vLLM\t2026-11-20T{clock}.1234567Z "),
    "GitLab": _before("2026-11-20T{clock}.123456Z 01O "),
    "stern": _before("vllm-7f9c6d5b8-x2x4q vllm "),
    "stern with node": _before("gpu-node-7 vllm-0 › vllm "),
    "kubectl --prefix": _before("[pod/vllm-7f9c6d5b8-x2x4q/vllm] "),
    "kubectl --timestamps": _before("2026-11-20T{clock}.123456789Z "),
    "containerd": _before("2026-11-20T{clock}.123456789Z stdout F "),
    "journalctl": _before("Nov 20 {clock} node-1 python[123]: "),
    "journalctl -o short-iso": _before("2026-11-20T{clock}+0100 node-1 vllm[99]: "),
    "syslog": _before("<14>1 2026-11-20T{clock}.123Z node-1 vllm 99 - - "),
    "old syslog": _before("<30>Nov 20 {clock} node-1 vllm: "),
    "srun --label": _before("0: "),
    "pdsh": _before("node1: "),
    "mpirun": _before("[1,0]<stdout>:"),
    "torchrun": _before("[default0]:"),
    "supervisord": _before("2026-11-20 {clock},123 DEBG 'vllm' stdout output: "),
    "pm2": _before("0|vllm     | "),
    "Slack": _before("bob  {clock} AM: "),
    "Modal": _before("2026-11-20 {clock}+00:00 ta-01ABC "),
    "CloudWatch": _before("2026-11-20T{clock}.000Z\t"),
    "CSV": _before('"2026-11-20 {clock}",vllm,'),
    "docker's json-file": _json("log", stream="stdout"),
    "fluentd": _json("log", kubernetes={"pod_name": "vllm-0"}, stream="stderr"),
    "Google's log": _json("textPayload", severity="INFO"),
    "journald in JSON": _json("MESSAGE", PRIORITY="6"),
    "Elastic's export": lambda number, line: (
        json.dumps({"_id": number, "_source": {"message": line}}) + ","
    ),
    "Docker's box": _before("│ "),
    "colors": _colored("\x1b"),
    "colors without the escape": _colored(""),
    "colors written out": _colored("\\x1b"),
    "DOS lines": lambda number, line: f"{line}\r",
}


def facts(read: log.EngineLog) -> dict[str, Any]:
    """Return everything that was read, without srun's labels and the error's own line."""
    log_facts = asdict(read)
    log_facts["ranks"] = {
        re.sub(r"^\d+:", "", name): rank for name, rank in log_facts["ranks"].items()
    }
    if log_facts["error"]:
        log_facts["error"].pop("line")
        log_facts["error"]["what"] = log_facts["error"]["what"].rstrip()
    return log_facts


@lru_cache
def plain(name: str) -> tuple[list[str], dict[str, Any]]:
    text = (LOGS / name).read_text(encoding="utf-8", errors="replace")
    return text.split("\n"), facts(log.parse(text, name))


@pytest.mark.parametrize("kind", PREFIXES)
def test_prefix_of_any_kind_leaves_the_facts_as_they_are(kind):
    wrap = PREFIXES[kind]
    different = []
    # a prefix does not depend on which log it stands in
    for name in NAMES[list(PREFIXES).index(kind) % 12 :: 12]:
        lines, expected = plain(name)
        wrapped = "\n".join(wrap(number, line) for number, line in enumerate(lines))
        try:
            read = facts(log.parse(wrapped, name))
        except BadInput:
            read = {}
        if read != expected:
            names = [key for key in expected if read.get(key) != expected[key]]
            different.append((name, [(key, read.get(key), expected[key]) for key in names]))
    assert not different


@pytest.mark.parametrize(
    "encoding", ["utf-8-sig", "utf-16", "cp1252", "cp437", "shift_jis", "ascii"]
)
def test_file_of_any_code_page_leaves_the_facts_as_they_are(encoding, tmp_path):
    for name in NAMES[::6]:
        lines, expected = plain(name)
        path = tmp_path / "vllm.log"
        path.write_bytes("\r\n".join(lines).encode(encoding, errors="replace"))
        read = facts(log.read(path))
        error, expected_error = read.pop("error") or {}, expected["error"] or {}
        assert error.get("key") == expected_error.get("key"), name
        assert read == {key: expected[key] for key in read}, name


def test_logo_in_another_code_page_says_the_version():
    line = (
        "(APIServer pid=1) INFO 04-19 15:30:52 [utils.py:299]  {} version 0.19.2rc1.dev8+g4b7f5ea1a"
    )
    for logo in ("▄▄ ▄█ █     █  ▀▄▀ █", "?? ?? ?     ? ???", "â–„â–„ â–„â–ˆ â–ˆ", ""):
        assert log.parse(line.format(logo)).version == "0.19.2rc1.dev8+g4b7f5ea1a"


def test_records_of_pythons_json_logger_are_a_log():
    """VLLM_LOGGING_CONFIG_PATH with python-json-logger: the level and the file are fields, not words of the line."""
    records = [
        {"levelname": "INFO", "filename": "gpu_worker.py", "lineno": 538, "message": message}
        for message in ("Available KV cache memory: 5.98 GiB", "GPU KV cache size: 567,978 tokens")
    ]
    read = log.parse("\n".join(json.dumps(record) for record in records))
    assert (read.available_kv_gib, read.kv_cache_tokens) == (5.98, 567978)


def test_logger_of_another_format_is_read_where_vllms_facts_are_in_it():
    read = log.parse(
        "2026-11-20 10:00:00,000 - vllm.v1.worker.gpu_worker - INFO - Available KV cache memory: 5.98 GiB"
    )
    assert read.available_kv_gib == 5.98
