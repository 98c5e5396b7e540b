from dataclasses import asdict
from pathlib import Path

import click

from workshop.cli.say import json_option, say, say_json
from workshop.errors import BadInput
from workshop.servers.guard import keys
from workshop.servers.guard import roster as roster_keys


@click.group
def command() -> None:
    """Keys of a class, for all servers of yours: one a learner, instead of one for thirty.

    A learner sets WORKSHOP_URL to the server's address and WORKSHOP_API_KEY to the key.
    """


@command.command
@click.argument("name", required=False)
@click.option(
    "--roster",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A CSV with a column name (or a name a line): a key for everybody in it who has none.",
)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --roster: the CSV of keys, private to you. By default FILE.keys.csv beside the roster.",
)
@json_option("The name and the key; with --roster the names, without keys.")
def add(name: str | None, roster: Path | None, to: Path | None, as_json: bool) -> None:
    """Make a key for NAME and show it, this once: only its digest is kept.

    With --roster, the keys go into a file that only you may read. Run it again after new names were
    added: all other keys stay as they are.
    """
    if to is not None and roster is None:
        raise BadInput("--to is for the keys of a roster.", "Give --roster class.csv, too.")
    if roster is not None and name is None:
        _add_roster(roster, to or roster.with_name(f"{roster.stem}.keys.csv"), as_json)
        return
    if name is None or roster is not None:
        raise BadInput("One name, or a roster, gets keys.", "Give NAME, or --roster class.csv.")
    key = keys.add(name)
    if as_json:
        say_json({"name": name, "api_key": key})
    else:
        say(f"✓ {name} has a key. It is shown this once:", fg="green", err=True)
        click.echo(key)


def _add_roster(roster: Path, output: Path, as_json: bool) -> None:
    """Give everybody in a roster a key, and say how many are new."""
    result = roster_keys.add_keys(roster, output)
    if as_json:
        say_json({**asdict(result), "output": str(output)})
        return
    count = len(result.new)
    noun = "keys"
    if count == 1:
        noun = "key"
    say(f"✓ {count} new {noun}, {len(result.unchanged)} unchanged: {output}")
    if result.elsewhere:
        shown = ", ".join(result.elsewhere)
        say(f"! These have a key that is not in that file, and keep it: {shown}", fg="yellow")
    if result.revoked:
        say(
            f"! The keys of these were revoked, and stay so: {', '.join(result.revoked)}",
            fg="yellow",
        )
        say(f"→ A new key for one of them: workshop keys add {result.revoked[0]}")


@command.command(name="list")
@json_option("A list of names and what they used, without keys.")
def list_(as_json: bool) -> None:
    """Show who has a key, and the requests and tokens of each, over all servers."""
    learners = keys.listed(warn=lambda problem: say(f"! {problem}", fg="yellow", err=True))
    if as_json:
        say_json(learners)
        return
    if not learners:
        say("Nobody has a key. Make one: workshop keys add NAME")
    for learner in learners:
        sign = "✓"
        state = f"since {learner['created'][:16]}Z"
        if learner["revoked"]:
            sign = "✗"
            state = f"revoked {learner['revoked'][:16]}Z"
        tokens = f"{learner['prompt_tokens']:,} tokens in, {learner['completion_tokens']:,} out"
        say(f"{sign} {learner['name']:<20} {learner['requests']:>7,} requests, {tokens}, {state}")


@command.command
@click.argument("name")
@json_option("The name.")
def revoke(name: str, as_json: bool) -> None:
    """Take NAME's key back.

    Servers that run refuse it within a second, and end the requests that it sent.
    """
    keys.revoke(name)
    if as_json:
        say_json({"name": name, "revoked": True})
    else:
        say(f"✓ The key of {name} is refused within a second, without a restart.", fg="green")
