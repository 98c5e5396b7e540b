from workshop.course.judging import SHAPELESS, Exercise, close_to, is_number, not_a_number


def waves(answer: dict) -> str | None:
    for count, waves in answer.items():
        if problem := not_a_number(waves, "waves"):
            return f"{count} prompts: {problem}"
    wrong = [count for count in (3, 4, 5) if answer[count] != -(-count // 4)]
    if wrong == [5] and answer[5] < 2:
        return "four threads send four; when does the fifth prompt leave?"
    if wrong == [5]:
        return "only the fifth prompt has to wait for a free thread"
    return (
        f"{wrong[0]} prompts and four threads: does any prompt have to wait for a free thread?"
        if wrong
        else None
    )


def barrier(spans: list, seconds: object) -> str | None:
    lengths = [span.e2el_s for span in spans]
    slowest = [max(lengths[start : start + 4]) for start in range(0, len(lengths), 4)]
    wrong = {
        slowest[0]: "that is the first group of four; the others come after it",
        max(
            span.ended for span in spans
        ): "that is how long the four threads took; a barrier is slower",
        max(lengths): "that is the slowest request of all; each group has a slowest of its own",
        sum(lengths): "that is one after the other; within a group the four run at once",
        sum(lengths)
        / 4: "that is as if no thread ever waited; a group ends with its slowest request",
    }
    return Exercise("", close_to(sum(slowest), "s", rel=0.02), wrong=wrong).test(seconds)


def knee(sweep: dict, chosen: object) -> str | None:
    if problem := not_a_number(chosen, "requests at once"):
        return problem
    if chosen not in sweep:
        return f"{chosen!r} was not measured; {', '.join(map(str, sweep))} were"
    alone = sweep[min(sweep)][1]
    allowed = {count: rate for count, (rate, latency) in sweep.items() if latency <= 3 * alone}
    if chosen not in allowed:
        times = sweep[chosen][1] / alone
        return (
            f"there a request takes {times:.1f} times as long as alone; at most 3 times is allowed"
        )
    best = max(allowed, key=allowed.__getitem__)
    if chosen != best:
        return "another number gives more tokens/s, and still at most 3 times the latency"
    return None


def kv_peak(cache_tokens: object, request_tokens: object, share: object) -> str | None:
    if not is_number(cache_tokens) or not is_number(request_tokens):
        return SHAPELESS
    one_request = request_tokens / cache_tokens
    wrong: dict[object, str] = {
        one_request: "that is one request; four overlap at the peak",
        400 * one_request: "give a share from 0 to 1, not percent",
        4 * request_tokens: "those are tokens; divide them by what the cache holds",
        1 / (4 * one_request): "the other way round: what is used, divided by what there is",
        1 - 4 * one_request: "that is the share that stays free",
    }
    return Exercise("", close_to(4 * one_request, rel=0.05), wrong=wrong).test(share)
