import click

from workshop.cli.say import json_option, say, say_json
from workshop.servers.guard import keys


@click.group
def command() -> None:
    """Keys of a class, for all servers of yours: one a learner, instead of one for thirty.

    A learner sets WORKSHOP_URL to the server's address and WORKSHOP_API_KEY to the key.
    """


@command.command
@click.argument("name")
@json_option("The name and the key.")
def add(name: str, as_json: bool) -> None:
    """Make a key for NAME and show it, this once: only its digest is kept."""
    key = keys.add(name)
    if as_json:
        say_json({"name": name, "api_key": key})
    else:
        say(f"✓ {name} has a key. It is shown this once:", fg="green", err=True)
        click.echo(key)


@command.command(name="list")
@json_option("A list of names and what they used, without keys.")
def list_(as_json: bool) -> None:
    """Show who has a key, and the requests and tokens of each, over all servers."""
    found = keys.listed(warn=lambda problem: say(f"! {problem}", fg="yellow", err=True))
    if as_json:
        say_json(found)
        return
    if not found:
        say("Nobody has a key. Make one: workshop keys add NAME")
    for each in found:
        sign = "✗" if each["revoked"] else "✓"
        state = (
            f"revoked {each['revoked'][:16]}Z"
            if each["revoked"]
            else f"since {each['created'][:16]}Z"
        )
        tokens = f"{each['prompt_tokens']:,} tokens in, {each['completion_tokens']:,} out"
        say(f"{sign} {each['name']:<20} {each['requests']:>7,} requests, {tokens}, {state}")


@command.command
@click.argument("name")
@json_option("The name.")
def revoke(name: str, as_json: bool) -> None:
    """Take NAME's key back: servers that run refuse it, and end what it asked for, within a second."""
    keys.revoke(name)
    if as_json:
        say_json({"name": name, "revoked": True})
    else:
        say(f"✓ The key of {name} is refused within a second, without a restart.", fg="green")
