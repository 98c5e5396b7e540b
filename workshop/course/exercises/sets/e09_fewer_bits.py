from workshop.course.exercises.judging import SHAPELESS, not_a_number

FOUR = (0.52, -0.35, 0.13, -1.44)  # four weights to be rounded
SCALE = 0.2
CODES = (3, -2, 1, -7)  # 0.52 / 0.2 = 2.6, -1.75, 0.65, -7.2


def codes(answer: list | tuple) -> str | None:
    if any(map(not_a_number, answer)) or len(answer) != len(CODES):
        return SHAPELESS
    if any(not -8 <= code <= 7 for code in answer):
        return "four bits have the codes from -8 to 7 only"
    for weight, right, code in zip(FOUR, CODES, answer, strict=True):
        if code != right:
            quotient = f"{weight} / {SCALE} is {weight / SCALE:.2f}"
            return f"{quotient}, and the nearest whole number is not {code}"
    return None
