"""What one request may ask for in a class: ordinary use passes, and what would hold up the others is refused."""

from __future__ import annotations

import json
import time
from datetime import datetime
from enum import Enum
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from workshop.servers.guard import fairshare, form_limits, request_limits
from workshop.servers.guard.fairshare import FairShare
from workshop.servers.guard.form_costs import combinations, quantifiers

TEXT = {"type": "string"}
FIELDS = [
    *request_limits.LENGTHS,
    *request_limits.TEXTS,
    *request_limits.CLOSED,
    *request_limits.LOGPROBS,
]
FIELDS += [
    "n",
    "prompt",
    "response_format",
    "structured_outputs",
    "text",
    "output_config",
    "repetition_detection",
]
WORDS = [
    "schema",
    "json_schema",
    "format",
    "allOf",
    "anyOf",
    "$ref",
    "enum",
    "const",
    "properties",
    "pattern",
    "items",
]
WORDS += [
    "maxItems",
    "minimum",
    "multipleOf",
    "tags",
    "grammar",
    "choice",
    "regex",
    "json",
    "content",
    "url",
    "source",
]
WORDS += [
    "image_url",
    "tool",
    "data",
    "type",
    "parameters",
    "structural_tag",
    "input_audio",
    "maxLength",
]


def problem(**fields) -> str:
    """What a class says of a chat request with these fields."""
    body = {"messages": [{"role": "user", "content": "hello"}], **fields}
    return FairShare(None).problem(json.dumps(body).encode())


def of_schema(schema, *, backend: str = "guidance", where: str = "response_format") -> str:
    """What a class says of a form, given in one of the ways in which vLLM takes one."""
    ways = {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "form", "schema": schema},
        },
        "structured_outputs": {"json": schema},
        "text": {"format": {"type": "json_schema", "name": "form", "schema": schema}},
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(backend=backend), model_config=None
    )
    app = SimpleNamespace(state=SimpleNamespace(vllm_config=config))
    body = json.dumps({"prompt": "x", where: ways[where]}).encode()
    return FairShare(None).problem(body, True, {"app": app})


# Forms of real life.


class Unit(Enum):
    piece = "piece"
    hour = "hour"
    kilogram = "kilogram"


class Money(BaseModel):
    amount: Annotated[float, Field(ge=0, le=1_000_000, description="In the currency's main unit.")]
    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]


class Address(BaseModel):
    street: Annotated[str, Field(max_length=200)]
    town: Annotated[str, Field(max_length=100)]
    postcode: Annotated[str, Field(pattern=r"^\d{4,5}(-\d{4})?$", max_length=12)]
    country: Literal["DE", "AT", "CH", "FR", "IT", "NL"] = "DE"
    email: Annotated[str | None, Field(json_schema_extra={"format": "email"})] = None


class Discount(BaseModel):
    kind: Literal["discount"]
    percent: Annotated[float, Field(gt=0, lt=100, multiple_of=0.5)]


class Fee(BaseModel):
    kind: Literal["fee"]
    price: Money


class Item(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=120)]
    quantity: Annotated[int, Field(ge=1, le=10_000)]
    unit: Unit
    price: Money
    changes: Annotated[
        list[Annotated[Discount | Fee, Field(discriminator="kind")]], Field(max_length=10)
    ] = []
    parts: list[Item] = []


class Invoice(BaseModel):
    """An invoice as a program would read it."""

    model_config = ConfigDict(extra="forbid")
    number: Annotated[str, Field(pattern=r"^INV-\d{4}-[0-9A-F]{1,8}$")]
    date: datetime
    seller: Address
    buyer: Address
    items: Annotated[list[Item], Field(min_length=1, max_length=100)]
    notes: dict[str, str | int | float | None] = {}
    tags: Annotated[list[str], Field(max_length=20)] = []
    previous: Invoice | None = None


def wide_model() -> dict:
    """A schema of 8 kB: a questionnaire with many described fields."""
    fields = {
        f"question_{number}": {
            "anyOf": [{"type": "integer", "minimum": 1, "maximum": 5}, {"type": "null"}],
            "description": f"How much do you agree with statement {number}? 1: not at all, 5: completely.",
            "title": f"Question {number}",
        }
        for number in range(45)
    }
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def agent_tools() -> list[dict]:
    """Thirty tools of a coding agent, 40 kB."""
    tools = []
    for number in range(30):
        parameters = {
            f"argument_{place}": {
                "type": ["string", "null"],
                "description": f"What argument {place} of tool {number} does, in a sentence or two. "
                * 2,
            }
            for place in range(6)
        }
        parameters["mode"] = {"type": "string", "enum": ["read", "write", "append"]}
        parameters["options"] = {
            "type": "array",
            "maxItems": 20,
            "items": {"$ref": "#/$defs/option"},
        }
        schema = {
            "type": "object",
            "properties": parameters,
            "required": ["mode"],
            "$defs": {"option": {"type": "object", "properties": {"name": TEXT, "value": TEXT}}},
        }
        function = {
            "name": f"tool_{number}",
            "description": "Does one thing. " * 12,
            "parameters": schema,
        }
        tools.append({"type": "function", "function": {**function, "strict": number % 2 == 0}})
    return tools


@pytest.mark.parametrize(
    "where", ["response_format", "structured_outputs", "text", "output_config", "tools"]
)
@pytest.mark.parametrize(
    "schema", [Invoice.model_json_schema(), wide_model(), {"type": "object"}, True], ids=str
)
def test_schemas_of_real_programs_pass(schema, where):
    assert of_schema(schema, where=where) == ""


def test_a_form_may_be_given_as_text():
    assert of_schema(json.dumps(Invoice.model_json_schema()), where="structured_outputs") == ""
    assert "JSON" in of_schema("{", where="structured_outputs")


def test_the_tools_of_an_agent_pass():
    tools = agent_tools()
    assert 35_000 < len(json.dumps(tools)) < 60_000
    assert problem(tools=tools, tool_choice="auto", parallel_tool_calls=True) == ""
    anthropic = [{"name": "f", "input_schema": tool["function"]["parameters"]} for tool in tools]
    assert problem(tools=anthropic, system=[{"type": "text", "text": "Be brief."}]) == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["\n\n", "Question:", "</s>"], "temperature": 0.3, "seed": 7, "user": "ada"},
        {"logit_bias": {str(token): -100 for token in range(50)}, "bad_words": ["foo", "bar"]},
        {"logprobs": True, "top_logprobs": 20},
        {"chat_template_kwargs": {"enable_thinking": False}, "request_id": "0f3c-1", "priority": 0},
        {"structured_outputs": {"choice": ["positive", "negative", "neutral"]}},
        {"structured_outputs": {"regex": r"^\d{3}-\d{4}(\.\w+)*@(\w+\s?)+$"}},
        {"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}]}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image_url",
                            "image_url": {"url": "data:image/png;base64," + "A" * 3_000_000},
                        }
                    ],
                }
            ]
        },
        {"messages": [{"role": "user", "content": "https://example.org/ is an address in a text"}]},
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "tool_use",
                            "id": "1",
                            "name": "fetch",
                            "input": {"url": "http://10.0.0.1/"},
                        },
                    ],
                }
            ]
        },
        {"messages": [{"role": "user", "content": "word " * 40}] * 300},
    ],
    ids=lambda fields: ", ".join(fields)[:30],
)
def test_ordinary_requests_pass(fields):
    assert problem(**fields) == ""


def test_a_long_text_passes_whatever_stands_in_it():
    code = 'if (a[0] == {"b": [1, 2]}) { return f(x, "\\"", y); }\n' * 15_000
    assert problem(messages=[{"role": "user", "content": code}]) == ""


# What would hold up the others.


def properties(count: int, part=TEXT) -> dict:
    names = {f"p{number}": part for number in range(count)}
    return {"type": "object", "properties": names, "required": list(names)}


def nested(levels: int) -> dict:
    schema = TEXT
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


ALTERNATIVES = [
    {"anyOf": [{"properties": {f"a{group}{member}": TEXT}} for member in range(4)]}
    for group in range(6)
]
COSTLY = {
    "65 kB of long values": {"enum": ["x" * 1000 + str(number) for number in range(64)]},
    "one long value": {"const": "y" * 16_000},
    "a long name": {"type": "object", "properties": {"k" * 4000: TEXT}},
    "many values": {"enum": list(range(4000))},
    "many properties": properties(1000),
    "deep": nested(20),
    "deep lists": json.loads("[" * 50 + "]" * 50),
    "pattern {1,10000}": {"type": "string", "pattern": "^[a-z]{1,10000}$"},
    "pattern {10000}": {"type": "string", "pattern": "^[a-z]{10000}$"},
    "pattern {1000,}": {"type": "string", "pattern": "^[a-z]{5000,}$"},
    "repeats inside repeats": {"type": "string", "pattern": "((([a-z]{1,30}){1,30}){1,30})"},
    "quantifiers inside quantifiers": {"type": "string", "pattern": "((((a+)+)+)+)+b"},
    "+ in many repeats": {"type": "string", "pattern": r"(\w+\s?){1,500}"},
    "a long pattern": {"type": "string", "pattern": "(a|b)" * 200},
    "many patterns": {
        "type": "object",
        "properties": {f"p{i}": {"pattern": f"a{i}"} for i in range(70)},
    },
    "many formats": properties(100, {"type": "string", "format": "uri"}),
    "a pattern of names": {"type": "object", "patternProperties": {"^[a-z]{1,9999}$": TEXT}},
    "maxItems": {"type": "array", "items": TEXT, "maxItems": 100_000},
    "minItems": {"type": "array", "items": TEXT, "minItems": 100_000},
    "many maxItems": {
        "properties": {f"p{i}": {"type": "array", "maxItems": 900 + i} for i in range(20)}
    },
    "bounds of many digits": properties(
        200, {"type": "number", "minimum": -12345.678901, "maximum": 98765.43210}
    ),
    "multipleOf": properties(50, {"type": "integer", "multipleOf": 7919}),
    "a large multipleOf": {"type": "integer", "multipleOf": 1_000_003},
    "allOf of anyOf": {"allOf": ALTERNATIVES},
    "allOf of anyOf in properties": {
        "allOf": [{"properties": {"a": part}} for part in ALTERNATIVES]
    },
    "allOf of references": {"allOf": [{"$ref": "#/$defs/a"}] * 6, "$defs": {"a": ALTERNATIVES[0]}},
    "many branches": {"anyOf": [{"properties": {f"a{i}": TEXT}} for i in range(400)]},
    "another document": {"$ref": "http://169.254.169.254/latest"},
    "a file": {"$ref": "file:///etc/passwd"},
    "a long chain of references": {
        "$ref": "#/$defs/d0",
        "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(480)},
    },
    "in a list": {"prefixItems": [{"items": {"pattern": "a{1,9999}"}}]},
    "behind not": {"not": {"if": {"pattern": "a{1,9999}"}}},
    "in a definition": {"$defs": {"x": {"definitions": {"y": {"maxItems": 10**30}}}}},
}


@pytest.mark.parametrize(
    "where", ["response_format", "structured_outputs", "text", "output_config", "tools"]
)
@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_schema_is_refused_in_one_sentence(name, where):
    began = time.monotonic()
    message = of_schema(COSTLY[name], where=where)
    assert message.endswith(".") and message.startswith('"') and len(message) < 250
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "[a-z]{1,10000}"},
        {"regex": "a" * 600},
        {"choice": [f"choice {number}" for number in range(3000)]},
        {"choice": ["x" * 1000 + str(number) for number in range(20)]},
        {"grammar": "root ::= " + '"a" | ' * 1000 + '"b"'},
        {"grammar": "\n".join(f"r{number}: R" for number in range(200))},
        {"grammar": "root ::= [a-z]{1,100}{1,100}"},
        {"grammar": "start: a\na: %json {}"},
        {
            "structural_tag": json.dumps(
                {"structures": [{"schema": COSTLY["maxItems"]}], "triggers": []}
            )
        },
        {
            "structural_tag": json.dumps(
                {"format": {"tags": [{"content": {"pattern": "a{1,9999}"}}]}}
            )
        },
        {"json": json.dumps(COSTLY["allOf of anyOf"])},
        {"whitespace_pattern": "[ ]{1,9999}"},
    ],
    ids=str,
)
def test_other_forms_are_limited_as_well(form):
    message = problem(structured_outputs=form)
    assert message.startswith('"structured_outputs"') and message.endswith(".")


def test_lengths_are_limited_where_the_back_end_is_not_guidance():
    """xgrammar: 7 s for fifty lengths with 8,192 tokens, minutes with 128,000; guidance: 2 ms."""
    lengths = {
        "properties": {
            f"p{number}": {"type": "string", "maxLength": 100 + number} for number in range(50)
        }
    }
    assert of_schema(lengths) == ""
    for backend in ("auto", "xgrammar", "outlines"):
        assert "--learners" in of_schema(lengths, backend=backend)
        assert "--learners" in of_schema({"format": "uri"}, backend=backend)
        assert of_schema(properties(50), backend=backend) == ""
        assert of_schema({"enum": ["x" * 200]}, backend=backend) != ""


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"(a{1,10}b{3}){5}", (50, 2)),
        (r"(\w+\s?)*", (1, 2)),
        (r"((a+)+)+", (1, 3)),
        (r"(\w+\s?){1,50}", (1000, 2)),
        (r"((a{2}b*){3})+", (120, 3)),
        (r"[^]{]{2}", (2, 1)),
        (r"\{9\}\(a{3}", (3, 1)),
        ("[(+]{4}", (4, 1)),
        ("a{,7}?b", (7, 1)),
        ("{", (1, 0)),
        ("(((", (1, 0)),
        ("a)b+", (1, 1)),
        ("a{" + "9" * 5000 + "}", (10**9, 1)),
    ],
)
def test_quantifiers_are_read_as_a_regular_expression_has_them(pattern, expected):
    assert quantifiers(pattern) == expected


def test_combinations_multiply_where_allof_merges_and_nowhere_else():
    assert combinations({"allOf": ALTERNATIVES}) == 4**6
    assert (
        combinations(
            {"properties": {f"p{i}": {"anyOf": [TEXT, {"type": "null"}]} for i in range(50)}}
        )
        == 2
    )
    assert combinations({"anyOf": [{"$ref": "#"}, TEXT]}) < 10, "a reference to itself ends"


def test_each_list_text_and_closed_field_is_limited():
    for name, most in request_limits.LENGTHS.items():
        entries = {str(place): 1 for place in range(most + 1)}
        value = (
            entries
            if name in ("logit_bias", "metadata", "chat_template_kwargs")
            else ["a"] * (most + 1)
        )
        assert f'"{name}" has {most + 1:,} entries' in problem(**{name: value})
    for name, most in request_limits.TEXTS.items():
        long = "x" * (most + 1)
        value = {"k": long} if name in ("metadata", "chat_template_kwargs") else long
        assert f'"{name}"' in problem(**{name: value})
    for name in request_limits.CLOSED:
        assert f'"{name}"' in problem(**{name: 5 if name == "priority" else {"a": 1}})
    assert "repetition_detection" in problem(
        repetition_detection={"max_pattern_size": 5000, "min_count": 2}
    )


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs", "prompt_logprobs"])
def test_logprobs_are_refused_in_the_words_from_which_clients_read_the_limit(name):
    for value in (21, -1, 10**6):
        assert problem(**{name: value}).endswith("which is greater than max allowed: 20")
    assert problem(**{name: 20}) == problem(**{name: 0}) == ""
    assert "whole number" in problem(**{name: "21"})


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
        {"type": "image_url", "image_url": "https://example.org/a.png"},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"image_url": {"url": "HTTP://localhost:8000/x"}},
        {"type": "video_url", "video_url": {"url": "http://[::1]/"}},
        {"type": "audio_url", "audio_url": {"url": "ftp://x/y"}},
        {"type": "input_image", "image_url": "//evil/x"},
        {"type": "input_file", "file_url": "gopher://x"},
        {"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/"}},
        {
            "type": "tool_result",
            "content": [{"type": "image_url", "image_url": {"url": "http://10.0.0.1/"}}],
        },
        {"type": "image_embeds", "image_embeds": "AAAA"},
    ],
    ids=str,
)
def test_the_server_fetches_nothing_for_a_learner(part):
    """An address may name a service that answers only machines of the cluster."""
    for name in ("messages", "input"):
        message = problem(**{name: [{"role": "user", "content": [part]}]})
        assert "data:image" in message or "unpack" in message
    assert problem(input=[part]) != ""


def test_hosts_that_the_owner_allows_are_fetched_from():
    message = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "https://pictures.org/a.png"}}],
    }
    allowed = {"media_domains": ("pictures.org",)}
    assert request_limits.problem({"messages": [message]}, **allowed) == ""
    assert "pictures.org" in request_limits.problem(
        {"messages": [message]}, media_domains=("other.org",)
    )
    message["content"][0]["image_url"]["url"] = "https://pictures.org.evil/a.png"
    assert request_limits.problem({"messages": [message]}, **allowed) != ""


def test_media_text_and_values_have_a_largest_number():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    assert "16 pictures" in problem(messages=[{"role": "user", "content": [picture] * 17}])
    assert "split it" in problem(messages=[{"role": "user", "content": "x" * 1_100_000}])
    share = FairShare(None)
    assert "split it" in share.problem(json.dumps({"prompt": "x" * 300_000}).encode(), False)
    assert "objects and lists" in share.problem(b'{"a": [' + b"{}," * 20_000 + b"{}]}")
    assert "values" in share.problem(b'{"a": [' + b"1," * 200_000 + b"1]}")
    assert share.problem(b'{"prompt": [' + b"1," * 130_000 + b"1]}") == "", "a prompt of token ids"


def test_what_is_read_many_times_has_a_largest_size():
    long = "word " * 10_000
    assert (
        problem(prompt=long) == ""
        and problem(prompt=["word " * 100] * 32) == problem(prompt="word " * 300, n=20) == ""
    )
    assert "answered" in problem(prompt=long, n=2) and "answered" in problem(prompt=[long] * 2)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300_000}}
    assert problem(messages=[{"role": "user", "content": [picture]}], n=4) == "", (
        "the picture is no text"
    )


def test_logprobs_have_a_largest_number_in_all():
    assert problem(prompt="x", logprobs=20, n=3) == problem(prompt="x", logprobs=1, n=32) == ""
    assert "a step" in problem(prompt="x", logprobs=20, n=4)
    assert "a step" in problem(top_logprobs=20, logprobs=True, n=4)
    assert "a step" in problem(prompt="x", logprob_token_ids=list(range(100)))
    assert problem(prompt="word " * 1000, prompt_logprobs=5) == ""
    assert problem(prompt="word " * 6000, prompt_logprobs=0) == ""
    for prompt in ("word " * 6000, [5] * 6000, [[5] * 3000] * 2, ["word " * 3000] * 2):
        assert "in all" in problem(prompt=prompt, prompt_logprobs=5)
    assert "in all" in problem(
        messages=[{"role": "user", "content": "word " * 6000}], prompt_logprobs=20
    )


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4), st.booleans())
def test_any_request_is_judged_and_none_breaks_the_limits(fields, generates):
    message = FairShare(None).problem(json.dumps(fields).encode(), generates)
    assert isinstance(message, str) and len(message) < 600


@pytest.mark.parametrize("depth", [100, 900, 990])
def test_deep_values_are_judged(depth):
    for name in ("metadata", "messages", "tools", "response_format", "prompt", "x"):
        body = f'{{"prompt_logprobs": 5, "{name}": {"[" * depth}{"]" * depth}}}'
        assert isinstance(FairShare(None).problem(body.encode()), str)


def test_the_limits_for_tools_hold_for_a_tool_that_comes_with_a_message():
    part = {
        "type": "tool_addition",
        "tool": {"definition": {"name": "f", "input_schema": COSTLY["maxItems"]}},
    }
    assert problem(messages=[{"role": "user", "content": [part]}]).startswith('"tools"')


def test_the_limits_say_how_they_were_set():
    assert json.loads(fairshare.STRUCTURED_OUTPUTS) == {"backend": "guidance"}
    assert form_limits.MAX_DEPTH < 64, "below vLLM's own"
