"""Find over how many ranks a logged run was split: by its arguments, or by its ranks' names."""

import re
from typing import Any

from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile.model import contradiction
from workshop.errors import BadInput

MOST_RANKS = 100_000  # of one replica; more was not printed by an engine


def parallel_sizes(
    log: EngineLog, given_tp: int | None, given_pp: int | None, assumed: list[str]
) -> dict[str, Any]:
    """Return plan()'s keywords for the split: by the log, by its ranks, by the arguments, or 1.

    Args:
        given_tp: ranks of a stage, as the user says.
        given_pp: stages, as the user says.

    Raises BadInput: the user contradicts the log.
    """
    logged_tp = log.tensor_parallel_size
    logged_pp = log.pipeline_parallel_size
    shown_by = "log"
    if logged_tp is None and logged_pp is None and not (log.args or log.config):
        logged_tp, logged_pp = _sizes_of_ranks(log)
        shown_by = "ranks"
    _check_size("tensor", logged_tp, given_tp, shown_by)
    _check_size("pipeline", logged_pp, given_pp, shown_by)
    tp = logged_tp or given_tp
    pp = logged_pp or given_pp
    if shown_by == "ranks" and logged_tp and not (given_tp and given_pp):
        assumed.append(
            f"The log's ranks show tensor parallel {tp}, pipeline parallel {pp or 1}; "
            "the log does not name its arguments."
        )
    elif shown_by == "ranks" and tp is None and pp is None:
        assumed.append(
            "The log does not say over how many GPUs the model is split; one was assumed. "
            "Otherwise add --tensor-parallel-size and --pipeline-parallel-size."
        )
    return {
        "tensor_parallel_size": tp or 1,
        "pipeline_parallel_size": pp or 1,
        "data_parallel_size": log.data_parallel_size or _replicas_of_ranks(log),
        "enable_expert_parallel": _has_expert_ranks(log),
    }


def _check_size(kind: str, logged: int | None, size: int | None, shown_by: str) -> None:
    if size is not None and size < 1:
        raise BadInput(f"--{kind}-parallel-size {size} is not a size.", "Give a number from 1.")
    if logged and size and logged != size and (shown_by == "log" or logged > size):
        flag = f"--{kind}-parallel-size"
        raise contradiction(flag, f"is of {flag} {logged}", str(size))


RANK_NAME = re.compile(r"(?<![A-Za-z])(?P<kind>DP|PP|TP|EP)(?P<rank>\d{1,4})(?!\d)")


def _highest_ranks(log: EngineLog) -> dict[str, int]:
    """Return the highest rank of each kind in the names of processes: {"TP": 3} for Worker_TP3."""
    highest: dict[str, int] = {}
    for name in log.ranks:
        for match in RANK_NAME.finditer(name.replace("_", " ")):
            highest[match["kind"]] = max(int(match["rank"]), highest.get(match["kind"], 0))
    return highest


def _sizes_of_ranks(log: EngineLog) -> tuple[int | None, int | None]:
    """Return the tensor and pipeline parallel sizes that the names and the number of ranks show."""
    highest = _highest_ranks(log)
    tp = max(highest.get("TP", 0), round(log.profile.get("highest_tensor_rank", 0))) + 1
    pp = max(highest.get("PP", 0), round(log.profile.get("highest_pipeline_rank", 0))) + 1
    if log.world_size and log.world_size <= MOST_RANKS:
        if log.world_size % pp == 0 and log.world_size > tp * pp:
            tp = log.world_size // pp
        return tp, pp
    # Ray's workers differ by their process alone; a driver may be the process without a name
    workers = sum(name.startswith("RayWorkerWrapper") for name in log.ranks)
    if tp == pp == 1 and workers:
        tp = workers + ("" in log.ranks)
    if tp * pp > 1:
        return tp, pp
    return None, None


def _replicas_of_ranks(log: EngineLog) -> int | None:
    """Return the data parallel size that the ranks' names show; None for one replica."""
    highest = _highest_ranks(log).get("DP", 0)
    if not highest:
        return None
    return highest + 1


def _has_expert_ranks(log: EngineLog) -> bool:
    """Return True if the ranks share the experts, by an argument or a worker's name (`…_EP0`)."""
    if log.enable_expert_parallel is not None:
        return log.enable_expert_parallel
    return "EP" in _highest_ranks(log)
