"""The options of `inference-planner` and `workshop plan`, in the terms of argparse."""

import json
import re
from argparse import BooleanOptionalAction
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any

from inference_planner.errors import BadInput
from inference_planner.request import AUTO, SETTINGS

UNITS = {
    "": 1,
    **{"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40},
}


def tokens(text: str) -> int:
    """Read a whole number; 8k is 8,000, 8K is 8,192 and 4G is 4 GiB, as vLLM reads its own flags.

    "auto" is -1. Raises ValueError: the text is not such a number.

    Source: vLLM 0.32.0, utils/argparse_utils.py human_readable_int_or_auto.
    """
    digits = text.strip().replace(",", "").replace("_", "")
    if digits.lower() == "auto":
        return AUTO
    number = re.fullmatch(r"(-?\d{1,15})([kKmMgGtT]?)", digits)
    decimal = re.fullmatch(r"(\d{1,15}\.\d{1,15})([kmgt])", digits)
    if decimal:
        return int(float(decimal[1]) * UNITS[decimal[2]])
    if not number:
        raise ValueError(f"{text[:40]!r} is not a whole number (131072, 128K and 128k are).")
    return int(number[1]) * UNITS[number[2]]


COMPILATION = re.compile(r"(?:--compilation[-_]config|-cc)\.([\w.]+)(?:=(.*))?", re.DOTALL)


def with_json(arguments: Sequence[str]) -> list[str]:
    """Return a command line with --compilation-config.FIELD=VALUE as one --compilation-config JSON.

    vLLM reads both spellings; -cc is its short flag. A value is JSON where it can be, else text.

    Raises BadInput: the last flag has no value.
    """
    rest: list[str] = []
    fields: dict[str, Any] = {}
    remaining = iter(arguments)
    for word in remaining:
        dotted = COMPILATION.fullmatch(word)
        if not dotted:
            rest.append(word)
            continue
        value = dotted[2] if dotted[2] is not None else next(remaining, None)
        if value is None:
            raise BadInput(f"{word} has no value.", f"Give one: {word}=….")
        *parents, name = dotted[1].split(".")
        inner = fields
        for parent in parents:
            inner = inner.setdefault(parent, {})
        try:
            inner[name] = json.loads(value)
        except ValueError:
            inner[name] = value
    if fields:
        rest += ["--compilation-config", json.dumps(fields)]
    return rest


def required(
    model: str | None, gpu: str | None, gpu_memory_gib: float | None = None
) -> tuple[str, str | None]:
    """Return the model and the GPU, which may be given by its memory alone. Raises BadInput: one of them is missing."""
    has_gpu = bool(gpu) or gpu_memory_gib is not None
    if model and has_gpu:
        return model, gpu or None
    missing = "--gpu" if model else "MODEL"
    example = "For example: llama-3.1-70b --gpu h100 --gpus-per-node 4."
    raise BadInput(f"{missing} is missing.", example)


def check_no_card(settings: Mapping[str, object]) -> None:
    """Raise BadInput if a card is described beside --machines, which have GPUs of their own."""
    for name, flag in (("gpu_memory_gib", "--gpu-memory"), ("free_gib", "--free-gib")):
        if settings.get(name) is not None:
            raise BadInput(
                "--machines have GPUs of their own, and all of their memory is free.",
                f"Leave {flag} out.",
            )


FLAG = {"action": "store_true"}
TYPES = {"int": int, "float": float}


def _row(setting: Field[Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the flags of a setting, and what argparse's add_argument takes for it."""
    data = setting.metadata
    flag = data["flag"] or f"--{setting.name.replace('_', '-')}"
    flags = (flag, data["short"]) if data["short"] else (flag,)
    kind = str(setting.type).removesuffix(" | None")
    row: dict[str, Any] = {"help": data["help"]}
    if data["flag"]:
        row["dest"] = setting.name
    if str(setting.type) == "bool":
        row |= FLAG
    elif kind == "bool":
        row |= {"action": BooleanOptionalAction, "default": None}
    elif data["unit"]:
        row["type"] = tokens
    elif kind in TYPES:
        row["type"] = TYPES[kind]
    if data["shown"]:
        row["default"] = setting.default
    if data["metavar"]:
        row["metavar"] = data["metavar"]
    return flags, row


# flags -> what argparse's add_argument takes
ARGUMENTS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--gpu",): {"help": "GPU name: h100, h200, a100-80gb, …"},
    **dict(map(_row, SETTINGS)),
    ("--explain",): {
        **FLAG,
        "help": "Show every overhead and every part of a step, with its source.",
    },
    ("--json",): {**FLAG, "dest": "as_json", "help": "Print data instead of text."},
}
