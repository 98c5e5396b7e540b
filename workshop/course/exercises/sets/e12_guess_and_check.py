import re
from collections.abc import Sequence
from math import isclose
from typing import Protocol, runtime_checkable

from workshop.course.exercises.judging import Exercise, close_to, not_a_number

P, Q = (0.5, 0.3, 0.15, 0.05), (0.3, 0.5, 0.05, 0.15)  # of the notebook's four cities
WORDS = ["to", "be", "or", "not", "to", "be"]


@runtime_checkable
class Counted(Protocol):
    """A run of speculative decoding: steps with drafts, draft tokens, and accepted tokens."""

    drafts: int
    drafted: int
    accepted: int
    accepted_at: tuple


def residual(answer: object) -> str | None:
    if not isinstance(answer, list | tuple) or len(answer) != 4 or any(map(not_a_number, answer)):
        return "give a list of four numbers, one for each token"
    differences = [p - q for p, q in zip(P, Q, strict=True)]
    left = [max(difference, 0) for difference in differences]
    right = [part / sum(left) for part in left]
    already = "accepted guesses have brought a part of it already"
    if _are_close(answer, right, 0.01):
        return None
    slips = {
        tuple(left): "that is what is left; divide it by its sum, so that it adds up to 1",
        tuple(differences): "no token has a probability below zero",
        tuple(map(abs, differences)): "a token that the draft guesses too often gets nothing more",
        tuple(map(min, P, Q)): "those are the guesses that are accepted; ask what is missing",
        P: f"that is the model's own distribution; {already}",
    }
    for slip, why in slips.items():
        if _are_close(answer, slip, 0.006):
            return why
    if abs(sum(answer) - 1) > 0.02:
        return f"your numbers add up to {sum(answer):.2f}, not to 1"
    if answer[1] or answer[3]:
        return "where p is below q, nothing is left"
    return "the right two tokens; each gets its own part of what is left, with two digits or more"


def _are_close(numbers: Sequence[float], others: Sequence[float], tolerance: float) -> bool:
    """Return whether two lists of numbers are equal within a tolerance."""
    for number, other in zip(numbers, others, strict=True):
        if not isclose(number, other, abs_tol=tolerance):
            return False
    return True


def ngram(answer: object) -> str | None:
    parts = answer
    if isinstance(answer, str):
        parts = [answer]
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        return "give a list of three words"
    proposed = re.findall(r"\w+", " ".join(parts).lower())
    if proposed == WORDS[2:5]:
        return None
    if proposed == WORDS[:3]:
        return "begin behind the words that were found, not with them"
    if proposed == ["that", "is", "the"]:
        return "you know the play; the n-gram knows only what stands in this text"
    if proposed[:3] == WORDS[2:5] or WORDS[2:5][: len(proposed)] == proposed:
        return f"that begins well; give three words, not {len(proposed)}"
    if proposed[-2:] == WORDS[-2:]:
        return "those are the last words themselves; what followed them earlier?"
    return "look for the last two words earlier in the text"


def length(run: Counted, told: object) -> str | None:
    accepted_a_step = run.accepted / run.drafts
    drafted_a_step = run.drafted / run.drafts
    own_token = "each step also writes a token of the model's own"
    wrong: dict[object, str] = {
        accepted_a_step: f"those are the accepted guesses; {own_token}",
        run.accepted / run.drafted: "that is the acceptance rate: accepted guesses of all guesses",
        drafted_a_step: "that is how many guesses a step has, right or wrong",
        run.drafted / run.accepted: "the other way round, and count steps, not guesses",
        run.drafts / run.accepted: "the other way round: accepted guesses, divided by steps",
    }
    return Exercise("", close_to(1 + accepted_a_step, "tokens", rel=0.01), wrong=wrong).test(told)
