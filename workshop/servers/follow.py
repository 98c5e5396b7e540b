"""Read an engine's log while it grows, with its progress bars; of a SLURM job its two files together."""

import re
from pathlib import Path

from workshop.engine.log import Reader
from workshop.engine.log.lines import MAX_LINE_CHARS
from workshop.servers.progress import TaskProgress

OURS = r"^(?:\s*\d+: )?\[workshop\] "  # srun --label puts the task's number in front
OWN = re.compile(OURS + r"(?P<kind>refused|remedy|ended): (?P<text>.*)$")
NODE_ENDED = re.compile(
    OURS + r"(?P<node>\S+), node \d+: vLLM ended by itself with exit code (?P<code>\d+)"
)
# From where on words count: a job's start, or its way back into the queue (queue.waits_again),
# which is no end.
START = re.compile(
    r"^\[workshop\] (?:start (\d+) of job |ended: its SLURM job \S+ waits in the queue)",
    re.MULTILINE,
)


class Follower:
    """One Reader over several files; call `read` as often as you like.

    A job that went back into the queue writes to the same files: what stands before its last start
    does not count. refusal(): our own (sentence, remedy), if a part of the job refused to go on;
    ended: which node's part ended first.
    """

    def __init__(self, paths: list[Path], *, own: bool = True):
        self.reader = Reader()
        self.ended = ""
        self.offset = dict.fromkeys(paths, 0)
        self._rest = dict.fromkeys(paths, b"")
        self._own = own  # whether our last word in the log ("ended") counts as known
        self._own_lines: dict[str, str] = {}  # by kind: refused, remedy, ended
        self._start = 1

    def read(self) -> list[str]:
        """Read the new lines of all files, whole ones only; return what is worth saying."""
        messages: list[str] = []
        for path in self.offset:
            data = self._rest[path] + self._new(path)
            cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            whole = data[:cut].decode("utf-8", errors="replace")
            self._rest[path] = data[cut:][:MAX_LINE_CHARS]
            starts = list(START.finditer(whole))
            if starts:
                last_start = starts[-1]
                whole = whole[last_start.end() :]
                if self._is_new_start(last_start[1]):
                    messages = []
            for line in whole.splitlines():
                self._take_own_line(line)
            if whole:
                messages += self.reader.feed(whole)
            # a bar ends its line only when the next one is drawn
            self.reader.read_bar(self._rest[path].decode("utf-8", errors="replace"))
        return messages

    def _is_new_start(self, number: str | None) -> bool:
        """Forget what came before a new start and return True; False if that start is known.

        number: of the start; None: the job went back into the queue.
        """
        if number and int(number) <= self._start:
            return False
        if number:
            self._start = int(number)
        self.ended = ""
        self._own_lines = {}
        self.reader.close()
        self.reader = Reader()
        return True

    def _take_own_line(self, line: str) -> None:
        """Note what a line of our own says of an end."""
        match = OWN.match(line)
        if match:
            if self._own or match["kind"] != "ended":
                self._own_lines.setdefault(match["kind"], match["text"].strip())
            return
        match = NODE_ENDED.match(line)
        if match and not self.ended:
            self.ended = f"node {match['node']} first, exit code {match['code']}"

    def _new(self, path: Path) -> bytes:
        try:
            if not path.is_file():  # a pipe would wait for somebody to write
                return b""
            with path.open("rb") as file:
                file.seek(self.offset[path])
                data = file.read()
        except OSError:  # not there yet, or not to be read by us
            return b""
        self.offset[path] += len(data)
        return data

    @property
    def progress(self) -> TaskProgress:
        """Return how far the start is."""
        return TaskProgress(self.reader.fraction, self.reader.message)

    def refusal(self) -> tuple[str, str] | None:
        """Return our own (sentence, remedy) for an end, if there is one."""
        what = self._own_lines.get("refused") or self._own_lines.get("ended")
        if not what:
            return None
        return what, self._own_lines.get("remedy", "")
