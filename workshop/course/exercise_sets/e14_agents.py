import math

from workshop.course.judging import SHAPELESS, is_number, not_a_number

ENOUGH_PERCENT = 95
ACCIDENT_PERCENT = 5  # some random prompts of a small vocabulary are equal
SYSTEM_TOKENS, TOOL_TOKENS, TIME_TOKENS = 480, 96, 8  # as in nb14


def mend(points: list) -> str | None:
    if not all(isinstance(point, dict) and "prefix_hits_percent" in point for point in points):
        return "give what nb14.bench returned, in a list"
    if len(points) < 2:
        return "one measurement compares nothing: give two"
    seeds = [point["seed"] for point in points]
    if 0 in seeds:
        return "one of them has seed 0, whose prompts this server has read twice already"
    if len(set(seeds)) < len(seeds):
        return "two of them have the same seed, so the same prompts"
    for point in points:
        if (point["prefix_hits_percent"] or 0) > ACCIDENT_PERCENT:
            hits = point["prefix_hits_percent"]
            return f"with seed {point['seed']} {hits:g} % of the prompts' tokens came from the cache: this seed was there before"
    return None


def place(rows: list) -> str | None:
    if not rows or not all(isinstance(row, dict) and "cached" in row for row in rows):
        return "give what nb14.converse returned"
    if rows[0]["prompt"] == SYSTEM_TOKENS + TOOL_TOKENS:
        return "the time is gone, and the agent needs it: another place"
    if rows[0]["prompt"] != SYSTEM_TOKENS + TOOL_TOKENS + TIME_TOKENS:
        return "leave the lengths as they are, and change time_line alone"
    if not any(row["cached"] for row in rows):
        return "nothing was found: the prompts still differ from their first token on"
    return None


def service(people: object, every_s: object, sizes: dict, chosen: object) -> str | None:
    if problem := not_a_number(chosen, "replicas"):
        return problem
    if chosen not in sizes:
        return f"{chosen:g} replicas were not simulated; {', '.join(map(str, sizes))} were"
    if not is_number(people) or not is_number(every_s):
        return SHAPELESS
    asked, came = people / every_s, sizes[chosen]["requests_per_s"]
    # arrivals are drawn: few of them vary much
    chance = 0.1 + 4 / math.sqrt(sizes[chosen]["requests"])
    if abs(came - asked) > chance * asked:
        return f"your group asks {asked:.3g} times a second, and {came:.3g} a second were simulated: run the simulation again"
    enough = [
        count for count, row in sizes.items() if row["within_limits_percent"] >= ENOUGH_PERCENT
    ]
    if not enough:
        return (
            f"no row keeps the limits for {ENOUGH_PERCENT} of 100 requests: simulate more replicas"
        )
    if chosen not in enough:
        within = sizes[chosen]["within_limits_percent"]
        return f"with {chosen:g} only {within:g} of 100 requests stay within the limits; {ENOUGH_PERCENT} have to"
    return (
        None if chosen == min(enough) else f"fewer are enough: {min(enough)} keep the limits, too"
    )
