"""The options of `workshop plan`, which other commands share.

They come from the planner's table, as click's options.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction
from collections.abc import Iterator, Mapping
from typing import Any

import click
from inference_planner.arguments import ARGUMENTS, tokens


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


def plan_options() -> Iterator[click.Option]:
    """Yield the options of the planner's own command, and --exact."""
    for flags, keywords in ARGUMENTS.items():
        yield _option(flags, keywords)
    yield click.Option(
        ["--exact/--no-exact"],
        default=None,
        help="Ask vLLM's own classes.  [default: where formulas lack]",
    )


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
