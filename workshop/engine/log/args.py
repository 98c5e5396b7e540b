"""The arguments in a vLLM log: the "non-default args" dict, 0.6's Namespace(…) and the engine's config line. Pure."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

OPEN, CLOSE = {*"([{<"}, {*")]}>"}
TOKENS = re.compile(r"""'(?:\\.|[^'\\])*'?|"(?:\\.|[^"\\])*"?|[^'"(\[{<)\]}>,]+|.""", re.DOTALL)  # a quote may be cut


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse `{'a': 1, …}`, `Namespace(a=1, …)` or `a=1, b='x', …` into a dict.

    Values that Python can read become Python values; others (`torch.bfloat16`, `<Enum: 3>`) stay strings.
    A line that was cut gives what could be read. Duplicate keys: the last one.
    """
    text = text.strip()
    if text.startswith("Namespace("):
        text = text[len("Namespace(") :].removesuffix(")")
    separator = "="
    if text.startswith("{"):
        text, separator = text[1:].removesuffix("}"), ":"
    result = {}
    for part in _parts(text):
        key, _, value = part.partition(separator)
        if (key := key.strip().strip("'\"")) and value.strip():
            result[key] = _value(value.strip())
    return result


def _value(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text  # also sets, bytes and 1e999, which no argument of vLLM is
    return value


def _parts(text: str) -> Iterator[str]:
    """Split at commas that stand outside quotes and brackets."""
    depth = start = 0
    for token in TOKENS.finditer(text):
        depth = max(0, depth + (token[0] in OPEN) - (token[0] in CLOSE))
        if token[0] == "," and depth == 0:
            yield text[start : token.start()]
            start = token.end()
    yield text[start:]
