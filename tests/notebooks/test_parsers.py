"""The parsers that notebook 10 names are those that the installed vLLM has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import cells
import needs

ROW = re.compile(r"^\| .+? \| `(\w+)` \| (?:`(\w+)`|\(does not think\)) \|$", re.M)
REGISTERED = re.compile(r'^    "([\w-]+)": \(', re.M)


def registered(package: str) -> set[str]:
    """Return the names in a package's table of parsers, without importing vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        needs.lacking("vLLM is not installed: make test installs it on Linux")
    source = Path(spec.origin).with_name(package) / "__init__.py"
    return set(REGISTERED.findall(source.read_text()))


def test_every_parser_of_the_table_is_one_of_vllms():
    table = cells.with_text("10_chat", "| `--tool-call-parser` |")
    rows = ROW.findall(table)
    assert len(rows) == 11
    tools, thoughts = registered("tool_parsers"), registered("reasoning")
    for tool, thought in rows:
        assert tool in tools
        assert not thought or thought in thoughts
