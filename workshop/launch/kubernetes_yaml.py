"""Manifests as text: plain dictionaries in, YAML with comments out. A key that begins with "# " is a comment."""

from __future__ import annotations

import re
from typing import Any

COMMENT = "# "
LONGEST_COMMENT = 118       # PyYAML writes longer keys another way


def dump(document: dict[str, Any]) -> str:
    """Return one document as YAML, keys in their order, comments above what they explain."""
    import yaml

    class Writer(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            return super().increase_indent(flow, False)

    Writer.add_representer(str, lambda writer, text: writer.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None))
    text = yaml.dump(document, Dumper=Writer, sort_keys=False, width=10_000, allow_unicode=True)
    return re.sub(r"^(\s*(?:- )*)'(# .*)': null$", lambda found: found[1] + found[2].replace("''", "'"), text,
                  flags=re.MULTILINE)


def dump_all(documents: list[dict[str, Any]], header: list[str] = ()) -> str:
    """Return documents, separated by `---`, with lines of comment on top."""
    top = "".join(f"# {line}".rstrip() + "\n" for line in header)
    return top + "---\n".join(dump(document) for document in documents)


def plain(value: Any) -> Any:
    """Return the same without its comments: what a cluster sees."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if not key.startswith(COMMENT)}
    return [plain(inner) for inner in value] if isinstance(value, list) else value
