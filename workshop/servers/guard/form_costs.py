"""Counts what multiplies the cost of a form.

Repeats inside repeats of a pattern, and branches that allOf combines.

The standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

MOST = 10**9  # where counting stops
UNBOUNDED = 20  # * or + inside a counted repeat
COUNTED = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
BRANCHES = ("anyOf", "oneOf")
PARTS = ("properties", "patternProperties", "items", "prefixItems", "additionalProperties")


@dataclass
class _Repeats:
    """The quantifiers of a part of a pattern, multiplied and counted.

    Args:
        product: of counted repeats inside each other.
        nesting: how deep quantifiers are inside each other.
        unbounded: what a * or + in it counts as, where a counted repeat is around it; 1 without
            one.
    """

    product: int = 1
    nesting: int = 0
    unbounded: int = 1

    def take(self, inner: _Repeats) -> None:
        """Become the largest of both."""
        self.product = max(self.product, inner.product)
        self.nesting = max(self.nesting, inner.nesting)
        self.unbounded = max(self.unbounded, inner.unbounded)

    def repeated(self, counted: re.Match[str] | None) -> _Repeats:
        """Return what a quantifier makes of this part; None stands for * or +."""
        if counted is None:
            return _Repeats(self.product, self.nesting + 1, UNBOUNDED)
        times = max(1, _number(counted[1]), _number(counted[3]))
        return _Repeats(self.product * times * self.unbounded, self.nesting + 1)


def quantifiers(pattern: str) -> tuple[int, int]:
    """Return (largest product of counted repeats, depth of quantifiers) inside each other.

    `(a{1,10}b{3}){5}` gives (50, 2), `(\\w+\\s?)*` gives (1, 2). Inside a counted repeat, * and +
    count as UNBOUNDED. A pattern that is no regular expression gives some answer: vLLM refuses it.
    """
    open_groups = [_Repeats()]
    last = _Repeats()  # what a quantifier would repeat
    position = 0
    while position < len(pattern):
        character = pattern[position]
        counted = None
        if character == "{":
            counted = COUNTED.match(pattern, position)
        if character == "\\":
            position += 2
            last = _Repeats()
            continue
        if character == "[":
            position = _end_of_class(pattern, position)
            last = _Repeats()
            continue
        if character == "(":
            open_groups.append(_Repeats())
        elif character == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1].take(last)
        elif character in "*+" or counted:
            last = last.repeated(counted)
            open_groups[-1].take(last)
            width = 1
            if counted:
                width = len(counted[0])
            position += width
            while pattern[position : position + 1] in ("?", "+"):  # lazy, possessive
                position += 1
            continue
        elif character != "?":
            last = _Repeats()
        position += 1
    whole = open_groups[0]
    for group in open_groups:
        whole.take(group)
    return whole.product, whole.nesting


def _end_of_class(pattern: str, start: int) -> int:
    """Return the position after [...]; a ] at its begin, or after ^, is one of its characters."""
    position = start + 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        if pattern[position] == "\\":
            position += 1
        position += 1
    return position + 1


def _number(digits: str) -> int:
    """Return the number; MOST for more than nine digits, since int() is slow with thousands."""
    if len(digits) > 9:
        return MOST
    return int(digits or 0)


def counted_repeats(grammar: str) -> int:
    """Return the product of all counted repeats of a grammar.

    Its rules may stand inside each other.
    """
    product = 1
    for low, _, high in COUNTED.findall(grammar):
        product = min(product * max(1, _number(low), _number(high)), MOST)
    return product


def combinations(schema: Any) -> int:
    """Return how many branches a back end may have to try for a part of a schema.

    anyOf adds, allOf multiplies. References are followed. A reference to what is being counted adds
    nothing. MOST stands for "more than can be counted".
    """
    try:
        return _Combinations(schema).of(schema, merged=False, path=())
    except RecursionError:
        return MOST


class _Combinations:
    """Counts for one document, each reference once."""

    def __init__(self, root: Any):
        self._root = root
        self._counted_references: dict[tuple[str, bool], int] = {}

    def of(self, part: Any, merged: bool, path: tuple[str, ...]) -> int:
        """Return the combinations of a part.

        merged: it is combined with others, and so are its properties.
        """
        if isinstance(part, list):
            return self._most(part, merged, path)
        if not isinstance(part, dict):
            return 1
        combined = merged or len(_constraints(part)) > 1 or len(_list(part, "allOf")) > 1
        product = 1
        for keyword in BRANCHES:
            branches = 0
            for branch in _list(part, keyword):
                branches += self.of(branch, combined, path)
            product *= max(1, branches)
        for condition in _list(part, "allOf"):
            product = min(product * self.of(condition, combined, path), MOST)
        if isinstance(part.get("$ref"), str):
            product *= self._reference(part["$ref"], combined, path)
        inner = 1
        for keyword in PARTS:
            inner = max(inner, self._inside(part, keyword, merged, path))
        if merged:
            return min(product * inner, MOST)
        return min(max(product, inner), MOST)

    def _most(self, parts: list[Any], merged: bool, path: tuple[str, ...]) -> int:
        """Return the combinations of the part that has most."""
        most = 1
        for part in parts:
            most = max(most, self.of(part, merged, path))
        return most

    def _inside(
        self, part: dict[str, Any], keyword: str, merged: bool, path: tuple[str, ...]
    ) -> int:
        value = part.get(keyword)
        if keyword in ("properties", "patternProperties") and isinstance(value, dict):
            return self._most(list(value.values()), merged, path)
        return self.of(value, merged, path)

    def _reference(self, target: str, merged: bool, path: tuple[str, ...]) -> int:
        if target in path:
            return 1
        if (target, merged) not in self._counted_references:
            part = _target(self._root, target)
            self._counted_references[target, merged] = self.of(part, merged, (*path, target))
        return self._counted_references[target, merged]


def _constraints(part: dict[str, Any]) -> list[str]:
    """Return the keywords of a schema that a back end has to combine with each other."""
    return [keyword for keyword in (*BRANCHES, "allOf", "$ref", "properties") if part.get(keyword)]


def _list(part: dict[str, Any], keyword: str) -> list[Any]:
    value = part.get(keyword)
    if isinstance(value, list):
        return value
    return []


def _target(root: Any, reference: str) -> Any:
    """Return what a reference inside the document names; None where there is no such part."""
    part = root
    for name in reference.removeprefix("#").strip("/").split("/"):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict):
            if name:
                part = part.get(name)
        elif isinstance(part, list) and name.isdigit() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part
