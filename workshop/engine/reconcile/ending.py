"""The end of a logged run: a failure, a hang, a cut, or none of these. Pure."""

from workshop.engine.log.facts import EngineLog
from workshop.errors import WorkshopError

END_OF_LOG = "The log ends in the middle of a start."
# failures that advice about the KV cache is an answer to
ABOUT_KV_CACHE = {"kv-cache-too-small", "no-memory-for-kv-cache", "too-few-mamba-blocks"}


def has_started(log: EngineLog) -> bool:
    """Return True if the start is over: the server is up or, without a server, the engine is."""
    return log.ready or (log.engine_ready and not log.server)


def failure_of(log: EngineLog) -> WorkshopError | None:
    """Return what went wrong, as an error; None for a run that did not fail and sized its KV cache."""
    who = "server" if log.server else "engine"
    started = has_started(log)
    if log.error:
        happened = f"The {who} started, and ended later." if started else "The start failed."
        return WorkshopError(f"{happened} {log.error.what}", log.error.remedy)
    if log.waits:
        happened = f"The {who} started, and hangs." if started else END_OF_LOG
        return WorkshopError(f"{happened} {log.waits.what}", log.waits.remedy)
    if not started and log.kv_cache_tokens is None and log.available_kv_gib is None:
        return WorkshopError(
            f"{END_OF_LOG} The engine has not said yet what fits.",
            "Look whether its process still runs, or give the log of a start that got as far as "
            "'Available KV cache memory'.",
        )
    return None
