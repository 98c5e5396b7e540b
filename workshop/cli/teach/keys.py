import click

from workshop.cli.say import json_option, say, say_json


@click.group()
def command() -> None:
    """Keys of a class, for all servers of yours: one a learner, instead of one for thirty.

    A learner sets WORKSHOP_URL to the server's address and WORKSHOP_API_KEY to the key.
    """


@command.command
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option("{name: key}.")
def add(names: tuple[str, ...], as_json: bool) -> None:
    """Make a key for each NAME and show it, this once: only its digest is kept.

    Several names give a line NAME,KEY each. One that has a key already, or cannot be a learner's
    name, is refused, and then nobody gets a key.
    """
    from workshop.guard import keys

    new_keys = keys.add_all(list(names))
    if as_json:
        say_json(new_keys)
    elif len(new_keys) == 1:
        say(f"✓ {names[0]} has a key. It is shown this once:", fg="green", err=True)
        click.echo(new_keys[names[0]])
    else:
        say(f"✓ {len(new_keys)} new keys. They are shown this once:", fg="green", err=True)
        for name, key in new_keys.items():
            click.echo(f"{name},{key}")


@command.command(name="list")
@json_option("A list of names, when each key was made and when it was revoked; no keys.")
def list_(as_json: bool) -> None:
    """Show who has a key, and since when."""
    from workshop.guard import keys

    learners = keys.listed()
    if as_json:
        say_json(learners)
        return
    if not learners:
        say("Nobody has a key. Make one: workshop keys add NAME")
    for learner in learners:
        if learner["revoked"]:
            say(f"✗ {learner['name']:<20} revoked {learner['revoked'][:16]}Z")
        else:
            say(f"✓ {learner['name']:<20} since {learner['created'][:16]}Z")


@command.command
@click.argument("server")
def rotate(server: str) -> None:
    """Give SERVER, one of yours that runs, a new key of its own, without a restart.

    connect() and copies that you shared have the new one at once; the old one is refused within a
    second. Learners' keys stay as they are.
    """
    from workshop.servers.records import share

    share.rotate(server)
    say(f"✓ {server} has a new key; the old one is refused within a second.", fg="green")


@command.command
@click.argument("name")
@json_option("The name.")
def revoke(name: str, as_json: bool) -> None:
    """Take NAME's key back.

    Servers that run refuse it within a second, and end the requests that it sent.
    """
    from workshop.guard import keys

    keys.revoke(name)
    if as_json:
        say_json({"name": name, "revoked": True})
    else:
        say(f"✓ The key of {name} is refused within a second, without a restart.", fg="green")
