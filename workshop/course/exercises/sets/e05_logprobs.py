import math
from collections.abc import Callable

from workshop.client.logprobs import Row, total_logprob


def _tokens(*expected: str) -> Callable[[object, object], str | None]:
    def judge(token: object, best: object) -> str | None:
        tokens = (str(token).strip(), str(best).strip())
        if tuple(map(str.casefold, tokens)) == tuple(map(str.casefold, expected[::-1])):
            return (
                "the other way round: the token of the text comes first, then the most probable one"
            )
        if tuple(map(str.casefold, tokens)) == tuple(map(str.casefold, expected)):
            return None
        return f"{tokens[0]!r} and {tokens[1]!r} are not the two tokens"

    return judge


def _rows(*logprobs: tuple[str, float | None]) -> list[Row]:
    rows = []
    for position, (token, logprob) in enumerate(logprobs):
        rows.append(Row("prompt", position, token, logprob))
    return rows


def _why(error: TypeError, none: str) -> str:
    """Return an error of the learner's function, with what helps against it.

    `none` is the help if the function has computed with a None.
    """
    message = str(error)
    if "not subscriptable" in message:
        return f"{message}: a row has attributes: row.logprob"
    if "NoneType" in message:
        return f"{message}: {none}"
    return message


def classify(answer: Callable) -> str | None:
    """Call the learner's function on made-up rows."""
    sure, unsure = _rows(("a", math.log(0.9)), ("b", math.log(0.8))), _rows(("c", math.log(0.3)))
    start = _rows(("", None), ("d", math.log(0.5)))
    for scored, expected in (
        ({"yes": unsure, "no": sure}, "no"),
        ({"one": start, "two": unsure}, "one"),
        ({"long": sure * 9, "short": unsure}, "short"),
    ):
        try:
            got = answer(scored)
        except TypeError as error:
            if "between instances of 'Row'" in str(error):
                return (
                    "rows cannot be compared with each other: "
                    "compare what total_logprob gives for each label"
                )
            return _why(
                error, "the first row of a prompt has the logprob None; total_logprob leaves it out"
            )
        if got == expected:
            continue
        if isinstance(got, int | float):
            return f"it returned the number {got:.2f}: return the label that has it"
        if expected == "short":
            return (
                "eighteen fairly sure tokens are less probable together than one at 0.3: "
                "compare sums, not means"
            )
        sums = {}
        for label, tokens in scored.items():
            sums[label] = round(total_logprob(tokens), 2)
        returned = f"it returned {got!r} for texts of the logprobs {sums}"
        return f"{returned}: the more probable one is {expected!r}"
    return None


def surprising(answer: Callable) -> str | None:
    """Call the learner's function on two lists of made-up rows, so that no constant is right."""
    for tokens, least, most in (
        (_rows(("", None), (" Paris", -0.1), (" Berlin", -9.0), (".", -0.5)), " Paris", " Berlin"),
        (_rows(("", None), (" moon", -7.0), (" in", -0.2), (" the", -2.0)), " in", " moon"),
    ):
        try:
            got = answer(tokens)
        except TypeError as error:
            return _why(
                error,
                "the first token has no logprob and no surprise (both are None): leave it out",
            )
        if isinstance(got, Row):
            got = got.token
        if isinstance(got, int | float):
            return f"it returned the number {got:.2f}: return the token that has it"
        if got == least:
            return "that is the least surprising token: the lowest logprob is the highest surprise"
        if got == "":
            return "the first token has no logprob (None): leave it out"
        if str(got).strip() != most.strip():
            return f"it returned {got!r}, and {most!r} has the lowest logprob"
    return None


generated = _tokens("20", "49")
prompt = _tokens("San", "Question")
