"""What multiplies the cost of a form: repeats inside repeats of a pattern, and branches that allOf combines.

The standard library only.
"""

from __future__ import annotations

import re
from typing import Any

MOST = 10**9  # where counting stops
# of a part without quantifiers: the product, the nesting, and what * and + count as
NOTHING = 1, 0, 1
UNBOUNDED = 20  # * or + inside a counted repeat
COUNTED = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
BRANCHES = ("anyOf", "oneOf")
PARTS = ("properties", "patternProperties", "items", "prefixItems", "additionalProperties")


def quantifiers(pattern: str) -> tuple[int, int]:
    """Return the largest product of counted repeats inside each other, and how deep quantifiers are nested.

    `(a{1,10}b{3}){5}` gives (50, 2), `(\\w+\\s?)*` gives (1, 2). Inside a counted repeat, * and + count as UNBOUNDED.
    A pattern that is no regular expression gives some answer: vLLM refuses it.
    """
    groups = [list(NOTHING)]  # of each open group: what is closed inside it
    last = list(NOTHING)  # of what a quantifier would repeat
    position = 0
    while position < len(pattern):
        character = pattern[position]
        counted = COUNTED.match(pattern, position) if character == "{" else None
        if character == "\\":
            position += 2
            last = list(NOTHING)
            continue
        if character == "[":
            position = _end_of_class(pattern, position)
            last = list(NOTHING)
            continue
        if character == "(":
            groups.append(list(NOTHING))
        elif character == ")" and len(groups) > 1:
            last = groups.pop()
            _take(groups[-1], last)
        elif character in "*+" or counted:
            last = _repeated(last, counted)
            _take(groups[-1], last)
            position += len(counted[0]) if counted else 1
            while pattern[position : position + 1] in ("?", "+"):  # lazy, possessive
                position += 1
            continue
        elif character != "?":
            last = list(NOTHING)
        position += 1
    for group in groups:
        _take(groups[0], group)
    return groups[0][0], groups[0][1]


def _repeated(inner: list[int], counted: re.Match[str] | None) -> list[int]:
    """Return the product, the nesting and the factor of * and + of what a quantifier makes of its inner part."""
    product, nesting, unbounded = inner
    if counted is None:
        return [product, nesting + 1, UNBOUNDED]
    repeats = max(1, _number(counted[1]), _number(counted[3]))
    return [product * repeats * unbounded, nesting + 1, 1]


def _take(group: list[int], inner: list[int]) -> None:
    for place, value in enumerate(inner):
        group[place] = max(group[place], value)


def _end_of_class(pattern: str, start: int) -> int:
    """Return the position after [...]; a ] that comes first, or after ^, is one of its characters."""
    position = start + 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1


def _number(digits: str) -> int:
    """Return the number; of more than nine digits the largest with nine, since int() is slow with thousands."""
    return int(digits[:9] or 0) if len(digits) < 10 else 10**9


def counted_repeats(grammar: str) -> int:
    """Return the product of all counted repeats of a grammar, whose rules may stand inside each other."""
    product = 1
    for low, _, high in COUNTED.findall(grammar):
        product = min(product * max(1, _number(low), _number(high)), MOST)
    return product


def combinations(schema: Any) -> int:
    """Return how many branches a back end may have to try for a part of a schema: anyOf adds, allOf multiplies.

    References are followed. A reference to what is being counted adds nothing. MOST stands for "more than can be
    counted".
    """
    try:
        return _Combinations(schema).of(schema, merged=False, path=())
    except RecursionError:
        return MOST


class _Combinations:
    """Counts for one document, each reference once."""

    def __init__(self, root: Any):
        self._root = root
        self._known: dict[tuple[str, bool], int] = {}

    def of(self, part: Any, merged: bool, path: tuple[str, ...]) -> int:
        """Return the combinations of a part. merged: it is combined with others, and so are its properties."""
        if isinstance(part, list):
            return max([1, *(self.of(each, merged, path) for each in part)])
        if not isinstance(part, dict):
            return 1
        combined = merged or len(_constraints(part)) > 1 or len(_list(part, "allOf")) > 1
        own = 1
        for keyword in BRANCHES:
            own *= max(1, sum(self.of(each, combined, path) for each in _list(part, keyword)))
        for each in _list(part, "allOf"):
            own = min(own * self.of(each, combined, path), MOST)
        if isinstance(part.get("$ref"), str):
            own *= self._reference(part["$ref"], combined, path)
        inner = max([1, *(self._inside(part, keyword, merged, path) for keyword in PARTS)])
        return min(own * inner if merged else max(own, inner), MOST)

    def _inside(
        self, part: dict[str, Any], keyword: str, merged: bool, path: tuple[str, ...]
    ) -> int:
        value = part.get(keyword)
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            return self.of(list(value.values()), merged, path)
        return self.of(value, merged, path)

    def _reference(self, target: str, merged: bool, path: tuple[str, ...]) -> int:
        if target in path:
            return 1
        if (target, merged) not in self._known:
            self._known[target, merged] = self.of(
                _target(self._root, target), merged, (*path, target)
            )
        return self._known[target, merged]


def _constraints(part: dict[str, Any]) -> list[str]:
    """Return the keywords of a schema that a back end has to combine with each other."""
    return [keyword for keyword in (*BRANCHES, "allOf", "$ref", "properties") if part.get(keyword)]


def _list(part: dict[str, Any], keyword: str) -> list[Any]:
    value = part.get(keyword)
    return value if isinstance(value, list) else []


def _target(root: Any, reference: str) -> Any:
    """Return what a reference inside the document names; None where there is no such part."""
    part = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict):
            part = part.get(name) if name else part
        elif isinstance(part, list) and name.isdigit() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part
