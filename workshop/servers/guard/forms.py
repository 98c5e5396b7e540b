"""The structured outputs that a class may ask for: a list of what is open, and nothing else.

vLLM checks a form in the event loop that answers everybody, so a form of a few hundred bytes can
stop a class: twenty patterns under an `allOf` take minutes. What a form costs cannot be told from
its text, so only keywords are open whose cost was measured: `benchmarks/guard_forms.py` makes 500
forms at the limits, and each takes less than 50 ms there.

The standard library only.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from workshop.servers.guard.request_body import Unclear, read_json

SCALARS = (str, int, float, type(None))
ANNOTATIONS = ("title", "description", "default")
LENGTHS = ("minLength", "maxLength")
ITEMS = ("minItems", "maxItems")
BOUNDS = ("minimum", "maximum")
SCHEMAS = ("properties", "$defs")  # names with schemas
KEYWORDS = ("type", "properties", "required", "additionalProperties", "items", *ITEMS, *LENGTHS)
KEYWORDS += (*BOUNDS, "enum", "const", "pattern", "anyOf", "$ref", "$defs", *ANNOTATIONS)
TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")
STRUCTURED = ("json", "json_object", "choice", "regex")
STRUCTURED += ("disable_any_whitespace", "disable_additional_properties")
FORMAT_TYPES = ("text", "json_object", "json_schema")
FORMAT = ("type", "json_schema", "name", "description", "schema", "strict")
TOOL_TYPES = ("function", "custom")  # Anthropic calls one with an input_schema custom
TOOL = ("type", "function", "name", "description", "parameters", "input_schema", "strict")
TOOL += ("cache_control", "defer_loading")
HOLDERS = ("json_schema", "function")  # what stands in them may stand beside them as well

# Of all forms of one request together.
MAX_BYTES = 64 * 1024
MAX_PARTS = 1000  # schemas, required names, choices, and values of enum
MAX_ITEMS = 2000  # the sum of minItems and maxItems
MAX_BOUNDS = 40  # minimum and maximum
# Of each.
MAX_DEPTH = 40  # objects and lists inside each other; vLLM allows 64
MAX_ANY_OF = 8
MAX_TEXT = 500  # characters of a name, a value or a choice
MAX_LENGTH = 10_000  # minLength, maxLength
MAX_NUMBER = 10**15  # minimum, maximum
MAX_PATTERN = 200  # characters
MAX_REPEATS = 20  # the largest number in {1,20}
REMEDY = "leave it out, or use a server of your own"
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
    for name, value in request.items():
        if name.startswith("guided_") and value is not None:
            raise NotOpen(f'"{name}" is not read by vLLM any more: send "structured_outputs".')
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
            self._wrong(f"{_short(fields)} is no object", f"an object with {', '.join(names)}")
        for name, value in fields.items():
            if value is None:
                continue
            if name not in names:
                self._refuse(_short(name), names)
            if name == "type" and value not in types:
                self._refuse(f'"type": {_short(value)}', types)
            if name in HOLDERS:
                self.fields(field, value, names, types)
            elif name in ("json", "schema", "parameters", "input_schema"):
                self._schema(value)
            elif name == "regex":
                self._pattern(value)
            elif name == "choice":
                self._values(name, value, (str,))

    def _schema(self, schema: Any) -> None:
        if isinstance(schema, str):
            try:
                schema = read_json(schema)
            except Unclear as unclear:
                raise NotOpen(f'"{self._field}" has a schema as text: {unclear}.') from None
        text = json.dumps(schema, ensure_ascii=False)
        self._count("bytes", len(text.encode("utf-8", "replace")), MAX_BYTES)
        if _depth(schema) > MAX_DEPTH:
            self._wrong("its objects and lists are too deep", f"{MAX_DEPTH} inside each other")
        definitions = set()
        if isinstance(schema, dict) and isinstance(schema.get("$defs"), dict):
            definitions = {f"#/$defs/{name}" for name in schema["$defs"]}
        self._part(schema, definitions, is_root=True)

    def _part(
        self, schema: Any, definitions: set[str], *, is_root: bool = False, in_any_of: bool = False
    ) -> None:
        """Check one schema and those inside it. `definitions` are what a $ref may name."""
        if not isinstance(schema, dict):
            self._wrong(f"{_short(schema)} is no schema", 'an object as {"type": "string"}')
        self._count("parts", 1, MAX_PARTS)
        for keyword in schema:
            if keyword not in KEYWORDS or (keyword == "$defs" and not is_root):
                self._refuse(_short(keyword), KEYWORDS)
            for alone in ("anyOf", "$ref"):
                if alone in schema and keyword not in (alone, "$defs", *ANNOTATIONS):
                    self._wrong(f'"{keyword}" beside "{alone}"', f"{', '.join(ANNOTATIONS)} there")
        for keyword, value in schema.items():
            if keyword in SCHEMAS:
                if not isinstance(value, dict):
                    self._wrong(f'"{keyword}" is no object', 'as in {"name": {"type": "string"}}')
                self._texts(keyword, list(value))
                for part in value.values():
                    self._part(part, definitions, in_any_of=in_any_of)
            elif keyword == "items":
                self._part(value, definitions, in_any_of=in_any_of)
            elif keyword == "anyOf":
                if not 0 < len(_list(value)) <= MAX_ANY_OF:
                    self._wrong(
                        f'"anyOf" has {len(_list(value))} schemas', f"from 1 to {MAX_ANY_OF}"
                    )
                for part in value:
                    self._part(part, definitions, in_any_of=True)
            elif keyword == "pattern":
                if in_any_of:
                    self._wrong('"pattern" inside "anyOf"', "a pattern outside of it")
                self._pattern(value)
            else:
                self._value(keyword, value, definitions)

    def _value(self, keyword: str, value: Any, definitions: set[str]) -> None:
        """Check the value of a keyword that has no schema in it."""
        if keyword == "type":
            types = value
            if not isinstance(value, list):
                types = [value]
            for name in types:
                if name not in TYPES:
                    self._refuse(f'"type": {_short(name)}', TYPES)
        elif keyword == "required":
            self._values(keyword, value, (str,))
        elif keyword == "enum":
            self._values(keyword, value, SCALARS)
        elif keyword == "const":
            self._values(keyword, [value], SCALARS)
        elif keyword == "additionalProperties" and not isinstance(value, bool):
            self._wrong(f'"{keyword}" is {_short(value)}', "true or false")
        elif keyword == "$ref":
            if not isinstance(value, str) or value not in definitions:
                self._refuse(f'"$ref": {_short(value)}', ("#/$defs/NAME of the same schema",))
        elif keyword in ITEMS:
            self._count("minItems and maxItems", self._whole(keyword, value, MAX_ITEMS), MAX_ITEMS)
        elif keyword in LENGTHS:
            self._whole(keyword, value, MAX_LENGTH)
            if not self._guidance:
                raise NotOpen(f'"{self._field}": "{keyword}" {SLOW}.')
        elif keyword in BOUNDS:
            if type(value) not in (int, float) or not abs(value) <= MAX_NUMBER:
                self._wrong(
                    f'"{keyword}" is {_short(value)}', f"numbers up to {MAX_NUMBER:,} there"
                )
            self._count("minimum and maximum", 1, MAX_BOUNDS)

    def _whole(self, keyword: str, value: Any, most: int) -> int:
        if type(value) is not int or not 0 <= value <= most:
            self._wrong(
                f'"{keyword}" is {_short(value)}', f"whole numbers from 0 to {most:,} there"
            )
        return value

    def _values(self, name: str, values: Any, kinds: tuple[type, ...]) -> None:
        """Check a list of texts and the like."""
        if not isinstance(values, list) or not all(isinstance(value, kinds) for value in values):
            self._wrong(f'"{name}" is {_short(values)}', "a list of texts, or numbers in an enum")
        self._count("parts", len(values), MAX_PARTS)
        self._texts(name, values)

    def _texts(self, name: str, values: list[Any]) -> None:
        longest = max((len(str(value)) for value in values), default=0)
        if longest > MAX_TEXT:
            self._wrong(f'"{name}" has {longest:,} characters in one value', f"{MAX_TEXT}")

    def _pattern(self, pattern: Any) -> None:
        """Check a regular expression: short, with few repeats, none of them inside another."""
        self._count("patterns", 1, 1)
        if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN:
            self._wrong("its pattern is too long, or no text", f"{MAX_PATTERN} characters")
        text = CHARACTER.sub("x", pattern)
        if "(?" in text.replace("(?:", "("):
            self._wrong("its pattern has a group that begins with (?", "( ) and (?: )")
        numbers = [digits for counted in COUNTED.findall(text) for digits in counted if digits]
        if any(len(digits) > 9 or int(digits) > MAX_REPEATS for digits in numbers):
            self._wrong("its pattern has more repeats", f"{{0,{MAX_REPEATS}}} at most")
        if not self._guidance and sum(map(int, numbers)) > MAX_REPEATS:
            raise NotOpen(f'"{self._field}": a pattern of so many repeats {SLOW}.')
        while group := INNERMOST.search(text):
            character = "x"
            if QUANTIFIER.search(group[1]):
                character = "x?"  # a repeat that follows is stacked on it
            text = text[: group.start()] + character + text[group.end() :]
        if STACKED.search(text):
            self._wrong("its pattern has a repeat inside a repeat", "repeats side by side, as a+b*")

    def _count(self, what: str, more: int, most: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + more
        if self._counts[what] > most:
            self._wrong(f"this request has {self._counts[what]:,} {what} or more", f"{most:,}")

    def _refuse(self, what: str, names: Any) -> NoReturn:
        raise NotOpen(
            f'"{self._field}": {what} is not open in this class, only {", ".join(names)[:400]}: '
            f"{REMEDY}."
        )

    def _wrong(self, what: str, allowed: str) -> NoReturn:
        raise NotOpen(f'"{self._field}": {what}; this class allows {allowed}: {REMEDY}.')


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _short(value: Any) -> str:
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
            children = part
            if isinstance(part, dict):
                children = part.values()
            inner += children
        level = inner
    return depth
