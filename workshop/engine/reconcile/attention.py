"""Compare the attention backend of a log with the recorded answers of vLLM's selector."""

from typing import Any

from inference_planner.releases.attention_backends import SelectorAnswer
from inference_planner.split.capability import selector_answers

from workshop.engine.reconcile.case import LoggedRun

RELEASE = "0.32"  # whose selector was asked
FLASHINFER = "FLASHINFER"


def difference(case: LoggedRun) -> str:
    """Return which backend the log has in place of the table's, and why; "" where they agree.

    Nothing is said of a card, a size or a dtype that vLLM's selector was not asked about.
    """
    answers = _answers(case)
    if not answers:
        return ""
    expected = sorted({answer.backends[0] for answer in answers})
    others = [name for name in case.log.attention_backends if name not in expected]
    if not others:
        return ""
    taken = others[0]
    sentence = f"{taken}, where vLLM {RELEASE} takes {' or '.join(expected)} on {case.card.title}"
    return f"{sentence}: {_reason(case, answers, taken)}; speed and memory may differ"


def _answers(case: LoggedRun) -> list[SelectorAnswer]:
    """Return the selector's answers for the run; none where one of them is missing."""
    if case.gpu is None or not case.log.attention_backends:
        return []
    dtype = case.settings.get("kv_cache_dtype") or "auto"
    text_only = bool(case.settings.get("language_model_only"))
    answers: list[SelectorAnswer] = []
    for answer in selector_answers(case.model, case.card.capability, dtype, text_only):
        if answer is None or not answer.backends:
            return []
        answers.append(answer)
    return answers


def _reason(case: LoggedRun, answers: list[SelectorAnswer], taken: str) -> str:
    if _requested(case.log.args) == taken:
        return "its command asks for it (--attention-backend)"
    possible = case.log.possible_attention_backends
    is_without = possible and not any(FLASHINFER in name for name in possible)
    for answer in answers:
        rest = [name for name in answer.backends if FLASHINFER not in name]
        if is_without and FLASHINFER in answer.backends[0] and rest[:1] == [taken]:
            return "FlashInfer is not installed there, or cannot be imported"
    version = case.log.version or ""
    if not version.startswith(f"{RELEASE}."):
        return f"the log is of vLLM {version or 'an unknown release'}, which may choose otherwise"
    if possible and not any(answer.backends[0] in possible for answer in answers):
        return "the kernels of the other did not import there, or the card is another one"
    return "a setting that the log does not name, or another card"


def _requested(arguments: dict[str, Any]) -> str:
    """Return the attention backend of a command line; "" without."""
    name = arguments.get("attention_backend")
    config = arguments.get("attention_config")
    if not name and isinstance(config, dict):
        name = config.get("backend")
    return str(name or "").rpartition(".")[2].upper()
