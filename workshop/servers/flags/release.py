"""The flags of one release of vLLM, recorded from its own parser (locks/vllm_flags.py) and read as it reads them.

vLLM rewrites some arguments and hands the rest to argparse: `spelled_out` and `Release.problem` do the same.
"""

import argparse
import difflib
import json
import re
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any, NoReturn

FOLDER = files("workshop") / "servers" / "flags" / "releases"
SUFFIXES = {letter: 1000 ** (power + 1) for power, letter in enumerate("kmgt")}
SUFFIXES |= {letter: 1024 ** (power + 1) for power, letter in enumerate("KMGT")}
SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
# outside the texts of a JSON value
SIZE_IN_JSON = re.compile(r'("(?:[^"\\]|\\.)*")|\b(\d+(?:\.\d+)?[kKmMgGtT])\b')
NOTHING = ("", "None")  # for an optional value


@lru_cache(maxsize=4)
def recorded(version: str) -> "Release | None":
    """Return the flags of a release; None where they are not recorded. A build's suffix (+cpu) does not count."""
    version = version.partition("+")[0]
    file = FOLDER / f"{version}.json"
    if not re.fullmatch(r"[\w.]+", version) or not file.is_file():
        return None
    return Release(version, json.loads(file.read_text(encoding="utf-8")))


def newest() -> "Release":
    """Return the flags of the newest release that is recorded."""
    names = [file.name.removesuffix(".json") for file in FOLDER.iterdir()]
    release = recorded(max(names, key=lambda name: [int(part) for part in name.split(".")]))
    assert release
    return release


class Refusal(Exception):
    """The sentence of argparse for an argument that it does not take."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refusal(message)


class Release:
    """The flags of one release.

    Attributes:
        version: "0.32.0".
        full_names: every spelling of a flag with its dashes, shortened ones left out, and its first long name without
            them: {"-tp": "tensor-parallel-size", "--no-enforce-eager": "no-enforce-eager", …}.
    """

    def __init__(self, version: str, options: list[dict[str, Any]]) -> None:
        self.version = version
        self.full_names: dict[str, str] = {}
        for option in options:
            long_name = next(name for name in option["names"] if name.startswith("--"))
            for name in option["names"]:
                full_name = name if name.startswith("--no-") else long_name
                self.full_names[name] = full_name.removeprefix("--")
        self._options = options

    def full_name(self, flag: str) -> str:
        """Return the name of a flag without dashes, written out: a short form that fits one flag alone is that flag."""
        head, dot, rest = flag.partition(".")
        name = self.full_names.get(head)
        longer = {
            name for name in self.full_names if head.startswith("--") and name.startswith(head)
        }
        if name is None and len(longer) == 1:
            name = self.full_names[longer.pop()]
        return (name or head.lstrip("-")) + dot + rest

    def problem(self, arguments: Iterable[str], further_flags: Iterable[str] = ()) -> str:
        """Return why vLLM would not take the arguments behind its model, in a sentence; "" if it would.

        further_flags: of a command that has flags of its own, which a mistyped one may have been meant for.
        """
        try:
            _, unknown = self._parser.parse_known_args(["MODEL", *spelled_out(arguments)])
        except Refusal as refusal:
            return f"vLLM {self.version} refuses {_ended(str(refusal).removeprefix('argument '))}"
        flags = [
            argument.partition("=")[0] for argument in unknown if re.match("--?[^-.0-9]", argument)
        ]
        names = [*self.full_names, *further_flags]
        sentences = [
            f"vLLM {self.version} knows no {flag[:80]}{nearest(flag, names)}" for flag in flags
        ]
        if unknown and not flags:
            values = " ".join(unknown)[:80]
            return f"vLLM {self.version} has no use for {values!r}: no flag before it takes more values."
        return " ".join(map(_ended, sentences))

    @cached_property
    def _parser(self) -> argparse.ArgumentParser:
        parser = _Parser(add_help=False)
        parser.add_argument("model")
        for option in self._options:
            if option.get("nargs") == 0:
                parser.add_argument(*option["names"], action="store_true")
            else:
                parser.add_argument(
                    *option["names"], nargs=option.get("nargs"), type=reader(option)
                )
        return parser


def spelled_out(arguments: Iterable[str]) -> list[str]:
    """Return the arguments as vLLM hands them to argparse (utils/argparse_utils.py, parse_args).

    Dashes for underscores in names, `--optimization-level 3` for `-O3`, and one JSON value for all `--a.b value` of
    one flag.
    """
    queue = list(arguments)
    rest: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    while queue:
        argument = queue.pop(0)
        name, equals, value = argument.partition("=")
        head, dot, keys = name.partition(".")
        if argument.startswith("--"):
            head = head.replace("_", "-")
        elif argument.startswith("-O") and argument != "-O":
            rest += ["--optimization-level", argument[2:].removeprefix("=")]
            continue
        elif argument == "-O" and queue and queue[0] in ("0", "1", "2", "3"):
            head = "--optimization-level"
        if not dot or not argument.startswith("-"):
            rest.append(head + equals + value if argument.startswith("-") else argument)
            continue
        if not equals:
            if not queue:
                raise Refusal(f"{name}: expected one argument")
            value = queue.pop(0)
        _put(nested.setdefault(head, {}), keys, value)
    for head, settings in nested.items():
        rest += [head, json.dumps(settings)]
    return rest


def _put(settings: dict[str, Any], keys: str, value: str) -> None:
    """Put the value of `--a.b.c value` into the settings of `--a`; `--a.b+ value` adds to a list."""
    parsed: Any = value
    if keys.endswith("+"):
        keys = keys.removesuffix("+")
        parsed = value.split(",")
    else:
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
    *outer, last = keys.split(".")
    for key in outer:
        if not isinstance(settings.get(key), dict):
            settings[key] = {}
        settings = settings[key]
    settings[last] = parsed


def reader(option: dict[str, Any]) -> Callable[[str], object]:
    """Return the function that reads a value of an option; it raises ArgumentTypeError, with the reason, or ValueError."""

    def read(text: str) -> object:
        if option.get("optional") and text in NOTHING:
            return None
        try:
            value = TYPES[option.get("type", "")](text)
        except (ValueError, RecursionError):
            kind = NAMES_OF_TYPES[option["type"]]
            raise argparse.ArgumentTypeError(f"{text[:80]!r} is no {kind}") from None
        choices = option.get("choices")
        if choices and value not in choices:
            raise argparse.ArgumentTypeError(_no_choice(text, choices))
        if option.get("fields") and value is not None:
            # The engine takes both spellings.
            if option["type"] == "json" and isinstance(value, dict):
                value = {name.replace("-", "_"): inner for name, inner in value.items()}
            _check_fields(value, option["fields"])
        return value

    return read


def _size(text: str) -> int:
    number = SIZE.fullmatch(text.strip())
    if not number:
        return int(text)
    factor = SUFFIXES[number[2]]
    if number[2].isupper():
        return int(number[1]) * factor
    return int(float(number[1]) * factor)


def _size_or_auto(text: str) -> int:
    return -1 if text.strip().lower() in ("-1", "auto") else _size(text)


def _json_or_text(text: str) -> object:
    if text in NOTHING or not re.match(r"(?s)^\s*{.*}\s*$", text):
        return text
    return json.loads(text)


def _fields(text: str) -> object:
    with_numbers = SIZE_IN_JSON.sub(lambda part: part[1] or str(_size(part[2])), text)
    return json.loads(with_numbers)


def _adapter(text: str) -> object:
    """Read a value of --lora-modules: name=path, or JSON."""
    if not text or ("=" in text and "," not in text):
        return None
    return json.loads(text)


def _word(text: str) -> str:
    return text.lower().replace("-", "_")


TYPES: dict[str, Callable[[str], object]] = {
    "": str,
    "int": int,
    "float": float,
    "json": json.loads,
    "size": _size,
    "size or auto": _size_or_auto,
    "json or text": _json_or_text,
    "fields": _fields,
    "adapter": _adapter,
    "word": _word,
}
NAMES_OF_TYPES = {
    "int": "whole number",
    "float": "number",
    "json": "JSON",
    "size": "whole number (131072, 128K and 128k are)",
    "size or auto": "whole number (131072, 128K and 128k are), nor auto",
    "json or text": "JSON",
    "fields": "JSON",
    "adapter": "name=path, nor JSON",
}


def _check_fields(settings: object, fields: dict[str, Any], where: str = "") -> None:
    """Raise ArgumentTypeError if a value is no object, has an unknown field or a value that is no choice."""
    if not isinstance(settings, dict):
        raise argparse.ArgumentTypeError(
            f"{where or 'its value'} must be a JSON object with fields"
        )
    for name, value in settings.items():
        path = f"{where}.{name}".removeprefix(".")
        if name not in fields:
            raise argparse.ArgumentTypeError(f"it has no field {path[:80]}{nearest(name, fields)}")
        inner = fields[name]
        if isinstance(inner, list) and value not in inner:
            raise argparse.ArgumentTypeError(f"{path[:80]}: {_no_choice(str(value), inner)}")
        if isinstance(inner, dict) and value is not None:
            _check_fields(value, inner, path)


def _no_choice(text: str, choices: list[Any]) -> str:
    names = [str(choice) for choice in choices if choice is not None]
    return f"{text[:80]!r} is none of {', '.join(names)}{nearest(text, names)}"


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith(("?", ".")) else f"{sentence}."


def nearest(text: str, names: Iterable[str]) -> str:
    """Return "; did you mean NAME?" with the name that is most like the text; "" if none is."""
    similar = difflib.get_close_matches(text, list(names), n=1, cutoff=0.7)
    return f"; did you mean {similar[0]}?" if similar else ""
