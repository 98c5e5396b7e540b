"""The options of `workshop plan` and of sessions, and types of values, which other commands share.

The options come from the planner's table, as click's.
"""

from __future__ import annotations

import re
from argparse import BooleanOptionalAction
from collections.abc import Iterator, Mapping
from typing import Any

import click
from inference_planner.arguments import ARGUMENTS, tokens, with_json
from inference_planner.request import NAMES, NOT_SIMULATED

from workshop.errors import BadInput


class PlanningCommand(click.Command):
    """A command with the settings of a plan."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read vLLM's dotted spelling of --compilation-config as well."""
        return super().parse_args(ctx, with_json(args))


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


SESSIONS = [  # with --sessions, which is one number or several
    click.Option(["--turns"], type=Range(), help="Of sessions: requests of each [3:6]."),
    click.Option(
        ["--think"],
        type=float,
        help="Of sessions: mean seconds from an answer to the next request [3].",
    ),
    click.Option(
        ["--system"],
        type=Tokens(),
        help="Of sessions: tokens that every prompt begins with [1024].",
    ),
    click.Option(
        ["--tool"],
        type=Range(),
        help="Of sessions: new tokens of each later turn [64:512]; --prompt is the first.",
    ),
]


def plan_options() -> Iterator[click.Option]:
    """Yield the options of the planner's own command, and --exact."""
    for flags, keywords in ARGUMENTS.items():
        yield _option(flags, keywords)
    yield click.Option(
        ["--exact/--no-exact"],
        default=None,
        help="Ask vLLM's own classes.  [default: where formulas lack]",
    )


def simulated_options() -> list[click.Parameter]:
    """Return the settings of a plan that a simulation takes, in the order of `workshop plan`.

    The others are hidden, and say why they are refused.
    """
    options: list[click.Parameter] = []
    for option in plan_options():
        if option.name in NOT_SIMULATED:
            option.hidden, option.expose_value, option.callback = True, False, _refuse
            options.append(option)
        elif option.name in NAMES:
            options.append(option)
    return options


def _refuse(context: click.Context, option: click.Parameter, value: object) -> None:
    """Raise BadInput if an option was given that no simulation takes."""
    if value:
        reason = NOT_SIMULATED[str(option.name)]
        raise BadInput(
            f"{option.opts[0]} is not simulated: {reason}",
            "Leave it out; `workshop plan` counts its memory.",
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
    kind = keywords.get("type")
    return click.Option(
        names,
        type=Tokens() if kind is tokens else kind,
        default=keywords.get("default"),
        metavar=keywords.get("metavar"),
        show_default="default" in keywords,
        help=help_text,
    )
