"""Exercises of notebook 06: many prompts at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from workshop.learn.exercises import Exercise, close_to


def _waves(answer: object) -> str | None:
    if not isinstance(answer, Mapping) or sorted(answer) != [3, 4, 5]:
        return "give a dict with the keys 3, 4 and 5, such as {3: 1, 4: 1, 5: 1}"
    wrong = [count for count in (3, 4, 5) if answer[count] != -(-count // 4)]
    if not wrong:
        return None
    if wrong == [5]:
        return "four threads send four; when does the fifth prompt leave?"
    return f"{wrong[0]} prompts and four threads: does any prompt have to wait for a free thread?"


def _barrier(answer: object) -> str | None:
    if not (isinstance(answer, Sequence) and len(answer) == 2):
        return "give (the spans, your seconds)"
    spans, seconds = answer
    lengths = [span.e2el_s for span in spans]
    expected = sum(max(lengths[start : start + 4]) for start in range(0, len(lengths), 4))
    return close_to(
        expected,
        rel=0.02,
        unit="s",
        near_misses={
            max(span.ended for span in spans): "that is how long the four threads took; a barrier is slower",
            max(lengths): "that is the slowest request of all; each group has a slowest of its own",
            sum(lengths): "that is one after the other; within a group the four run at once",
        },
    )(seconds)


def _knee(answer: object) -> str | None:
    if not (isinstance(answer, Sequence) and len(answer) == 2 and isinstance(answer[0], Mapping)):
        return "give (sweep, your number of requests at once)"
    sweep, chosen = answer
    if chosen not in sweep:
        return f"{chosen!r} was not measured; {', '.join(map(str, sweep))} were"
    alone = sweep[min(sweep)][1]
    allowed = {count: rate for count, (rate, latency) in sweep.items() if latency <= 3 * alone}
    best = max(allowed, key=allowed.get)
    if chosen == best:
        return None
    if chosen not in allowed:
        return (
            f"there a request takes {sweep[chosen][1] / alone:.1f} times as long as alone; at most 3 times is allowed"
        )
    return f"{best} at once gives more tokens/s, and still at most 3 times the latency"


def _kv_peak(answer: object) -> str | None:
    if not (isinstance(answer, Sequence) and len(answer) == 3):
        return "give (kv_cache_tokens, tokens of one request, your share)"
    cache, one, share = answer
    return close_to(
        4 * one / cache,
        rel=0.05,
        near_misses={
            one / cache: "that is one request; four overlap at the peak",
            400 * one / cache: "give a share from 0 to 1, not percent",
            4 * one: "those are tokens; divide them by what the cache holds",
        },
    )(share)


EXERCISES = {
    "many.waves": Exercise(
        "3, 4 and 5 prompts with 4 threads",
        _waves,
        (
            "A thread takes the next prompt when it has finished one.",
            "The fifth prompt waits until one of the four is done: it starts a second wave.",
        ),
    ),
    "many.barrier": Exercise(
        "What a barrier would have cost",
        _barrier,
        (
            "A sender with a barrier sends four, waits for the slowest of the four, then sends the next four.",
            "sum(max(span.e2el_s for span in spans[i:i+4]) for i in range(0, len(spans), 4))",
        ),
    ),
    "many.knee": Exercise(
        "Choose how many at once",
        _knee,
        (
            "sweep[n] is (tokens/s, mean seconds of a request). Compare the seconds with those of sweep[1].",
            "allowed = [n for n in sweep if sweep[n][1] <= 3 * sweep[1][1]]; take the one with the most tokens/s.",
        ),
    ),
    "many.kv_peak": Exercise(
        "Predict the peak of the KV-cache usage",
        _kv_peak,
        (
            "Every token of prompt and answer takes one place in the cache; the cell above says how many there are.",
            "4 * request_tokens / kv_cache_tokens",
        ),
    ),
}
