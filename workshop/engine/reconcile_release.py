"""Find the formulas for the release that a log is of, and say where it has none."""

from dataclasses import replace

from inference_planner.catalog import ModelConfig, families
from inference_planner.releases import versions

from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile_model import LONGEST_NAME
from workshop.errors import BadInput

WHOLE_PROMPTS_UP_TO = 32768  # tokens of max_model_len, under the V0 engine
SEQS_OF_V0 = 256  # max_num_seqs; vllm/config.py of 0.6 and 0.7
# max_num_batched_tokens of a log that does not say it: a CPU's, and a small GPU's
SMALLEST_DEFAULT_BATCH = 2048


def with_version(log: EngineLog, version: str) -> EngineLog:
    """Return the log with a version that it does not say itself.

    Raises BadInput: this is no release, or the log contradicts it.
    """
    name = versions.plain(version)
    flag = "--vllm-version"
    if not versions.RELEASE.fullmatch(name):
        raise BadInput(
            f"{flag} {version[:LONGEST_NAME]} is no release of vLLM.", "Give one such as 0.32.0."
        )
    if log.version is not None:
        if not versions.names_release(name, log.version):
            raise BadInput(
                f"The log is of vLLM {log.version[:LONGEST_NAME]}, not {name}.",
                f"Leave {flag} out, or give the log's.",
            )
        return log
    newest = log.newest_release
    if newest is not None and versions.is_later_minor(name, newest):
        raise BadInput(
            f"Lines of the log are of vLLM {newest} or before, not {name}.",
            f"Leave {flag} out, or give the release of the run.",
        )
    if log.engine == "V0" and not versions.row_of(name).v0_engine:
        raise BadInput(
            f"The log is of the V0 engine, which ended before vLLM {versions.ENDS_V0}, "
            f"not of {name}.",
            f"Leave {flag} out, or give the release of the run.",
        )
    return replace(log, version=name)


def release_of(log: EngineLog) -> str | None:
    """Return the log's version, or the newest release that prints such lines; None if unknown."""
    return log.version or log.newest_release


def batch_of_v0(log: EngineLog, model: ModelConfig) -> int | None:
    """Return max_num_batched_tokens of the V0 engine; None for later ones.

    Its profile run took a whole prompt. From 32,768 tokens on, prompts of models without images
    were cut into chunks. Source: vLLM 0.7.3, engine/arg_utils.py create_engine_config, config.py
    SchedulerConfig.
    """
    if not is_of_v0(log):
        return None
    length = log.max_model_len or model.max_position_embeddings
    if length > WHOLE_PROMPTS_UP_TO and not families.reads_images(model.architecture):
        return SMALLEST_DEFAULT_BATCH
    return max(length, SMALLEST_DEFAULT_BATCH)


def is_of_v0(log: EngineLog) -> bool:
    """Return True for a log of the V0 engine: it says so, or it was its release's default."""
    if log.engine is not None:
        return log.engine == "V0"
    return log.version is not None and versions.row_of(log.version).defaults_to_v0


def outside_words(log: EngineLog) -> str:
    """Return a sentence if the formulas do not cover a log's release, else an empty text."""
    release = release_of(log)
    if release is None:
        return ""
    if not versions.is_before_table(release):
        return ""
    oldest = versions.nearest_formulas(release)
    name = release[:LONGEST_NAME]
    if log.version is None:
        name += " or before"
    what = f"vLLM {name} is outside of the releases that the formulas are of"
    if is_of_v0(log):
        return (
            f"{what}: those of the V0 engine rest on five public logs, "
            f"and assume {SEQS_OF_V0} requests at once where the log does not say how many."
        )
    return f"{what}: those of {oldest} were taken, and the predicted memory may be far off."


def nearest_version(log: EngineLog, assumed: list[str]) -> str:
    """Return the version with formulas that is nearest to the log's, and say what was assumed."""
    if is_of_v0(log):
        if log.version is None:
            assumed.append("The log does not say its version of vLLM; it is of the V0 engine.")
        else:
            assumed.append(outside_words(log))
        row = versions.V0_ENGINE
        if log.version is not None:
            row = versions.row_of(log.version)
        return row.v0_engine or versions.V0_ENGINE.name
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
    outside = outside_words(log)
    if outside:
        assumed.append(outside)
        return versions.name_for_plan(release)
    nearest = versions.nearest(release)
    if not versions.has_formulas(release):
        assumed.append(
            f"The log is of vLLM {release}; the formulas are those of {nearest}, the nearest known."
        )
    return nearest
