"""`--trace FILE`: what makes an engine write a trace."""

import os
from pathlib import Path

from workshop.engine import trace_writer
from workshop.errors import BadInput


def flags_and_environment(file: str | Path, given: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return vLLM's flags and variables for a trace in `file`, which is made now, and empty."""
    if "scheduler-cls" in given:
        raise BadInput("--trace and --scheduler-cls each bring a scheduler.", "Give one of the two.")
    try:
        path = Path(file).expanduser().absolute()
        free = not path.is_file() or path.open("rb").read(8) in (b"", b'{"step":')
        if free:
            os.close(trace_writer.open_private(path))
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"No trace can be written to {file}: {why}.", "Name a file.") from None
    if not free:
        raise BadInput(f"{path} is there already, and is no trace.", "Give the trace another name.")
    scheduler = f"{trace_writer.__name__}.{trace_writer.traced.__name__}"
    return ["--scheduler-cls", scheduler], {trace_writer.FILE_VARIABLE: str(path)}
