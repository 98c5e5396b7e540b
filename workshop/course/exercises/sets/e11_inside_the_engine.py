from itertools import pairwise

from workshop.course.exercises.judging import SHAPELESS, Exercise, called, close_to, not_a_number
from workshop.course.exercises.sets import texts
from workshop.course.topics.timeline import Span

ASKED = texts("e11_inside_the_engine")["engine.flags"]
# symptom → its flag; why not the same flag the other way
FLAGS, OPPOSITE = ASKED["right"], ASKED["opposite"]
HITS = {20: 0, 64: 32, 66: 64, 100: 96}


def times(span: Span, answer: dict) -> str | None:
    gaps = [after - before for before, after in pairwise(span.seen)]
    whole_s = span.seen[-1] - span.sent
    decoding_s = span.seen[-1] - span.first
    other_tokens = span.tokens - 1  # all but the first
    ttft_slips = {span.seen[0]: "it counts from when the request was sent"}
    tpot_slips = {
        whole_s / span.tokens: "the time to the first token is no part of it",
        whole_s / other_tokens: "the time to the first token is no part of it",
        decoding_s / span.tokens: "the first token is not among them: divide by one less",
        span.tokens / decoding_s: "those are tokens a second: the other way round",
    }
    gap_slips = {min(gaps): "that is the shortest one", span.ttft_s: "that is the TTFT"}
    for name, right, slips in (
        ("ttft", span.ttft_s, ttft_slips),
        ("tpot", decoding_s / other_tokens, tpot_slips),
        ("longest_gap", max(gaps), gap_slips),
    ):
        wrong: dict[object, str] = {1000 * right: "that is in ms: give seconds", **slips}
        problem = Exercise("", close_to(right, "s", rel=0.01), wrong=wrong).test(answer[name])
        if problem:
            return f"{name}: {problem}"
    return None


def chunks(answer: list | tuple) -> str | None:
    if any(map(not_a_number, answer)):
        return SHAPELESS
    parts, room = list(answer), 128 - 3
    if sum(parts) != 400:
        return f"your parts add up to {sum(parts):,}; the prompt has 400 tokens"
    if max(parts) > room:
        return f"{max(parts)} tokens of the prompt and three of the answers are more than 128"
    if parts != [room, room, room, 400 - 3 * room]:
        return "each step takes as much of the prompt as it has room for, and the rest comes last"
    return None


def hits(answer: dict) -> str | None:
    for tokens, cached in answer.items():
        problem = not_a_number(cached, "tokens")
        if problem:
            return f"{tokens} tokens: {problem}"
        if cached == HITS[tokens]:
            continue
        if cached == tokens == 64:
            return "64 tokens: one token at least has to be computed, and blocks are found whole"
        if cached in (tokens, tokens - 1):
            return f"{tokens} tokens: a block that is not full is not in the cache"
        if cached == HITS[tokens] // 32 and cached:
            return f"{tokens} tokens: that many blocks; how many tokens are in them?"
        rule = "whole blocks of 32 are found, and never the last token of the prompt"
        return f"{tokens} tokens: {rule}; not {cached}"
    return None


def flags(answer: dict) -> str | None:
    for symptom, change in answer.items():
        chosen = called("--" + str(change).replace("_", "-").strip("-` "), FLAGS.values())
        if chosen not in FLAGS.values():
            return f"{symptom}: {chosen!r} is none of the changes in the list"
        if chosen == FLAGS[symptom]:
            continue
        why = "this changes something else; what is short here?"
        if str(chosen).split()[0] == FLAGS[symptom].split()[0]:  # the same flag, the other way
            why = OPPOSITE[symptom]
        return f"{symptom}: {why}"
    return None
