"""The options of `workshop plan`, and types of values, which other commands share.

The options come from the planner's table, as click's.
"""

from __future__ import annotations

import re
from argparse import BooleanOptionalAction
from collections.abc import Iterator, Mapping
from typing import Any

import click
from inference_planner.arguments import ARGUMENTS, tokens

# what a plan needs to know of a place, and of an engine
PLACE = ("gpus_per_node", "max_model_len", "gpu_memory_utilization", "network", "dtype")
ENGINE = ("nodes", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
          "quantization", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "enforce_eager", "moe_backend")  # fmt: skip


class Tokens(click.ParamType):
    """A whole number; 8k is 8,000 and 8K is 8,192, as vLLM reads its own flags."""

    name = "integer"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        try:
            return tokens(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Range(click.ParamType):
    """FEWEST:MOST tokens, or one number for both."""

    name = "fewest:most"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", str(value))
        if not match:
            self.fail(
                f"{str(value)[:40]!r} is not FEWEST:MOST tokens (64:512), or one number, of at most 9 digits.",
                param,
                ctx,
            )
        return int(match[1]), int(match[2] or match[1])


def plan_options() -> Iterator[click.Option]:
    """Yield the options of the planner's own command, and --exact."""
    for flags, keywords in ARGUMENTS.items():
        yield _option(flags, keywords)
    yield click.Option(
        ["--exact/--no-exact"],
        default=None,
        help="Ask vLLM's own classes.  [default: where formulas lack]",
    )


def planned(*names: str) -> list[click.Parameter]:
    """Return the options of these names, in the order of `workshop plan`."""
    return [option for option in plan_options() if option.name in names]


def _option(flags: tuple[str, ...], keywords: Mapping[str, Any]) -> click.Option:
    """Return click's option for a row of the table, which is in the terms of argparse."""
    names = list(flags)
    if "dest" in keywords:
        names.append(keywords["dest"])
    help_text = keywords["help"]
    if keywords.get("action") is BooleanOptionalAction:
        name = flags[0].removeprefix("--")
        return click.Option([f"--{name}/--no-{name}"], default=None, help=help_text)
    if "action" in keywords:
        return click.Option(names, is_flag=True, help=help_text)
    if "choices" in keywords:
        return click.Option(names, type=click.Choice(keywords["choices"]), help=help_text)
    kind = keywords.get("type")
    return click.Option(
        names,
        type=Tokens() if kind is tokens else kind,
        default=keywords.get("default"),
        metavar=keywords.get("metavar"),
        show_default="default" in keywords,
        help=help_text,
    )
