"""Decides whether an answer is right, and says in a sentence what is off.

A typical wrong answer gets a sentence of its own.

Exercise("KV heads", exactly(8), wrong={32: "those are the query heads"}).test(numpy.int64(8))
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from numbers import Real
from string import ascii_lowercase
from typing import Any, TypeGuard

from workshop.errors import WorkshopError

Judge = Callable[[object], str | None]
SHAPELESS = "another answer was asked for"  # a judge's word for an answer that it cannot read
MOST_SHOWN = 60  # characters of an answer
SIZES = ("bytes", "KiB", "GiB", "GB", "GB/s")
TIMES = ("s", "ms")
NUMBER = r"[-+]?[\d,_]*\.?\d+(?:[eE][-+]?\d+)?"
SUM = r"[\d\s.,_()]+(?:[-+*/][\d\s.,_()*]+)+"  # 2*32*8 in quotes


@dataclass
class Exercise:
    """One exercise.

    Args:
        title: what it asks, in a few words.
        judge: takes the answer in Python's own types; returns None if it is right, else one kind
            sentence.
        hints: opened one by one, each after a wrong answer; the last leads to the answer, and is
            not it.
        wrong: typical wrong answers, each with what went wrong.
        options: of a concept question, by letter: the text, and why it is right or wrong; `title`
            asks it.
        factors: how many factors, as a tuple, are as good as their product.
        deeper: whether it is in the notebook's section "Deeper", so the path does not count it.
        notebook: whose it is: 01_memory.
    """

    title: str
    judge: Judge
    hints: tuple[str, ...] = ()
    wrong: Mapping[object, str] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    factors: int = 0
    deeper: bool = False
    notebook: str = ""

    @classmethod
    def of(
        cls, table: Mapping, judge: Callable[..., str | None] | None, notebook: str = ""
    ) -> Exercise:
        """Return the exercise of a notebook that a table of its TOML file describes.

        Its fields: title, hints, wrong; answer, unit, digits and rel of a number; or question,
        options and right. `deeper` says that the notebook has it in its section "Deeper".

        Of a judge also the shape of an answer: `give` says it to other answers, `keys` are those of
        a dictionary.
        """
        deeper = table.get("deeper", False)
        if "options" in table:
            options = dict(zip(ascii_lowercase, table["options"], strict=False))
            judge = one_of(options, table["right"])
            return cls(table["question"], judge, options=options, deeper=deeper, notebook=notebook)
        if "give" in table:
            if judge is None:
                raise LookupError(f"{table['title']!r} has `give`, and no judge of its name.")
            judge = shaped(judge, table["give"], table.get("keys", ()))
        elif judge is None:
            judge = _of_number(table)
        wrong: dict[object, str] = {}
        for value, why in table.get("wrong", ()):
            if isinstance(value, list):
                value = tuple(value)
            wrong[value] = why
        return cls(
            table["title"],
            judge,
            tuple(table["hints"]),
            wrong,
            factors=table.get("factors", 0),
            deeper=deeper,
            notebook=notebook,
        )

    def test(self, answer: object) -> str | None:
        """Return None if the answer is right, else one sentence about what is off.

        Raises WorkshopError: a judge needs a server, and none answers. It says nothing of the answer.
        """
        try:
            return self._problem(plain(answer))
        except WorkshopError:
            raise
        except Exception as error:  # whatever an answer does is no fault of the learner's
            return f"the check could not use {shown(answer)} ({type(error).__name__}: {error})"

    def _problem(self, answer: object) -> str | None:
        """Return what is off with an answer in Python's own types; None if it is right."""
        if self.factors and isinstance(answer, tuple | list) and len(answer) > 1:
            problem = self._wrong_factors(answer)
            if problem:
                return misread(answer, self.wrong) or problem
            answer = math.prod(answer)
        message = self.judge(answer)
        if not message:
            return message
        return misread(answer, self.wrong) or message

    def _wrong_factors(self, answer: Sequence[object]) -> str | None:
        """Return what is wrong with factors in place of a number; None if nothing is."""
        if len(answer) != self.factors:
            return f"give {self.factors} numbers, or their product without commas"
        for factor in answer:
            problem = not_a_number(factor)
            if problem:
                return problem
        return None


def plain(answer: object) -> object:
    """Return an answer in Python's own types.

    Arrays of NumPy, tables of pandas and an answer as openai gives it become lists and dicts.
    """
    dump = getattr(answer, "model_dump", None)
    if dump is not None:  # a server's answer, as openai gives it
        answer = dump()
    if isinstance(answer, Mapping):
        return {plain(key): plain(value) for key, value in answer.items()}
    if hasattr(answer, "ndim") and hasattr(answer, "items"):
        return _plain_table(answer)
    to_list = getattr(answer, "tolist", None)
    if to_list is not None:
        return plain(to_list())
    if isinstance(answer, tuple | list | set | frozenset):
        kind = tuple
        if not isinstance(answer, tuple):
            kind = type(answer)
        return kind(map(plain, answer))
    if isinstance(answer, float) and answer.is_integer():
        return int(answer)
    if isinstance(answer, str):
        return answer.strip()
    return answer


def _plain_table(table: Any) -> dict | list:
    """Return a Series or DataFrame of pandas as a dict, or as a list if it has no labels."""
    cells = {plain(key): plain(value) for key, value in table.items()}
    has_labels = list(cells) != list(range(len(cells)))
    if has_labels:
        return cells
    return list(cells.values())


def shown(answer: object) -> str:
    """Return an answer as a sentence has it: on one line, and of a long one the beginning."""
    text = " ".join(repr(answer).split())
    if len(text) <= MOST_SHOWN:
        return text
    return f"{text[: MOST_SHOWN - 1]}…"


def called(answer: object, names: Iterable[str]) -> object:
    """Return the one of the names that a text means, whatever its capitals and spaces.

    Anything else is returned unchanged.

    "dp+ep" is "DP + EP".
    """
    if not isinstance(answer, str):
        return answer
    matches = [name for name in names if _bare(name) == _bare(answer)]
    if matches:
        return matches[-1]
    return answer


def _texts(values: Iterable[object]) -> list[str]:
    """Return those of the values that are texts."""
    return [value for value in values if isinstance(value, str)]


def _bare(text: str) -> str:
    """Return a text without spaces and capitals."""
    return "".join(text.split()).casefold()


def misread(answer: object, wrong: Mapping[object, str]) -> str | None:
    """Return what went wrong if the answer is one of the typical wrong ones.

    Numbers are equal within half a percent.
    """
    if isinstance(answer, list):
        answer = tuple(answer)
    answer = called(answer, _texts(wrong))
    for typical, why in wrong.items():
        if isinstance(typical, Real):
            if is_number(answer) and math.isclose(answer, typical, rel_tol=0.005):
                return why
        elif answer == typical:
            return why
    return None


def not_a_number(answer: object, unit: str = "") -> str | None:
    """Return why an answer is no number; None if it is one."""
    if isinstance(answer, str):
        problem = _number_in_quotes(answer, unit)
        if problem:
            return problem
    if _has_commas(answer):
        return (
            f"Python reads commas as several numbers, here {answer}: "
            "leave them out; a decimal point is a point"
        )
    if isinstance(answer, bool) or not isinstance(answer, Real) or not math.isfinite(answer):
        of_unit = ""
        if unit:
            of_unit = f" of {unit}"
        return f"{shown(answer)} is not a number{of_unit}: give a number, such as 12 or 0.5"
    return None


def _has_commas(answer: object) -> bool:
    """Return whether an answer is what Python makes of 131,072: a tuple of whole numbers."""
    if not isinstance(answer, tuple) or len(answer) < 2:
        return False
    return all(isinstance(part, int) for part in answer)


def _number_in_quotes(answer: str, unit: str) -> str | None:
    """Return what to do with a text that has a number or a product in it; None if it has none."""
    if re.fullmatch(NUMBER, answer):
        # Python reads 131,072 as no number
        number = re.sub(r",(?=\d{3}(?!\d))", "", answer).replace(",", ".")
        return f"give {number} as a number, without quotes"
    if re.fullmatch(SUM, answer):
        return f"give {answer} without quotes: Python then computes it, and the result is a number"
    if re.match(rf"{NUMBER}\s*[a-zA-Z%]", answer):
        it_is = ""
        if unit:
            it_is = f": it is {unit}"
        return f"give the number alone, without quotes and without the unit{it_is}"
    return None


def is_number(answer: object) -> TypeGuard[float]:
    """Return whether an answer is a finite number."""
    return not_a_number(answer) is None


def _of_number(table: Mapping) -> Judge:
    """Return the judge of an answer that is a number.

    `answer`, `unit`, `digits` and `rel` are fields of the exercise's TOML file.
    """
    answer, unit = table["answer"], table.get("unit", "")
    rule = {}
    for name in ("rel", "digits"):
        if name in table:
            rule[name] = table[name]
    if isinstance(answer, int) and not rule:
        return exactly(answer, unit)
    return close_to(answer, unit, **rule)


def close_to(expected: float, unit: str = "", *, rel: float = 0.001, digits: int = 2) -> Judge:
    """Return a judge of a number, which is right within `rel`.

    It is also right if it is `expected` rounded to `digits` or more digits.
    """
    rounded = [float(f"{expected:.{more}e}") for more in range(digits - 1, 15)]

    def judge(answer: object) -> str | None:
        if not is_number(answer):
            return factors_of(answer, expected, unit) or not_a_number(answer, unit)
        if math.isclose(answer, expected, rel_tol=rel) or answer in rounded:
            return None
        number = f"{answer:,.6g} {unit}".rstrip()
        size = "small"
        if answer > expected:
            size = "large"
        return f"{number} is too {size}{another_scale(answer, expected, unit)}"

    return judge


def another_scale(answer: float, expected: float, unit: str) -> str:
    """Return what an answer that is off by a whole scale means, else ''.

    Percent in place of a share, a point between thousands, or another unit.
    """
    if 0 < expected < 1 < answer <= 100:
        return ": give a number from 0 to 1, not percent"
    is_thousands = expected >= 1000 and math.isclose(answer * 1000, expected, rel_tol=1e-6)
    if is_thousands and unit not in (*SIZES, *TIMES):
        return ", by a factor of 1,000: a point separates no thousands in Python"
    return another_unit(answer, expected, unit)


def factors_of(answer: object, expected: float, unit: str) -> str | None:
    """Return what to do with a tuple or list of factors; None if it is no such answer.

    Their product is the answer, or is it in another unit.
    """
    if not isinstance(answer, tuple | list) or len(answer) < 2 or not all(map(is_number, answer)):
        return None
    product = math.prod(answer)
    if math.isclose(product, expected, rel_tol=0.001):
        return "those are the right factors: leave out the commas, and write * between them"
    off = another_unit(product, expected, unit)
    if len(answer) > 2 and off:
        product_of_factors = f"these factors make {product:,.10g}"
        return f"give one number: {product_of_factors}, which is not the answer yet{off}"
    return None


def another_unit(answer: float, expected: float, unit: str) -> str:
    """Return a question about the unit if an answer is off by a prefix, else ''.

    Prefixes are powers of 1,000 and of 1,024, and GB in place of GiB.
    """
    smaller, larger = sorted((abs(answer), abs(expected)))
    if not smaller:
        return ""
    for factor in _factors(unit):
        if math.isclose(smaller * factor, larger, rel_tol=0.002):
            return f", by a factor of {factor:,.10g}: is it in {unit}, or in another unit?"
    return ""


def _factors(unit: str) -> tuple[float, ...]:
    """Return the factors between units of the same kind: 1,000 for ms and s."""
    thousands = (1000, 1000**2, 1000**3)
    if unit in TIMES:
        return thousands
    if unit in SIZES:
        return (*thousands, 1024, 1024**2, 1024**3, 1.024**3)
    return ()


def exactly(expected: int, unit: str = "") -> Judge:
    """Return a judge of a whole number, which nothing else comes near enough to."""
    return close_to(expected, unit, rel=1e-9, digits=16)


def letter(answer: object) -> str:
    """Return the letter that an answer to a concept question gives: "B)" is b; else ""."""
    if not isinstance(answer, str):
        return ""
    return answer.strip(" ().").lower()


def one_of(options: Mapping[str, Sequence[str]], right: str) -> Judge:
    """Return a judge of a concept question; each wrong option is answered with its own why."""

    def judge(answer: object) -> str | None:
        chosen = letter(answer)
        if chosen not in options:
            return f"{shown(answer)} is none of the options: give one of {', '.join(options)}"
        if chosen == right:
            return None
        return options[chosen][1]

    return judge


def shaped(judge: Callable[..., str | None], give: str, keys: Sequence = ()) -> Judge:
    """Return a judge that first checks the kinds of values that `judge`'s parameters name.

    For several parameters the answer is a tuple or list with one value for each.

    Any other answer, a dict with other `keys`, and one of which the judge says SHAPELESS, is told
    what to give.
    """
    kinds = [parameter.annotation for parameter in signature(judge).parameters.values()]
    names = _texts(keys)

    def judged(answer: object) -> str | None:
        if isinstance(answer, dict):  # "a" is A
            answer = {called(key, names): value for key, value in answer.items()}
        parts: object = (answer,)
        if len(kinds) > 1:
            parts = answer
        message: str | None = SHAPELESS
        if _are_of(parts, kinds) and all(map(has_keys, parts)):
            message = judge(*parts)
        if message is SHAPELESS:
            return give.replace("{answer}", shown(answer))
        return message

    def has_keys(part: object) -> bool:
        return not keys or not isinstance(part, dict) or set(part) == set(keys)

    return judged


def _are_of(parts: object, kinds: Sequence[Any]) -> TypeGuard[Sequence[object]]:
    """Return whether parts are a list or tuple of values of these kinds, one each."""
    if not isinstance(parts, list | tuple) or len(parts) != len(kinds):
        return False
    return all(map(isinstance, parts, kinds))
