"""Read a log while it is being written: what is worth saying, and how far the start is. Pure."""

import re
from dataclasses import replace

from workshop.engine.log.exceptions import FRAME, REFUSAL, Exceptions, RaisedException
from workshop.engine.log.facts import EngineLog
from workshop.engine.log.failures import (
    CONSEQUENCE,
    LOOKED_AT_CHARS,
    ROOT,
    SYMPTOM,
    UNEXPLAINED,
    Failure,
    diagnose,
)
from workshop.engine.log.lines import (
    LINE_BREAK,
    MAX_LINE_CHARS,
    Line,
    Prefixes,
    parse_line,
    parts,
)
from workshop.engine.log.rules import apply_line

# A start, in its order, and the share of it that is done when the stage begins. The shares are
# those of real starts (8B, 70B and 405B on H200, a tiny model on a CPU); loading a big checkpoint
# takes longer, and says so.
STAGES: dict[str, float] = {
    "starting": 0.0,
    "configuring": 0.08,
    "loading weights": 0.20,
    "compiling": 0.55,
    "profiling": 0.70,
    "capturing graphs": 0.80,
    "starting API server": 0.92,
    "ready": 1.0,
}
ORDER = list(STAGES)
BAR = r":.{0,300}?\| (?P<done>\d{1,7})/(?P<total>\d{1,7}) \["
SHARDS = re.compile(r"(?:Loading|Multi-thread loading) [\w ]{0,80}(?:shards|Streamer|loader)" + BAR)
GRAPHS = re.compile(r"Capturing [\w -]{0,80}CUDA graphs?(?: shapes)?(?: \([^)]{0,200}\))?" + BAR)
# (the stage that begins, what to say, literals of which one must occur); {} is the line's own text
MARKS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("configuring", "reading the arguments", ("vLLM API server version", "non-default args")),
    ("configuring", "{}", ("Resolved architecture",)),
    ("configuring", "starting the engine", ("LLM engine (v",)),
    ("configuring", "connecting the workers", ("rank 0 in world size",)),
    (
        "loading weights",
        "loading the weights",
        ("Starting to load model", "Loading model from scratch"),
    ),
    (
        "loading weights",
        "{}",
        ("Loading weights took", "Model loading took", "Loading model weights took"),
    ),
    ("compiling", "compiling the model", ("for vLLM's torch.compile", "Cache the graph of")),
    ("compiling", "{}", ("Compiling a graph",)),
    ("profiling", "measuring the memory that a full batch needs", ("torch.compile took",)),
    (
        "profiling",
        "{}",
        ("Initial profiling", "Available KV cache memory", "KV cache size:"),
    ),
    ("profiling", "{}", ("Profiling CUDA graph memory",)),
    (
        "capturing graphs",
        "capturing CUDA graphs",
        ("Capturing the model for CUDA graphs", "Registering"),
    ),
    ("capturing graphs", "{}", ("Graph capturing finished",)),
    ("starting API server", "the engine is ready, starting the API server", ("init engine",)),
    ("starting API server", "starting the API server", ("Starting vLLM",)),
    ("ready", "ready", ("Application startup complete",)),
)
SHUTDOWN = re.compile(
    r"\[shutdown\] API server: shutdown triggered|^INFO: +Shutting down|Shutting down FastAPI|"
    r"trigger received signal=SIG"
)
USAGE = re.compile(r"\{chat,complete,serve,")  # argparse's usage line of vLLM's command
SERVER = re.compile(
    r"vLLM API server version|'model_tag'|Starting vLLM (?:API )?server|\bvllm serve\b"
)
LINES_OF_VLLM = 2  # with facts; fewer may be another program's
HARMLESS = ("DEBUG", "INFO", "WARNING")
# a server that answers has survived what its engine said before
ALIVE = re.compile(r"Avg prompt throughput|\" 200 OK")
RANKS_WAIT = "No available shared memory broadcast block"
STANDS_STILL = "generation throughput: 0.0 tokens/s"
REFUSED_ARGUMENT = re.compile(r"""^[^'"(]{1,120}: error: """)  # argparse's words


class Reader:
    """Reads a log piece by piece, cut anywhere. The result is the same as from the whole.

    stage: one of STAGES; fraction: 0 to 1, never falls; message: a short line for people; error:
    None or the first real Failure; log: what was read so far.
    """

    def __init__(self) -> None:
        self.log = EngineLog()
        self.stage = "starting"
        self.fraction = 0.0
        self.message = "starting"
        self.recognised = False
        self.mentions_vllm = False
        self.lines_with_facts = 0
        self.first_line = ""
        self._rest = ""
        self._stopping = False
        self._engine_ended = False
        self._minutes_waited = 0  # for a rank that does not answer
        self._exceptions = Exceptions()
        # who wrote log.error, if it is a root error
        self._root_writer: tuple[str, str] | None = None
        # of a running server: what will have ended it, if it ends
        self._suspect: Failure | None = None
        self._prefixes = Prefixes()

    @property
    def error(self) -> Failure | None:
        """The first real error, as far as it is known yet: a later line may explain it better."""
        return self.log.error

    @property
    def ready(self) -> bool:
        return self.log.ready

    def feed(self, text: str) -> list[str]:
        """Read more of the log, and return what is worth saying.

        These are lines with facts, warnings, the end of the start, and why it failed. Progress bars
        (carriage returns) are read as they come.
        """
        *lines, self._rest = LINE_BREAK.split(self._rest + text)
        events = []
        for raw in lines:
            if not raw.strip():
                continue
            for part in parts(raw):
                event = self._line(parse_line(part, self._prefixes))
                if event:
                    events.append(event)
        if len(self._rest) > MAX_LINE_CHARS:
            self._rest = self._rest[:MAX_LINE_CHARS]
        self.read_bar(self._rest)  # a bar ends its line only when the next one is drawn
        return events

    def close(self) -> list[str]:
        """Read the last line, which has no line break: the log has ended."""
        if not self._rest:
            return []
        return self.feed("\n")

    def _line(self, line: Line) -> str:
        """Read one line; return what is worth saying of it, or an empty text."""
        self.first_line = self.first_line or line.text
        stage = self.stage
        fraction = self.fraction
        error = self.log.error
        running = self.running
        has_facts = apply_line(self.log, line)
        self._recognise(line, has_facts)
        if SHUTDOWN.search(line.text):
            self._stopping = True
        self._wait(line.text, has_facts)
        self._mark(line.text)
        self.read_bar(line.text)
        self._failure(line)
        if self.running and not running and self.log.error and not self._engine_ended:
            # It did not keep the engine from starting: a look-up that was tried again.
            self.log.notes.append(f"{self.log.error.what} The start went on all the same.")
            self.log.error = None
        if self.log.error not in (None, error):
            return self.log.error.what
        if self.stage != stage:
            worth_saying = self.stage == "ready"
        elif self.fraction == fraction:
            worth_saying = has_facts or line.level == "WARNING"
        else:
            worth_saying = False
        return line.text if worth_saying else ""

    def _wait(self, text: str, has_facts: bool) -> None:
        """Note that ranks wait for one that does not answer; one that runs may compile a minute."""
        if RANKS_WAIT in text:
            self._minutes_waited += 1
            if self._minutes_waited > 1 or not self.running:
                self.log.waits = diagnose(text)
        elif self._stopping or (has_facts and STANDS_STILL not in text):
            self._minutes_waited = 0
            self.log.waits = None

    def _recognise(self, line: Line, has_facts: bool) -> None:
        """Note what a line shows of the log as a whole: that it is vLLM's, and a server's."""
        if not self.mentions_vllm:
            self.mentions_vllm = "vllm" in line.text.lower() or bool(USAGE.search(line.text))
        if line.level is not None and ".py:" in line.source:
            self.recognised = True
        self.lines_with_facts += has_facts
        # Where a terminal cut off the words of vLLM's logger, two lines must have facts.
        is_vllms = self.mentions_vllm or self.lines_with_facts >= LINES_OF_VLLM
        if has_facts and is_vllms and self.log.says_what_fits:
            self.recognised = True
        if not self.log.server:
            of_server = line.process.endswith("APIServer")
            self.log.server = of_server or bool(SERVER.search(line.text))

    @property
    def running(self) -> bool:
        """True if the start is over: the server is up or, offline, the engine is."""
        return self.log.ready or (self.log.engine_ready and not self.log.server)

    def _mark(self, text: str) -> None:
        for stage, message, literals in MARKS:
            if any(literal in text for literal in literals):
                return self._advance(stage, 0.0, message.replace("{}", text[:120]))

    def read_bar(self, text: str) -> None:
        """Read a progress bar, also one that is still being drawn."""
        if "it/s]" not in text and "s/it]" not in text and "?, ?" not in text:
            return
        shards = SHARDS.search(text)
        if shards:
            done = int(shards["done"])
            total = int(shards["total"])
            self.log.shards_loaded = max(self.log.shards_loaded, done)
            self.log.shards_total = max(self.log.shards_total, total)
            message = f"loading weights: {done} of {total} shards"
            self._advance("loading weights", done / max(1, total), message)
            return
        graphs = GRAPHS.search(text)
        if graphs:
            done = int(graphs["done"])
            total = int(graphs["total"])
            message = f"capturing CUDA graphs: {done} of {total}"
            self._advance("capturing graphs", done / max(1, total), message)

    def _advance(self, stage: str, share: float, message: str) -> None:
        """Move on, never back: several ranks say the same at different moments.

        Args:
            share: how much of the stage is done, from 0.
        """
        place = ORDER.index(stage)
        if place < ORDER.index(self.stage):
            return
        begin = STAGES[stage]
        end = 1.0
        if place + 1 < len(ORDER):
            end = STAGES[ORDER[place + 1]]
        fraction = begin + (end - begin) * min(1.0, share)
        if stage != self.stage or fraction >= self.fraction:
            self.message = message
        self.stage = stage
        self.fraction = max(self.fraction, fraction)

    def _failure(self, line: Line) -> None:
        """Keep the error that explains most; of those that explain as much, the first."""
        quiet = line.level in HARMLESS and "exited unexpectedly" not in line.text
        quiet = quiet or line.text.startswith("INFO: ")
        if ALIVE.search(line.text):
            self._suspect = None
        if quiet or (self._stopping and self.log.error is None):
            return
        line = replace(line, text=line.text[:LOOKED_AT_CHARS])
        exception = self._exceptions.take(line)
        # a traceback's frames quote source code, error messages and all
        if FRAME.match(line.text) and not REFUSED_ARGUMENT.match(line.text):
            return
        failure = diagnose(line.text)
        if exception:
            failure = _of_exception(exception, failure, line.text)
        if failure is None:
            return
        if failure.fatal and failure.rank == SYMPTOM:
            self._engine_ended = True
        # A server that runs answers bad requests with errors as well: only some end it.
        if self.running and not failure.fatal:
            if failure.rank >= ROOT and exception and exception.process:
                self._suspect = self._suspect or failure
            return
        if self.running and self._suspect and self._suspect.rank > failure.rank:
            failure = self._suspect
        error = self.log.error
        # of one process the exception that ended it, not one that it survived
        is_later = bool(exception and exception.writer == self._root_writer)
        if (
            error is None
            or failure.rank > error.rank
            or (is_later and failure.rank == ROOT == error.rank)
        ):
            self.log.error = failure
            self._root_writer = exception.writer if exception and exception.is_root else None


def _of_exception(exception: RaisedException, explained: Failure | None, line: str) -> Failure:
    """Return the failure that an exception is; `explained`: what the table says of its line."""
    rank = UNEXPLAINED
    if exception.is_root:
        rank = ROOT
    elif exception.is_consequence:
        rank = CONSEQUENCE
    if explained:
        if exception.is_root and explained.rank > SYMPTOM:
            return replace(explained, rank=max(rank, explained.rank))
        return explained
    who = "vLLM"
    if exception.process:
        who = f"vLLM's {exception.process}"
    what = f"{who} stopped with {exception.type}"
    remedy = "The workshop does not know its cause: search vLLM's issues for this message."
    key = "unexplained"
    if exception.type == REFUSAL:
        key = "value-refused"
        what = "vLLM refuses this configuration"
        remedy = (
            "Change what the message names, a flag or a field of the model's config.json; "
            "`workshop serve --help=all` lists what each flag takes."
        )
    if exception.text:
        what += f": {exception.text[:300]}"
    if exception.place:
        remedy = f"It was raised in {exception.place}. {remedy}"
    return Failure(what=what, remedy=remedy, line=line[:500], key=key, rank=rank)
