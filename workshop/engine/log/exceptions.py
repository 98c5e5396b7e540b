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
EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit))(?:: (?P<text>.*))?$"
)
# at the end of a traceback any name is an exception's (queue.Empty, zmq.error.Again), but a cut
# line's rest is none
RAISED = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)+[A-Z]\w*|[A-Z]\w*[a-z]\w*(?=: ))(?:: (?P<text>.*))?$"
)
# pydantic puts what is wrong on the next lines: "1 validation error for SpeculativeConfig", a
# setting's name if it concerns a single one, then "  Value error, …" or "  … [type=…, …"
VALIDATION = re.compile(
    r"^\S*ValidationError: \d+ validation error|"
    r": error: argument (?P<flag>[^:]{1,80}): \d+ validation errors? for \w+$"
)
SETTING = re.compile(r"^[A-Za-z_][\w.]{0,80}$")
REFUSED = re.compile(
    r"^  (?:(?:Value error|Assertion failed), (?P<why>.+?)|(?P<text>\S.*?)(?= \[type=\w+, input_value=))"
    r"(?: \[type=\w+, input_value=(?P<value>[^(){}\[\]]{1,40}, )?.*)?$"
)
REFUSAL = "refusal"  # the type of such an exception
PLACE = re.compile(r'^  File "(?P<path>[^"]{1,500})", line (?P<line>\d+)')
IN_PACKAGE = re.compile(r".*[/-]packages/(?P<path>.+)|.*/(?P<vllms>vllm\w{0,40}/.+)")
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
    and follows from no other's end; place: the file and line in which it was raised, if that is one
    of vLLM or another package.
    """

    type: str
    text: str
    process: str
    writer: tuple[str, str]
    is_root: bool
    is_consequence: bool
    place: str = ""


class Exceptions:
    """Finds the exceptions of a log, line by line; each process has its own lines."""

    def __init__(self) -> None:
        self._in_traceback: set[str] = set()
        self._code: dict[str, str] = {}  # the last line of code in a process's traceback
        self._places: dict[str, list[str]] = {}  # the files of its traceback
        self._validates: dict[str, str] = {}  # the flag or setting, if known, that is refused
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
            self._places.pop(source, None)
            return None
        refused = REFUSED.match(text)
        if refused:
            return self._refusal(source, refused)
        if source in self._validates and SETTING.match(text):
            self._validates[source] = f"{self._validates[source]} {text}".strip()
            return None
        if FRAME.match(text):
            place = _place(text)
            if place:
                self._places.setdefault(source, []).append(place)
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
        validation = VALIDATION.search(text)
        if validation:
            self._validates[source] = validation["flag"] or ""
            return None
        if not match:
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
            place=_where(self._places.pop(source, [])),
        )

    def _refusal(self, source: str, refused: re.Match[str]) -> RaisedException:
        """Return what pydantic says of a start's configuration, with a value alone if it is short."""
        self._in_traceback.discard(source)
        self._places.pop(source, None)
        setting = self._validates.pop(source, "")
        text = refused["why"] or refused["text"]
        if setting:
            text = f"{setting}: {text}"
        if refused["value"]:
            text += f" (it is {refused['value'].rstrip(', ')})"
        return RaisedException(REFUSAL, text, "", (source, ""), False, False)


def _place(text: str) -> str:
    """Return the file and line of a traceback's frame within its package; "" outside of one."""
    frame = PLACE.match(text)
    package = frame and IN_PACKAGE.match(frame["path"])
    if not frame or not package:
        return ""
    return f"{package['path'] or package['vllms']}:{frame['line']}"


def _where(places: list[str]) -> str:
    """Return the last place of a traceback, with vLLM's own that led there."""
    if not places:
        return ""
    of_vllm = [place for place in places if place.startswith("vllm")]
    if not of_vllm or of_vllm[-1] == places[-1]:
        return places[-1]
    return f"{places[-1]}, called from {of_vllm[-1]}"
