"""The requests of one learner that try to slow the others: bodies for benchmarks/fairshare/measure.py.

Each is the most that somebody with a learner's key can think of. Most are refused by the limits of a class; the others
are as large as the limits let them be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TEXT = {"type": "string"}
QUESTION = [{"role": "user", "content": "Tell me about the sea."}]


@dataclass(frozen=True)
class Attack:
    """One request that is sent again and again.

    Args:
        name: what it does, in a few words.
        path: of the request.
        body: makes its fields, without the model.
        half: send only so many bytes of the body, and then nothing.
        connections: how many are open at the same time.
        round_s: how long one round takes: at least one whole cycle of what the attacker does and waits for.
    """

    name: str
    path: str
    body: Callable[[], Any]
    half: int = 0
    connections: int = 8
    round_s: float = 2.0

    def encoded(self, model: str) -> bytes:
        """Return the body as it goes out."""
        fields = self.body()
        if isinstance(fields, bytes):
            return fields
        return json.dumps({"model": model, **fields}).encode()


def schema(form: Any, **fields: Any) -> dict[str, Any]:
    """Return a request for an answer in a form."""
    response_format = {"type": "json_schema", "json_schema": {"name": "form", "schema": form}}
    return {"prompt": "The sea", "max_tokens": 200, "response_format": response_format, **fields}


def regex(pattern: str) -> dict[str, Any]:
    """Return a request for an answer that matches a pattern."""
    return {"prompt": "The sea", "max_tokens": 200, "structured_outputs": {"regex": pattern}}


def grammar(text: str) -> dict[str, Any]:
    """Return a request for an answer that a grammar describes."""
    return {"prompt": "The sea", "max_tokens": 200, "structured_outputs": {"grammar": text}}


def properties(count: int, part: Any = None) -> dict[str, Any]:
    """Return a schema of an object with so many properties."""
    names = {f"name{number}": part or TEXT for number in range(count)}
    return {"type": "object", "properties": names, "required": list(names)}


def nested(depth: int) -> dict[str, Any]:
    """Return a schema of objects inside each other."""
    form: dict[str, Any] = TEXT
    for _ in range(depth):
        form = {"type": "object", "properties": {"a": form}, "required": ["a"]}
    return form


def long_values() -> dict[str, Any]:
    """Return a schema of 65 kB: sixty values of a thousand characters that begin in the same way."""
    return schema({"enum": ["x" * 1000 + str(number) for number in range(64)]})


def different_lengths() -> dict[str, Any]:
    """Return a schema that xgrammar compiles for seven seconds, or minutes with a large vocabulary."""
    parts = {f"p{number}": {"type": "string", "maxLength": 100 + number} for number in range(50)}
    return schema({"type": "object", "properties": parts})


def multiplied() -> dict[str, Any]:
    """Return an allOf of anyOfs: 4,096 combinations."""
    inner = [
        {
            "anyOf": [
                {"type": "object", "properties": {f"a{outer}{inner_number}": TEXT}}
                for inner_number in range(4)
            ]
        }
        for outer in range(6)
    ]
    return schema({"allOf": inner})


def within_limits() -> dict[str, Any]:
    """Return a schema with the most of everything that the list of forms lets pass."""
    number = {"type": "number", "minimum": -12345.678, "maximum": 98765.43}
    parts: dict[str, Any] = {f"n{place}": number for place in range(20)}
    parts |= {
        f"l{place}": {"type": "array", "items": TEXT, "maxItems": 90 + place} for place in range(18)
    }
    parts |= {
        f"e{place}": {"enum": [f"{place} value {index}" for index in range(40)]}
        for place in range(5)
    }
    parts |= {f"t{place}": {"type": "string", "maxLength": 100 + place} for place in range(300)}
    parts["p"] = {"type": "string", "pattern": ".*a.{20}b.*"}
    return schema({"type": "object", "properties": parts, "required": list(parts)})


def many_tools() -> dict[str, Any]:
    """Return as many tools as a request may have, one of which must be called."""
    tools = [
        {
            "type": "function",
            "function": {"name": f"tool{number}", "parameters": properties(5), "strict": True},
        }
        for number in range(128)
    ]
    return {"messages": QUESTION, "tools": tools, "tool_choice": "required", "max_tokens": 50}


def chat(**fields: Any) -> dict[str, Any]:
    """Return a question in a chat."""
    return {"messages": QUESTION, "max_tokens": 50, **fields}


def objects() -> bytes:
    """Return a body of 8 MB that is nothing but small objects."""
    return b'{"messages": [' + b"{}," * 2_600_000 + b"{}]}"


WORDS = "the sea is calm tonight and the moon lies fair upon the straits "

ATTACKS = (
    Attack(
        "none: four ordinary streams",
        COMPLETIONS,
        lambda: {"prompt": "The", "max_tokens": 300, "stream": True},
        connections=4,
    ),
    Attack("a flood of short requests", COMPLETIONS, lambda: {"prompt": "The", "max_tokens": 1}),
    Attack("schema of 65 kB, long values", COMPLETIONS, long_values),
    Attack("schema, 50 different maxLength", COMPLETIONS, different_lengths),
    Attack(
        "schema, pattern {1,10000}",
        COMPLETIONS,
        lambda: schema({"type": "string", "pattern": "^[a-z]{1,10000}$"}),
    ),
    Attack("schema, 800 properties", COMPLETIONS, lambda: schema(properties(800))),
    Attack("schema, 30 levels", COMPLETIONS, lambda: schema(nested(15))),
    Attack("schema, 64 levels", COMPLETIONS, lambda: schema(nested(31))),
    Attack("schema, allOf of anyOf", COMPLETIONS, multiplied),
    Attack(
        "schema, allOf of 20 patterns",
        COMPLETIONS,
        lambda: schema({"allOf": [{"pattern": f".*a.{{{place}}}b.*"} for place in range(20)]}),
    ),
    Attack(
        "schema, lists of up to 2,000",
        COMPLETIONS,
        lambda: schema({"type": "array", "items": properties(5), "minItems": 2, "maxItems": 1990}),
    ),
    Attack("schema, the most of everything", COMPLETIONS, within_limits),
    Attack(
        "regex, repeats inside repeats", COMPLETIONS, lambda: regex("((([a-z]{1,9}){1,9}){1,9})")
    ),
    Attack("regex, many states", COMPLETIONS, lambda: regex(r"(\w+\s?){1,500}")),
    Attack("regex, (.*a.{12}b.*)+", COMPLETIONS, lambda: regex(r"(.*a.{12}b.*)+")),
    Attack(
        "grammar, ambiguous",
        COMPLETIONS,
        lambda: grammar("start: s\ns: s s s | s s | /[a-z]+/ | /[a-z ]+/"),
    ),
    Attack(
        "grammar, patterns and their opposite",
        COMPLETIONS,
        lambda: grammar("start: T\nT: ~(/.*a.{10}/) & /.*b.{12}/"),
    ),
    Attack(
        "grammar, 20 patterns at once",
        COMPLETIONS,
        lambda: grammar(
            "start: T\nT: " + " & ".join(f"/.*a{'.' * place}b.*/" for place in range(20))
        ),
    ),
    Attack(
        "1,000 choices",
        COMPLETIONS,
        lambda: {
            "prompt": "The",
            "max_tokens": 50,
            "structured_outputs": {"choice": [f"the {number} choice" for number in range(1000)]},
        },
    ),
    Attack("128 tools", CHAT, many_tools),
    Attack("1,000 messages", CHAT, lambda: {"messages": QUESTION * 1000, "max_tokens": 5}),
    Attack(
        "32 sequences of 1,024 tokens",
        COMPLETIONS,
        lambda: {"prompt": "The", "n": 32, "max_tokens": 1024},
    ),
    Attack(
        "32 sequences of 256 tokens",
        COMPLETIONS,
        lambda: {"prompt": "The", "n": 32, "max_tokens": 256, "ignore_eos": True},
        round_s=30.0,
    ),
    Attack(
        "16 sequences of 1,024 tokens",
        COMPLETIONS,
        lambda: {"prompt": "The", "n": 16, "max_tokens": 1024, "ignore_eos": True},
    ),
    Attack(
        "4 times 8 sequences of 1,024 tokens",
        COMPLETIONS,
        lambda: {"prompt": "The", "n": 8, "max_tokens": 1024, "ignore_eos": True},
    ),
    Attack(
        "32 long prompts",
        COMPLETIONS,
        lambda: {"prompt": [f"{number} {WORDS * 100}" for number in range(32)], "max_tokens": 1},
    ),
    Attack(
        "logprobs of a long prompt",
        COMPLETIONS,
        lambda: {"prompt": WORDS * 300, "prompt_logprobs": 20, "max_tokens": 1},
    ),
    Attack(
        "20 logprobs, 32 sequences",
        COMPLETIONS,
        lambda: {"prompt": "The", "n": 32, "logprobs": 20, "max_tokens": 1024, "ignore_eos": True},
    ),
    Attack(
        "stops, biases and bad words",
        COMPLETIONS,
        lambda: {
            "prompt": "The",
            "max_tokens": 1024,
            "ignore_eos": True,
            "stop": [f"{number}" * 100 for number in range(4)],
            "logit_bias": {str(number): 1.0 for number in range(300)},
            "bad_words": [f"word number {number}" for number in range(60)],
            "allowed_token_ids": list(range(2, 1000)),
        },
    ),
    Attack("8 MB of text", COMPLETIONS, lambda: {"prompt": WORDS * 120_000, "max_tokens": 1}),
    Attack("1 MB of text", COMPLETIONS, lambda: {"prompt": WORDS * 15_000, "max_tokens": 1}),
    Attack("8 MB of objects", CHAT, objects),
    Attack("10,000 objects", CHAT, lambda: b'{"messages": [' + b"{}," * 9_900 + b"{}]}"),
    Attack("150,000 token ids", COMPLETIONS, lambda: {"prompt": [5] * 150_000, "max_tokens": 1}),
    Attack("count the tokens of 60 kB", "/tokenize", lambda: {"prompt": WORDS * 950}),
    Attack("150,000 tokens to text", "/detokenize", lambda: {"tokens": [100] * 100_000}),
    Attack(
        "200 half-sent requests",
        COMPLETIONS,
        lambda: {"prompt": WORDS * 120_000},
        half=7_000_000,
        connections=200,
    ),
    Attack("a flood of refused requests", COMPLETIONS, lambda: {"prompt": "x", "n": 99}),
)
