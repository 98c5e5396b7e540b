"""Structured outputs of a class: what is on the list passes in every spelling, and nothing else does."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pytest
import random_forms
from pydantic import BaseModel, ConfigDict, Field

from workshop.guard.fairshare import FairShare
from workshop.guard.limits import forms

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks/10_chat.ipynb"
FORMS = int(os.environ.get("WORKSHOP_FORMS", "60"))  # 500 for the figures in docs/figures.md
TEXT = {"type": "string"}
PATTERN = {"type": "string", "pattern": "[a-z]{1,20}"}


# Every way in which vLLM 0.32 takes a schema, which stands in the place of SCHEMA.
SPELLINGS = {
    "chat": '{"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}',
    "structured_outputs": '{"structured_outputs": {"json": SCHEMA, "regex": null}}',
    "as text": '{"structured_outputs": {"json": TEXT}}',
    "responses": '{"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}',
    "messages": '{"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}',
    "tools": '{"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}',
    "responses' tools": '{"tools": [{"type": "function", "strict": true, "parameters": SCHEMA}]}',
    "messages' tools": '{"tools": [{"name": "f", "input_schema": SCHEMA}]}',
    "a later tool": '{"messages": [{"role": "system", "content": [{"type": "tool_addition", '
    '"tool": {"definition": {"name": "f", "input_schema": SCHEMA}}}]}]}',
}


def spelled(spelling: str, schema) -> dict:
    """A request for this schema."""
    text = json.dumps(schema)
    template = SPELLINGS[spelling]
    return json.loads(template.replace("SCHEMA", text).replace("TEXT", json.dumps(text)))


def problem(fields: dict, backend_is_guidance: bool = True) -> str:
    """Return the refusal of these fields in a class; '' if they pass."""
    try:
        forms.check(fields, backend_is_guidance)
    except forms.NotOpen as refused:
        return str(refused)
    return ""


def field(schema: dict) -> dict:
    """An object with one field of this schema."""
    return {"type": "object", "properties": {"a": schema}}


# Schemas that pydantic makes.


class Unit(Enum):
    piece = "piece"
    hour = "hour"


class Address(BaseModel):
    street: Annotated[str, Field(max_length=200, description="With the number.")]
    country: Literal["DE", "AT", "CH"] = "DE"
    postcode: Annotated[str, Field(pattern=r"^\d{4,5}$")]


class Item(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=120)]
    quantity: Annotated[int, Field(ge=1, le=10_000)]
    unit: Unit
    price: float | int | None = None
    parts: list[Item] = []


class Invoice(BaseModel):
    """An invoice as a program would read it."""

    model_config = ConfigDict(extra="forbid")
    buyer: Address
    items: Annotated[list[Item], Field(min_length=1, max_length=100)]
    table: list[list[float]]
    kind: Literal["invoice"] = "invoice"
    extra: dict = {}
    previous: Invoice | None = None


QUESTIONS = {
    f"question_{number}": {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "null"}],
        "description": f"How much do you agree with statement {number}?",
    }
    for number in range(100)
}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        Invoice.model_json_schema(),
        Item.model_json_schema(),
        {"type": "object", "properties": QUESTIONS, "required": list(QUESTIONS)},
        field({"type": ["string", "null"], "enum": ["a", None, 3, 2.5, True]}),
        {"properties": dict.fromkeys(("pattern", "allOf", "$ref", "not"), TEXT)},
        {"anyOf": [{"const": number} for number in range(8)], "title": "One digit"},
        {"default": {"allOf": [1]}, "type": "object"},
    ],
    ids=lambda schema: str(schema.get("title", list(schema))),
)
def test_what_is_on_the_list_passes_in_every_spelling(schema):
    assert {problem(spelled(spelling, schema)) for spelling in SPELLINGS} == {""}


OTHER_KEYWORDS = (
    "not oneOf if then patternProperties propertyNames dependentSchemas prefixItems contains "
    "uniqueItems multipleOf exclusiveMinimum exclusiveMaximum format definitions $dynamicRef $id "
    "$schema minProperties unevaluatedProperties contentSchema x-guidance nullable"
)
# The first word of each name stands in the refusal.
REFUSED = {keyword: {keyword: TEXT} for keyword in OTHER_KEYWORDS.split()} | {
    "allOf": {"allOf": [{"pattern": f".*a.{{{number}}}b.*"} for number in range(20)]},
    "allOf of one": {"allOf": [TEXT]},
    "additionalProperties": {"type": "object", "additionalProperties": PATTERN},
    "schema, one": {"items": [PATTERN, PATTERN]},
    "true": True,
    "type": {"type": "text"},
    "$ref": {"$ref": "http://169.254.169.254/latest"},
    "$ref without #": {"$ref": "a", "$defs": {"a": TEXT}},
    "$ref in a list": {"$ref": ["#/$defs/a"], "$defs": {"a": TEXT}},
    "$ref to nothing": {"$ref": "#/$defs/a", "$defs": {"b": TEXT}},
    "$ref to the root": field({"$ref": "#"}),
    "$ref beside anyOf": {"$ref": "#/$defs/a", "anyOf": [TEXT], "$defs": {"a": TEXT}},
    "maxLength beside $ref": {"$ref": "#/$defs/a", "maxLength": 3, "$defs": {"a": PATTERN}},
    "type beside anyOf": {"anyOf": [TEXT], "type": "string"},
    "$defs": field({"$defs": {"a": TEXT}}),
    "anyOf": {"anyOf": [{"const": number} for number in range(9)]},
    "pattern in anyOf": {"anyOf": [field(PATTERN), {"type": "null"}]},
    "2 patterns": {"properties": {"a": PATTERN, "b": PATTERN}},
    "deep": json.loads('{"items": ' * 41 + "{}" + "}" * 41),
    "deep default": {"default": json.loads("[" * 50 + "]" * 50)},
    "enum of objects": {"enum": [{"a": 1}]},
    "const": {"const": "y" * 501},
    "properties": {"properties": {"k" * 501: TEXT}},
    "parts": {"enum": list(range(1001))},
    "parts of required": {"required": [f"p{number}" for number in range(1001)]},
    "bytes": {"description": "x" * 66_000},
    "minItems and maxItems": {"properties": {str(n): {"maxItems": 300} for n in range(7)}},
    "maxItems": {"maxItems": 2001},
    "minLength": {"minLength": 10**9},
    "maxLength": {"maxLength": -1},
    "minimum": {"minimum": 10**16},
    "digits of minimum": {"properties": {str(n): {"maximum": 10**14} for n in range(41)}},
    "maximum": {"maximum": "9"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_on_the_list_is_refused_by_name_and_says_what_is(name):
    for spelling in SPELLINGS:
        message = problem(spelled(spelling, REFUSED[name]))
        assert message.startswith('"') and message.endswith("a server of your own."), spelling
        assert len(message) < 600, spelling
        assert name.split()[0].strip(",") in message, spelling


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"structured_outputs": {"json": TEXT, "whitespace_pattern": " {1,9}"}},
        {"structured_outputs": {"json": "{"}},
        {"structured_outputs": {"json": '{"type": "string", "type": "object"}'}},
        {"structured_outputs": {"json": '"a"'}},
        {"structured_outputs": {"choice": ["a"] * 1001}},
        {"structured_outputs": {"choice": ["x" * 501]}},
        {"structured_outputs": {"choice": "abc"}},
        {"structured_outputs": {"choice": [1]}},
        {"structured_outputs": {"_backend": "xgrammar"}},
        {"structured_outputs": [TEXT]},
        spelled("chat", PATTERN) | {"structured_outputs": {"regex": "a"}},
        {"response_format": {"type": "structural_tag", "format": {"tags": []}}},
        {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
        {"response_format": {"type": "grammar"}},
        {"text": {"format": {"type": "grammar", "grammar": "a"}}},
        {"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar"}}]},
        {"tools": [{"type": "mcp", "server_url": "http://10.0.0.1/"}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"parameters": PATTERN}]}]},
        {"messages": [{"role": "developer", "tools": [{"function": {"parameters": {"not": {}}}}]}]},
        {"guided_regex": "a+"},
        {"guided_json": TEXT},
    ],
    ids=str,
)
def test_other_kinds_of_forms_are_closed(fields):
    message = FairShare(None)._judge(json.dumps(fields).encode(), True, {"type": "http"}).problem
    assert message.startswith('"') and message.endswith(".") and ":" in message


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"choice": ["a city", "a river"], "disable_any_whitespace": True}},
        {"structured_outputs": {"json_object": True, "json": None, "grammar": None}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "text"}},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        {"output_config": {"effort": "low"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "auto"},
        {"guided_json": None, "structured_outputs": None, "response_format": None, "tools": None},
    ],
    ids=str,
)
def test_other_kinds_of_forms_are_open(fields):
    assert problem(fields) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        r"(January|March|May) [0-9]{4}",
        r'\{"kind": "(city|river)"\}',
        r"^\d{3}-\d{4}$",
        r"-?[0-9]+(\.[0-9]+)?",
        "[(+*]{2}a{0,20}(?:b|c)*",
        r"\p{L}+\x{41}*[^\]]*\(+",
        "a+?b{2,}?",
    ],
)
def test_a_pattern_with_plain_repeats_passes(pattern):
    assert problem({"structured_outputs": {"regex": pattern}}) == ""
    assert problem(spelled("tools", field({"pattern": pattern}))) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        *("a" * 201, "a{21}", "a{1,21}", "a{21,}", "a{,30}", "a{" + "9" * 50 + "}"),
        *("(a+)+", "(a+)*", "((a|b*)c)+", "(?:x(y{2})z){3}", "(.?a?){20}", "([a-z]+ )*"),
        *("a{2}{3}", "a++", "a*+", "(a{3})?+", r"(\(+)*", "[](a+)+]"),
        *("(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", "(?i)a", "(?P<n>a)", 5),
    ],
)
def test_a_pattern_that_can_be_costly_is_refused(pattern):
    message = problem({"structured_outputs": {"regex": pattern}})
    assert message.startswith('"structured_outputs": a ') and "pattern" in message


def test_lengths_and_many_repeats_are_closed_where_the_back_end_is_not_guidance():
    """xgrammar compiles fifty lengths for 10 s with 8,192 tokens; guidance for 3 ms."""
    for schema in (field({"maxLength": 5}), field({"pattern": "[a-z]{20}[0-9]{1,2}"})):
        for spelling in SPELLINGS:
            request = spelled(spelling, schema)
            assert problem(request) == ""
            assert "--learners" in problem(request, backend_is_guidance=False)
    for request in requests_of_the_notebook():
        assert problem(request, backend_is_guidance=False) == ""


def requests_of_the_notebook() -> list[dict]:
    """The forms that notebook 10 sends: arguments of formed(…), chat(…) and the like in its cells."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    values: dict = {}
    requests = []
    tree = ast.parse(code)
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                exec(ast.unparse(node), {"__builtins__": {}}, values)
            except Exception:
                continue  # it calls something
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        arguments = {}
        for keyword in node.keywords:
            if keyword.arg in ("structured_outputs", "tools", *forms.STRUCTURED):
                source = ast.unparse(keyword.value).replace("[text]", "[call]")
                if source != "form":
                    arguments[keyword.arg] = eval(source, {"__builtins__": {}}, dict(values))
        structured = {name: arguments.pop(name) for name in forms.STRUCTURED if name in arguments}
        if structured:
            arguments["structured_outputs"] = structured
        if arguments:
            requests.append(arguments)
    return requests


def test_all_that_notebook_10_asks_for_passes():
    requests = requests_of_the_notebook()
    sent = json.dumps(requests)
    assert len(requests) >= 8
    parts = ("a city", "January", "get_weather", "tool_call", "(city|river)")
    for part in (*parts, "disable_any_whitespace"):
        assert part in sent
    assert [problem(request) for request in requests] == [""] * len(requests)


def test_forms_at_the_limits_cost_the_api_server_little():
    """The limit is for a busy machine; on a quiet one none takes 50 ms."""
    pytest.importorskip("vllm")
    import xgrammar

    largest, longest_ms = 0, dict.fromkeys(("guard", "guidance", "xgrammar"), 0.0)
    for request in random_forms.made(FORMS, seed=11):
        form = random_forms.vllm_form(request)
        if "json" in form:
            # what vLLM's checks go through: the rules that a schema becomes, but for one with \p{L}
            with contextlib.suppress(RuntimeError):
                largest = max(largest, len(str(xgrammar.Grammar.from_json_schema(form["json"]))))
        costs = [random_forms.checks(request) for _ in range(2)]
        for name in longest_ms:
            least_ms = min(cost[name] for cost in costs)
            assert least_ms < 250, (name, json.dumps(request)[:300])
            longest_ms[name] = max(longest_ms[name], least_ms)
    print(longest_ms)  # pytest -s shows it
    assert 20_000 < largest < 1_000_000


def test_a_long_form_is_judged_at_once():
    began = time.process_time()
    for schema in ({"anyOf": [TEXT] * 9000}, {"enum": ["x" * 100] * 9000}, {"$ref": "#" * 900_000}):
        assert problem({"response_format": {"json_schema": {"schema": schema}}})
    assert time.process_time() - began < 2
