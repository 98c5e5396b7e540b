"""Measure what forms cost in vLLM's back ends xgrammar and guidance, the reason for the limits in servers/guard/form_limits.py.

    python benchmarks/fairshare/forms.py [--only WORDS]

For each form: whether a class allows it, milliseconds to check it (on the API server) and to compile it (in the
engine) with the teaching model's vocabulary, and for guidance the longest of 40 steps. xgrammar's time to compile
grows with the vocabulary: 128,000 tokens take up to thirty times as long.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from typing import Any

from attacks import TEXT, nested, properties

from workshop.servers.guard.fairshare import FairShare
from workshop.servers.local import TEACHING_FOLDER

STEPS = 40


def lengths(count: int) -> dict[str, Any]:
    """Return a schema with so many different lengths of texts."""
    parts = {f"p{place}": {"type": "string", "maxLength": 100 + place} for place in range(count)}
    return {"type": "object", "properties": parts}


def alternatives(count: int) -> dict[str, Any]:
    """Return an allOf of so many anyOfs of four."""
    parts = [
        {
            "anyOf": [
                {"type": "object", "properties": {f"a{outer}{inner}": TEXT}} for inner in range(4)
            ]
        }
        for outer in range(count)
    ]
    return {"allOf": parts}


FORMS = {
    "50 properties": properties(50),
    "800 properties": properties(800),
    "10 levels": nested(10),
    "31 levels": nested(31),
    "1,000 values": {"enum": [f"value number {place}" for place in range(1000)]},
    "60 values of 1,000 characters": {"enum": ["x" * 1000 + str(place) for place in range(60)]},
    "a value of 16,000 characters": {"const": "y" * 16_000},
    "1 maxLength": lengths(1),
    "10 different maxLength": lengths(10),
    "50 different maxLength": lengths(50),
    "pattern {1,500}": {"type": "string", "pattern": "^[a-z]{1,500}$"},
    "pattern {1,4000}": {"type": "string", "pattern": "^[a-z]{1,4000}$"},
    "50 formats": properties(50, {"type": "string", "format": "uri"}),
    "100 formats": properties(100, {"type": "string", "format": "uri"}),
    "50 bounded numbers": properties(
        50, {"type": "number", "minimum": -12345.678, "maximum": 98765.4}
    ),
    "200 bounded numbers": properties(
        200, {"type": "number", "minimum": -12345.678, "maximum": 98765.4}
    ),
    "maxItems 1,000": {"type": "array", "items": TEXT, "maxItems": 1000},
    "maxItems 40,000": {"type": "array", "items": TEXT, "maxItems": 40_000},
    "allOf of 3 anyOf": alternatives(3),
    "allOf of 6 anyOf": alternatives(6),
}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="forms whose name has these words")
    only = parser.parse_args().only
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TEACHING_FOLDER)
    for name, schema in FORMS.items():
        if only in name:
            print(line(name, schema, tokenizer), flush=True)


def line(name: str, schema: dict[str, Any], tokenizer) -> str:
    """Return a row: allowed, xgrammar's check and compile, guidance's check, compile and longest step."""
    body = {"prompt": "x", "structured_outputs": {"json": schema}}
    allowed = "no" if FairShare(None).problem(json.dumps(body).encode()) else "yes"
    times = [*with_xgrammar(schema, tokenizer), *with_guidance(schema, tokenizer)]
    return (
        f"| {name} | {allowed} | "
        + " | ".join(f"{milliseconds:,.1f}" for milliseconds in times)
        + " |"
    )


def with_xgrammar(schema: dict[str, Any], tokenizer) -> list[float]:
    """Return the milliseconds to check and to compile."""
    import xgrammar

    text = json.dumps(schema)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer))
    compiler = xgrammar.GrammarCompiler(info, max_threads=8, cache_enabled=False)
    check, _ = timed(lambda: xgrammar.Grammar.from_json_schema(text))
    compiling, _ = timed(lambda: compiler.compile_json_schema(text))
    return [check, compiling]


def with_guidance(schema: dict[str, Any], tokenizer) -> list[float]:
    """Return the milliseconds to check, to compile, and of the longest step with tokens drawn at random."""
    import llguidance.hf

    defaults = {"whitespace_flexible": True}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=defaults)
    vocabulary = llguidance.hf.from_tokenizer(tokenizer, len(tokenizer))
    check, _ = timed(lambda: llguidance.LLMatcher.validate_grammar(grammar, None))
    compiling, matcher = timed(lambda: llguidance.LLMatcher(vocabulary, grammar, log_level=0))
    return [check, compiling, longest_step(matcher, vocabulary.vocab_size)]


def longest_step(matcher, vocabulary_size: int) -> float:
    """Return the milliseconds of the longest of the first steps."""
    import llguidance.torch

    mask = llguidance.torch.allocate_token_bitmask(1, vocabulary_size)
    draw = random.Random(0)
    longest = 0.0
    for _ in range(STEPS):
        if matcher.get_error() or matcher.is_stopped():
            break
        took, _ = timed(lambda: llguidance.torch.fill_next_token_bitmask(matcher, mask, 0))
        longest = max(longest, took)
        bitmask = mask[0].tolist()
        allowed = [
            token for token in range(vocabulary_size) if bitmask[token // 32] >> (token % 32) & 1
        ]
        if not allowed:
            break
        matcher.consume_token(draw.choice(allowed))
    return longest


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the milliseconds that a call took, and its result."""
    began = time.perf_counter()
    result = call()
    return 1000 * (time.perf_counter() - began), result


if __name__ == "__main__":
    main()
