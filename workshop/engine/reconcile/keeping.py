"""Keep what a start of this site measured, without being asked, so that later plans use it."""

from pathlib import Path
from typing import Any

from workshop.engine.log.facts import EngineLog
from workshop.errors import WorkshopError


def keep_start(
    log: EngineLog, model: str | None = None, gpu: str | None = None, **of_the_run: Any
) -> Path | None:
    """Keep what a start measured; return the file, or None where nothing can be kept.

    Nothing is kept of a CPU, of a start that ended before it knew its KV cache, or of a card or a
    model that is not known.

    Args:
        of_the_run: what the log does not say of the run, as for `make_case`.
    """
    if log.platform == "cpu":
        return None
    # the catalog is imported only in the process of a server on a GPU
    from workshop.engine.reconcile import learned, recording
    from workshop.engine.reconcile.case import make_case

    try:
        return learned.keep(recording.kept_start(make_case(log, model, gpu, **of_the_run)))
    except (WorkshopError, OSError):
        return None
