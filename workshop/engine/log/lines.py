"""One line of a vLLM log, without what terminals, schedulers and containers put around it. Pure.

vLLM writes `LEVEL MM-DD HH:MM:SS [file.py:123] message` (since 0.8; before, `file.py:123]
message`), with the process in front where there are several: `(Worker_TP0 pid=5831) INFO …`. These
words are looked for anywhere in a line, so no list of collectors is needed. A log has no year.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# a color whose escape character was lost, or written out, on the way through a browser or a
# collector
LOST_COLOR = re.compile(
    r"(?:\\x1b|\\u001b|\\033|\\e|\^\[|#x1[bB];?|[\u241b\ufffd])?\[\d{1,3}(?:;\d{1,3}){0,4}m"
)
INVISIBLE = re.compile(r"[\ufeff\u200b\u200e\u200f\u2060]")
LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
HEADER = re.compile(
    rf"(?P<level>{LEVELS})[ \xa0](?P<time>\d\d-\d\d[ \xa0]\d\d:\d\d:\d\d)"
    r"(?:[.,]\d{1,9})?[ \xa0]{1,4}"
    r"\[?(?P<source>[\w.<>/-]{1,200}:\d{1,7})\](?: |$)"
)
# "(Worker_TP0 pid=5831)", Ray's "(RayWorkerWrapper pid=7, ip=10.0.0.2)",
# 0.8's "(VllmWorker rank=1 pid=7)"
PROCESS = re.compile(
    r"\((?P<name>[A-Za-z_][\w.:-]{0,200})?(?:\(\w{1,80}\))?\s?"
    r"(?:rank=(?P<rank>\d{1,6})\s)?pid=(?P<pid>\d{1,10})"
    r"(?:, ip=(?P<ip>[^)\s]{1,80}))?\)[ \t]?"
)
# srun --label: "3: ", alone or behind a time
RANK_LABEL = re.compile(r"(?:^|\s)(?P<label>\d{1,5}): $")
RANK_LABEL_IN_FRONT = re.compile(r"^\s{0,4}(?P<label>\d{1,5}):(?: |$)")
# In front of lines that have no words of vLLM's logger, before any line showed what this file's
# prefix is: compose "vllm-1  | ", kubectl's "[pod/…] " and time, journalctl
# "Nov 23 05:00:00 host python[123]: ".
WRAPPERS = re.compile(
    r"^(?:\[pod/[^\]]{1,200}\]\s+|\[rank\d{1,5}\]: ?|[\w.-]{1,64}\s+\|\s|"
    r"\w{3,5}\.? [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@-]{1,64}\[\d{1,10}\]: |"
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s+"
    r"(?:std(?:out|err) F |\| )?)"
)
RAY_REPEATED = re.compile(r"\[repeated \d{1,9}x across cluster\]")
SECRET = re.compile(
    r"""((?:api_key|api-key|hf_token|token)['"]?\s*[=:]\s*\[?)(['"])(?!None)[^'"]{4,}\2"""
)
LINE_BREAK = re.compile(r"[\r\n]")
# A progress bar ends without a line break, so what another process writes next stands on its line.
AFTER_BAR = re.compile(
    r"(?<=it/s\])(?=\(|(?:INFO|WARNING|ERROR) )|(?<=s/it\])(?=\(|(?:INFO|WARNING|ERROR) )"
)
BAR = re.compile(r"\d/\d{1,7} \[|it/s|s/it")
# a config line has about 6,000; more is no log line, and is cut so that memory stays flat
MAX_LINE_CHARS = 200_000
LONGEST_PREFIX = 300  # characters; also how far in front of vLLM's words its process is looked for
MOST_BARS = 1000  # that are split from one line
MOST_PREFIXES = 32  # kinds of prefixes that are remembered: one for each host or container

JSON_OBJECT = re.compile(r'\{\s{0,8}"[\w.@/-]{1,80}"\s{0,8}:')
JSON_MEMBER = re.compile(r'^\s{0,80}"[\w.@/-]{1,80}"\s{0,8}:\s{0,8}".*",?$', re.DOTALL)
# the fields in which collectors keep the line itself: docker, fluentd, journald, Google, Azure,
# python-json-logger
MESSAGE_FIELDS = (
    "log",
    "message",
    "msg",
    "MESSAGE",
    "line",
    "textPayload",
    "content",
    "body",
    "event",
)
DEEPEST_RECORD = 4  # objects within objects, in which a line is looked for
LEVEL_FIELDS = ("levelname", "level", "severity")


@dataclass(frozen=True)
class Line:
    """The parts of one line of a log."""

    text: str
    # None: not a line of vLLM's own (a traceback without prefix, uvicorn, NCCL)
    level: str | None = None
    time: str | None = None  # "MM-DD HH:MM:SS"
    source: str = ""
    process: str = ""  # "Worker_TP0", "EngineCore", "3:EngineCore" under srun --label, or ""


class Prefixes:
    """The kinds of text in front of vLLM's own words in one file, learned line by line.

    A traceback's lines have the same prefix, but no words of vLLM's logger that say where it ends.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._patterns: dict[str, re.Pattern[str]] = {}
        # srun's label of the line that is being read; pieces after "\r" have none
        self.rank_label = ""

    def learn(self, prefix: str) -> None:
        """Remember the kind of a prefix: its words and signs, with any digits."""
        if len(prefix) > LONGEST_PREFIX or BAR.search(prefix):
            return
        kind = re.sub(r"\w{0,80}\d\w{0,80}", "0", prefix)
        if kind.strip():
            kind = re.sub(r" {2,}(?=[^ ])", " ", kind.lstrip(" "))
        if kind in self._counts or len(self._counts) < MOST_PREFIXES:
            self._counts[kind] += 1
        if kind and kind in self._counts and kind not in self._patterns:
            pattern = r"\w{1,160}".join(map(re.escape, kind.split("0")))
            if kind.strip():  # numbers are padded with spaces
                pattern = " {0,40}" + re.sub(r"\\ (?=[^\\]|\\[^ ])", r" {1,40}", pattern)
            self._patterns[kind] = re.compile(pattern)

    def strip(self, text: str) -> tuple[str, str]:
        """Return (the prefix of a line, the rest); the prefix is "" if no known one matches."""
        for kind, pattern in self._patterns.items():
            # Some lines that happen to be indented do not make an indented file.
            if not kind.strip() and self._counts[kind] < self._counts[""]:
                continue
            match = pattern.match(text)
            if match:
                return match[0], text[match.end() :]
        return "", text


def parts(raw: str) -> list[str]:
    """Split what was written after a progress bar from the bar."""
    if "it]" in raw or "it/s]" in raw:
        return AFTER_BAR.split(raw, maxsplit=MOST_BARS)
    return [raw]


def parse_line(raw: str, prefixes: Prefixes | None = None) -> Line:
    """Take one line (without its line break) apart; never fails.

    Args:
        raw: the line as it stands in the file.
        prefixes: what earlier lines of the same file taught; it learns from this one.
    """
    if prefixes is None:
        prefixes = Prefixes()
    text = _visible(raw[:MAX_LINE_CHARS])
    text, record_level, record_source = _out_of_json(text)
    match = HEADER.search(text)
    if match is None:
        return _line_without_header(text, prefixes, record_level, record_source)
    front = text[max(0, match.start() - LONGEST_PREFIX) : match.start()]
    processes = list(PROCESS.finditer(front))
    process = ""
    prefix = front
    if processes:
        # Several processes that write at the same moment leave several prefixes on one line: the
        # last one counts.
        process = _process_name(processes[-1])
        prefix = front[: processes[0].start()]
    if match.start() <= LONGEST_PREFIX:
        prefixes.learn(prefix)
    label = RANK_LABEL.search(prefix)
    if label:
        prefixes.rank_label = f"{label['label']}:"
    return Line(
        text=_message(text[match.end() :]),
        level=match["level"],
        time=match["time"].replace("\xa0", " "),
        source=match["source"],
        process=prefixes.rank_label + process,
    )


def _line_without_header(text: str, prefixes: Prefixes, level: str | None, source: str) -> Line:
    """Take a line apart that vLLM's logger did not write: a traceback, a bar, another program's."""
    prefix, text = prefixes.strip(text)
    label = RANK_LABEL.search(prefix)
    if not prefix:
        text = WRAPPERS.sub("", text, count=1)
        label = RANK_LABEL_IN_FRONT.match(text)
        if label:
            text = text[label.end() :]
    elif text.startswith("[rank"):
        text = WRAPPERS.sub("", text, count=1)
    process = ""
    begin = 0
    match = PROCESS.match(text)
    while match:
        process = _process_name(match)
        begin = match.end()
        match = PROCESS.match(text, begin)
    if label:
        process = f"{label['label']}:{process}"
    return Line(text=_message(text[begin:]), level=level, source=source, process=process)


def _visible(text: str) -> str:
    """Return a line without colors and invisible characters."""
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if "[" in text:
        text = LOST_COLOR.sub("", text)
    if not text.isascii():
        text = INVISIBLE.sub("", text)
    return text.rstrip()


def _message(text: str) -> str:
    """Return vLLM's message without keys, and without Ray's note that others wrote the same."""
    text = SECRET.sub(r"\1\2***\2", text)
    match = RAY_REPEATED.search(text)
    if match:
        text = text[: match.start()].rstrip()
    return text


def _out_of_json(text: str) -> tuple[str, str | None, str]:
    """Return (the line, its level, its source) of a record in JSON.

    For any other line they are (text, None, "").
    """
    record = _record_of(text)
    if record is None:
        return text, None, ""
    message = _message_of(record)
    if message is None:
        return text, None, ""
    if not {"filename", "lineno"} <= set(record):
        return _visible(message), None, ""
    source = f"{record['filename']}:{record['lineno']}"[:200]
    return _visible(message), _level_of(record), source


def _record_of(text: str) -> dict | None:
    """Return the JSON object in a line, or of which it is one member; None if there is none."""
    if text.endswith(("}", "},", "}]")):
        match = JSON_OBJECT.search(text)
        if match:
            return _json(text[match.start() :].rstrip(",]"))
    if text.endswith(('"', '",')) and JSON_MEMBER.match(text):
        return _json("{" + text.rstrip(",") + "}")
    return None


def _message_of(record: dict) -> str | None:
    """Return the text of a record with vLLM's own words, else that of its likeliest field."""
    first_of_field: dict[str, str] = {}
    for field, text in _texts(record):
        if HEADER.search(text):
            return text
        first_of_field.setdefault(field, text)
    for field in MESSAGE_FIELDS:
        if field in first_of_field:
            return first_of_field[field]
    return None


def _level_of(record: dict) -> str | None:
    """Return the level of a record of Python's own logger: vLLM's level, not the collector's."""
    for name in LEVEL_FIELDS:
        level = record.get(name)
        if level in LEVELS.split("|"):
            return level
    return None


def _texts(record: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (field, text) of a record, also of what it nests: {"jsonPayload": {"message": "…"}}."""
    if isinstance(record, str):
        yield name, record
    elif depth < DEEPEST_RECORD and isinstance(record, dict):
        for field, member in record.items():
            yield from _texts(member, field, depth + 1)
    elif depth < DEEPEST_RECORD and isinstance(record, list):
        for member in record:
            yield from _texts(member, name, depth + 1)


def _json(text: str) -> dict | None:
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, dict):
            return value
    return None


def _process_name(match: re.Match[str]) -> str:
    """Name a process so that ranks differ: Ray's and old workers differ by their pid alone."""
    name = match["name"] or "process"
    if match["rank"]:
        return f"{name}_{match['rank']}"
    if match["ip"]:
        return f"{name} {match['ip']}/{match['pid']}"
    if name in ("RayWorkerWrapper", "process"):
        return f"{name} {match['pid']}"
    return name
