"""The exceptions of a log: which process raised one, and whether it follows from another's end. Pure."""

import re
from dataclasses import dataclass

from workshop.engine.log.lines import Line

TRACEBACK = "Traceback (most recent call last):"
# multiprocessing's words in front of the traceback of a process that it started
PROCESS = re.compile(r"^Process (?P<name>[\w-]{1,80}):$")
RANK_LABEL = re.compile(r"^\d{1,5}:")  # of srun
ENGINE = re.compile(r"Worker|Engine|SpawnProcess|ForkProcess")
FRAME = re.compile(r'^ {2}File "|^ {4,}')
MARKS = re.compile(r"^[ ~^]+$")  # under a line of code
# pydantic puts what is wrong on the next line: "1 validation error for ModelConfig", then
# "  Value error, …"
EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)|  Value error)"
    r"(?:[:,] (?P<text>.*))?$"
)
# at the end of a traceback any name is an exception's (queue.Empty, zmq.error.Again), but a cut
# line's rest is none
RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*[a-z]\w*(?=: ))(?:: (?P<text>.*))?$"
)
VALIDATION = re.compile(r"^\S*ValidationError: \d+ validation error")
# what processes say whose peer has ended, or that are told to end
CONSEQUENCE = re.compile(
    r"EngineDead|[Ee]ngine ?[Cc]ore|WorkerProc|Worker failed|Executor failed|[Cc]ancelled|"
    r"[Cc]onnection (?:was )?(?:reset|closed|aborted|refused)|Connection\w+Error|BrokenPipe|"
    r"EOFError|IncompleteRead|Actor\w*(?:Died|Unavailable)|died|shut ?down|NCCL|nccl|Gloo|"
    r"ProcessGroup|TCPStore|Dist(?:Backend|Network|Store)Error|zmq\.error"
)
TOLD_TO_END = ("KeyboardInterrupt", "SystemExit")
# after these words of its own, a process writes the traceback that ends it
LAST_WORDS = re.compile(r"failed to start|encountered a fatal error")


@dataclass(frozen=True)
class RaisedException:
    """An exception in a log.

    process: "Worker_TP0", or "" if it is not known to be one of the engine's; writer: the same with
    srun's label. is_root: it is the first one of a process of the engine, or the one that ended it,
    and follows from no other's end.
    """

    type: str
    text: str
    process: str
    writer: tuple[str, str]
    is_root: bool
    is_consequence: bool


class Exceptions:
    """Finds the exceptions of a log, line by line; each process has its own lines."""

    def __init__(self) -> None:
        self._in_traceback: set[str] = set()
        self._code: dict[str, str] = {}  # the last line of code in a process's traceback
        self._started: dict[str, str] = {}  # who wrote a traceback without a prefix
        self._have_raised: set[tuple[str, str]] = set()

    def take(self, line: Line) -> RaisedException | None:
        """Return the exception in a line that is an error or has no level."""
        source = line.process
        text = line.text
        started = PROCESS.match(text)
        if started:
            self._started[source] = started["name"]
        if text.endswith(TRACEBACK):
            self._in_traceback.add(source)
            self._code.pop(source, None)
            return None
        if FRAME.match(text):
            if text.startswith("    ") and not MARKS.match(text):
                self._code[source] = text.strip()
            return None
        process = RANK_LABEL.sub("", source)
        if not process and source in self._in_traceback:
            process = self._started.get(source, "")
        writer = (source, process)
        if LAST_WORDS.search(text):
            self._have_raised.discard(writer)
        match = EXCEPTION.match(text)
        if not match and source in self._in_traceback:
            match = RAISED.match(text)
        if not match or VALIDATION.match(text):
            return None
        self._in_traceback.discard(source)
        self._started.pop(source, None)
        is_consequence = bool(CONSEQUENCE.search(text))
        is_first = writer not in self._have_raised
        is_engines = bool(ENGINE.search(process))
        if is_engines:
            self._have_raised.add(writer)
        if match["type"].endswith(TOLD_TO_END):
            return None
        return RaisedException(
            type=match["type"].strip(),
            text=(match["text"] or self._code.get(source, "")).strip(),
            process=process if is_engines else "",
            writer=writer,
            is_root=is_engines and is_first and not is_consequence,
            is_consequence=is_consequence,
        )
