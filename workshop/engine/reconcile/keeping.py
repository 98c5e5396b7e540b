"""Keep what a start of this site measured, without being asked, so that later plans use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile.ending import failure_of, has_started
from workshop.errors import WorkshopError

if TYPE_CHECKING:
    from workshop.engine.reconcile.case import LoggedRun


def keep_start(log: EngineLog) -> Path | None:
    """Keep what the start of a server measured; return the file, or None as `keep_run` does.

    Nothing is kept of a start that ended before it knew its KV cache, or of a card or a model that
    is not known.
    """
    if log.platform == "cpu":
        return None
    # the catalog is imported only in the process of a server on a GPU
    from workshop.engine.reconcile.case import make_case

    try:
        return keep_run(make_case(log, None, None))
    except WorkshopError:
        return None


def keep_run(case: LoggedRun) -> Path | None:
    """Keep what a run measured; return the file, or None.

    Nothing is kept of a run on a CPU, of a start that failed or was cut, or where a fact is missing.
    """
    from workshop.engine.reconcile import learned, recording

    if case.gpu is None or (failure_of(case.log) and not has_started(case.log)):
        return None
    try:
        return learned.keep(recording.kept_start(case))
    except (WorkshopError, OSError):
        return None
