"""The judge of notebook 09's exercise that asks for more than a number. Words: e09_fewer_bits.toml."""

from workshop.learn.judging import not_a_number

FOUR = (0.52, -0.35, 0.13, -1.44)  # four weights to be rounded
SCALE = 0.2
CODES = (3, -2, 1, -7)  # 0.52 / 0.2 = 2.6, -1.75, 0.65, -7.2


def codes(answer: object) -> str | None:
    if not isinstance(answer, list | tuple) or any(not_a_number(code) for code in answer):
        return "give four whole numbers"
    given = tuple(answer)
    if len(given) != len(CODES):
        return f"give {len(CODES)} codes, one for each weight"
    if given == CODES:
        return None
    if any(isinstance(code, float) for code in given):
        return "a code is a whole number: the weight divided by the scale, rounded"
    if given == tuple(int(w / SCALE) for w in FOUR):
        return "round to the nearest whole number instead of cutting off"
    if any(not -8 <= code <= 7 for code in given):
        return "four bits have the codes from -8 to 7 only"
    wrong = next(n for n, (a, b) in enumerate(zip(given, CODES, strict=True)) if a != b)
    return f"{FOUR[wrong]} / {SCALE} is {FOUR[wrong] / SCALE:.2f}, and the nearest whole number is not {given[wrong]}"
