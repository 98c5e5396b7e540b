"""One line of a vLLM log, without what terminals, srun, Ray and containers put around it. Pure.

vLLM writes `LEVEL MM-DD HH:MM:SS [file.py:123] message` (since 0.8; before, `file.py:123] message`), with the
process in front where there are several: `(Worker_TP0 pid=5831) INFO …`. A log has no year.
"""

import re
from dataclasses import dataclass

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# What other programs put in front: srun --label "3: ", docker compose "vllm-1  | ", kubectl --prefix and its time,
# journalctl "Nov 23 05:00:00 host python[123]: ".
RANK_LABEL = re.compile(r"^\s{0,4}(?P<label>\d{1,5}): ?(?=\S|$)")
WRAPPERS = re.compile(
    r"^(?:\[pod/[^\]]+\]\s+|[\w.-]{1,64}\s+\|\s|"
    r"\w{3,5}\.? [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@-]{1,64}\[\d{1,10}\]: |"
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)\s+(?:std(?:out|err) F )?)"
)
# "(Worker_TP0 pid=5831)", Ray's "(RayWorkerWrapper pid=7, ip=10.0.0.2)", 0.8's "(VllmWorker rank=1 pid=7)".
PROCESS = re.compile(
    r"\((?P<name>[A-Za-z_][\w.:-]*)?(?:\(\w+\))?\s?(?:rank=(?P<rank>\d+)\s)?pid=(?P<pid>\d+)"
    r"(?:, ip=(?P<ip>[^)\s]+))?\)[ \t]?"
)
HEADER = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<time>\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? "
    r"\[?(?P<source>[\w.<>/-]+:\d+)\](?: |$)"
)
RAY_REPEATED = re.compile(r"\[repeated \d{1,9}x across cluster\]")
SECRET = re.compile(
    r"""((?:api_key|api-key|hf_token|token)['"]?\s*[=:]\s*\[?)(['"])(?!None)[^'"]{4,}\2"""
)
LINE_BREAK = re.compile(r"[\r\n]")
# A progress bar ends without a line break, so what another process writes next stands on the same line.
AFTER_BAR = re.compile(
    r"(?<=it/s\])(?=\(|(?:INFO|WARNING|ERROR) )|(?<=s/it\])(?=\(|(?:INFO|WARNING|ERROR) )"
)
MAX_LINE_CHARS = 200_000  # a config line has about 6,000; more is no log line, and is cut so that memory stays flat


@dataclass(frozen=True)
class Line:
    text: str
    level: str | None = (
        None  # None: not a line of vLLM's own (a traceback without prefix, uvicorn, NCCL)
    )
    time: str | None = None  # "MM-DD HH:MM:SS"
    source: str = ""
    process: str = ""  # "Worker_TP0", "EngineCore", "3:EngineCore" under srun --label, or ""


def parts(raw: str) -> list[str]:
    """Split what was written after a progress bar from the bar."""
    return AFTER_BAR.split(raw) if "it]" in raw or "it/s]" in raw else [raw]


def parse_line(raw: str) -> Line:
    """Take one line (without its line break) apart; never fails."""
    text = ANSI.sub("", raw[:MAX_LINE_CHARS]).rstrip()
    text = WRAPPERS.sub("", text, count=1)
    label = ""
    if match := RANK_LABEL.match(text):
        label, text = match["label"], text[match.end() :]
    process, begin = "", 0
    # Several processes that write at the same moment leave several prefixes on one line: the last one counts.
    while match := PROCESS.match(text, begin):
        process, begin = _process_name(match), match.end()
    process = f"{label}:{process}" if label else process
    text = SECRET.sub(r"\1\2***\2", text[begin:])
    if match := RAY_REPEATED.search(text):
        text = text[: match.start()].rstrip()
    match = HEADER.match(text)
    if not match:
        return Line(text=text, process=process)
    return Line(text[match.end() :], match["level"], match["time"], match["source"], process)


def _process_name(match: re.Match[str]) -> str:
    """Name a process so that ranks stay apart: Ray's and old workers share one name and differ by pid."""
    name = match["name"] or "process"
    if match["rank"]:
        return f"{name}_{match['rank']}"
    if match["ip"]:
        return f"{name} {match['ip']}/{match['pid']}"
    return (
        f"{name} {match['pid']}"
        if name in ("VllmWorkerProcess", "RayWorkerWrapper", "process")
        else name
    )
