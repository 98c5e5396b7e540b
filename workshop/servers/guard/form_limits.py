"""Refuses a form that costs too much: a JSON schema, a pattern, choices or a grammar.

An answer must fit its form. vLLM turns a form into a grammar before the first token, and asks the
grammar at each step which tokens may come next. A few characters can keep a processor busy for
minutes: `{"maxLength": 100}` in ten sizes takes xgrammar 27 s with a vocabulary of 128,000 tokens.
Each limit is on a feature that costs much in vLLM 0.32's back ends, and well above what people
write. benchmarks/fairshare/forms.py measures what the limits leave.

The standard library only.
"""

from __future__ import annotations

import json
from typing import Any

from workshop.servers.guard.form_costs import combinations, counted_repeats, quantifiers

MAX_BYTES = 48 * 1024  # of one form, as JSON
# Of objects and lists inside each other: about 13 levels of records in lists; vLLM allows 64.
MAX_DEPTH = 40
MAX_PROPERTIES = 800
MAX_VALUES = 1000  # of all enums, and choices
MAX_TEXT = 500  # characters of one value or name
MAX_BRANCHES = 300  # of all anyOf and oneOf
MAX_COMBINATIONS = 64  # of branches that allOf multiplies
MAX_ITEMS = 2000  # all minItems and maxItems together
MAX_DIGITS = 1500  # of all bounds of numbers
MAX_MULTIPLE = 10_000  # the largest multipleOf
MAX_MULTIPLES = 20
MAX_PATTERNS = 60  # patterns and formats
MAX_PATTERN = 500  # characters of one pattern
MAX_REPEATS = 1000  # the largest number in {1,1000}; of nested ones their product
MAX_NESTING = 3  # quantifiers inside quantifiers, as in ((a+)+)+
MAX_REFERENCES = 500
MAX_GRAMMAR = 4096  # characters
MAX_RULES = 100
MAX_TAGS = 64  # of a structural tag

# Where the back end is not guidance. xgrammar's cost grows with these, and with the size of the
# vocabulary.
MAX_LENGTHS = 100  # all different minLength and maxLength together
MAX_LITERAL = 100  # characters of one value
MAX_COUNTED = 200  # repeats of one pattern
SLOW_FORMATS = ("uri", "uri-reference", "email", "idn-email", "iri")
GUIDANCE = (
    "This server's back end is slow with it: "
    "its owner can start it with --learners, or leave it out"
)

SCHEMA_LISTS = ("anyOf", "oneOf")
# What stands under them is a schema of its own.
ROOTS = ("schema", "json_schema", "parameters", "input_schema")
NUMBER_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LENGTHS = ("minLength", "maxLength")
ITEM_BOUNDS = (
    "minItems",
    "maxItems",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
)


class TooCostly(ValueError):
    """A form that would hold up the others; the text is a sentence without its full stop."""


class Form:
    """Adds up what the parts of one form cost.

    Each method raises TooCostly where a limit is passed.

    Args:
        name: what the form is called in messages, as `"response_format"`.
        guidance: whether vLLM's back end is guidance, which bears more than xgrammar.
        most_bytes: how long it may be, as JSON.
    """

    def __init__(self, name: str, guidance: bool = True, most_bytes: int = MAX_BYTES):
        self.name = name
        self.guidance = guidance
        self.most_bytes = most_bytes
        self._counts: dict[str, int] = {}
        self._lengths: set[tuple[str, int]] = set()

    def schema(self, schema: Any) -> None:
        """Check a JSON schema, or a structural tag with schemas in it."""
        if isinstance(schema, str):
            schema = self._parsed(schema)
        size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "replace"))
        if size > self.most_bytes:
            self._refuse(f"has {size:,} bytes", f"{self.most_bytes:,}")
        self._walk(schema)
        self._combinations(schema)

    def _combinations(self, schema: Any) -> None:
        if combinations(schema) > MAX_COMBINATIONS:
            self._refuse(
                "has an allOf that multiplies more branches", f"{MAX_COMBINATIONS} combinations"
            )

    def choices(self, choices: Any) -> None:
        """Check a list of texts of which the answer is one."""
        if not isinstance(choices, list):
            return  # vLLM refuses it
        if len(json.dumps(choices)) > MAX_BYTES:
            self._refuse("has too long a list of choices", f"{MAX_BYTES:,} bytes")
        self._values(choices)

    def pattern(self, pattern: Any) -> None:
        """Check a regular expression."""
        if not isinstance(pattern, str):
            return
        self._count("patterns and formats", 1, MAX_PATTERNS)
        if len(pattern) > MAX_PATTERN:
            self._refuse(f"has a pattern of {len(pattern):,} characters", f"{MAX_PATTERN}")
        largest, nesting = quantifiers(pattern)
        most = MAX_COUNTED
        if self.guidance:
            most = MAX_REPEATS
        if largest > most:
            self._refuse("has a pattern with more counted repeats, as in {1,10000}", f"{most}")
        if nesting > MAX_NESTING:
            self._refuse(
                "has a pattern with quantifiers inside quantifiers", f"{MAX_NESTING} of them"
            )

    def grammar(self, grammar: Any) -> None:
        """Check a grammar in EBNF or Lark's form."""
        if not isinstance(grammar, str):
            return
        if len(grammar) > MAX_GRAMMAR:
            self._refuse(f"has {len(grammar):,} characters", f"{MAX_GRAMMAR:,}")
        rules = sum(1 for line in grammar.splitlines() if ":" in line)
        if rules > MAX_RULES:
            self._refuse(f"has {rules:,} rules", f"{MAX_RULES}")
        if counted_repeats(grammar) > MAX_REPEATS:
            self._refuse("has more counted repeats, as in {1,10000}", f"{MAX_REPEATS}")
        if "%json" in grammar or "%regex" in grammar:
            self._refuse("has a schema inside a grammar", "one of the two")

    def _parsed(self, text: str) -> Any:
        if len(text) > MAX_BYTES:
            self._refuse(f"has {len(text):,} characters", f"{MAX_BYTES:,}")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise TooCostly(f"{self.name} is no JSON") from None

    def _walk(self, root: Any) -> None:
        """Look at every object of a schema, whichever keyword it stands under."""
        waiting = [(root, 1)]
        while waiting:
            part, depth = waiting.pop()
            if depth > MAX_DEPTH:
                self._refuse("has objects and lists inside each other", f"{MAX_DEPTH} levels")
            if isinstance(part, dict):
                self._keywords(part)
                children = part.values()
                for keyword in ROOTS:
                    if isinstance(part.get(keyword), dict):
                        self._combinations(part[keyword])
            elif isinstance(part, list):
                children = part
            else:
                return  # a schema may be true or false
            waiting += [(child, depth + 1) for child in children if isinstance(child, dict | list)]

    def _keywords(self, schema: dict[str, Any]) -> None:
        for keyword, value in schema.items():
            if keyword in ("properties", "patternProperties") and isinstance(value, dict):
                self._count("properties", len(value), MAX_PROPERTIES)
                self._values(list(value), counted=False)
                if keyword == "patternProperties":
                    for pattern in value:
                        self.pattern(pattern)
            elif keyword == "enum" and isinstance(value, list):
                self._values(value)
            elif keyword == "const":
                self._values([value])
            elif keyword in SCHEMA_LISTS and isinstance(value, list):
                self._count("branches of anyOf and oneOf", len(value), MAX_BRANCHES)
            elif keyword == "pattern" and isinstance(value, str):
                self.pattern(value)
            elif keyword == "grammar" and isinstance(value, str):
                self.grammar(value)
            elif keyword == "format" and isinstance(value, str):
                self._format(value)
            elif keyword == "tags" and isinstance(value, list):
                self._count("tags", len(value), MAX_TAGS)
            elif keyword == "$ref" and isinstance(value, str):
                self._reference(value)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                self._bound(keyword, value)

    def _values(self, values: list[Any], counted: bool = True) -> None:
        if counted:
            self._count("values of enum and const", len(values), MAX_VALUES)
        most = MAX_TEXT
        if counted and not self.guidance:
            most = MAX_LITERAL
        for value in values:
            text = value
            if not isinstance(value, str):
                text = json.dumps(value)
            if len(text) > most:
                self._refuse(f"has a value or a name of {len(text):,} characters", f"{most}")

    def _format(self, name: str) -> None:
        self._count("patterns and formats", 1, MAX_PATTERNS)
        if name in SLOW_FORMATS and not self.guidance:
            raise TooCostly(f'{self.name} has "format": "{name}". {GUIDANCE}')

    def _reference(self, target: str) -> None:
        self._count("references", 1, MAX_REFERENCES)
        if not target.startswith("#"):
            raise TooCostly(
                f"{self.name} refers to another document, {target[:60]!r}: "
                "only # references are followed"
            )

    def _bound(self, keyword: str, value: float) -> None:
        if keyword in ITEM_BOUNDS:
            self._count("items by minItems and maxItems", int(min(abs(value), 10**9)), MAX_ITEMS)
        elif keyword in NUMBER_BOUNDS:
            self._count("digits of minimum and maximum", len(repr(value)), MAX_DIGITS)
        elif keyword == "multipleOf":
            self._count("multipleOf", 1, MAX_MULTIPLES)
            if value > MAX_MULTIPLE:
                self._refuse("has a multipleOf", f"{MAX_MULTIPLE:,}")
        elif keyword in LENGTHS and not self.guidance and value > 1:
            length = (keyword, int(min(value, MAX_COUNTED)))
            if length not in self._lengths:
                self._lengths.add(length)
                if sum(size for _, size in self._lengths) > MAX_LENGTHS:
                    raise TooCostly(f"{self.name} limits the length of texts. {GUIDANCE}")

    def _count(self, what: str, more: int, most: int) -> None:
        self._counts[what] = self._counts.get(what, 0) + more
        if self._counts[what] > most:
            self._refuse(f"has {self._counts[what]:,} {what}", f"{most:,}")

    def _refuse(self, what: str, most: str) -> None:
        raise TooCostly(f"{self.name} {what}; one form may have at most {most} in this class")
