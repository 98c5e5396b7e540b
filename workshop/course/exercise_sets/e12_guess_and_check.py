import re
from math import isclose
from typing import Protocol, runtime_checkable

from workshop.course.judging import Exercise, close_to, not_a_number

P, Q = (0.5, 0.3, 0.15, 0.05), (0.3, 0.5, 0.05, 0.15)  # of the notebook's four cities
WORDS = ["to", "be", "or", "not", "to", "be"]


@runtime_checkable
class Counted(Protocol):
    """A run of speculative decoding: how many steps had drafts, tokens that were drafted, and those accepted."""

    drafts: int
    drafted: int
    accepted: int
    accepted_at: tuple


def residual(answer: object) -> str | None:
    if not isinstance(answer, list | tuple) or len(answer) != 4 or any(map(not_a_number, answer)):
        return "give a list of four numbers, one for each token"
    left = [max(p - q, 0) for p, q in zip(P, Q, strict=True)]
    slips = {
        tuple(left): "that is what is left; divide it by its sum, so that it adds up to 1",
        tuple(p - q for p, q in zip(P, Q, strict=True)): "no token has a probability below zero",
        tuple(abs(p - q) for p, q in zip(P, Q, strict=True)): "a token that the draft guesses too often gets nothing more",
        tuple(min(p, q) for p, q in zip(P, Q, strict=True)): "those are the guesses that are accepted; ask what is missing",
        P: "that is the model's own distribution; accepted guesses have brought a part of it already",
    }  # fmt: skip
    right = [part / sum(left) for part in left]
    if all(isclose(said, part, abs_tol=0.01) for said, part in zip(answer, right, strict=True)):
        return None
    for slip, why in slips.items():
        if all(isclose(said, part, abs_tol=0.006) for said, part in zip(answer, slip, strict=True)):
            return why
    if abs(sum(answer) - 1) > 0.02:
        return f"your numbers add up to {sum(answer):.2f}, not to 1"
    if answer[1] or answer[3]:
        return "where p is below q, nothing is left"
    return "the right two tokens; each gets its own part of what is left, with two digits or more"


def ngram(answer: object) -> str | None:
    words = [answer] if isinstance(answer, str) else answer
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        return "give a list of three words"
    said = re.findall(r"\w+", " ".join(words).lower())
    if said == WORDS[2:5]:
        return None
    if said == WORDS[:3]:
        return "begin behind the words that were found, not with them"
    if said == ["that", "is", "the"]:
        return "you know the play; the n-gram knows only what stands in this text"
    if said[:3] == WORDS[2:5] or WORDS[2:5][: len(said)] == said:
        return f"that begins well; give three words, not {len(said)}"
    if said[-2:] == WORDS[-2:]:
        return "those are the last words themselves; what followed them earlier?"
    return "look for the last two words earlier in the text"


def length(run: Counted, told: object) -> str | None:
    accepted_a_step = run.accepted / run.drafts
    drafted_a_step = run.drafted / run.drafts
    wrong: dict[object, str] = {
        accepted_a_step: "those are the accepted guesses; each step also writes a token of the model's own",
        run.accepted / run.drafted: "that is the acceptance rate: accepted guesses of all guesses",
        drafted_a_step: "that is how many guesses a step has, right or wrong",
        run.drafted / run.accepted: "the other way round, and count steps, not guesses",
        run.drafts / run.accepted: "the other way round: accepted guesses, divided by steps",
    }
    return Exercise("", close_to(1 + accepted_a_step, "tokens", rel=0.01), wrong=wrong).test(told)
