from workshop.course.exercises.judging import SHAPELESS, Exercise, close_to, is_number, not_a_number


def waves(answer: dict) -> str | None:
    for count, waves in answer.items():
        problem = not_a_number(waves, "waves")
        if problem:
            return f"{count} prompts: {problem}"
    for count in (3, 4):
        if answer[count] != 1:
            question = "does any prompt have to wait for a free thread?"
            return f"{count} prompts and four threads: {question}"
    if answer[5] == 2:
        return None
    if answer[5] < 2:
        return "four threads send four; when does the fifth prompt leave?"
    return "only the fifth prompt has to wait for a free thread"


def barrier(spans: list, seconds: object) -> str | None:
    lengths = [span.e2el_s for span in spans]
    slowest = []  # of each group of four
    for start in range(0, len(lengths), 4):
        slowest.append(max(lengths[start : start + 4]))
    four_threads = max(span.ended for span in spans)
    never_waiting = sum(lengths) / 4
    wrong: dict[object, str] = {
        slowest[0]: "that is the first group of four; the others come after it",
        four_threads: "that is how long the four threads took; a barrier is slower",
        max(lengths): "that is the slowest request of all; each group has a slowest of its own",
        sum(lengths): "that is one after the other; within a group the four run at once",
        never_waiting: "that is as if no thread ever waited; a group ends with its slowest request",
    }
    return Exercise("", close_to(sum(slowest), "s", rel=0.02), wrong=wrong).test(seconds)


def knee(sweep: dict, chosen: object) -> str | None:
    problem = not_a_number(chosen, "requests at once")
    if problem:
        return problem
    if chosen not in sweep:
        return f"{chosen!r} was not measured; {', '.join(map(str, sweep))} were"
    alone_s = sweep[min(sweep)][1]
    rate, latency_s = sweep[chosen]
    if latency_s > 3 * alone_s:
        times = latency_s / alone_s
        return (
            f"there a request takes {times:.1f} times as long as alone; at most 3 times is allowed"
        )
    for other_rate, other_latency_s in sweep.values():
        if other_rate > rate and other_latency_s <= 3 * alone_s:
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
