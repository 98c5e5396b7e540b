"""Find the formulas for the release that a log is of; refuse a log of a release without any."""

from dataclasses import replace

from inference_planner.releases import versions

from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile.model import LONGEST_NAME, contradiction
from workshop.errors import BadInput


def with_version(log: EngineLog, version: str) -> EngineLog:
    """Return the log with a version that it does not say itself.

    Raises BadInput: this is no release, one before 0.10, or the log contradicts it.
    """
    name = versions.plain(version)
    flag = "--vllm-version"
    if not versions.RELEASE.fullmatch(name):
        raise BadInput(
            f"{flag} {version[:LONGEST_NAME]} is no release of vLLM.", "Give one such as 0.32.0."
        )
    if log.version is not None:
        if not versions.names_release(name, log.version):
            raise contradiction(flag, f"is of vLLM {log.version[:LONGEST_NAME]}", name)
        return log
    newest = log.newest_release
    if newest is not None and versions.is_later_minor(name, newest):
        raise BadInput(
            f"Lines of the log are of vLLM {newest} or before, not {name}.",
            f"Leave {flag} out, or give the release of the run.",
        )
    log = replace(log, version=name)
    check_release(log)
    return log


def release_of(log: EngineLog) -> str | None:
    """Return the log's version, or the newest release that prints such lines; None if unknown."""
    return log.version or log.newest_release


def check_release(log: EngineLog) -> None:
    """Raise BadInput for a log of the V0 engine, or of a release before 0.10: it has no formulas."""
    release = release_of(log)
    if log.engine != "V0" and (release is None or not versions.is_too_old(release)):
        return
    what = "vLLM's V0 engine"
    if log.version is not None:
        what = f"vLLM {log.version[:LONGEST_NAME]}"
        if log.engine == "V0":
            what += " with the V0 engine"
    elif log.engine != "V0":
        what = f"vLLM {release} or before, or of its V0 engine"
    message = (
        f"The log is of {what}: only logs of vLLM {versions.OLDEST} and later, with the V1 engine, "
        "can be compared."
    )
    remedy = "Start the model with such a release, and give the log of that start."
    if log.error is not None and not log.ready:
        message += f" The start failed. {log.error.what}"
        remedy = log.error.remedy
    raise BadInput(message, remedy)


def nearest_version(log: EngineLog, assumed: list[str]) -> str:
    """Return the version with formulas that is nearest to the log's, and say what was assumed."""
    release = release_of(log)
    if release is None:
        assumed.append(
            f"The log does not say its version of vLLM; {versions.DEFAULT} was assumed. "
            "Otherwise add --vllm-version."
        )
        return versions.DEFAULT
    if log.version is None:
        assumed.append(
            "The log does not say its version of vLLM; the form of its lines is that of "
            f"{release} or before."
        )
    if versions.is_outside(release):
        name = release[:LONGEST_NAME]
        if log.version is None:
            name += " or before"
        oldest = versions.nearest_formulas(release)
        assumed.append(
            f"vLLM {name} is outside of the releases that the formulas are of: "
            f"those of {oldest} were taken, and the predicted memory may be far off."
        )
        return versions.name_for_plan(release)
    nearest = versions.nearest(release)
    if not versions.has_own_formulas(release):
        assumed.append(
            f"The log is of vLLM {release}; the formulas are those of {nearest}, the nearest known."
        )
    return nearest
