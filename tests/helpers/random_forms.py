"""Forms that a class may ask for (workshop/guard/limits/forms.py), made at random, and what it costs to check them.

Each is as large as the list's limits let it be: schemas, tools, choices and patterns.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

from workshop.guard.limits import forms

REFUSALS = 6  # so often a form is made larger than the list allows, before it is large enough
PIECES = (".*", ".{0,20}", "[a-z]{20}", r"\w+", r"\d*", "(a|b.{20}c)", "(?:xy|.*z)", "[^a]{3,20}")
PIECES += ("(ab?c{2,20})?", r"\s?", "é", ".", r"\p{L}*", r"\{")


class Maker:
    """Makes forms at random, and each as large as it may be."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.names = itertools.count()
        self.targets: list[str] = []

    def request(self) -> dict[str, Any]:
        """Return the fields of one request."""
        self.targets = []
        kind = self.random.choice(("json", "json", "json", "tools", "choice", "regex"))
        if kind == "tools":
            return self.largest({"tools": [], "tool_choice": "required"}, self.with_tools)
        if kind == "choice":
            return {"structured_outputs": {"choice": self.texts(900)}}
        if kind == "regex":
            return {"structured_outputs": {"regex": self.pattern()}}
        definitions: dict[str, Any] = {}
        for number in range(self.random.choice((0, 3, 30))):
            definitions[f"d{number}"] = self.part(4)
            self.targets.append(f"#/$defs/d{number}")
        schema = {"type": "object", "properties": {}, "$defs": definitions}
        return self.largest({"structured_outputs": {"json": schema}}, self.with_properties)

    def largest(self, request: dict[str, Any], grow: Callable[[Any], Any]) -> dict[str, Any]:
        """Make a request larger until the list refuses what comes next."""
        refusals = 0
        while refusals < REFUSALS:
            larger = grow(request)
            try:
                forms.check(larger)
                request = larger
            except forms.NotOpen:
                refusals += 1
        return request

    def with_tools(self, request: dict[str, Any]) -> dict[str, Any]:
        """Add a tool."""
        function = {"name": f"tool{next(self.names)}", "parameters": self.object(4, 20)}
        return {**request, "tools": [*request["tools"], {"function": function}]}

    def with_properties(self, request: dict[str, Any]) -> dict[str, Any]:
        """Add properties to the schema of a request."""
        schema = request["structured_outputs"]["json"]
        more = self.object(self.random.choice((1, 2, 6, 17)), self.random.choice((1, 5, 60)))
        schema = {**schema, "properties": {**schema["properties"], **more["properties"]}}
        return {"structured_outputs": {"json": schema}}

    def object(self, depth: int, count: int, in_any_of: bool = False) -> dict[str, Any]:
        """Return an object that may require its properties."""
        properties: dict[str, Any] = {}
        for _ in range(count):
            name = self.random.choice(("p", "a long name of a field ")) + str(next(self.names))
            properties[name] = self.part(depth - 1, in_any_of)
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if self.random.random() < 0.5:
            schema["required"] = list(properties)
        if self.random.random() < 0.5:
            schema["additionalProperties"] = self.random.random() < 0.5
        return schema

    def part(self, depth: int, in_any_of: bool = False) -> dict[str, Any]:
        """Return a schema with up to so many schemas inside each other."""
        kinds = ["string", "string", "number", "integer", "enum", "const", "types", "$ref"]
        if depth > 0:
            kinds += ["object", "object", "array", "array", "anyOf"]
        kind = self.random.choice(kinds)
        if kind == "object":
            return self.object(depth, self.random.choice((0, 1, 1, 4)), in_any_of)
        if kind == "array":
            most = self.random.choice((1, 10, 200))
            items = self.part(depth - 1, in_any_of)
            return {"type": "array", "items": items, "minItems": most // 2, "maxItems": most}
        if kind == "anyOf":
            parts = [self.part(depth // 3 - 1, True) for _ in range(forms.MAX_ANY_OF)]
            return {"anyOf": parts}
        if kind == "$ref" and self.targets:
            return {"$ref": self.random.choice(self.targets)}
        if kind == "enum":
            return {"enum": [*self.texts(self.random.choice((1, 10, 200))), 1, 2.5, None, True]}
        if kind == "const":
            return {"const": self.texts(1)[0], "title": "A title", "default": None}
        if kind == "types":
            return {"type": ["string", "number", "null", "array", "object"]}
        if kind in ("number", "integer"):
            size = self.random.choice((1, 10**4, 10**14))
            low, high = sorted(self.random.uniform(-size, size) for _ in "ab")
            if kind == "integer":
                low, high = int(low) - 1, int(high) + 1
            return {"type": kind, "minimum": low, "maximum": high}
        if not in_any_of and self.random.random() < 0.02:
            return {"type": "string", "pattern": self.pattern()}
        most = self.random.choice((1, 20, 1000, forms.MAX_LENGTH))
        return {"type": "string", "minLength": most // 2, "maxLength": most}

    def texts(self, count: int) -> list[str]:
        """Return texts of one length."""
        length = self.random.choice((1, 20, min(forms.MAX_TEXT - 10, 50_000 // count)))
        return ["x" * length + str(number) for number in range(count)]

    def pattern(self) -> str:
        """Return a pattern of the largest length, of many pieces or of one again and again."""
        pieces = self.random.sample(PIECES, self.random.choice((1, 2, len(PIECES))))
        pattern = ""
        while len(pattern) < forms.MAX_PATTERN - 14:
            pattern += self.random.choice(pieces)
        return pattern


def made(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield so many requests that the list lets pass, at its limits."""
    maker = Maker(seed)
    while count:
        request = maker.request()
        with contextlib.suppress(forms.NotOpen):  # a pattern of ".*" alone has stacked repeats
            forms.check(request)
            count -= 1
            yield request


def vllm_form(request: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of StructuredOutputsParams that vLLM makes of a request."""
    if "tools" not in request:
        return request["structured_outputs"]
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
    from vllm.tool_parsers.utils import get_json_schema_from_tools

    tools = [ChatCompletionToolsParam(**tool) for tool in json.loads(json.dumps(request["tools"]))]
    return {"json": get_json_schema_from_tools("required", tools)}


def checks(request: dict[str, Any]) -> dict[str, float]:
    """Return the CPU milliseconds of each check of a request: ours, and vLLM's two, in its API server's event loop."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar

    def refusing(check: Callable[[SamplingParams], None]) -> None:
        form = StructuredOutputsParams(**vllm_form(request))
        began.append(time.process_time())
        # some forms cannot be met, or this back end does not know them
        with contextlib.suppress(VLLMValidationError, ValueError):
            check(SamplingParams(structured_outputs=form))

    result: dict[str, float] = {}
    for name, check in {
        "guard": lambda: forms.check(request),
        "guidance": lambda: refusing(validate_guidance_grammar),
        "xgrammar": lambda: refusing(validate_xgrammar_grammar),
    }.items():
        began = [time.process_time()]
        check()
        result[name] = 1000 * (time.process_time() - began[-1])
    return result
