import math

from workshop.course.exercises.judging import SHAPELESS, is_number, not_a_number

ENOUGH_PERCENT = 95
ACCIDENT_PERCENT = 5  # of the prompts' tokens: hits of somebody else's few requests
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
            hits = f"{point['prefix_hits_percent']:g} % of the prompts' tokens came from the cache"
            return f"with seed {point['seed']} {hits}: this seed was there before"
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
    problem = not_a_number(chosen, "replicas")
    if problem:
        return problem
    if chosen not in sizes:
        return f"{chosen:g} replicas were not simulated; {', '.join(map(str, sizes))} were"
    if not is_number(people) or not is_number(every_s):
        return SHAPELESS
    rate = people / every_s
    simulated_rate = sizes[chosen]["requests_per_s"]
    # arrivals are drawn: few of them vary much
    chance = 0.1 + 4 / math.sqrt(sizes[chosen]["requests"])
    if abs(simulated_rate - rate) > chance * rate:
        rates = f"{rate:.3g} times a second, and {simulated_rate:.3g} a second were simulated"
        return f"your group asks {rates}: run the simulation again"
    enough = []
    for count, row in sizes.items():
        if row["within_limits_percent"] >= ENOUGH_PERCENT:
            enough.append(count)
    if not enough:
        limits = f"the limits for {ENOUGH_PERCENT} of 100 requests"
        return f"no row keeps {limits}: simulate more replicas"
    if chosen not in enough:
        within = f"only {sizes[chosen]['within_limits_percent']:g} of 100 requests"
        return f"with {chosen:g} {within} stay within the limits; {ENOUGH_PERCENT} have to"
    if chosen != min(enough):
        return f"fewer are enough: {min(enough)} keep the limits, too"
    return None
