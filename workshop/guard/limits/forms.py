"""Checks the structured outputs of a request against the allow-list, and refuses all others.

vLLM checks a form in the event loop that answers everybody, so a form of a few hundred bytes can
stop a class: twenty patterns under an `allOf` take minutes. What a form costs cannot be told from
its text, so only what was measured is open: `tests/guard/test_forms.py` makes forms at random, as
large as this list allows; of 500 each takes less than 50 ms there.

The standard library only.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from workshop.guard.limits.allow_list import (
    BESIDE_A_REFERENCE,
    FORMAT,
    FORMAT_TYPES,
    HOLDERS,
    KEYWORDS,
    MAX_ANY_OF,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_FORM_BYTES,
    MAX_ITEMS,
    MAX_LENGTH,
    MAX_NUMBER,
    MAX_PARTS,
    MAX_PATTERN,
    MAX_REPEATS,
    MAX_TEXT,
    STRUCTURED,
    TEXTS,
    TOOL,
    TOOL_TYPES,
    TYPES,
)
from workshop.guard.limits.request_body import Unclear, read_json

# xgrammar compiles a maxLength of 100 for 0.4 s with 8,192 tokens, and for minutes with 128,000.
SLOW = "is slow on this server: leave it out, or ask its owner to start it with --learners"

# One character of a pattern: a class as [a-z], an escape as \d or \p{L}.
CHARACTER = re.compile(r"\\[pPxu]\{[^{}]*\}|\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)
COUNTED = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}")
QUANTIFIER = re.compile(r"[*+?{]")
STACKED = re.compile(r"[*+?}][*+{]")  # a repeat of a repeat, as in a{2}{3}
INNERMOST = re.compile(r"\((?:\?:)?([^()]*)\)")


class NotOpen(ValueError):
    """A form that is not on the list. The text is a whole sentence."""


def check(request: dict[str, Any], guidance: bool = True) -> None:
    """Look at every form of a request, however vLLM 0.32 lets it be written.

    Args:
        request: the parsed body.
        guidance: the server's back end for forms is guidance, as --learners chooses it. With
            another one, lengths and many repeats are closed as well.

    Raises:
        NotOpen: something of a form is not on the list.
    """
    forms = _Forms(guidance)
    forms.fields("structured_outputs", request.get("structured_outputs"), STRUCTURED)
    forms.fields("response_format", request.get("response_format"), FORMAT, FORMAT_TYPES)
    for outer in ("text", "output_config"):
        value = request.get(outer)
        if isinstance(value, dict):
            forms.fields(f"{outer}.format", value.get("format"), FORMAT, FORMAT_TYPES)
    tools = [*_list(request.get("tools"))]
    for message in (*_list(request.get("messages")), *_list(request.get("input"))):
        if isinstance(message, dict):
            tools += _list(message.get("tools"))
            for part in _list(message.get("content")):
                if isinstance(part, dict) and isinstance(part.get("tool"), dict):
                    tools.append(part["tool"].get("definition"))
    for tool in tools:
        forms.fields("tools", tool, TOOL, TOOL_TYPES)


class _Forms:
    """Checks the forms of one request, and counts what they have together."""

    def __init__(self, guidance: bool):
        self._guidance = guidance
        self._counts: dict[str, int] = {}
        self._field = ""

    def fields(
        self, field: str, fields: Any, names: tuple[str, ...], types: tuple[str, ...] = ()
    ) -> None:
        """Check a field of a request that asks for a form.

        Args:
            field: what it is called in messages.
            fields: its value, None if the request has none.
            names: those that may stand in it.
            types: what its "type" may be.
        """
        self._field = field
        if fields is None:
            return
        if not isinstance(fields, dict):
            self._refuse(_show(fields), f"an object with {', '.join(names)}")
        for name, value in fields.items():
            if value is None:
                continue
            if name not in names:
                self._refuse(_show(name), ", ".join(names))
            if name == "type" and value not in types:
                self._refuse(f'"type": {_show(value)}', ", ".join(types))
            if name in HOLDERS:
                self.fields(field, value, names, types)
            elif name in ("json", "schema", "parameters", "input_schema"):
                self._schema(value)
            elif name == "regex":
                self._pattern(value)
            elif name == "choice":
                if not _are_texts(value):
                    self._refuse(f'"choice": {_show(value)}', TEXTS)
                self._count("parts", len(value), MAX_PARTS)

    def _schema(self, schema: Any) -> None:
        if isinstance(schema, str):
            try:
                schema = read_json(schema)
            except Unclear as unclear:
                raise NotOpen(f'"{self._field}" has a schema as text: {unclear}.') from None
        text = json.dumps(schema, ensure_ascii=False)
        self._count("bytes", len(text.encode("utf-8", "replace")), MAX_FORM_BYTES)
        if _depth(schema) > MAX_DEPTH:
            self._refuse("objects and lists so deep", f"{MAX_DEPTH} inside each other")
        targets: set[str] = set()
        if isinstance(schema, dict) and isinstance(schema.get("$defs"), dict):
            targets = {f"#/$defs/{name}" for name in schema["$defs"]}
        self._part(schema, targets, is_root=True)

    def _part(
        self, schema: Any, targets: set[str], *, is_root: bool = False, in_any_of: bool = False
    ) -> None:
        """Check a schema and those inside it; `targets` are what a $ref may name."""
        if not isinstance(schema, dict):
            self._refuse(f"the schema {_show(schema)}", KEYWORDS["items"])
        self._count("parts", 1, MAX_PARTS)
        for keyword, value in schema.items():
            if keyword not in KEYWORDS or (keyword == "$defs" and not is_root):
                self._refuse(_show(keyword), ", ".join(KEYWORDS))
            if ("anyOf" in schema or "$ref" in schema) and keyword not in BESIDE_A_REFERENCE:
                self._refuse(f'"{keyword}" beside "anyOf" or "$ref"', "title, description, default")
            is_open = _is_open(keyword, value)
            if keyword == "$ref":
                is_open = is_open and value in targets
            if keyword == "pattern" and in_any_of:
                is_open = False
            if not is_open:
                self._refuse(f'"{keyword}": {_show(value)}', KEYWORDS[keyword])
            self._count_value(keyword, value)
        if "anyOf" in schema and "$ref" in schema:
            self._refuse('"anyOf" beside "$ref"', "one of them")
        children = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
        if "items" in schema:
            children.append(schema["items"])
        for child in children:
            self._part(child, targets, in_any_of=in_any_of)
        for child in schema.get("anyOf", ()):
            self._part(child, targets, in_any_of=True)

    def _count_value(self, keyword: str, value: Any) -> None:
        if keyword == "pattern":
            self._pattern(value)
        elif keyword in ("required", "enum"):
            self._count("parts", len(value), MAX_PARTS)
        elif keyword in ("minItems", "maxItems"):
            self._count("minItems and maxItems", value, MAX_ITEMS)
        elif keyword in ("minimum", "maximum"):
            self._count("digits of minimum and maximum", len(str(value)), MAX_DIGITS)
        elif keyword in ("minLength", "maxLength") and not self._guidance:
            raise NotOpen(f'"{self._field}": "{keyword}" {SLOW}.')

    def _pattern(self, pattern: Any) -> None:
        """Check a regular expression: short, with few repeats, none of them inside another."""
        self._count("patterns", 1, 1)
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
            self._refuse("a longer pattern", f"{MAX_PATTERN} characters")
        text = CHARACTER.sub("x", pattern)
        if "(?" in text.replace("(?:", "("):
            self._refuse("a pattern with a group that begins with (?", "( ) and (?: )")
        numbers = [digits for counted in COUNTED.findall(text) for digits in counted if digits]
        if any(len(digits) > 9 or int(digits) > MAX_REPEATS for digits in numbers):
            self._refuse("a pattern with more repeats", f"up to {{1,{MAX_REPEATS}}}")
        if not self._guidance and sum(map(int, numbers)) > MAX_REPEATS:
            raise NotOpen(f'"{self._field}": a pattern of so many repeats {SLOW}.')
        while group := INNERMOST.search(text):
            character = "x"
            if QUANTIFIER.search(group[1]):
                character = "x?"  # a repeat that follows is stacked on it
            text = text[: group.start()] + character + text[group.end() :]
        if STACKED.search(text):
            self._refuse("a pattern with a repeat inside a repeat", "them side by side, as a+b*")

    def _count(self, what: str, more: int, most: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + more
        if self._counts[what] > most:
            self._refuse(f"a request with {self._counts[what]:,} {what}", f"{most:,} in all")

    def _refuse(self, what: str, allowed: str) -> NoReturn:
        raise NotOpen(
            f'"{self._field}": {what} is not open in this class, which allows {allowed}: '
            "leave it out, or use a server of your own."
        )


def _is_open(keyword: str, value: Any) -> bool:
    """Return whether a keyword may have this value, as KEYWORDS says. Schemas are not looked at."""
    if keyword == "type":
        return all(name in TYPES for name in _list(value) or [value])
    if keyword in ("properties", "$defs"):
        return isinstance(value, dict) and _are_texts(list(value))
    if keyword == "required":
        return _are_texts(value)
    if keyword == "additionalProperties":
        return isinstance(value, bool)
    if keyword in ("minItems", "maxItems"):
        return type(value) is int and 0 <= value <= MAX_ITEMS
    if keyword in ("minLength", "maxLength"):
        return type(value) is int and 0 <= value <= MAX_LENGTH
    if keyword in ("minimum", "maximum"):
        return type(value) in (int, float) and abs(value) <= MAX_NUMBER
    if keyword == "enum":
        return isinstance(value, list) and all(map(_is_scalar, value))
    if keyword == "const":
        return _is_scalar(value)
    if keyword == "anyOf":
        return 0 < len(_list(value)) <= MAX_ANY_OF
    return keyword != "$ref" or isinstance(value, str)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list) and len(str(value)) <= MAX_TEXT


def _are_texts(values: Any) -> bool:
    """Return whether this is a list of short texts."""
    if not isinstance(values, list):
        return False
    return all(isinstance(value, str) and len(value) <= MAX_TEXT for value in values)


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _show(value: Any) -> str:
    """Return a value as JSON, of a readable length."""
    text = json.dumps(value)
    if len(text) > 60:
        return f"{text[:60]}…"
    return text


def _depth(value: Any) -> int:
    """Return how many objects and lists are inside each other."""
    level = [value]
    depth = 0
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                part = list(part.values())
            inner += part
        level = inner
    return depth
