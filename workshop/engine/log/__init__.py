"""Read what a vLLM log says: version, arguments, memory, KV cache, speed, the first real error.

Pure: the standard library only. `read(path)` reads a whole log; `Reader` one that is still being
written. Formats: vLLM 0.10 to 0.33, GPU and CPU, several ranks, whatever stands in front of its
lines.
"""

import codecs
import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from workshop.engine.log.facts import EngineLog, RankFacts, Throughput
from workshop.engine.log.failures import Failure
from workshop.engine.log.reader import STAGES, Reader
from workshop.errors import BadInput
from workshop.files import open_regular

__all__ = [
    "STAGES",
    "EngineLog",
    "Failure",
    "RankFacts",
    "Reader",
    "Throughput",
    "parse",
    "read",
    "text_of",
]

CHUNK_CHARS = 1 << 20
EXPECTED = (
    "A vLLM log has lines such as `INFO 11-20 10:02:25 [model.py:733] Resolved architecture: …`."
)


def read(path: str | Path) -> EngineLog:
    """Return the facts of a vLLM log: version, arguments, memory, KV cache, first real error.

    Compressed files are not read.

    >>> from pathlib import Path
    >>> import workshop
    >>> log = workshop.read_log(Path(workshop.__file__).parent / "data/logs/llama-3.1-8b_tp1_h200.log")
    >>> log.kv_cache_tokens, log.max_concurrency
    (914304, 6.98)

    Raises BadInput: there is no such file, it is a folder, it is not text, or it is not a vLLM log.
    """
    path = Path(path)
    reader = Reader()
    for chunk in _chunks(path):
        reader.feed(chunk)
    return _finish(reader, str(path))


def text_of(path: str | Path) -> str:
    """Return the text of a log. Raises BadInput, as `read` does."""
    path = Path(path)
    text = "".join(_chunks(path))
    parse(text, str(path))
    return text


def _chunks(path: Path) -> Iterator[str]:
    """Yield the text of a log in pieces. Raises BadInput for what is no text file."""
    opened = open_regular(path, "Give the file that vLLM's output went to.")
    try:
        file = io.TextIOWrapper(opened, encoding=_encoding(opened), errors="replace", newline="")
        with file:
            chunk = file.read(CHUNK_CHARS)
            while chunk:
                if "\0" in chunk:
                    raise BadInput(f"{path} is not a text file.", EXPECTED)
                yield chunk
                chunk = file.read(CHUNK_CHARS)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}.", "Give a file that you may read."
        ) from error


def _encoding(file: IO[bytes]) -> str:
    """Return the encoding of a log: PowerShell's `>` writes UTF-16, everything else UTF-8."""
    begin = file.read(2)
    file.seek(0)
    if begin in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    return "utf-8"


def parse(text: str, name: str = "the text") -> EngineLog:
    """Like `read`, for the text of a log; `name` stands in the error message."""
    reader = Reader()
    reader.feed(text)
    return _finish(reader, name)


def _finish(reader: Reader, name: str) -> EngineLog:
    reader.close()
    if not reader.recognised and not (reader.log.error and reader.mentions_vllm):
        content = "it is empty"
        if reader.first_line:
            content = f"its first line is {reader.first_line[:80]!r}"
        raise BadInput(f"{name} is not a vLLM log: {content}.", EXPECTED)
    return reader.log
